//! Latches over a quorum: one value that a majority agrees on, changed as the rules of a latch say.

use std::collections::HashMap;
use std::time::Duration;

use super::register::{Found, LONGEST_KEEP, Next};
use super::together::{Together, Wanted};
use super::{KIND, Quorum, Shared};
use crate::backend::latch::{read_past, write_past};
use crate::backend::rules::latch::{self as rules, Change};
use crate::backend::{CountedDown, LatchState, LatchStore, LatchTerms, Pending, Reset};
use crate::error::{Error, ErrorKind, Result};
use crate::latch::NEWS;
use crate::name::Name;

/// The highest count: all that was counted travels with every change.
const HIGHEST_COUNT: u32 = 4096;

/// How long what is kept of one operation is: its number, and what remained after it.
const COUNTED: usize = 32 + 8;

#[derive(Debug)]
pub(super) enum Ask {
    Reset(LatchTerms, u32),
    CountDown {
        terms: LatchTerms,
        by: u32,
        operation: u128,
        /// Whether it had been counted before the first try of this change, once that is known.
        was_known: Option<bool>,
    },
    Look,
}

#[derive(Debug)]
pub(super) enum Answer {
    Reset(Reset),
    CountDown(CountedDown),
    Look(Option<LatchState>),
}

impl LatchStore for Quorum {
    fn reset(&self, terms: LatchTerms, count: u32) -> Pending<'_, Reset> {
        Box::pin(async move {
            check(&terms, count)?;
            let name = terms.name.clone();
            match self.shared.ask_of(name, Ask::Reset(terms, count)).await? {
                Answer::Reset(reset) => Ok(reset),
                other => unreachable!("a reset was answered with {other:?}"),
            }
        })
    }

    fn count_down(&self, terms: LatchTerms, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(async move {
            check(&terms, 0)?;
            let name = terms.name.clone();
            let wanted = Ask::CountDown {
                terms,
                by,
                operation,
                was_known: None,
            };
            match self.shared.ask_of(name, wanted).await? {
                Answer::CountDown(counted) => Ok(counted),
                other => unreachable!("a count was answered with {other:?}"),
            }
        })
    }

    fn look(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(async move {
            let register = self.shared.register::<Ask>(name);
            match self.shared.settled(&register).await? {
                Some(found) => Ok(read(found.as_ref())?.map(|stored| stored.state)),
                None => match self.shared.ask_of(register.of.name, Ask::Look).await? {
                    Answer::Look(state) => Ok(state),
                    other => unreachable!("a look was answered with {other:?}"),
                },
            }
        })
    }
}

/// Refuses what a quorum cannot keep.
fn check(terms: &LatchTerms, count: u32) -> Result<()> {
    if terms.keep > LONGEST_KEEP {
        let hours = LONGEST_KEEP.as_secs() / 3600;
        let message = format!(
            "a latch is kept for {hours} h at most on {KIND}, not for {:?}: a node that may have forgotten \
             it has no say for as long",
            terms.keep
        );
        return Err(Error::invalid("keep a latch", message).with_name(terms.name.as_str()));
    }
    if count > HIGHEST_COUNT {
        let message = format!(
            "a count of {count} is more than the {HIGHEST_COUNT} of a latch on {KIND}: all that was counted \
             travels with every change"
        );
        return Err(Error::invalid("reset", message)
            .with_name(terms.name.as_str())
            .with_hint("use another store for latches of this size, beside this one"));
    }
    Ok(())
}

impl Wanted for Ask {
    const KIND: &'static str = NEWS;
    type Answer = Answer;

    fn all(shared: &Shared) -> &Together<Ask> {
        &shared.latches
    }

    fn decide(
        _: &Shared,
        found: Option<&Found>,
        number: u64,
        asked: &mut [Ask],
    ) -> Result<(Vec<Answer>, Next)> {
        decide(found, number, asked)
    }
}

/// What a quorum keeps of a latch.
struct Stored {
    state: LatchState,
    /// What was counted in this generation, and what remained after each.
    counted: HashMap<u128, u32>,
}

