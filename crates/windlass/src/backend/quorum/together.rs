//! What the callers of one client ask of the same value, done together.
//!
//! What is asked for while a change of the value is under way goes into the next one, all of it at once: so a
//! client's own callers do not get in each other's way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Shared;
use super::register::{Found, LONGEST_KEEP, Next, Register};
use crate::backend::Channel;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;

/// What can be asked of one kind of value.
pub(super) trait Wanted: Sized + Send + Sync + 'static {
    /// The word for the kind, in keys and for news.
    const KIND: &'static str;
    type Answer: Send + 'static;

    /// After how long nothing matters any more of what a node was told.
    fn void_after(_: &Shared) -> Duration {
        LONGEST_KEEP
    }

    /// What this client asks at the moment.
    fn all(shared: &Shared) -> &Together<Self>;

    /// Whether it is to be done even if nobody waits for the answer any more.
    fn is_done_unheard(&self) -> bool {
        false
    }

    /// Decides on all that is asked, one after the other, under that number. May be called again, with what
    /// others have made of the value since; and what it decided before may have come through all the same.
    fn decide(
        shared: &Shared,
        found: Option<&Found>,
        number: u64,
        asked: &mut [Self],
    ) -> Result<(Vec<Self::Answer>, Next)>;
}

/// The values that this client changes at the moment, and what is asked of them next.
pub(super) struct Together<W: Wanted>(Mutex<HashMap<Name, Vec<Asked<W>>>>);

struct Asked<W: Wanted> {
    wanted: W,
    answer: oneshot::Sender<Result<W::Answer>>,
}

impl<W: Wanted> Default for Together<W> {
    fn default() -> Together<W> {
        Together(Mutex::default())
    }
}

impl Shared {
    pub(super) fn register<W: Wanted>(&self, name: Name) -> Register {
        let kind = W::KIND;
        Register {
            of: Channel { kind, name },
            void_after: W::void_after(self),
        }
    }

    /// Asks something of a value. It is asked when this returns, in the order of asking; what is awaited is
    /// the answer.
    pub(super) fn ask_of<W: Wanted>(
        self: &Arc<Shared>,
        name: Name,
        wanted: W,
    ) -> impl Future<Output = Result<W::Answer>> + Send + use<W> {
        let (answer, told) = oneshot::channel();
        let first = {
            let mut table = W::all(self).table();
            let first = !table.contains_key(&name);
            let asked = table.entry(name.clone()).or_default();
            asked.push(Asked { wanted, answer });
            first
        };
        if first {
            // In a task of its own: whoever asked may not wait for the end, and others have joined in.
            let shared = Arc::clone(self);
            self.runtime
                .spawn(async move { shared.serve::<W>(name).await });
        }
        async move {
            told.await.unwrap_or_else(|_| {
                let message = "it ended early, by a defect or because the runtime is shutting down";
                Err(Error::new(ErrorKind::OutcomeUnknown, "call", message))
            })
        }
    }

    /// Does what is asked of a value, until nobody asks any more.
    async fn serve<W: Wanted>(self: Arc<Shared>, name: Name) {
        while let Some(mut asked) = W::all(&self).next(&name) {
            // Those who have given up: they will ask again, if they do, as the same.
            asked.retain(|asked| !asked.answer.is_closed() || asked.wanted.is_done_unheard());
            if asked.is_empty() {
                continue;
            }
            // In a task of its own: should it panic, those who come later are served all the same.
            let once = Arc::clone(&self).serve_once(name.clone(), asked);
            if let Err(e) = self.runtime.spawn(once).await {
                tracing::error!(kind = W::KIND, name = name.as_str(), error = %e, "a change failed");
            }
        }
    }

    async fn serve_once<W: Wanted>(self: Arc<Shared>, name: Name, asked: Vec<Asked<W>>) {
        let register = self.register::<W>(name);
        let (mut wanted, waiting): (Vec<W>, Vec<_>) = asked
            .into_iter()
            .map(|asked| (asked.wanted, asked.answer))
            .unzip();
        let decide = |found: Option<&Found>, number| W::decide(&self, found, number, &mut wanted);
        match self.change(&register, decide).await {
            Ok(answers) => {
                for (waiting, answer) in waiting.into_iter().zip(answers) {
                    let _ = waiting.send(Ok(answer));
                }
            }
            Err(e) => {
                for waiting in waiting {
                    let _ = waiting.send(Err(e.again()));
                }
            }
        }
    }
}

impl<W: Wanted> Together<W> {
    /// All that is asked of a value by now; nothing, and nobody serves it any more, if nothing is.
    fn next(&self, name: &Name) -> Option<Vec<Asked<W>>> {
        let mut table = self.table();
        let asked = std::mem::take(table.get_mut(name)?);
        if asked.is_empty() {
            table.remove(name);
            return None;
        }
        Some(asked)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Name, Vec<Asked<W>>>> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
