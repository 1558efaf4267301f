//! A sum along trees.

use std::panic::Location;

use shardax_core::{
    Tensor, Tree, assume_invariant, at, axis_index, axis_size, concatenate, ppermute,
};
use shardax_sharding::Axes;

use super::summed;

/// The sum of every device's value, made along two trees; all devices hold it in common.
///
/// Sums go up a binomial tree to its root in `ceil(log2 n)` messages, and come down in as many: of small
/// values, where a message costs more than what is in it, it is the fastest, for any number of devices.
/// Each half of the value has a tree of its own, in which the other's leaves are inner, so that no
/// device is idle. All devices together send `2 (n - 1)` times the value, as in a ring; the busiest
/// sends about `log2 n` times.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, manual, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
/// use shardax_train::collectives::tree_all_reduce;
///
/// let layout = Layout::new(Mesh::new([("data", 6)])?);
/// let (split, whole) = (PartitionSpec::new(("data",)), PartitionSpec::whole());
/// let sum = manual("data", split, whole, |x: Tensor| tree_all_reduce(x, "data"));
/// let program = under(&layout, || trace(sum, TensorType::new(DType::F32, [6, 2])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[1,2]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn tree_all_reduce<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    let axes = axes.into();
    at(Location::caller(), || {
        summed(tree, &axes, |x| {
            let half = x.size(0) / 2;
            let parts = [(x.slice(0, ..half), 0), (x.slice(0, half..), 1)];
            let sums = parts.map(|(part, root)| match part.size(0) {
                0 => part,
                _ => along_tree(part, root, &axes),
            });
            assume_invariant(concatenate(sums, 0), axes.clone())
        })
    })
}

/// The sum along the binomial tree with this root. A device's place in it is its distance from the
/// root: odd ones are leaves, so roots 0 and 1 have each other's.
fn along_tree(mut x: Tensor, root: usize, axes: &Axes) -> Tensor {
    let count = axis_size(axes.clone());
    let device = |place: usize| (place + root) % count;
    let distances: Vec<usize> = std::iter::successors(Some(1), |d| Some(d * 2))
        .take_while(|&distance| distance < count)
        .collect();
    // Pairs of parent and child.
    let branches = |distance: usize| -> Vec<(usize, usize)> {
        let children = (distance..count).step_by(2 * distance);
        children.map(|child| (child - distance, child)).collect()
    };
    for &distance in &distances {
        let up = branches(distance).into_iter();
        // Who is sent nothing adds zeros.
        x = x + ppermute(x, axes.clone(), up.map(|(p, c)| (device(c), device(p))));
    }
    let place = (axis_index(axes.clone()) - root as i64).rem_euclid(count as i64);
    for &distance in distances.iter().rev() {
        let down = branches(distance).into_iter();
        let given = ppermute(x, axes.clone(), down.map(|(p, c)| (device(p), device(c))));
        let is_child = place.rem_euclid(2 * distance as i64).eq(distance as i64);
        x = is_child.select(given, x);
    }
    x
}
