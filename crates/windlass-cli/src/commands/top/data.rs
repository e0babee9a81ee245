//! The rows of latches and counters.

use tokio::task::JoinSet;
use windlass::{Coordinator, DataKind, ErrorKind};

/// Latches and counters that are read, of each kind: each is a call.
const MAX_NAMES: usize = 100;

/// One latch or counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DataRow {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) value: String,
}

/// Reads latches and counters; none on a store without them.
pub(super) async fn read(store: &Coordinator, pattern: &str) -> windlass::Result<Vec<DataRow>> {
    let mut calls = JoinSet::new();
    for kind in [DataKind::Latch, DataKind::Counter] {
        let names = match store.names(kind, pattern, MAX_NAMES).await {
            Ok(page) => page.names,
            Err(error) if error.kind() == ErrorKind::Unsupported => continue,
            Err(error) => return Err(error),
        };
        for name in names {
            let store = store.clone();
            calls.spawn(async move { value(&store, kind, name).await });
        }
    }
    let mut rows = Vec::new();
    while let Some(read) = calls.join_next().await {
        // A task that panicked has shown why.
        if let Ok(row) = read {
            rows.extend(row?);
        }
    }
    rows.sort();
    Ok(rows)
}

/// `None` if it is gone.
async fn value(
    store: &Coordinator,
    kind: DataKind,
    name: String,
) -> windlass::Result<Option<DataRow>> {
    let value = match kind {
        DataKind::Latch => match store.latch(&name).inspect().await? {
            None => return Ok(None),
            Some(state) if state.remaining == 0 => "open".to_owned(),
            Some(state) => format!("{} of {} to go", state.remaining, state.count),
        },
        _ => store.counter(&name).get().await?.to_string(),
    };
    Ok(Some(DataRow {
        name,
        kind: kind.word(),
        value,
    }))
}
