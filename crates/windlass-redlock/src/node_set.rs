//! A set of nodes.

/// A set of nodes, by their index in the list of members: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSet(u64);

impl NodeSet {
    /// All nodes of a quorum of `count`.
    pub(super) fn all(count: usize) -> NodeSet {
        (0..count).collect()
    }

    pub(super) fn contains(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    /// Adds a node; whether it was not in the set before.
    pub(super) fn insert(&mut self, node: usize) -> bool {
        let new = !self.contains(node);
        self.0 |= 1 << node;
        new
    }

    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The nodes of this set that are not in `others`.
    pub(super) fn without(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 & !others.0)
    }

    /// The nodes that are in both sets.
    pub(super) fn intersection(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 & others.0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..u64::BITS as usize).filter(move |node| self.contains(*node))
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> NodeSet {
        let mut set = NodeSet::default();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}