/// Decides on all that is asked, one after the other, as the rules say.
///
/// A change that others got in the way of is decided on again, and they may have taken it up: then what it
/// counted is no news, but each still hears what remained after its own count.
fn decide(found: Option<&Found>, number: u64, asked: &mut [Ask]) -> Result<(Vec<Answer>, Next)> {
    let mut stored = read(found)?;
    let mut answers = Vec::with_capacity(asked.len());
    let (mut keep, mut news): (Option<Duration>, bool) = (None, false);
    for wanted in asked {
        let state = stored.as_ref().map(|stored| &stored.state);
        let (answer, change, terms, operation) = match wanted {
            Ask::Reset(terms, count) => {
                let (reset, change) = rules::reset(state, terms, *count);
                (Answer::Reset(reset), change, terms, None)
            }
            Ask::CountDown {
                terms,
                by,
                operation,
                was_known,
            } => {
                let counted_to = |stored: &Stored| stored.counted.get(operation).copied();
                let known = stored.as_ref().and_then(counted_to);
                let (mut counted, change) = rules::count_down(state, terms, *by, known.is_some());
                let is_from_before = *was_known.get_or_insert(known.is_some());
                if let (CountedDown::To { remaining }, Some(own)) = (&mut counted, known)
                    && !is_from_before
                {
                    *remaining = own;
                }
                (Answer::CountDown(counted), change, terms, Some(*operation))
            }
            Ask::Look => {
                answers.push(Answer::Look(state.cloned()));
                continue;
            }
        };
        answers.push(answer);
        news |= change.is_news();
        match change {
            Change::None => continue,
            Change::Begin(state) => {
                let counted = HashMap::new();
                stored = Some(Stored { state, counted });
            }
            Change::Count(state) => {
                let mut counted = stored.take().map(|s| s.counted).unwrap_or_default();
                counted.extend(operation.map(|operation| (operation, state.remaining)));
                stored = Some(Stored { state, counted });
            }
        }
        keep = Some(terms.keep);
    }
    let next = match (stored, keep) {
        (Some(stored), Some(life)) => Next::Becomes {
            value: write(&stored, life).into_bytes(),
            // All alike: what a node has that misses this change must not outlive what took its place.
            keep: LONGEST_KEEP,
            news,
            highest: number,
        },
        // A latch has no numbers.
        _ => Next::Same { highest: 0 },
    };
    Ok((answers, next))
}

/// As the nodes keep it: the form, the count, what remains, and how many ms it is to live; the generation; what was counted, each with what remained; and a
/// line for each generation before.
fn write(stored: &Stored, life: Duration) -> String {
    let state = &stored.state;
    let mut text = format!(
        "1 {} {} {}\n{}\n",
        state.count,
        state.remaining,
        life.as_millis(),
        state.generation
    );
    for (operation, remaining) in &stored.counted {
        text.push_str(&format!("{operation:032x}{remaining:08x}"));
    }
    text.push('\n');
    text.push_str(&write_past(&state.past));
    text
}

/// The reverse.
fn read(found: Option<&Found>) -> Result<Option<Stored>> {
    let Some(found) = found else { return Ok(None) };
    let stored = std::str::from_utf8(&found.value).ok().and_then(parse);
    let age = LONGEST_KEEP.saturating_sub(found.left);
    // What has had its time is as good as gone; but it still outranks what came before it.
    let alive = |(stored, life)| (age < life).then_some(stored);
    stored.map(alive).ok_or_else(|| {
        let message = "the nodes keep something under this name that is no latch, or that a later version \
                       wrote";
        Error::new(ErrorKind::WrongType, "call", message)
    })
}

