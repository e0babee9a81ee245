//! `windlass ls`, and `ls` of each group of commands: what the store contains, of any kind.

use serde::Serialize;
use windlass::{Coordinator, DataKind, ErrorKind, Kind, LimiterState, Occupancy};
use windlass_term::{Advice, Exit, Failure, GlobalArgs, Printer, store};

use super::holders;
use super::limit::typed;
use super::lock::inspect::ListAnswer;
use super::top::limits::{LimiterAnswer, limit_rows};
use crate::args::{InventoryKind, LsArgs};

/// Names of one kind that are listed: there may be millions of idempotency keys.
const MAX_NAMES: usize = 10_000;

/// How the names of a kind are found.
enum Source {
    /// It is held or waited for.
    Claims(Kind),
    Limiters,
    Data(DataKind),
    /// No store keeps the names.
    Nowhere,
}

impl InventoryKind {
    /// All that is not held or waited for, and can be listed.
    const BESIDES_CLAIMS: [InventoryKind; 7] = [
        InventoryKind::Latch,
        InventoryKind::Gate,
        InventoryKind::Limit,
        InventoryKind::Counter,
        InventoryKind::Bloom,
        InventoryKind::Perm,
        InventoryKind::Once,
    ];

    fn plural(self) -> &'static str {
        match self {
            InventoryKind::Lock => "locks",
            InventoryKind::Sem => "semaphores",
            InventoryKind::Rw => "read-write locks",
            InventoryKind::Elect => "elections",
            InventoryKind::Barrier => "barriers",
            InventoryKind::Latch => "latches",
            InventoryKind::Gate => "gates",
            InventoryKind::Limit => "rate limits",
            InventoryKind::Counter => "counters",
            InventoryKind::Bloom => "Bloom filters",
            InventoryKind::Perm => "permissions",
            InventoryKind::Once => "idempotency keys",
            InventoryKind::Seen => "items",
            InventoryKind::Topic => "topics",
        }
    }

    fn source(self) -> Source {
        match self {
            InventoryKind::Lock => Source::Claims(Kind::Lock),
            InventoryKind::Sem => Source::Claims(Kind::Semaphore),
            InventoryKind::Rw => Source::Claims(Kind::ReadWrite),
            InventoryKind::Elect => Source::Claims(Kind::Election),
            InventoryKind::Barrier => Source::Claims(Kind::Barrier),
            InventoryKind::Latch => Source::Data(DataKind::Latch),
            InventoryKind::Gate => Source::Data(DataKind::Gate),
            InventoryKind::Limit => Source::Limiters,
            InventoryKind::Counter => Source::Data(DataKind::Counter),
            InventoryKind::Bloom => Source::Data(DataKind::Bloom),
            InventoryKind::Perm => Source::Data(DataKind::Permissions),
            InventoryKind::Once => Source::Data(DataKind::Once),
            InventoryKind::Seen | InventoryKind::Topic => Source::Nowhere,
        }
    }
}

/// One thing that was found.
enum Entry {
    Claim(Occupancy),
    Limiter(LimiterState),
    Data(DataKind, String),
}

impl Entry {
    fn name_and_kind(&self) -> (&str, &'static str) {
        match self {
            Entry::Claim(seen) => (&seen.name, seen.kind.word()),
            Entry::Limiter(limiter) => (&limiter.name, "limit"),
            Entry::Data(kind, name) => (name, kind.word()),
        }
    }

    /// The name as it is typed.
    fn typed_name(&self) -> String {
        match self {
            Entry::Limiter(limiter) => {
                typed(&limiter.limiter, limiter.key.as_deref().unwrap_or_default())
            }
            _ => self.name_and_kind().0.to_owned(),
        }
    }

    /// What is known without another call.
    fn state(&self) -> String {
        match self {
            Entry::Claim(seen) => {
                let state = match (seen.kind, seen.holders.first()) {
                    (Kind::Lock | Kind::Election, Some(holder)) => {
                        let left = holders::left(Some(holder));
                        format!("held by {}, {left} left", holder.owner)
                    }
                    _ => holders::used(seen),
                };
                state + &holders::waiters_suffix(seen.waiters)
            }
            Entry::Limiter(limiter) => {
                let rows = limit_rows(std::slice::from_ref(limiter));
                let quotas = rows
                    .iter()
                    .map(|row| format!("{} left of {}", row.left, row.quota));
                quotas.collect::<Vec<_>>().join("; ")
            }
            Entry::Data(..) => String::new(),
        }
    }

    fn print_json(&self, printer: &Printer) {
        match self {
            Entry::Claim(seen) => {
                let answer = ListAnswer::from(seen);
                printer.answer(answer.outcome(), &answer, "");
            }
            Entry::Limiter(limiter) => {
                printer.answer("in-use", &LimiterAnswer::from(limiter), "");
            }
            Entry::Data(..) => {
                let (name, kind) = self.name_and_kind();
                printer.answer("found", &DataAnswer { kind, name }, "");
            }
        }
    }
}

