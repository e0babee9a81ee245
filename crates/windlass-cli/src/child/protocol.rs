//! The channels between windlass, the watchdog and the warden: their messages, and how a process gets its channel.
//!
//! **Messages.** The watchdog passes orders down and reports up, except for the deadline, which it enforces itself. One
//! line of text per message. Both ends are the same binary, so there is no version to negotiate, and `strace` shows
//! readable messages.
//!
//! **Start.** Without unsafe code, a new process can use no inherited file descriptor except the three standard ones. So
//! each of them is started with its channel as its stdin, and the real stdin is sent through the channel (`SCM_RIGHTS`)
//! as the first message. The command gets that open file itself, not a copy of its contents: a terminal stays a
//! terminal, a file keeps its position.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use windlass::Moment;

use super::child_exit::ChildExit;

/// The bytes that carry the descriptor: at least one is needed, and a fixed text tells a real start from a user who
/// typed the hidden command.
const GREETING: &[u8] = b"stdin\n";

/// From windlass to the watchdog, and from it to the warden. Closing a channel is an order too: kill everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WardenOrder {
    /// Send this signal to the command, unless it went to the whole process group.
    Forward(Signal),
    /// Send this signal to all descendants of the warden.
    Tree(Signal),
    /// Send TERM to all descendants, and KILL to those left after this time.
    End(Duration),
    /// Kill everything at this moment of the system clock, unless another deadline replaces it; `None` cancels it. A
    /// moment, not a duration, which would start only when the watchdog reads it.
    Deadline(Option<Moment>),
    /// If a forwarded signal ends the command, send TERM to the remaining descendants, and KILL after this time.
    Grace(Duration),
}

/// From the warden to the watchdog, and from it to windlass. `Refused`, `Late` and `Ended` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WardenReport {
    /// The command runs.
    Started(Pid),
    /// The command could not be started, with the error number of the system.
    Refused(i32),
    /// The deadline had passed before the command could start, and it was not started.
    Late,
    /// Only this process is left, and the warden may not kill it.
    Stuck(Pid),
    /// The command ended; if all descendants were to be killed, none is left.
    Ended(ChildExit),
}

impl fmt::Display for WardenOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WardenOrder::Forward(signal) => write!(f, "forward {}", signal.as_raw()),
            WardenOrder::Tree(signal) => write!(f, "tree {}", signal.as_raw()),
            WardenOrder::End(within) => write!(f, "end {}", micros(*within)),
            WardenOrder::Deadline(Some(at)) => {
                write!(f, "deadline {}", micros(at.since(Moment::from_nanos(0))))
            }
            WardenOrder::Deadline(None) => write!(f, "no-deadline 0"),
            WardenOrder::Grace(within) => write!(f, "grace {}", micros(*within)),
        }
    }
}

impl FromStr for WardenOrder {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<WardenOrder> {
        let (word, number) = word_and_number(line)?;
        let signal = || named_signal(number).ok_or_else(|| invalid_message(line));
        let within = || Duration::from_micros(number.unsigned_abs());
        match word {
            "forward" => Ok(WardenOrder::Forward(signal()?)),
            "tree" => Ok(WardenOrder::Tree(signal()?)),
            "end" => Ok(WardenOrder::End(within())),
            "deadline" => Ok(WardenOrder::Deadline(Some(
                Moment::from_nanos(0) + within(),
            ))),
            "no-deadline" => Ok(WardenOrder::Deadline(None)),
            "grace" => Ok(WardenOrder::Grace(within())),
            _ => Err(invalid_message(line)),
        }
    }
}

impl fmt::Display for WardenReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WardenReport::Started(pid) => write!(f, "started {}", pid.as_raw_pid()),
            WardenReport::Refused(errno) => write!(f, "refused {errno}"),
            WardenReport::Late => write!(f, "late 0"),
            WardenReport::Stuck(pid) => write!(f, "stuck {}", pid.as_raw_pid()),
            WardenReport::Ended(ChildExit::Code(code)) => write!(f, "code {code}"),
            WardenReport::Ended(ChildExit::Signal(signal)) => write!(f, "killed-by {signal}"),
        }
    }
}

impl FromStr for WardenReport {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<WardenReport> {
        let (word, number) = word_and_number(line)?;
        let number = i32::try_from(number).map_err(|_| invalid_message(line))?;
        let pid = || Pid::from_raw(number).ok_or_else(|| invalid_message(line));
        match word {
            "started" => Ok(WardenReport::Started(pid()?)),
            "refused" => Ok(WardenReport::Refused(number)),
            "late" => Ok(WardenReport::Late),
            "stuck" => Ok(WardenReport::Stuck(pid()?)),
            "code" => Ok(WardenReport::Ended(ChildExit::Code(number))),
            "killed-by" => Ok(WardenReport::Ended(ChildExit::Signal(number))),
            _ => Err(invalid_message(line)),
        }
    }
}

/// One end of a channel.
#[derive(Debug)]
pub(super) struct WardenChannel {
    stream: UnixStream,
    /// Received bytes that do not form a whole line yet.
    partial: Vec<u8>,
}

impl WardenChannel {
    /// Must be called inside a tokio runtime.
    pub(super) fn new(stream: StdStream) -> io::Result<WardenChannel> {
        stream.set_nonblocking(true)?;
        Ok(WardenChannel {
            stream: UnixStream::from_std(stream)?,
            partial: Vec::new(),
        })
    }