fn parse(text: &str) -> Option<(Stored, Duration)> {
    let (numbers, rest) = text.split_once('\n')?;
    let (generation, rest) = rest.split_once('\n')?;
    let (counted, past) = rest.split_once('\n')?;
    let mut numbers = numbers.strip_prefix("1 ")?.split(' ');
    let count = numbers.next()?.parse().ok()?;
    let remaining = numbers.next()?.parse().ok()?;
    let life = Duration::from_millis(numbers.next()?.parse().ok()?);
    if counted.len() % COUNTED != 0 || !counted.is_ascii() {
        return None;
    }
    let each = (0..counted.len() / COUNTED).map(|i| counted[i * COUNTED..][..COUNTED].split_at(32));
    let counted = each
        .map(|(operation, remaining)| {
            let operation = u128::from_str_radix(operation, 16).ok()?;
            Some((operation, u32::from_str_radix(remaining, 16).ok()?))
        })
        .collect::<Option<_>>()?;
    let stored = Stored {
        state: LatchState::new(generation.to_owned(), count, remaining, read_past(past)),
        counted,
    };
    Some((stored, life))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Past;

    fn found(text: &str) -> Found {
        Found {
            value: text.as_bytes().into(),
            left: LONGEST_KEEP,
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let past = |generation: &str, opened| Past {
            generation: generation.to_owned(),
            opened,
        };
        for (counted, past) in [
            (vec![], vec![]),
            (
                vec![(1, 4), (u128::MAX, u32::MAX)],
                vec![past("a b", true), past("c", false)],
            ),
        ] {
            let stored = Stored {
                state: LatchState::new("deploy 17 ☃".into(), 7, 3, past),
                counted: counted.into_iter().collect(),
            };
            let again = read(Some(&found(&write(&stored, LONGEST_KEEP))));
            let again = again.unwrap().unwrap();
            assert_eq!(again.state, stored.state);
            assert_eq!(again.counted, stored.counted);
        }
        for foreign in [
            "",
            "2 7 3 9\ng\n\n",
            "1 7 3\ng\n\n",
            "1 7 3 9\ng\nff\n",
            "hello",
        ] {
            let e = read(Some(&found(foreign))).map(drop).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::WrongType, "{foreign:?}");
        }
        assert!(read(None).unwrap().is_none());
    }

    #[test]
    fn a_count_that_others_took_up_hears_its_own_remainder() {
        let name = Name::new("test", None, "ready").unwrap();
        let terms = LatchTerms {
            name,
            generation: "g".into(),
            keep: Duration::from_secs(60),
        };
        let change = |value: Option<&[u8]>, asked: &mut [Ask]| {
            let found = value.map(|value| Found {
                value: value.into(),
                left: LONGEST_KEEP,
            });
            let (answers, next) = decide(found.as_ref(), 1, asked).unwrap();
            let value = match next {
                Next::Becomes { value, .. } => value,
                Next::Same { .. } => value.unwrap().to_vec(),
            };
            (format!("{answers:?}"), value)
        };
        let count = |operation| {
            [Ask::CountDown {
                terms: terms.clone(),
                by: 1,
                operation,
                was_known: None,
            }]
        };
        let (_, begun) = change(None, &mut [Ask::Reset(terms.clone(), 9)]);
        let mut ours = count(1);
        let (first, counted) = change(Some(&begun), &mut ours);
        assert!(first.contains("remaining: 8"), "{first}");
        // Nobody accepted it, it seemed; but somebody else had heard of it.
        let (theirs, after) = change(Some(&counted), &mut count(2));
        assert!(theirs.contains("remaining: 7"), "{theirs}");
        let (again, unchanged) = change(Some(&after), &mut ours);
        assert_eq!((again, unchanged), (first, after.clone()));
        // Whoever comes again later hears what remains by then, as everywhere.
        let (late, _) = change(Some(&after), &mut count(1));
        assert!(late.contains("remaining: 7"), "{late}");
    }

    #[test]
    fn what_takes_the_place_of_a_value_outlives_it() {
        let terms = |keep| LatchTerms {
            name: Name::new("test", None, "ready").unwrap(),
            generation: "g".into(),
            keep: Duration::from_secs(keep),
        };
        let kept = |found: Option<&Found>, ask: Ask| match decide(found, 1, &mut [ask]) {
            Ok((_, Next::Becomes { value, keep, .. })) => (value, keep),
            _ => panic!("it changes"),
        };
        // By the nodes all are kept for as long, however long they are to live.
        let (value, keep) = kept(None, Ask::Reset(terms(100), 9));
        assert_eq!(keep, LONGEST_KEEP);
        let after = |seconds| Found {
            value: value.clone().into(),
            left: LONGEST_KEEP - Duration::from_secs(seconds),
        };
        let state = |found: &Found| read(Some(found)).unwrap().map(|stored| stored.state);
        assert_eq!(state(&after(99)).unwrap().remaining, 9);
        assert!(state(&after(100)).is_none(), "it has had its time");
        let count = Ask::CountDown {
            terms: terms(10),
            by: 1,
            operation: 1,
            was_known: None,
        };
        assert_eq!(kept(Some(&after(99)), count).1, LONGEST_KEEP);
    }
}
