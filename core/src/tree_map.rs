//! Functions over the leaves of trees, as a program that holds a model needs them: [`Tree`] has what
//! every structure must implement, and these are written with it.

use std::panic::Location;

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Tensor;
use crate::trace::{at, mistake};
use crate::tree::{Leaf, Path, Tree};

/// The same structure with every leaf mapped.
///
/// ```
/// use shardax_core::{DType, TensorType, tree_map};
///
/// #[derive(Clone)]
/// struct Bytes(usize);
/// impl shardax_core::Leaf for Bytes {}
///
/// let model = (TensorType::new(DType::F32, [8, 4]), vec![TensorType::scalar(DType::I32)]);
/// let (weight, rest) = tree_map(&model, |ty: &TensorType| Bytes(ty.host_bytes()));
/// assert_eq!((weight.0, rest[0].0), (128, 4));
/// ```
pub fn tree_map<L: Leaf, M: Leaf, T: Tree<L>>(tree: &T, mut f: impl FnMut(&L) -> M) -> T::With<M> {
    tree.map_leaves(&mut Path::root(), &mut |_, leaf| f(leaf))
}

/// The same structure with each leaf and its partner in another tree mapped: a moving average of
/// parameters, the difference of two states.
///
/// ```
/// use shardax_core::{Tensor, tree_zip};
///
/// fn average(old: Vec<Tensor>, new: Vec<Tensor>) -> Vec<Tensor> {
///     tree_zip(&old, &new, |old: &Tensor, new: &Tensor| *old * 0.99 + *new * 0.01).unwrap()
/// }
/// ```
///
/// # Errors
///
/// [`ErrorKind::Argument`] when the other tree has another structure: another number of elements, an
/// option that is not there, other static configuration.
#[track_caller]
pub fn tree_zip<L: Leaf, M: Leaf, N: Leaf, T: Tree<L>>(
    tree: &T,
    other: &T::With<M>,
    mut f: impl FnMut(&L, &M) -> N,
) -> Result<T::With<N>> {
    let mut others = Vec::new();
    other.visit_leaves(&mut Path::root(), &mut |_, leaf| others.push(leaf));
    let count = tree.leaves().len();
    if !tree.same_structure(other) || others.len() != count {
        let problem = format!(
            "the two trees have different structures (number of leaves: {count} and {})",
            others.len()
        );
        return Err(Error {
            kind: ErrorKind::Argument {
                op: "tree_zip",
                problem,
            },
            source_line: Location::caller(),
            help: Some(
                "give trees of as many elements, with the same options and configuration".into(),
            ),
        });
    }
    let mut next = 0;
    Ok(tree.map_leaves(&mut Path::root(), &mut |_, leaf| {
        next += 1;
        f(leaf, others[next - 1])
    }))
}

/// The same tree with each tensor computed from its partners in several trees of one type: what an optimizer does with
/// parameters, gradients and state.
///
/// ```
/// use shardax_core::{Tensor, Tree, tree_combine};
///
/// /// Gradient descent with momentum: the new parameters, and the new velocity.
/// fn update<P: Tree<Tensor>>(parameters: P, gradients: P, velocity: P) -> (P, P) {
///     let velocity = tree_combine([&velocity, &gradients], |[v, g]| v * 0.9 + g);
///     let parameters = tree_combine([&parameters, &velocity], |[p, v]| p - v * 0.1);
///     (parameters, velocity)
/// }
/// ```
///
/// It is a mistake of the traced function if the trees have different structures. Of no trees nothing can be made: `N` is
/// at least 1.
#[track_caller]
pub fn tree_combine<const N: usize, P: Tree<Tensor>>(
    trees: [&P; N],
    mut f: impl FnMut([Tensor; N]) -> Tensor,
) -> P {
    const { assert!(N > 0, "`tree_combine` takes at least one tree") };
    let paths = trees.map(|tree| {
        let mut paths = Vec::new();
        tree.visit_leaves(&mut Path::root(), &mut |path, _| {
            paths.push(path.to_string())
        });
        paths
    });
    if let Some(other) = (1..N).find(|&other| paths[other] != paths[0]) {
        let counts = [paths[0].len(), paths[other].len()];
        let pairs = paths[0].iter().zip(&paths[other]);
        let first = pairs.into_iter().find(|(one, other)| one != other);
        let first = first.map(|(one, other)| format!(", and `{one}` meets `{other}`"));
        let problem = format!(
            "tree {other} has another structure than tree 0 (number of leaves: {} and {}{})",
            counts[1],
            counts[0],
            first.unwrap_or_default()
        );
        let help = "give trees of as many elements, with the same options and configuration";
        mistake("tree_combine", problem, Some(help.to_owned()))
    }
    let leaves = trees.map(|tree| tree.leaves());
    let mut next = 0;
    at(Location::caller(), || {
        trees[0].replace_leaves(&mut |_, _| {
            next += 1;
            f(std::array::from_fn(|tree| leaves[tree][next - 1]))
        })
    })
}

/// Every leaf with its path, in order: `("blocks.mlp.up", leaf)`.
///
/// ```
/// use shardax_core::{DType, TensorType, tree_paths};
///
/// let (a, b) = (TensorType::scalar(DType::F32), TensorType::scalar(DType::I32));
/// let paths = tree_paths(&(a.clone(), vec![a, b.clone()]));
/// assert_eq!(paths[2], ("1.1".to_owned(), b));
/// ```
pub fn tree_paths<L: Leaf, T: Tree<L>>(tree: &T) -> Vec<(String, L)> {
    let mut paths = Vec::new();
    tree.visit_leaves(&mut Path::root(), &mut |path, leaf: &L| {
        paths.push((path.to_string(), leaf.clone()));
    });
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::types::TensorType;

    #[test]
    fn zipping_maps_partners_and_refuses_strangers() {
        let ty = |size: usize| TensorType::new(DType::F32, [size]);
        let joined = |a: &TensorType, b: &TensorType| ty(a.shape[0] * 10 + b.shape[0]);
        let one = (ty(1), vec![ty(2), ty(3)], Some(ty(4)));
        let two = (ty(5), vec![ty(6), ty(7)], Some(ty(8)));
        let zipped = tree_zip(&one, &two, joined).unwrap();
        assert_eq!(zipped, (ty(15), vec![ty(26), ty(37)], Some(ty(48))));
        for other in [
            (ty(5), vec![ty(6)], Some(ty(8))),
            (ty(5), vec![ty(6), ty(7)], None),
        ] {
            let line = line!() + 1;
            let error = tree_zip(&one, &other, joined).unwrap_err();
            assert_eq!(error.source_line.line(), line);
            assert_eq!(
                error.kind.to_string(),
                "`tree_zip`: the two trees have different structures (number of leaves: 4 and 3)"
            );
        }
    }
}