    /// Sends one line without waiting: a few bytes always fit, unless the other end has stopped reading.
    pub(super) fn send(&self, message: &impl fmt::Display) -> io::Result<()> {
        let line = format!("{message}\n");
        // Not through tokio, which treats a stream as unwritable until it has polled it once.
        match rustix::io::write(&self.stream, line.as_bytes())? {
            sent if sent == line.len() => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
        }
    }

    /// The next message; `None` once the other end is gone.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses nothing: what was read stays in the buffer.
    pub(super) async fn receive<M>(&mut self) -> io::Result<Option<M>>
    where
        M: FromStr<Err = io::Error>,
    {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                return String::from_utf8_lossy(&line).trim_end().parse().map(Some);
            }
            match self.stream.read_buf(&mut self.partial).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // The other end died with unread lines.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The executable of this process, which the watchdog and the warden run too.
pub(super) fn own_executable() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // An upgrade may have replaced the file. Linux keeps the old one under this name, though `ps` then shows it.
    let kept = PathBuf::from("/proc/self/exe");
    Ok(if !path.exists() && kept.exists() {
        kept
    } else {
        path
    })
}

/// Sends `stdin` to the process at the other end of a channel.
pub(super) fn send_stdin(channel: &StdStream, stdin: impl AsFd) -> io::Result<()> {
    let fds = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(
        control.push(SendAncillaryMessage::ScmRights(&fds)),
        "the space is sized for one descriptor"
    );
    sendmsg(
        channel,
        &[IoSlice::new(GREETING)],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// In the watchdog and the warden: the channel, and the stdin that belongs to the command.
///
/// Neither is inherited by the command by accident, so that it gets exactly the descriptors that windlass had.
pub(super) fn accept_stdin() -> io::Result<(StdStream, OwnedFd)> {
    let channel = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut greeting = [0; GREETING.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        &channel,
        &mut [IoSliceMut::new(&mut greeting)],
        &mut control,
        RecvFlags::empty(),
    )?;
    let stdin = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match stdin {
        Some(stdin) if received.bytes == GREETING.len() && greeting == GREETING => {
            // Not every system can set this flag while receiving; no other thread exists yet that could fork in between.
            fcntl_setfd(&stdin, FdFlags::CLOEXEC)?;
            Ok((channel, stdin))
        }
        _ if received.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "stdin is not a channel to windlass; only `windlass run` starts this command",
        )),
    }
}

fn word_and_number(line: &str) -> io::Result<(&str, i64)> {
    let (word, number) = line.split_once(' ').ok_or_else(|| invalid_message(line))?;
    Ok((word, number.parse().map_err(|_| invalid_message(line))?))
}

fn named_signal(number: i64) -> Option<Signal> {
    Signal::from_named_raw(i32::try_from(number).ok()?)
}

/// Capped, so that a practically infinite time fits a signed number.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn invalid_message(line: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("invalid message between windlass and its warden: {line:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_parses_what_it_displays() {
        let pid = Pid::from_raw(4711).unwrap();
        for order in [
            WardenOrder::Forward(Signal::INT),
            WardenOrder::Tree(Signal::KILL),
            WardenOrder::End(Duration::from_micros(1_500_001)),
            WardenOrder::Deadline(Some(Moment::from_nanos(1_000))),
            WardenOrder::Deadline(None),
            WardenOrder::Grace(Duration::from_secs(5)),
        ] {
            assert_eq!(order.to_string().parse::<WardenOrder>().unwrap(), order);
        }
        for report in [
            WardenReport::Started(pid),
            WardenReport::Refused(2),
            WardenReport::Late,
            WardenReport::Stuck(pid),
            WardenReport::Ended(ChildExit::Code(3)),
            WardenReport::Ended(ChildExit::Signal(15)),
        ] {
            assert_eq!(report.to_string().parse::<WardenReport>().unwrap(), report);
        }
    }

    #[test]
    fn invalid_messages_are_rejected() {
        for line in [
            "",
            "forward",
            "forward x",
            "forward 0",
            "forward 999",
            "dance 3",
        ] {
            assert!(line.parse::<WardenOrder>().is_err(), "{line:?}");
        }
        for line in ["started 0", "started -", "code 99999999999"] {
            assert!(line.parse::<WardenReport>().is_err(), "{line:?}");
        }
    }

    #[tokio::test]
    async fn partial_lines_are_joined_and_the_end_is_reported() {
        use std::io::Write;
        let (ours, mut theirs) = StdStream::pair().unwrap();
        let mut channel = WardenChannel::new(ours).unwrap();
        theirs.write_all(b"started 7\ncode").unwrap();
        let started: Option<WardenReport> = channel.receive().await.unwrap();
        assert_eq!(
            started,
            Some(WardenReport::Started(Pid::from_raw(7).unwrap()))
        );
        theirs.write_all(b" 3\n").unwrap();
        drop(theirs);
        let ended: Option<WardenReport> = channel.receive().await.unwrap();
        assert_eq!(ended, Some(WardenReport::Ended(ChildExit::Code(3))));
        assert_eq!(channel.receive::<WardenReport>().await.unwrap(), None);
    }
}