#[derive(Serialize)]
struct DataAnswer<'a> {
    kind: &'static str,
    name: &'a str,
}

/// Lists names of these kinds; of all that the store supports if none is given.
pub(super) async fn ls(
    args: &LsArgs,
    kinds: &[InventoryKind],
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let unlisted = kinds
        .iter()
        .find(|kind| matches!(kind.source(), Source::Nowhere));
    if let Some(kind) = unlisted {
        return Err(no_list(*kind));
    }
    let store = store::open(global).await?;
    let mut kinds = kinds.to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    let (mut found, mut more) = (Vec::new(), false);
    let mut unsupported = Vec::new();
    let wanted = match kinds.is_empty() {
        true => {
            // In one call, because a server has to go through all of its keys for each.
            let claims = store.survey(&args.pattern, 1).await?.into_iter();
            // An execution is listed by its record.
            let claims = claims.filter(|seen| seen.kind != Kind::Once);
            found.extend(claims.map(Entry::Claim));
            &InventoryKind::BESIDES_CLAIMS[..]
        }
        false => &kinds,
    };
    for kind in wanted {
        match list(&store, kind.source(), &args.pattern).await {
            Ok((entries, has_more)) => {
                found.extend(entries);
                more |= has_more;
            }
            // There is nothing of this kind; it is an error only if it was asked for.
            Err(error) if error.kind() == ErrorKind::Unsupported && kinds.is_empty() => {
                unsupported.push(format!("{kind:?}").to_lowercase());
            }
            Err(error) => return Err(error.into()),
        }
    }
    found.sort_by(|a, b| a.name_and_kind().cmp(&b.name_and_kind()));
    if printer.is_json() {
        for entry in &found {
            entry.print_json(printer);
        }
    } else if found.is_empty() {
        printer.note(nothing(&store, args, &kinds));
    } else {
        let row = |entry: &Entry| {
            let (_, kind) = entry.name_and_kind();
            [entry.typed_name(), kind.to_owned(), entry.state()]
        };
        let rows = found.iter().map(row).collect();
        holders::print_table(["NAME", "KIND", "STATE"], rows, printer);
    }
    if more {
        printer.warn("there are more names: narrow them down by a pattern");
    }
    if !unsupported.is_empty() {
        let (store, kinds) = (store.capabilities().kind, unsupported.join(", "));
        printer.detail(format_args!("not supported on {store}: {kinds}"));
    }
    Ok(Exit::SUCCESS)
}

/// The names of one kind, as a command takes them.
pub(super) async fn names(
    store: &Coordinator,
    kind: InventoryKind,
    pattern: &str,
) -> windlass::Result<Vec<String>> {
    let (found, _) = list(store, kind.source(), pattern).await?;
    let name = |entry| match entry {
        Entry::Claim(seen) => seen.name,
        Entry::Limiter(limiter) => limiter.limiter,
        Entry::Data(_, name) => name,
    };
    Ok(found.into_iter().map(name).collect())
}

/// The entries from one source, and whether there may be more.
async fn list(
    store: &Coordinator,
    source: Source,
    pattern: &str,
) -> windlass::Result<(Vec<Entry>, bool)> {
    Ok(match source {
        Source::Claims(kind) => {
            let found = store.survey_kind(kind, pattern, 1).await?;
            (found.into_iter().map(Entry::Claim).collect(), false)
        }
        Source::Limiters => {
            let found = store.survey_limiters(pattern, MAX_NAMES).await?;
            let limiters = found.limiters.into_iter().map(Entry::Limiter);
            (limiters.collect(), found.more)
        }
        Source::Data(kind) => {
            let found = store.names(kind, pattern, MAX_NAMES).await?;
            let names = found.names.into_iter().map(|name| Entry::Data(kind, name));
            (names.collect(), found.more)
        }
        Source::Nowhere => (Vec::new(), false),
    })
}

fn nothing(store: &Coordinator, args: &LsArgs, kinds: &[InventoryKind]) -> String {
    let what = match kinds {
        [] => "nothing".to_owned(),
        kinds => {
            let words = kinds.iter().map(|kind| kind.plural());
            format!("no {}", words.collect::<Vec<_>>().join(" or "))
        }
    };
    let matching = match args.pattern.as_str() {
        "*" => String::new(),
        pattern => format!(" like {pattern}"),
    };
    format!("{what}{matching} in {}", store.address())
}

fn no_list(kind: InventoryKind) -> Failure {
    let (message, hint) = match kind {
        InventoryKind::Topic => (
            "topics cannot be listed: a topic is not stored, and exists while a client subscribes to it",
            "windlass topic subscribe NAME prints what is published",
        ),
        _ => (
            "the names of seen cannot be listed: each item is stored by itself",
            "windlass seen NAME ITEM finds out whether an item is new",
        ),
    };
    Failure::usage(message, Advice::Hint(hint.into()))
}
