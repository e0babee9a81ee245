//! What there is at one moment, and how it changes.

use windlass::backend::rules::register::Register;

use crate::NODES;

/// So many clients at most.
pub const CLIENTS: usize = 3;
/// So many tries of one client at most.
pub const TRIES: usize = 2;

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// The nodes.
    pub nodes: [Node; NODES],
    /// The clients, with all that is on its way.
    pub clients: [Client; CLIENTS],
    /// The longest list that anybody was answered.
    pub longest: List,
    /// Somebody was answered something that does not begin with what was answered before it began.
    pub lost: bool,
    /// Two were answered lists of which neither is the beginning of the other.
    pub forked: bool,
    /// Somebody is missing from its answer, or is there twice.
    pub miscounted: bool,
    /// How many memories were lost.
    pub losses: u8,
}

/// The changes that were made, in order: client `i` is `i + 1`, and 0 is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct List(pub(super) [u8; CLIENTS]);

impl List {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.iter().filter(|name| **name != 0).count()
    }

    /// Whether nobody has changed anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn has(&self, i: usize) -> bool {
        self.0.contains(&(i as u8 + 1))
    }

    pub(super) fn with(mut self, i: usize) -> List {
        let end = self.len();
        self.0[end] = i as u8 + 1;
        self
    }

    fn begins(&self, other: &List) -> bool {
        other.0[..self.len()] == self.0[..self.len()]
    }

    fn is_once_each(&self) -> bool {
        let names = &self.0[..self.len()];
        (1..names.len()).all(|i| !names[..i].contains(&names[i]))
    }
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// Whether it votes.
    pub phase: Phase,
    /// The highest number it has given.
    pub counter: u8,
    /// The number that it gave last, and accepts a value under; 0 if none.
    pub promised: u8,
    /// What it accepted last, and under which number; 0 if nothing.
    pub accepted: (u8, List),
    /// Whether that is all it ever accepted that still matters: not if it forgot, until it is told anew.
    pub knows: bool,
}

/// Whether a node votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// It does.
    Votes,
    /// It has lost its memory, and somebody may be collecting promises that it has forgotten.
    Quarantine,
    /// Nobody does any more; it hears the others' counters.
    Joins {
        /// Whose, one bit each.
        heard: u8,
    },
}

/// What a node said that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Told {
    /// As [`Node::accepted`].
    pub accepted: (u8, List),
    /// As [`Node::knows`].
    pub knows: bool,
}

impl Told {
    /// What it keeps, if it knows.
    pub(super) fn kept(&self) -> Option<Option<(u64, List)>> {
        let (number, list) = self.accepted;
        self.knows
            .then(|| (number != 0).then_some((number.into(), list)))
    }
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// To put its name at the end.
    Changes,
    /// To know.
    Reads,
}

/// One client, with one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    /// What it wants.
    pub kind: Kind,
    /// How far it has come.
    pub stage: Stage,
    /// The longest that was answered when it began.
    pub after: List,
    /// The nodes that have lost their memory since this try began, one bit each.
    pub forgotten: u8,
    /// What becomes of its questions for what nodes keep.
    pub looks: [Look; NODES],
    /// What becomes of its questions for promises, by try.
    pub promises: [[Promise; NODES]; TRIES],
    /// What it has the nodes accept, by try.
    pub writes: [(u8, List); TRIES],
    /// To which of them that is on its way, by try, one bit each.
    pub written: [u8; TRIES],
}

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// There is no such client.
    Absent,
    /// Not yet.
    NotBegun,
    /// It looks whether the value is settled.
    Looks,
    /// It collects promises.
    Collects {
        /// For which try.
        tries: usize,
    },
    /// It waits until enough have accepted what it writes.
    Writes {
        /// In which try.
        tries: usize,
        /// Those who have, one bit each.
        yes: u8,
    },
    /// It has its answer.
    Answered,
    /// It has given up.
    Over,
}

