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

/// What makes the leaves of another tree no partners of the parameters: another structure, or other
/// shapes.
pub(crate) fn differences<T: Tree<Tensor>>(parameters: &T, other: &T, name: &str) -> Vec<String> {
    let types = other.map_leaves(&mut Path::root(), &mut |_, leaf| leaf.ty());
    if !parameters.same_structure(&types) {
        return vec![format!(
            "`{name}` has another structure than the parameters (number of leaves: {} and {})",
            leaves(other).len(),
            leaves(parameters).len()
        )];
    }
    let mut found = Vec::new();
    let mut others = leaves(other).into_iter();
    parameters.visit_leaves(&mut Path::root(), &mut |path, parameter| {
        let Some(other) = others.next().filter(|o| o.shape() != parameter.shape()) else {
            return;
        };
        let leaf = format!("{name}.{path}");
        found.push(format!(
            "`{}` is {}, and the parameter is {}",
            leaf.trim_end_matches('.'),
            other.ty(),
            parameter.ty()
        ));
    });
    found
}
