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

/// Ends the trace if a tree has other leaves than the parameters, which would pair the wrong ones.
#[track_caller]
pub(crate) fn check_like<T: Tree<Tensor>>(parameters: &T, other: &T, name: &str) {
    let described = |tree: &T| {
        let mut list = Vec::new();
        tree.visit_leaves(&mut Path::root(), &mut |path, leaf| {
            list.push((path.to_string(), leaf.shape()));
        });
        list
    };
    let (parameters, other) = (described(parameters), described(other));
    let differs = parameters.iter().zip(&other).find(|(a, b)| a != b);
    match differs {
        Some(((path, shape), (other_path, other_shape))) => panic!(
            "`{name}` is not like the parameters: leaf `{other_path}` of shape {other_shape:?} \
             stands where they have `{path}` of shape {shape:?}"
        ),
        None if parameters.len() != other.len() => panic!(
            "`{name}` is not like the parameters: it has {} leaves and they have {}",
            other.len(),
            parameters.len()
        ),
        None => {}
    }
}
