//! Some of the nodes.

/// A set of nodes, by their places in the list of members: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSet(u64);

impl NodeSet {
    /// The first so many in the list.
    pub(super) fn first(count: usize) -> NodeSet {
        (0..count).collect()
    }

    pub(super) fn has(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    /// Adds one; whether it was not there before.
    pub(super) fn add(&mut self, node: usize) -> bool {
        let new = !self.has(node);
        self.0 |= 1 << node;
        new
    }

    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Those of this set that are not in `others`.
    pub(super) fn without(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 & !others.0)
    }

    /// Those that are in both.
    pub(super) fn and(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 & others.0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..u64::BITS as usize).filter(move |node| self.has(*node))
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> NodeSet {
        let mut set = NodeSet::default();
        for node in nodes {
            set.add(node);
        }
        set
    }
}
