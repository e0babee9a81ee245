//! Passes the channel to the watchdog and the warden, and stdin through the channel to the command.
//!
//! Without unsafe code, a new process can use no inherited file descriptor except the three standard ones. So each of
//! them is started with its channel as its stdin, and the real stdin is sent through the channel (`SCM_RIGHTS`) as the
//! first message. The command gets that open file itself, not a copy of its contents: a terminal stays a terminal,
//! a file keeps its position.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The bytes that carry the descriptor: at least one is needed, and a fixed text tells a real start from a user who
/// typed the hidden command.
const GREETING: &[u8] = b"stdin\n";

/// Sends `stdin` to the process at the other end of a channel.
pub(super) fn send_stdin(channel: &UnixStream, stdin: impl AsFd) -> io::Result<()> {
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
pub(super) fn accept() -> io::Result<(UnixStream, OwnedFd)> {
    let channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
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
