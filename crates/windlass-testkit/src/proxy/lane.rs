//! One way of one connection: what has come in and not yet gone out.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::faults::LaneFaults;
use super::tally::Delivered;

const CHUNK: usize = 16 * 1024;

/// What travels along a lane. Ends travel in order behind the bytes before them.
#[derive(Debug)]
enum Freight {
    Bytes(Vec<u8>),
    /// The sender has closed its half.
    End,
    /// The sender has reset the connection, or is gone.
    Reset,
}

#[derive(Debug)]
struct Parcel {
    arrived: Instant,
    freight: Freight,
}

/// What became of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// As much was handed over as there is room for.
    Done,
    /// A reset has to be handed over, which ends the whole connection.
    Reset,
    /// There was nobody to hand anything to.
    ReceiverGone,
}

/// A queue without limit: faults are about latency and loss, never about back pressure.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) faults: LaneFaults,
    queue: VecDeque<Parcel>,
    queued_bytes: usize,
    sender_done: bool,
    receiver_gone: bool,
    lost: bool,
}

impl Lane {
    pub(super) fn new(faults: LaneFaults) -> Self {
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

    /// When the next parcel may go out: never, if there is none or it is held back.
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
        let freight = match sender.try_read(&mut bytes) {
            Ok(0) => Freight::End,
            Ok(read) => {
                bytes.truncate(read);
                Freight::Bytes(bytes)
            }
            Err(error) if is_temporary(&error) => return,
            Err(_) => Freight::Reset,
        };
        self.sender_done = !matches!(freight, Freight::Bytes(_));
        self.take_in(freight);
    }

    /// Notes that the sender turned out to be gone when something was to be delivered to it.
    pub(super) fn sender_gone(&mut self) {
        self.sender_done = true;
        self.take_in(Freight::Reset);
    }

    fn take_in(&mut self, freight: Freight) {
        if self.faults.blackhole {
            self.lost = true;
        } else if !self.receiver_gone {
            if let Freight::Bytes(bytes) = &freight {
                self.queued_bytes += bytes.len();
            }
            self.queue.push_back(Parcel {
                arrived: Instant::now(),
                freight,
            });
        }
    }

    /// Hands the next parcel, or what there is room for, to `receiver`.
    pub(super) async fn write(
        &mut self,
        receiver: &mut TcpStream,
        delivered: &Delivered,
    ) -> Delivery {
        match self.queue.front_mut().map(|parcel| &mut parcel.freight) {
            None => Delivery::Done,
            Some(Freight::Bytes(bytes)) => {
                match delivered.count(bytes.len(), || receiver.try_write(bytes)) {
                    Ok(written) => {
                        bytes.drain(..written);
                        self.queued_bytes -= written;
                        if bytes.is_empty() {
                            self.queue.pop_front();
                        }
                        Delivery::Done
                    }
                    Err(error) if is_temporary(&error) => Delivery::Done,
                    Err(_) => self.lose_receiver(),
                }
            }
            Some(Freight::End) => {
                self.queue.pop_front();
                // Fails only if the receiver is gone; then its own lane says so.
                let _ = receiver.shutdown().await;
                Delivery::Done
            }
            Some(Freight::Reset) => Delivery::Reset,
        }
    }

    fn lose_receiver(&mut self) -> Delivery {
        self.receiver_gone = true;
        self.queue.clear();
        self.queued_bytes = 0;
        Delivery::ReceiverGone
    }
}

pub(super) fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
