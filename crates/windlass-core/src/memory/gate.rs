//! Gates in memory.

use std::time::Duration;

use super::{MemoryStore, reply};
use crate::Fence;
use crate::name::Name;
use crate::rules::gate as rules;
use crate::store::{Admission, GateStore, Pending};

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
}
