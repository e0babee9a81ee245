//! Too few nodes: one error that names each of them and why.

use super::Shared;
use super::hint::hint;
use windlass_core::error::{Error, ErrorKind};

/// Why a node's answer does not count, for each that has none that does.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<(usize, Error)>);

impl Failures {
    pub(super) fn add(&mut self, node: usize, error: Error) {
        self.0.push((node, error));
    }

    /// Nodes that were waited for in vain.
    pub(super) fn silent(&mut self, nodes: impl Iterator<Item = usize>) {
        for node in nodes {
            let error = Error::new(ErrorKind::OutcomeUnknown, "call", "no answer in time");
            self.add(node, error);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Each node, and why.
    pub(super) fn each<'a>(
        &'a self,
        shared: &'a Shared,
    ) -> impl Iterator<Item = (&'a str, String)> {
        let told = |(node, error): &'a (usize, Error)| (&*shared.nodes[*node].name, error.reason());
        self.0.iter().map(told)
    }

    /// One to which this advice applies, and why.
    pub(super) fn advised(&self, hint: &str) -> Option<(usize, String)> {
        let mut each = self.0.iter();
        let (node, error) = each.find(|(_, error)| error.hint() == Some(hint))?;
        Some((*node, error.reason()))
    }

    /// Whether one of them may have done what was asked all the same.
    fn any_unsure(&self) -> bool {
        self.0.iter().any(|(_, error)| error.may_have_happened())
    }

    /// The error, where all nodes were asked and `done` of them have done as they were asked.
    pub(super) fn error(&self, shared: &Shared, done: usize) -> Error {
        self.error_of(shared, shared.nodes.len(), done)
    }

    /// The same where so many were `asked`.
    pub(super) fn error_of(&self, shared: &Shared, asked: usize, done: usize) -> Error {
        let each = self
            .each(shared)
            .map(|(node, reason)| format!("{node}: {reason}"));
        let answered = asked - self.0.len();
        let message = format!(
            "{answered} of {} nodes answered, and {} must agree; {}",
            asked,
            shared.majority,
            each.collect::<Vec<_>>().join("; ")
        );
        Error::new(self.kind(shared.majority), "call", message)
            .with_part_done(done > 0 || self.any_unsure())
            .with_hint(hint(&self.0, shared))
    }

    /// What a majority says if it says the same; otherwise, that they cannot be reached.
    fn kind(&self, majority: usize) -> ErrorKind {
        let final_kinds = [
            ErrorKind::AccessDenied,
            ErrorKind::WrongType,
            ErrorKind::Unsupported,
        ];
        let said = |kind: &ErrorKind| {
            let same = self.0.iter().filter(|(_, e)| e.kind() == *kind);
            same.count() >= majority
        };
        let kind = final_kinds.into_iter().find(said);
        kind.unwrap_or(ErrorKind::Unreachable)
    }
}
