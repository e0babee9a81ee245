//! Fences across failovers: why a fencing token of a new master is always higher than those of the
//! old one.
//!
//! **The problem.** Replication and persistence are asynchronous. A replica that is promoted, or a
//! master that restarts, may lack the last grants, and with them the last values of the fence
//! counter. Counting on from there would hand out fences a second time.
//!
//! **The rule.** A fence never exceeds the server's clock in microseconds. A counter starts from the
//! clock and grows by one for each grant, and no server grants a million times a second. So the
//! clock is above every fence that was granted before, whatever was lost: the newest grants, earlier
//! raises, or the counter itself, on this server or on the master before it.
//!
//! A server gets a new replication id (`master_replid`) whenever it starts to be a master. Before the
//! first fence is taken over a connection, the client runs `scripts/master_epoch.lua`, which compares
//! that id with the one stored beside the counter. If they differ, it stores the new id and sets the
//! counter to the clock. Nothing is ever added on top of the clock: two masters that start from copies
//! of different age would add different sums.
//!
//! **What it relies on.** The clocks of two servers that become master one after the other differ by
//! less than the time between these moments, which is at least the time that a failover takes. A
//! counter that is up to [`MAX_WAIT`] ahead of the new master's clock shows that they differ: the
//! client waits until the clock has caught up.
//!
//! **A counter further ahead of the clock** (the clock was set back, or another program wrote the
//! counter) keeps counting. Then the clock says nothing about lost grants, and the raise is a number of
//! grants: more than can have been lost ([`MARGIN`]), and for Sentinel and Redis Cluster, which number
//! their failovers (`config-epoch`, [`MasterEpoch::number`]), as much for every number since the one
//! stored beside the counter. A counter that vanishes in this state starts lower.
//!
//! **What the client remembers.** [`CheckedSlots`] records, for each connection, the slots whose
//! counter has been checked, so that the script runs once per connection and slot. A reconnect
//! starts with none. In a cluster a slot can leave a node and return: the record is cleared
//! whenever that may have happened (`cluster/slot_map.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::connection::{Connection, LiveConnection, decode};
use super::connector::epoch_number;
use super::errors::{CommandError, Rejection};
use super::script;
use super::slots::SLOTS;
use windlass_core::error::ErrorKind;

/// How far a counter may be ahead of the clock so that the client waits for the clock.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// More grants than a replica can have missed while it was connected: 256 MB of them (the usual
/// limit of the buffer that a master keeps for a slow replica), at less than a hundred bytes each,
/// are under 4 million.
const MARGIN: u64 = 1 << 22;

/// The raise for each failover number: room for lost grants, and for up to three restarts that were
/// lost with them.
const STEP: u64 = 4 * MARGIN;

/// The period during which one server is the master: from its promotion or start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MasterEpoch {
    /// Unique for each period.
    pub(super) replication_id: Arc<str>,
    /// The number of the failover that made it the master, if failovers are numbered: a later
    /// master has a higher one.
    pub(super) number: Option<u64>,
    /// Whether the server is a node of a cluster. Its number changes with the slots it is given,
    /// while the replication id stays: the script reads the current number from the node, and
    /// `number` is a lower bound.
    pub(super) is_cluster_node: bool,
}

impl MasterEpoch {
    /// The command that raises a fence counter for this epoch, unless that has been done. `mark` is
    /// the key that stores the epoch of the last raise. The reply is 0, or the microseconds after
    /// which to try again.
    pub(super) fn raise(&self, fences: &str, mark: &str) -> Cmd {
        let mut raise = redis::cmd("EVAL");
        raise.arg(script::MASTER_EPOCH.source()).arg(2);
        raise.arg(fences).arg(mark).arg(&*self.replication_id);
        match self.number {
            Some(number) => raise.arg(number),
            None => raise.arg(""),
        };
        raise.arg(u8::from(self.is_cluster_node));
        raise.arg(MAX_WAIT.as_micros() as u64).arg(MARGIN).arg(STEP);
        raise
    }

    /// The epoch to raise for on a node that is importing a slot. The node's own number does not
    /// count for that slot yet, and its data is the copy of a node whose number is `source`.
    pub(super) fn importing_from(&self, source: Option<u64>) -> MasterEpoch {
        MasterEpoch {
            number: self.number.max(source),
            ..self.clone()
        }
    }
}

/// Whether a command takes values from the fence counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FenceUse {
    None,
    /// Seldom. The command is sent even if the server refuses to raise the counter: a server that
    /// takes no writes refuses the increment as well, and one that is out of memory still raises
    /// it.
    Possible,
    Certain,
}

/// The slots whose fence counter was checked over one connection.
#[derive(Debug)]
pub(super) struct CheckedSlots {
    slots: Box<[AtomicU64]>,
    /// Grows with each `clear`: a check that was under way at that time does not count.
    generation: AtomicU64,
}

impl CheckedSlots {
    pub(super) fn new() -> CheckedSlots {
        let words = usize::from(SLOTS) / 64;
        CheckedSlots {
            slots: (0..words).map(|_| AtomicU64::new(0)).collect(),
            generation: AtomicU64::new(0),
        }
    }

    pub(super) fn contains(&self, slot: u16) -> bool {
        let (word, bit) = position(slot);
        self.slots[word].load(Ordering::Acquire) & bit != 0
    }

