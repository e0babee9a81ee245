//! Gates in memory.

use std::time::Duration;

use super::{MemoryStore, reply};
use crate::Fence;
use crate::name::Name;
use crate::rules::gate as rules;
use crate::store::{Admission, GateState, GateStore, Pending};

impl GateStore for MemoryStore {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        let mut shard = self.gates.of(&name);
        let now = self.clock.now();
        let seen = shard.map.get(&name).copied();
        let (admission, seen) = rules::admit(seen, now, fence, now + remember);
        shard.sweep(|seen| seen.until <= now);
        shard.map.insert(name, seen);
        reply(Ok(admission))
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>> {
        let seen = self.gates.of(&name).map.get(&name).copied();
        reply(Ok(seen.and_then(|seen| seen.state(self.clock.now()))))
    }

    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>> {
        let removed = self.gates.of(&name).map.remove(&name);
        let state = removed.and_then(|removed| removed.state(self.clock.now()));
        reply(Ok(state.map(|state| state.highest)))
    }

    fn highest_issued(&self, _: Name) -> Pending<'_, Option<Fence>> {
        reply(Ok(None))
    }
}
