//! Walking several trees of one structure together.

use shardax_core::{Path, Tensor, Tree};

/// The leaves of a tree, in order.
pub(crate) fn leaves<T: Tree<Tensor>>(tree: &T) -> Vec<Tensor> {
    let mut leaves = Vec::new();
    tree.visit_leaves(&mut Path::root(), &mut |_, leaf| leaves.push(*leaf));
    leaves
}

/// The same structure with these leaves, of which there are as many.
pub(crate) fn rebuild<T: Tree<Tensor>>(tree: &T, leaves: &[Tensor]) -> T {
    let mut next = leaves.iter();
    tree.replace_leaves(&mut |_, leaf| next.next().copied().unwrap_or(*leaf))
}

/// Panics if a tree has another structure than the parameters: the wrong leaves would be paired.
#[track_caller]
pub(crate) fn check_like<T: Tree<Tensor>>(parameters: &T, other: &T, name: &str) {
    let shapes = |tree: &T| -> Vec<_> { leaves(tree).iter().map(|leaf| leaf.shape()).collect() };
    assert!(
        shapes(parameters) == shapes(other),
        "`{name}` is not like the parameters: its leaves have shapes {:?} and theirs {:?}",
        shapes(other),
        shapes(parameters)
    );
}
