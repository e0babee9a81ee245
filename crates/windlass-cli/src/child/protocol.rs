//! The lines that windlass and the warden exchange.
//!
//! Text, one message a line, because both ends are the same binary: there is no version to negotiate, and `strace`
//! shows what is going on.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::ended::Ended;

/// From windlass to the warden. The end of the channel is an order too: kill everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Send this signal to the command, unless it is a Ctrl-C that reached the command as well.
    Forward(Signal),
    /// Send this signal to everything below the warden.
    Tree(Signal),
    /// Ask everything to end, and kill what is left after this time.
    End(Duration),
    /// Kill everything when the [shared clock](shared_clock) shows this, unless told otherwise before; `None` takes
    /// that back. No time span, since that would begin anew whenever the warden gets to read it.
    Deadline(Option<Duration>),
    /// Should a signal that was forwarded end the command, ask the rest to end too, and kill what is left of it
    /// after this time.
    Grace(Duration),
}

/// From the warden to windlass. `Refused` and `Ended` are its last words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The command runs.
    Started(Pid),
    /// The command could not be started: the operating system's error number.
    Refused(i32),
    /// This process must die but the warden may not kill it, and nothing else is left to kill.
    Stuck(Pid),
    /// The command ended; if the tree was to be killed, nothing of it is left.
    Ended(Ended),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Forward(signal) => write!(f, "forward {}", signal.as_raw()),
            Order::Tree(signal) => write!(f, "tree {}", signal.as_raw()),
            Order::End(within) => write!(f, "end {}", micros(*within)),
            Order::Deadline(Some(at)) => write!(f, "deadline {}", micros(*at)),
            Order::Deadline(None) => write!(f, "no-deadline 0"),
            Order::Grace(within) => write!(f, "grace {}", micros(*within)),
        }
    }
}

impl FromStr for Order {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Order> {
        let (word, number) = word_and_number(line)?;
        let signal = || named_signal(number).ok_or_else(|| garbled(line));
        let within = || Duration::from_micros(number.unsigned_abs());
        match word {
            "forward" => Ok(Order::Forward(signal()?)),
            "tree" => Ok(Order::Tree(signal()?)),
            "end" => Ok(Order::End(within())),
            "deadline" => Ok(Order::Deadline(Some(within()))),
            "no-deadline" => Ok(Order::Deadline(None)),
            "grace" => Ok(Order::Grace(within())),
            _ => Err(garbled(line)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Started(pid) => write!(f, "started {}", pid.as_raw_pid()),
            Report::Refused(errno) => write!(f, "refused {errno}"),
            Report::Stuck(pid) => write!(f, "stuck {}", pid.as_raw_pid()),
            Report::Ended(Ended::Code(code)) => write!(f, "code {code}"),
            Report::Ended(Ended::Signal(signal)) => write!(f, "killed-by {signal}"),
        }
    }
}

impl FromStr for Report {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Report> {
        let (word, number) = word_and_number(line)?;
        let number = i32::try_from(number).map_err(|_| garbled(line))?;
        let pid = || Pid::from_raw(number).ok_or_else(|| garbled(line));
        match word {
            "started" => Ok(Report::Started(pid()?)),
            "refused" => Ok(Report::Refused(number)),
            "stuck" => Ok(Report::Stuck(pid()?)),
            "code" => Ok(Report::Ended(Ended::Code(number))),
            "killed-by" => Ok(Report::Ended(Ended::Signal(number))),
            _ => Err(garbled(line)),
        }
    }
}

/// A clock that shows the same to windlass and its warden.
pub(super) fn shared_clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).expect("this clock counts up from zero")
}

/// What that clock will show at this instant.
pub(super) fn on_shared_clock(at: Instant) -> Duration {
    shared_clock().saturating_add(at.saturating_duration_since(Instant::now()))
}

/// One end of the line between windlass and the warden.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    /// Bytes that arrived but were not yet a whole line.
    partial: Vec<u8>,
}

impl Channel {
    /// Must be called inside a tokio runtime.
    pub(super) fn new(stream: StdStream) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        Ok(Channel {
            stream: UnixStream::from_std(stream)?,
            partial: Vec::new(),
        })
    }

    /// Sends one line without waiting: a few bytes always fit, unless the other end stopped reading long ago.
    pub(super) fn send(&self, message: &impl fmt::Display) -> io::Result<()> {
        let line = format!("{message}\n");
        // Not through tokio, which takes a stream for unwritable until it has polled it once.
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
                // How a socket says that the other end died with lines of ours still unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

fn word_and_number(line: &str) -> io::Result<(&str, i64)> {
    let (word, number) = line.split_once(' ').ok_or_else(|| garbled(line))?;
    Ok((word, number.parse().map_err(|_| garbled(line))?))
}

fn named_signal(number: i64) -> Option<Signal> {
    Signal::from_named_raw(i32::try_from(number).ok()?)
}

/// Capped, so that "practically never" survives the trip through a signed number.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn garbled(line: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("unexpected line between windlass and its warden: {line:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_trip() {
        let pid = Pid::from_raw(4711).unwrap();
        for order in [
            Order::Forward(Signal::INT),
            Order::Tree(Signal::KILL),
            Order::End(Duration::from_micros(1_500_001)),
            Order::Deadline(Some(Duration::ZERO)),
            Order::Deadline(None),
            Order::Grace(Duration::from_secs(5)),
        ] {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        for report in [
            Report::Started(pid),
            Report::Refused(2),
            Report::Stuck(pid),
            Report::Ended(Ended::Code(3)),
            Report::Ended(Ended::Signal(15)),
        ] {
            assert_eq!(report.to_string().parse::<Report>().unwrap(), report);
        }
    }

    #[test]
    fn garbage_is_refused() {
        for line in [
            "",
            "forward",
            "forward x",
            "forward 0",
            "forward 999",
            "dance 3",
        ] {
            assert!(line.parse::<Order>().is_err(), "{line:?}");
        }
        for line in ["started 0", "started -", "code 99999999999"] {
            assert!(line.parse::<Report>().is_err(), "{line:?}");
        }
    }

    #[tokio::test]
    async fn lines_may_arrive_in_pieces_and_the_end_is_told() {
        use std::io::Write;
        let (ours, mut theirs) = StdStream::pair().unwrap();
        let mut channel = Channel::new(ours).unwrap();
        theirs.write_all(b"started 7\ncode").unwrap();
        let started: Option<Report> = channel.receive().await.unwrap();
        assert_eq!(started, Some(Report::Started(Pid::from_raw(7).unwrap())));
        theirs.write_all(b" 3\n").unwrap();
        drop(theirs);
        let ended: Option<Report> = channel.receive().await.unwrap();
        assert_eq!(ended, Some(Report::Ended(Ended::Code(3))));
        assert_eq!(channel.receive::<Report>().await.unwrap(), None);
    }
}