    /// To be read before a check starts.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Records a check, unless something was cleared since it started at generation `since`.
    pub(super) fn insert(&self, slot: u16, since: u64) {
        let (word, bit) = position(slot);
        self.slots[word].fetch_or(bit, Ordering::SeqCst);
        // Compared after the bit is set: a later `clear` finds the bit, and an earlier one is seen
        // here.
        if self.generation() != since {
            self.slots[word].fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// The slot has left this server, or has come to it.
    pub(super) fn clear(&self, slot: u16) {
        let (word, bit) = position(slot);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.slots[word].fetch_and(!bit, Ordering::SeqCst);
    }

    /// Any slot may have left this server and returned.
    pub(super) fn clear_all(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let words = self.slots.iter();
        words.for_each(|word| word.store(0, Ordering::SeqCst));
    }
}

fn position(slot: u16) -> (usize, u64) {
    (usize::from(slot / 64), 1 << (slot % 64))
}

/// Commands that take fences are sent only over a connection for which the fence counter was raised.
impl Connection {
    /// Connects if need be, and makes sure that fences taken from the only counter of this server
    /// are higher than any of an earlier master.
    pub(super) async fn prepare(
        self: &Arc<Connection>,
        fence_use: FenceUse,
    ) -> Result<(), CommandError> {
        let live = self.live().await?;
        if fence_use > FenceUse::None {
            let (fences, mark) = (self.keys().fence(), self.keys().master_epoch());
            // A server that refuses this refuses the decisions as well, and their callers get that
            // error.
            let _ = self.raise_over(&live, 0, fences, mark).await;
        }
        Ok(())
    }

    /// Raises the counter of `slot`, unless that was done over this connection.
    pub(super) async fn raise_over(
        self: &Arc<Connection>,
        live: &LiveConnection,
        slot: u16,
        fences: &str,
        mark: &str,
    ) -> Result<(), CommandError> {
        if live.checked_slots.contains(slot) {
            return Ok(());
        }
        if live.was_replica {
            self.drop_if_current(live.number);
            return Err(CommandError::Rejected(Rejection {
                kind: ErrorKind::Unreachable,
                message: "the server is a read-only replica".to_owned(),
                hint: "connect to the master",
            }));
        }
        let generation = live.checked_slots.generation();
        let raise = known(&live.epoch)?.raise(fences, mark);
        let begun = Instant::now();
        loop {
            let reply = self.send_over(live.clone(), &raise).await;
            match self.wait_for_clock(reply, begun)? {
                Some(wait) => tokio::time::sleep(wait).await,
                None => break,
            }
        }
        live.checked_slots.insert(slot, generation);
        Ok(())
    }

    /// The time after which to send a raise again that began at `begun` and got this reply: until
    /// then the server's clock is behind the counter. `None` if fences are high enough.
    fn wait_for_clock(
        &self,
        reply: Result<Value, CommandError>,
        begun: Instant,
    ) -> Result<Option<Duration>, CommandError> {
        let wait = Duration::from_micros(decode(reply.map_err(CommandError::of_raise)?)?);
        if begun.elapsed() + wait > self.call_timeout {
            return Err(CommandError::Rejected(Rejection {
                kind: ErrorKind::Unreachable,
                message: format!(
                    "the server's clock is {wait:?} behind the fences of the master before it"
                ),
                hint: "try again in a moment; windlass doctor compares the clocks",
            }));
        }
        Ok(Some(wait).filter(|wait| !wait.is_zero()))
    }

    /// Sends a command that takes fences from the counter of a slot that this node is importing,
    /// after raising the counter for the node that the slot comes from, whose failover number is
    /// `source`.
    pub(super) async fn send_asking_fenced(
        self: &Arc<Connection>,
        source: Option<u64>,
        [fences, mark]: [String; 2],
        command: &Cmd,
        fence_use: FenceUse,
    ) -> Result<Value, CommandError> {
        let epoch = known(&self.live().await?.epoch)?.importing_from(source);
        let raise = epoch.raise(&fences, &mark);
        let begun = Instant::now();
        loop {
            let reply = self.send_asking(&raise).await;
            match self.wait_for_clock(reply, begun) {
                Ok(Some(wait)) => tokio::time::sleep(wait).await,
                Ok(None) => break,
                Err(e) if fence_use == FenceUse::Possible && e.is_write_refused() => break,
                Err(e) => return Err(e),
            }
        }
        self.send_asking(command).await
    }

    /// The failover number of this cluster node now.
    pub(super) async fn epoch_number(self: &Arc<Connection>) -> Option<u64> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("INFO");
        let info: String = self.query(&command).await.ok()?;
        epoch_number(&info)
    }

    /// The slot has left this server, or has come to it.
    pub(super) fn slot_moved(&self, slot: u16) {
        if let Some(live) = self.current() {
            live.checked_slots.clear(slot);
        }
    }

    /// Slots may have left this server and returned, unnoticed.
    pub(super) fn slots_may_have_moved(&self) {
        if let Some(live) = self.current() {
            live.checked_slots.clear_all();
        }
    }
}

/// Without the epoch, a restart or a failover that lost grants goes unnoticed.
fn known(epoch: &Option<MasterEpoch>) -> Result<&MasterEpoch, CommandError> {
    epoch.as_ref().ok_or_else(|| {
        CommandError::Rejected(Rejection {
            kind: ErrorKind::AccessDenied,
            message: "the server does not show its replication id, without which fences may \
                      repeat after a restart: the user has no permission for +info"
                .to_owned(),
            hint: "allow the user INFO (+info); docs/keys.md lists all permissions",
        })
    })
}

#[cfg(test)]
mod tests;
