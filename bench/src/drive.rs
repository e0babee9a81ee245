//! The loop that drives all contenders.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Result;
use crate::contender::Contender;
use crate::report::PeerWorkload;

/// Time for a task to finish its last cycle. A library that waits by polling may sleep past the end
/// of a round.
const OVERTIME: Duration = Duration::from_secs(30);

/// The names that tasks lock: one for each, or one for all. No other run uses them.
#[derive(Debug)]
pub(crate) struct Names(Vec<String>);

impl Names {
    pub(crate) fn new(workload: PeerWorkload, tasks: u32) -> Names {
        let prefix = format!("windlass-peers:{:08x}", rand::random::<u32>());
        let name = |task| match workload {
            PeerWorkload::Apart => format!("{prefix}:{task}"),
            PeerWorkload::Together => prefix.clone(),
        };
        Names((0..tasks).map(name).collect())
    }
}

/// What all tasks did in one round.
#[derive(Debug)]
pub(crate) struct PeerRun {
    pub(crate) per_second: f64,
    /// How often per second the lock went to another task. A library may let the task that has just
    /// released acquire again immediately, ahead of all waiters: fast, but no hand-off.
    pub(crate) handed_on: f64,
    /// The cycles of the task with the fewest, and of the one with the most.
    pub(crate) fewest: u64,
    pub(crate) most: u64,
}

/// Runs one task for each name, which locks and unlocks it for `length`.
pub(crate) async fn round<C: Contender>(
    contender: &C,
    names: &Names,
    length: Duration,
) -> Result<PeerRun> {
    let start = Instant::now();
    let end = start + length;
    let mut tasks = JoinSet::new();
    let last = Arc::new(AtomicUsize::new(usize::MAX));
    for (number, name) in names.0.iter().cloned().enumerate() {
        let (contender, last) = (contender.clone(), Arc::clone(&last));
        tasks.spawn(async move {
            let (mut done, mut taken_over) = (0u64, 0u64);
            while Instant::now() < end {
                let mut from = number;
                let held = || from = last.swap(number, Ordering::AcqRel);
                contender.cycle(&name, held).await?;
                // A cycle past the end is awaited, but not counted.
                if Instant::now() < end {
                    done += 1;
                    taken_over += u64::from(from != number);
                }
            }
            Result::<_>::Ok((done, taken_over))
        });
    }
    let all = async {
        let (mut counts, mut taken_over) = (Vec::new(), 0);
        while let Some(ended) = tasks.join_next().await {
            let (done, over) = ended??;
            counts.push(done);
            taken_over += over;
        }
        Result::<_>::Ok((counts, taken_over))
    };
    let (counts, taken_over) = tokio::time::timeout(length + OVERTIME, all)
        .await
        .map_err(|_| format!("{} did not end in time", C::NAME))??;
    Ok(PeerRun {
        per_second: counts.iter().sum::<u64>() as f64 / length.as_secs_f64(),
        handed_on: taken_over as f64 / length.as_secs_f64(),
        fewest: counts.iter().copied().min().unwrap_or_default(),
        most: counts.iter().copied().max().unwrap_or_default(),
    })
}
