//! A model of the value that a majority agrees on, which latches over a quorum stand on.
//!
//! Three nodes, clients that each change the value once, and clients that read it. What the nodes promise and accept, and what
//! clients make of it, is decided by the functions of [`windlass::backend::rules::register`], which the library itself uses.
//!
//! The value is the list of the changes that made it: a change puts its author's name at the end, unless it is there already,
//! as the library does not count an operation twice that it sends again. So a list tells everything that became of the value.
//!
//! Messages may be late for as long as they like, overtake each other, or never arrive; a client may stop half-way; a node may be
//! started anew without its memory. With its memory, it is as if messages were lost. As in [`folded`](crate::folded), a
//! reply is heard when it is acted upon, and what a node would refuse is not delivered. A node that puts off a promise because somebody
//! else is about to write is one to which the question comes later.
//!
//! What must hold whenever somebody is answered:
//!
//! - **kept**: what was answered before somebody began is the beginning of what it is answered: no change is lost, and
//!   nothing that was read is undone;
//! - **one order**: of any two answers, one is the beginning of the other;
//! - **once**: whoever changed the value is in the list, and nobody is there twice.

mod canonical;
mod state;

use stateright::{Model, Property};
use windlass::backend::rules::register::{ballot, latest};
use windlass::backend::rules::vote::{majority, next_proposal};

use crate::NODES;
pub use state::{
    CLIENTS, Client, Kind, List, Look, Node, Phase, Promise, Stage, State, TRIES, Told,
};

/// What is checked: all of it, or all but one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// As it is.
    None,
    /// A node accepts what it has promised to nobody, or to somebody else since.
    AcceptsUnpromised,
    /// A client takes any of the values that it heard of, and not the latest.
    TakesAny,
    /// A client answers what it read without making sure that it stays.
    DoesNotSettle,
    /// A node that forgot is believed that it knows all.
    ForgottenCounts,
    /// A node without memory promises again at once, and does not hear the others' counters.
    NoQuarantine,
    /// A client goes on to collect promises after a node that gave one has forgotten it and votes again.
    CollectsForEver,
}

/// The model, with its bounds.
#[derive(Clone, Debug)]
pub struct Synod {
    /// What is left out.
    pub flaw: Flaw,
    /// How many clients change the value.
    pub changers: usize,
    /// How many read it; [`CLIENTS`] altogether at most.
    pub readers: usize,
    /// How often each of them tries: [`TRIES`] at most.
    pub tries: usize,
    /// How often a node may lose its memory.
    pub losses: u8,
}

/// What can happen next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A client begins.
    Begin(usize),
    /// A node tells a reader what it keeps.
    Tell(usize, usize),
    /// A node promises, for the client's try of that number.
    Promise(usize, usize, usize),
    /// A node accepts what the client wrote in its try of that number.
    Accept(usize, usize, usize),
    /// A client tries again, with this proposal.
    Try(usize, u8),
    /// A client has the nodes accept this, under this number.
    Write(usize, u8, List),
    /// A client is answered.
    Answer(usize, List),
    /// A node is started anew without its memory.
    Lose(usize),
    /// So much time has passed since, that nobody collects promises any more who did so then.
    Quarantined(usize),
    /// A node that was started anew hears another's counter.
    Learn(usize, usize),
    /// Then it votes again.
    Join(usize),
}

/// What a client may have heard by the time it acts: any part of what it was told, of a majority at least.
fn parts<T: Copy>(told: [Option<T>; NODES]) -> impl Iterator<Item = Vec<T>> {
    let part = move |nodes: u8| {
        let chosen = (0..NODES).filter(|n| nodes & (1 << n) != 0);
        chosen.map(|n| told[n]).collect::<Option<Vec<T>>>()
    };
    let parts = (0u8..1 << NODES).filter_map(part);
    parts.filter(|part| part.len() >= majority(NODES))
}

impl Synod {
    /// What a client makes of the value it has read: the value to be written, or none if it stays.
    fn decide(client: &Client, i: usize, read: List) -> Option<List> {
        match client.kind {
            Kind::Changes if !read.has(i) => Some(read.with(i)),
            _ => None,
        }
    }

    /// What a reader can do with what it was told.
    fn looks(&self, i: usize, client: &Client, push: &mut impl FnMut(Action)) {
        let told = client.looks.map(|look| match look {
            Look::Told(told) => Some(told),
            _ => None,
        });
        for part in parts(told) {
            let kept: Vec<_> = part.iter().filter_map(|told| told.kept()).collect();
            // Not all that answered know.
            if kept.len() < majority(NODES) {
                continue;
            }
            match latest(&kept, majority(NODES)) {
                None => push(Action::Answer(i, List::default())),
                Some((list, settled)) if settled || self.flaw == Flaw::DoesNotSettle => {
                    push(Action::Answer(i, *list));
                }
                Some(_) => push(Action::Try(i, 1)),
            }
        }
    }

