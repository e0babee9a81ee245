//! The faults, and the commands that switch them.

use std::sync::mpsc;
use std::time::Duration;

/// The direction that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the clients to the server: commands.
    ToServer,
    /// From the server to the clients: replies.
    ToClient,
    /// Both directions.
    Both,
}

/// One value for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PerDirection<T> {
    pub(super) to_server: T,
    pub(super) to_client: T,
}

impl<T> PerDirection<T> {
    pub(super) fn for_each_mut(&mut self, direction: Direction, mut change: impl FnMut(&mut T)) {
        if matches!(direction, Direction::ToServer | Direction::Both) {
            change(&mut self.to_server);
        }
        if matches!(direction, Direction::ToClient | Direction::Both) {
            change(&mut self.to_client);
        }
    }
}

impl PerDirection<usize> {
    pub(super) fn total(self, direction: Direction) -> usize {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
            Direction::Both => self.to_server + self.to_client,
        }
    }
}

/// The faults of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DirectionFaults {
    pub(super) delay: Duration,
    pub(super) blackhole: bool,
    pub(super) hold: bool,
}

/// A change that a caller of the proxy requests.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Delay(Direction, Duration),
    Blackhole(Direction),
    Hold(Direction),
    ReleaseHeld,
    Refuse(bool),
    ResetAll,
    HalfOpen,
    Heal,
}

impl Change {
    /// Applies the faults that last; the listener and the connections handle one-time faults.
    pub(super) fn switch(self, faults: &mut PerDirection<DirectionFaults>) {
        match self {
            Change::Delay(direction, delay) => {
                faults.for_each_mut(direction, |byte_queue| byte_queue.delay = delay);
            }
            Change::Blackhole(direction) => {
                faults.for_each_mut(direction, |byte_queue| byte_queue.blackhole = true);
            }
            Change::Hold(direction) => {
                faults.for_each_mut(direction, |byte_queue| byte_queue.hold = true)
            }
            Change::ReleaseHeld => {
                faults.for_each_mut(Direction::Both, |byte_queue| byte_queue.hold = false)
            }
            Change::Heal => *faults = PerDirection::default(),
            Change::Refuse(_) | Change::ResetAll | Change::HalfOpen => {}
        }
    }
}

/// A change on its way to the listener and all connections; each drops its copy when applied.
#[derive(Debug, Clone)]
pub(super) struct ProxiedCommand {
    pub(super) change: Change,
    /// Dropping the last copy signals the caller that the change is applied.
    #[expect(dead_code, reason = "dropping it is the message")]
    pub(super) done: mpsc::Sender<()>,
}