/// A question for what a node keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Look {
    /// Not asked, or of no consequence any more.
    Gone,
    /// On its way.
    Asked,
    /// The client has heard it, or may hear it.
    Told(Told),
}

/// A question for a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// Not asked, or of no consequence any more.
    Gone,
    /// On its way, with this proposal.
    Asked(u8),
    /// The client has heard it, or may hear it.
    Given {
        /// The number.
        number: u8,
        /// And what the node keeps.
        told: Told,
    },
}

impl Node {
    fn told(&self) -> Told {
        Told {
            accepted: self.accepted,
            knows: self.knows,
        }
    }

    /// Has the library's rules change what the node keeps.
    fn by_the_rules<R>(&mut self, act: impl FnOnce(&mut Register<List>, &mut u64) -> R) -> R {
        let (number, list) = self.accepted;
        let mut register = Register {
            promised: (self.promised != 0).then_some(self.promised.into()),
            accepted: (number != 0).then_some((number.into(), list)),
        };
        let mut counter = self.counter.into();
        let done = act(&mut register, &mut counter);
        self.counter = counter as u8;
        self.promised = register.promised.unwrap_or(0) as u8;
        let (number, list) = register.accepted.unwrap_or_default();
        self.accepted = (number as u8, list);
        done
    }
}

impl State {
    pub(super) fn new(changers: usize, readers: usize) -> State {
        assert!(changers + readers <= CLIENTS, "{CLIENTS} clients at most");
        let client = |i| Client {
            kind: match i < changers {
                true => Kind::Changes,
                false => Kind::Reads,
            },
            stage: match i < changers + readers {
                true => Stage::NotBegun,
                false => Stage::Absent,
            },
            after: List::default(),
            forgotten: 0,
            looks: [Look::Gone; NODES],
            promises: [[Promise::Gone; NODES]; TRIES],
            writes: Default::default(),
            written: Default::default(),
        };
        let node = Node {
            phase: Phase::Votes,
            counter: 0,
            promised: 0,
            accepted: Default::default(),
            knows: true,
        };
        State {
            nodes: [node; NODES],
            clients: std::array::from_fn(client),
            longest: List::default(),
            lost: false,
            forked: false,
            miscounted: false,
            losses: 0,
        }
    }

    pub(super) fn begin(&mut self, i: usize) {
        self.clients[i].after = self.longest;
        match self.clients[i].kind {
            Kind::Changes => self.collect(i, 0, 1),
            Kind::Reads => {
                self.clients[i].stage = Stage::Looks;
                self.clients[i].looks = [Look::Asked; NODES];
            }
        }
    }

    fn collect(&mut self, i: usize, tries: usize, proposal: u8) {
        let client = &mut self.clients[i];
        client.stage = Stage::Collects { tries };
        client.forgotten = 0;
        client.promises[tries] = [Promise::Asked(proposal); NODES];
    }

    pub(super) fn tell(&mut self, i: usize, n: usize) {
        self.clients[i].looks[n] = Look::Told(self.nodes[n].told());
    }

    pub(super) fn promise(&mut self, i: usize, tries: usize, n: usize) {
        let Promise::Asked(proposal) = self.clients[i].promises[tries][n] else {
            return;
        };
        let told = self.nodes[n].told();
        let promise = |register: &mut Register<List>, counter: &mut u64| {
            register.promise(counter, proposal.into())
        };
        let (number, _) = self.nodes[n].by_the_rules(promise);
        let number = number as u8;
        self.clients[i].promises[tries][n] = Promise::Given { number, told };
    }

    /// Whether the node accepts what is on its way to it.
    pub(super) fn would_accept(&self, i: usize, tries: usize, n: usize, unpromised: bool) -> bool {
        let client = &self.clients[i];
        let (number, list) = client.writes[tries];
        let mut node = self.nodes[n];
        let accept = |register: &mut Register<List>, _: &mut u64| {
            unpromised || register.accept(number.into(), list)
        };
        client.written[tries] & (1 << n) != 0
            && node.phase == Phase::Votes
            && node.by_the_rules(accept)
    }