    /// What a client can do with the promises it was given.
    fn collects(&self, i: usize, client: &Client, push: &mut impl FnMut(Action), tries: usize) {
        let given = client.promises[tries].map(|promise| match promise {
            Promise::Given { number, told } => Some((number, told)),
            _ => None,
        });
        for part in parts(given) {
            let drawn: Vec<u64> = part.iter().map(|(number, _)| u64::from(*number)).collect();
            let know = || part.iter().filter_map(|(n, told)| Some((*n, told.kept()?)));
            let numbers: Vec<u64> = know().map(|(number, _)| number.into()).collect();
            let kept: Vec<_> = know().map(|(_, kept)| kept).collect();
            if numbers.len() < majority(NODES) {
                continue;
            }
            if tries + 1 < self.tries {
                push(Action::Try(i, next_proposal(&drawn, 0) as u8));
            }
            let Some(number) = ballot(&numbers, majority(NODES)) else {
                continue;
            };
            let mut act = |found: Option<(List, bool)>| {
                let read = found.map_or(List::default(), |(list, _)| list);
                let stays = found.is_none_or(|(_, settled)| settled);
                push(match Synod::decide(client, i, read) {
                    Some(list) => Action::Write(i, number as u8, list),
                    None if stays || self.flaw == Flaw::DoesNotSettle => Action::Answer(i, read),
                    None => Action::Write(i, number as u8, read),
                });
            };
            match self.flaw {
                Flaw::TakesAny => {
                    for kept in &kept {
                        act(kept.map(|(_, list)| (list, false)));
                    }
                }
                _ => act(latest(&kept, majority(NODES)).map(|(list, settled)| (*list, settled))),
            }
        }
    }
}

impl Model for Synod {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.changers, self.readers)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let mut push = |action: Action| {
            if !actions.contains(&action) {
                actions.push(action);
            }
        };
        let unpromised = self.flaw == Flaw::AcceptsUnpromised;
        for (i, client) in state.clients.iter().enumerate() {
            match client.stage {
                Stage::NotBegun => push(Action::Begin(i)),
                Stage::Looks => self.looks(i, client, &mut push),
                Stage::Collects { tries } => self.collects(i, client, &mut push, tries),
                Stage::Writes { tries, yes } => {
                    let (number, list) = client.writes[tries];
                    if yes.count_ones() as usize >= majority(NODES) {
                        push(Action::Answer(i, list));
                    } else if tries + 1 < self.tries {
                        push(Action::Try(i, number + 1));
                    }
                }
                Stage::Absent | Stage::Answered | Stage::Over => {}
            }
            for (n, node) in state.nodes.iter().enumerate() {
                if node.phase != Phase::Votes {
                    continue;
                }
                if client.looks[n] == Look::Asked {
                    push(Action::Tell(i, n));
                }
                for tries in 0..self.tries {
                    if let Promise::Asked(_) = client.promises[tries][n] {
                        push(Action::Promise(i, tries, n));
                    }
                    if state.would_accept(i, tries, n, unpromised) {
                        push(Action::Accept(i, tries, n));
                    }
                }
            }
        }
        for (n, node) in state.nodes.iter().enumerate() {
            match node.phase {
                Phase::Votes if state.losses < self.losses => push(Action::Lose(n)),
                Phase::Votes => {}
                Phase::Quarantine => push(Action::Quarantined(n)),
                Phase::Joins { heard } => {
                    for other in (0..NODES).filter(|o| *o != n && heard & (1 << o) == 0) {
                        if state.nodes[other].phase == Phase::Votes {
                            push(Action::Learn(n, other));
                        }
                    }
                    if heard.count_ones() as usize >= majority(NODES)
                        || self.flaw == Flaw::NoQuarantine
                    {
                        push(Action::Join(n));
                    }
                }
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let unpromised = self.flaw == Flaw::AcceptsUnpromised;
        match action {
            Action::Begin(i) => state.begin(i),
            Action::Tell(i, n) => state.tell(i, n),
            Action::Promise(i, tries, n) => state.promise(i, tries, n),
            Action::Accept(i, tries, n) => state.accept(i, tries, n, unpromised),
            Action::Try(i, proposal) => state.try_again(i, proposal),
            Action::Write(i, number, list) => state.write(i, number, list),
            Action::Answer(i, list) => state.answer(i, list),
            Action::Lose(n) => state.lose(n),
            Action::Quarantined(n) => {
                let end = !matches!(self.flaw, Flaw::CollectsForEver | Flaw::NoQuarantine);
                state.quarantined(n, self.tries, end);
            }
            Action::Learn(n, other) => state.learn(n, other),
            Action::Join(n) => {
                let knows = self.flaw == Flaw::ForgottenCounts;
                state.nodes[n].phase = Phase::Votes;
                state.nodes[n].knows = knows;
            }
        }
        state.forget(unpromised);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn all_answered(state: &State) -> bool {
            let answered =
                |client: &Client| matches!(client.stage, Stage::Answered | Stage::Absent);
            state.clients.iter().all(answered)
        }
        vec![
            Property::<Self>::always("kept", |_, state| !state.lost),
            Property::<Self>::always("one order", |_, state| !state.forked),
            Property::<Self>::always("once", |_, state| !state.miscounted),
            // Without these, the search might prove that nothing bad happens because nothing does.
            Property::<Self>::sometimes("all are answered", |model, state| {
                all_answered(state) && state.longest.len() == model.changers
            }),
            Property::<Self>::sometimes("all are answered after a node forgot", |model, state| {
                let votes = |node: &Node| node.phase == Phase::Votes;
                let forgot = state.losses > 0 && state.nodes.iter().all(votes);
                all_answered(state) && (forgot || model.losses == 0)
            }),
            Property::<Self>::sometimes(
                "a reader settles what was half written",
                |model, state| {
                    let settles = |client: &Client| {
                        client.kind == Kind::Reads && matches!(client.stage, Stage::Writes { .. })
                    };
                    model.readers == 0 || state.clients.iter().any(settles)
                },
            ),
        ]
    }
}
