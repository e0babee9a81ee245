//! One way of one connection: what has come in and not yet gone out.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::counters::DeliveredBytes;
use super::faults::DirectionFaults;

const CHUNK: usize = 16 * 1024;

/// What travels along a byte_queue. Ends travel in command behind the bytes before them.
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

/// What became of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// As much was handed over as there is room for.
    Done,
    /// A reset has to be handed over, which ends the whole connection.
    Reset,
    /// There was nobody to hand anything to.
    ReceiverGone,
}

/// A queue without limit: faults are about latency and loss, never about back pressure.
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

    /// Whether something may still come in.
    pub(super) fn wants_to_read(&self) -> bool {
        !self.sender_done
    }

    /// When the next queued may go out: never, if there is none or it is held back.
    pub(super) fn due(&self) -> Option<Instant> {
        // Computed anew each time, so that a change of the delay affects what is already queued.
        let next = self.queue.front().filter(|_| !self.faults.hold)?;
        Some(next.arrived + self.faults.delay)
    }

    pub(super) fn held_bytes(&self) -> usize {
        match self.faults.hold {
            true => self.queued_bytes,
            false => 0,
        }
    }

    /// Whether a blackhole has swallowed something.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
    }

    /// Whether nothing can come in or go out any more.
    pub(super) fn is_finished(&self) -> bool {
        self.sender_done && self.queue.is_empty()
    }

    /// Takes in what `sender` has sent, if anything.
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

    /// Notes that the sender turned out to be gone when something was to be delivered to it.
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

    /// Hands the next queued, or what there is room for, to `receiver`.
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
                // Fails only if the receiver is gone; then its own byte_queue says so.
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
