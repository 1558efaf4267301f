//! From one sharding to another in steps that XLA has.
//!
//! If a dimension is split over two axes and the *major* one moves to another dimension, XLA's partitioner ends the process:
//! of the devices that are left it wants the first axis. Where the axes change their order first, which permutes blocks
//! between devices, what moves is the minor one, and that is an all-to-all.

use shardax_core::ir::split::Entries;
use shardax_core::{TensorType, ir::Constraint};
use shardax_sharding::{Axes, PartitionSpec};

use super::Lowering;
use super::partial::{overlap, parts_of};

impl Lowering<'_> {
    /// What is stated of a value that is split as told before a constraint is, if anything has to be.
    pub(super) fn way_to(
        &self,
        constraint: &Constraint,
        from: &Entries,
        ty: &TensorType,
    ) -> Option<PartitionSpec> {
        if !may_reorder(from) {
            return None;
        }
        let to = self
            .annotations
            .lies(constraint.role, constraint, ty)
            .ok()?;
        self.way_between(from, &to.spec)
    }

    /// What is stated of a value that is split as told before it is stated to lie otherwise.
    pub(super) fn way_between(&self, from: &Entries, to: &PartitionSpec) -> Option<PartitionSpec> {
        let is_known = from.len() == to.entries().len() && may_reorder(from);
        if !is_known || self.annotations.is_single() {
            return None;
        }
        // What is known of a value comes from several others, and may have an axis twice.
        let real = |axes: &Axes| self.annotations.axes(&self.annotations.parts(axes));
        let from: Vec<Axes> = from.iter().map(real).collect();
        let to: Vec<Axes> = to.entries().iter().map(real).collect();
        let way = between(&from, &to)?;
        let parts = parts_of(&self.annotations, &way);
        let mut pairs = parts.iter().enumerate();
        let is_once = pairs.all(|(i, part)| !parts[..i].iter().any(|other| overlap(part, other)));
        is_once.then_some(way)
    }
}

/// Whether axes of one dimension may have to change their order before one of them moves.
fn may_reorder(from: &Entries) -> bool {
    from.iter().any(|axes| axes.names().len() > 1)
}

/// The sharding with the axes in another order from which a step leads to `to`; `None` if one does at once.
fn between(from: &[Axes], to: &[Axes]) -> Option<PartitionSpec> {
    let (mut is_other, all) = (false, to);
    let entries = from.iter().zip(to).map(|(from, to)| {
        let goes = |axis: &&String| all.iter().any(|to| to.names().contains(axis));
        let moves = |axis: &&String| goes(axis) && !to.names().contains(axis);
        let stays = |axis: &&String| !moves(axis);
        let ordered = from
            .names()
            .iter()
            .filter(stays)
            .chain(from.names().iter().filter(moves));
        let ordered: Vec<String> = ordered.cloned().collect();
        is_other |= ordered != from.names();
        Axes::from_iter(ordered)
    });
    let spec: PartitionSpec = entries.collect();
    is_other.then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(of: &[&[&str]]) -> Vec<Axes> {
        of.iter()
            .map(|axes| Axes::from_iter(axes.iter().copied()))
            .collect()
    }

    #[test]
    fn axes_that_stay_come_first() {
        let way = |from: &[&[&str]], to: &[&[&str]]| {
            between(&entries(from), &entries(to)).map(|spec| spec.to_string())
        };
        let reordered = Some(r#"P(("a", "b"), _)"#.to_owned());
        assert_eq!(way(&[&["b", "a"], &[]], &[&["a"], &["b"]]), reordered);
        assert_eq!(way(&[&["a", "b"], &[]], &[&["a"], &["b"]]), None);
        assert_eq!(
            way(&[&["a", "b"], &[]], &[&[], &["a"]]),
            Some(r#"P(("b", "a"), _)"#.to_owned())
        );
        assert_eq!(way(&[&["b", "a"], &[]], &[&["a"], &[]]), None);
        assert_eq!(way(&[&["a"], &["b"]], &[&["b"], &["a"]]), None);
    }
}
