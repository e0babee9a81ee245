//! One direction of one connection: bytes that were received and not yet delivered.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::counters::DeliveredBytes;
use super::faults::DirectionFaults;

const CHUNK: usize = 16 * 1024;

/// A queued item. The end of the stream stays in order behind the bytes before it.
#[derive(Debug)]
enum Payload {
    Bytes(Vec<u8>),
    /// The sender has closed its half.
    End,
    /// The sender has reset the connection, or is gone.
    Reset,
}

#[derive(Debug)]
struct QueuedPayload {
    arrived: Instant,
    payload: Payload,
}

/// The outcome of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// As many bytes were written as the socket takes.
    Done,
    /// A reset must be delivered, which ends the whole connection.
    Reset,
    /// The receiver is gone.
    ReceiverGone,
}

/// An unbounded queue: faults are about latency and loss, never about back pressure.
#[derive(Debug)]
pub(super) struct ByteQueue {
    pub(super) faults: DirectionFaults,
    queue: VecDeque<QueuedPayload>,
    queued_bytes: usize,
    sender_done: bool,
    receiver_gone: bool,
    lost: bool,
}

impl ByteQueue {
    pub(super) fn new(faults: DirectionFaults) -> Self {
        Self {
            faults,
            queue: VecDeque::new(),
            queued_bytes: 0,
            sender_done: false,
            receiver_gone: false,
            lost: false,
        }
    }

    /// Whether the sender may still send.
    pub(super) fn wants_to_read(&self) -> bool {
        !self.sender_done
    }

    /// When the first item may be delivered: never, if there is none or it is held.
    pub(super) fn due(&self) -> Option<Instant> {
        // Computed each time, so that a changed delay also applies to queued items.
        let next = self.queue.front().filter(|_| !self.faults.hold)?;
        Some(next.arrived + self.faults.delay)
    }

    pub(super) fn held_bytes(&self) -> usize {
        match self.faults.hold {
            true => self.queued_bytes,
            false => 0,
        }
    }

    /// Whether a blackhole has swallowed bytes.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
    }

    /// Whether nothing can be received or delivered any more.
    pub(super) fn is_finished(&self) -> bool {
        self.sender_done && self.queue.is_empty()
    }

    /// Reads what `sender` has sent, if anything.
    pub(super) fn read(&mut self, sender: &TcpStream) {
        let mut bytes = vec![0; CHUNK];
        let payload = match sender.try_read(&mut bytes) {
            Ok(0) => Payload::End,
            Ok(read) => {
                bytes.truncate(read);
                Payload::Bytes(bytes)
            }
            Err(error) if is_temporary(&error) => return,
            Err(_) => Payload::Reset,
        };
        self.sender_done = !matches!(payload, Payload::Bytes(_));
        self.enqueue(payload);
    }

    /// Records that a write to the sender failed because it is gone.
    pub(super) fn sender_gone(&mut self) {
        self.sender_done = true;
        self.enqueue(Payload::Reset);
    }

    fn enqueue(&mut self, payload: Payload) {
        if self.faults.blackhole {
            self.lost = true;
        } else if !self.receiver_gone {
            if let Payload::Bytes(bytes) = &payload {
                self.queued_bytes += bytes.len();
            }
            self.queue.push_back(QueuedPayload {
                arrived: Instant::now(),
                payload,
            });
        }
    }

    /// Writes the first item, or as much of it as the socket takes, to `receiver`.
    pub(super) async fn write(
        &mut self,
        receiver: &mut TcpStream,
        delivered: &DeliveredBytes,
    ) -> WriteOutcome {
        match self.queue.front_mut().map(|queued| &mut queued.payload) {
            None => WriteOutcome::Done,
            Some(Payload::Bytes(bytes)) => {
                match delivered.count(bytes.len(), || receiver.try_write(bytes)) {
                    Ok(written) => {
                        bytes.drain(..written);
                        self.queued_bytes -= written;
                        if bytes.is_empty() {
                            self.queue.pop_front();
                        }
                        WriteOutcome::Done
                    }
                    Err(error) if is_temporary(&error) => WriteOutcome::Done,
                    Err(_) => self.lose_receiver(),
                }
            }
            Some(Payload::End) => {
                self.queue.pop_front();
                // Fails only if the receiver is gone; then its own direction reports it.
                let _ = receiver.shutdown().await;
                WriteOutcome::Done
            }
            Some(Payload::Reset) => WriteOutcome::Reset,
        }
    }

    fn lose_receiver(&mut self) -> WriteOutcome {
        self.receiver_gone = true;
        self.queue.clear();
        self.queued_bytes = 0;
        WriteOutcome::ReceiverGone
    }
}

pub(super) fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
