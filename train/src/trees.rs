//! Whether several trees have one structure.

use shardax_core::{Path, Tensor, Tree};

/// What makes the leaves of another tree no partners of the parameters: another structure, or other
/// shapes.
pub(crate) fn differences<T: Tree<Tensor>>(parameters: &T, other: &T, name: &str) -> Vec<String> {
    let types = other.map_leaves(&mut Path::root(), &mut |_, leaf| leaf.ty());
    if !parameters.same_structure(&types) {
        return vec![format!(
            "`{name}` has another structure than the parameters (number of leaves: {} and {})",
            other.leaves().len(),
            parameters.leaves().len()
        )];
    }
    let mut found = Vec::new();
    let mut others = other.leaves().into_iter();
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
