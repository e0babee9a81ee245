//! The faults, and the commands that switch them.

use std::sync::mpsc;
use std::time::Duration;

/// The way that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the clients to the server: commands.
    ToServer,
    /// From the server to the clients: replies.
    ToClient,
    /// Both ways.
    Both,
}

/// One value for each of the two ways.
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

/// What is wrong with one way of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DirectionFaults {
    pub(super) delay: Duration,
    pub(super) blackhole: bool,
    pub(super) hold: bool,
}

/// What a caller of the proxy wants to be different.
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
    /// Switches the faults that last; what happens only once is up to listener and connections.
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

/// A change that is under way to everybody concerned; each drops its copy when it has obeyed.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) change: Change,
    /// Held for the sake of its drop alone, by which the caller knows that the command is done.
    #[expect(dead_code, reason = "dropping it is the message")]
    pub(super) done: mpsc::Sender<()>,
}