    pub(super) fn accept(&mut self, i: usize, tries: usize, n: usize, unpromised: bool) {
        let (number, list) = self.clients[i].writes[tries];
        let accept = |register: &mut Register<List>, _: &mut u64| {
            if unpromised {
                register.promised = Some(number.into());
            }
            register.accept(number.into(), list)
        };
        self.nodes[n].by_the_rules(accept);
        self.nodes[n].knows = true;
        let client = &mut self.clients[i];
        client.written[tries] &= !(1 << n);
        if let Stage::Writes { tries: now, yes } = &mut client.stage
            && *now == tries
        {
            *yes |= 1 << n;
        }
    }

    pub(super) fn try_again(&mut self, i: usize, proposal: u8) {
        let next = match self.clients[i].stage {
            Stage::Collects { tries } | Stage::Writes { tries, .. } => tries + 1,
            _ => 0,
        };
        self.collect(i, next, proposal);
    }

    pub(super) fn write(&mut self, i: usize, number: u8, list: List) {
        if let Stage::Collects { tries } = self.clients[i].stage {
            let client = &mut self.clients[i];
            client.stage = Stage::Writes { tries, yes: 0 };
            client.writes[tries] = (number, list);
            client.written[tries] = (1 << NODES) - 1;
        }
    }

    pub(super) fn answer(&mut self, i: usize, list: List) {
        let client = &mut self.clients[i];
        client.stage = Stage::Answered;
        self.lost |= !client.after.begins(&list);
        self.miscounted |= client.kind == Kind::Changes && !list.has(i) || !list.is_once_each();
        // All that was answered so far begins the longest, or this is set already.
        if self.longest.begins(&list) {
            self.longest = list;
        } else {
            self.forked |= !list.begins(&self.longest);
        }
    }

    pub(super) fn lose(&mut self, n: usize) {
        self.losses += 1;
        self.nodes[n] = Node {
            phase: Phase::Quarantine,
            counter: 0,
            promised: 0,
            accepted: Default::default(),
            knows: false,
        };
        for client in &mut self.clients {
            client.forgotten |= 1 << n;
            // What was on its way there is lost with the connections.
            if client.looks[n] == Look::Asked {
                client.looks[n] = Look::Gone;
            }
            for tries in 0..TRIES {
                if let Promise::Asked(_) = client.promises[tries][n] {
                    client.promises[tries][n] = Promise::Gone;
                }
                client.written[tries] &= !(1 << n);
            }
        }
    }

    /// The longest ttl has passed since the node was started: whoever was collecting promises has enough by
    /// now or begins anew. Who has enough may write them at any time.
    pub(super) fn quarantined(&mut self, n: usize, tries_at_most: usize, ends: bool) {
        self.nodes[n].phase = Phase::Joins { heard: 0 };
        for i in 0..CLIENTS {
            let client = &self.clients[i];
            let Stage::Collects { tries } = client.stage else {
                continue;
            };
            if !ends || client.forgotten & (1 << n) == 0 {
                continue;
            }
            let given = client.promises[tries].iter().map(|promise| match promise {
                Promise::Given { number, .. } => *number,
                _ => 0,
            });
            let proposal = given.max().unwrap_or(0) + 1;
            match tries + 1 < tries_at_most {
                true => self.collect(i, tries + 1, proposal),
                false => self.clients[i].stage = Stage::Over,
            }
        }
    }

    pub(super) fn learn(&mut self, n: usize, other: usize) {
        let told = self.nodes[other].counter;
        let node = &mut self.nodes[n];
        node.counter = node.counter.max(told);
        if let Phase::Joins { heard } = &mut node.phase {
            *heard |= 1 << other;
        }
    }
}
