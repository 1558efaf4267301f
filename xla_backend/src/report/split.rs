//! How a value of a compiled program is split, as far as its sizes tell.
//!
//! Optimized HLO has the shape that one device holds and no sharding. With the shape of the whole value
//! the number of parts of each dimension is known, and in most meshes with it the axes. Where several sets
//! of axes have that many devices, it is not known which, and `?` stands for it.

use std::fmt;

use serde::{Serialize, Serializer};
use shardax_sharding::{Mesh, PartitionSpec};

/// How one value lies on the mesh, printed as `P("data", _)`, with what still has to be reduced:
/// `partial sums over data of P(_, _)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// The dimensions.
    pub dims: Vec<DimSplit>,
    /// What the devices along some axes have to reduce before they hold the value.
    pub partial: Option<Partial>,
}

/// How one dimension is split.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DimSplit {
    /// By these mesh axes, major first; by none if it is whole.
    Axes(Vec<String>),
    /// In a way that sizes do not tell.
    Unknown,
}

/// Values that are to be reduced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partial {
    /// `sums`, `maxima`, `minima`, `products` or `results`.
    pub of: &'static str,
    /// The mesh axes along which they are reduced.
    pub axes: Vec<String>,
}

impl Split {
    /// What a spec says.
    pub(super) fn of_spec(spec: &PartitionSpec) -> Self {
        let dims = spec.entries().iter();
        Split {
            dims: dims
                .map(|axes| DimSplit::Axes(axes.names().to_vec()))
                .collect(),
            partial: None,
        }
    }

    /// Whether no dimension is split, and nothing is left to reduce.
    pub fn is_whole(&self) -> bool {
        let is_whole = |dim: &DimSplit| matches!(dim, DimSplit::Axes(axes) if axes.is_empty());
        self.dims.iter().all(is_whole) && self.partial.is_none()
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Partial { of, axes }) = &self.partial {
            write!(f, "partial {of} over {} of ", axes.join("+"))?;
        }
        f.write_str("P(")?;
        for (i, dim) in self.dims.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            match dim {
                DimSplit::Unknown => f.write_str("?")?,
                DimSplit::Axes(axes) => match axes.as_slice() {
                    [] => f.write_str("_")?,
                    [axis] => write!(f, "{axis:?}")?,
                    several => {
                        let quoted: Vec<_> = several.iter().map(|a| format!("{a:?}")).collect();
                        write!(f, "({})", quoted.join(", "))?;
                    }
                },
            }
        }
        f.write_str(")")
    }
}

/// As text.
impl Serialize for Split {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A local shape beside that of the whole value, dimension by dimension of the whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fitted {
    /// Into how many parts it is split.
    pub(super) parts: Vec<u64>,
    /// Which dimension of the local shape it is.
    pub(super) order: Vec<usize>,
}

/// How a local shape fits the whole, if dimensions correspond: the local one may have dimensions of size 1
/// in front, as an element of a stack has.
pub(super) fn fit(local: &[u64], whole: &[usize]) -> Option<Fitted> {
    let leading = local.len().checked_sub(whole.len())?;
    if local[..leading].iter().any(|&size| size != 1) {
        return None;
    }
    in_order(local, whole, (leading..local.len()).collect())
}

/// As [`fit`], or, if that does not, in every other order of dimensions: compilers for GPUs turn arrays so
/// that the dimension that is gathered is the major one.
pub(super) fn fit_turned(local: &[u64], whole: &[usize]) -> Vec<Fitted> {
    /// Of more dimensions than these nothing is said.
    const RANK: usize = 6;
    if let Some(fitted) = fit(local, whole) {
        return vec![fitted];
    }
    let Some(mut extra) = local.len().checked_sub(whole.len()) else {
        return vec![];
    };
    let mut own: Vec<usize> = (0..local.len()).collect();
    own.retain(|&dim| {
        let drop = extra > 0 && local[dim] == 1;
        extra -= usize::from(drop);
        !drop
    });
    if extra > 0 || own.len() > RANK {
        return vec![];
    }
    let mut orders: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..own.len() {
        let longer = |order: &Vec<usize>| {
            let rest = own.iter().filter(|dim| !order.contains(dim));
            let longer = rest.map(|&dim| [order.as_slice(), &[dim]].concat());
            longer.collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    let fitted = orders
        .into_iter()
        .filter_map(|order| in_order(local, whole, order));
    fitted.collect()
}

fn in_order(local: &[u64], whole: &[usize], order: Vec<usize>) -> Option<Fitted> {
    let part = |(&whole, &dim): (&usize, &usize)| {
        let whole = whole as u64;
        match (whole, local[dim]) {
            (0, 0) => Some(1),
            (_, 0) => None,
            (_, local) => whole.is_multiple_of(local).then(|| whole / local),
        }
    };
    let parts = whole.iter().zip(&order).map(part).collect::<Option<_>>()?;
    Some(Fitted { parts, order })
}

/// Every way in which a local shape fits the whole when neighboring dimensions of it may belong to one of the
/// whole's, as they do where XLA has cut a dimension and not yet joined it again.
pub(super) fn fits_joined(local: &[u64], whole: &[usize]) -> Vec<Vec<u64>> {
    let Some((&first, rest)) = whole.split_first() else {
        return match local.iter().all(|&size| size == 1) {
            true => vec![vec![]],
            false => vec![],
        };
    };
    let mut ways = vec![];
    let mut joined = 1u64;
    for (i, &size) in local.iter().enumerate() {
        joined = joined.saturating_mul(size);
        if joined == 0 || !(first as u64).is_multiple_of(joined) {
            break;
        }
        let parts = first as u64 / joined;
        let inner = fits_joined(&local[i + 1..], rest);
        ways.extend(inner.into_iter().map(|inner| [vec![parts], inner].concat()));
    }
    ways.sort_unstable();
    ways.dedup();
    ways
}

/// The axes of each dimension for these numbers of parts. `stated` is believed where it has as many, and
/// `taken` axes split no dimension.
pub(super) fn dims_of_parts(
    mesh: &Mesh,
    parts: &[u64],
    stated: Option<&PartitionSpec>,
    taken: &[String],
) -> Vec<DimSplit> {
    let size = |axis: &str| mesh.axis_size(axis).unwrap_or(1) as u64;
    let known: Vec<Option<Vec<String>>> = parts
        .iter()
        .enumerate()
        .map(|(d, &parts)| {
            if parts == 1 {
                return Some(vec![]);
            }
            let axes = stated?.entries().get(d)?.names();
            let fits = axes.iter().map(|axis| size(axis)).product::<u64>() == parts;
            let is_free = !axes.iter().any(|axis| taken.contains(axis));
            (fits && is_free).then(|| axes.to_vec())
        })
        .collect();
    let used: Vec<&String> = known.iter().flatten().flatten().chain(taken).collect();
    let free: Vec<&str> = mesh
        .axes()
        .iter()
        .map(|axis| axis.name())
        .filter(|&axis| size(axis) > 1 && !used.iter().any(|used| *used == axis))
        .collect();
    let dims = known.iter().zip(parts);
    dims.map(|(known, &parts)| match known {
        Some(axes) => DimSplit::Axes(axes.clone()),
        None => axes_of(&free, parts, &size),
    })
    .collect()
}

/// Whether axes other than those `taken` can split a value into these parts. An axis may be
/// divided among dimensions, so only the number of devices is looked at.
pub(super) fn is_possible(mesh: &Mesh, parts: &[u64], taken: &[String]) -> bool {
    let free = mesh
        .axes()
        .iter()
        .filter(|axis| !taken.iter().any(|t| t == axis.name()));
    let devices: u64 = free.map(|axis| axis.size() as u64).product();
    let total = parts
        .iter()
        .try_fold(1u64, |all, &parts| all.checked_mul(parts));
    total.is_some_and(|total| total > 0 && devices.is_multiple_of(total))
}

/// The one set of axes that has so many devices.
fn axes_of(free: &[&str], parts: u64, size: &dyn Fn(&str) -> u64) -> DimSplit {
    // No mesh has more than a few axes; of more than these nothing is said.
    let count = free.len().min(10);
    let mut fitting = (1..1u32 << count).filter_map(|set| {
        let chosen: Vec<&str> = (0..count)
            .filter(|i| set >> i & 1 == 1)
            .map(|i| free[i])
            .collect();
        let devices: u64 = chosen.iter().map(|axis| size(axis)).product();
        (devices == parts).then_some(chosen)
    });
    match (fitting.next(), fitting.next()) {
        (Some(axes), None) => DimSplit::Axes(axes.into_iter().map(str::to_owned).collect()),
        _ => DimSplit::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(text: &str) -> Mesh {
        text.parse().unwrap()
    }

    fn text(mesh: &Mesh, parts: &[u64], stated: Option<&PartitionSpec>, taken: &[&str]) -> String {
        let taken: Vec<String> = taken.iter().map(|&axis| axis.to_owned()).collect();
        let split = Split {
            dims: dims_of_parts(mesh, parts, stated, &taken),
            partial: None,
        };
        split.to_string()
    }

    #[test]
    fn sizes_tell_axes_where_only_one_set_fits() {
        let grid = mesh("data=2,model=4");
        assert_eq!(
            text(&grid, &[2, 4, 1], None, &[]),
            r#"P("data", "model", _)"#
        );
        assert_eq!(
            text(&grid, &[8, 1], None, &[]),
            r#"P(("data", "model"), _)"#
        );
        assert_eq!(text(&grid, &[2], None, &["data"]), "P(?)");
        let cube = mesh("a=2,b=2,c=2");
        assert_eq!(text(&cube, &[2, 1], None, &[]), "P(?, _)");
        assert_eq!(text(&cube, &[2, 1], None, &["a", "c"]), r#"P("b", _)"#);
        let stated = PartitionSpec::new(("c", ()));
        assert_eq!(text(&cube, &[2, 1], Some(&stated), &[]), r#"P("c", _)"#);
        assert_eq!(text(&cube, &[2, 1], Some(&stated), &["c"]), "P(?, _)");
        assert_eq!(
            text(&cube, &[4, 1], Some(&stated), &["c"]),
            r#"P(("a", "b"), _)"#
        );
    }

    #[test]
    fn some_splits_are_impossible() {
        let grid = mesh("data=2,model=4");
        assert!(is_possible(&grid, &[2, 4], &[]));
        assert!(!is_possible(&grid, &[4, 4], &[]));
        assert!(!is_possible(
            &grid,
            &[2, 1],
            &["data".into(), "model".into()]
        ));
        assert!(is_possible(
            &grid,
            &[1, 1],
            &["data".into(), "model".into()]
        ));
        assert!(!is_possible(&grid, &[3], &[]));
    }

    #[test]
    fn local_shapes_fit_whole_ones() {
        let parts = |local: &[u64], whole: &[usize]| fit(local, whole).map(|f| f.parts);
        assert_eq!(parts(&[8, 64], &[64, 64]), Some(vec![8, 1]));
        assert_eq!(parts(&[1, 8, 64], &[64, 64]), Some(vec![8, 1]));
        assert_eq!(fit(&[1, 8], &[8]).map(|f| f.order), Some(vec![1]));
        assert_eq!(parts(&[2, 8, 64], &[64, 64]), None);
        assert_eq!(parts(&[5, 64], &[64, 64]), None);
        assert_eq!(parts(&[0], &[8]), None);
        assert_eq!(parts(&[0], &[0]), Some(vec![1]));
        assert_eq!(parts(&[64], &[64, 64]), None);
    }

    #[test]
    fn turned_shapes_fit_in_another_order() {
        let orders = |local: &[u64], whole: &[usize]| -> Vec<Vec<usize>> {
            let fitted = fit_turned(local, whole).into_iter();
            fitted.map(|fitted| fitted.order).collect()
        };
        assert_eq!(orders(&[64, 16, 4], &[4, 16, 64]), [[2, 1, 0]]);
        assert_eq!(orders(&[8, 64], &[64, 64]), [[0, 1]]);
        assert_eq!(orders(&[64, 1, 8], &[8, 64]), [[2, 0]]);
        assert_eq!(orders(&[32, 5], &[64, 64]), [[0usize; 2]; 0]);
        assert_eq!(orders(&[8, 1, 1, 8], &[16, 8]), [[0, 3], [3, 0]]);
    }

    #[test]
    fn joined_dimensions_fit_in_several_ways() {
        assert_eq!(fits_joined(&[8, 2, 4], &[16, 32]), [[1, 8], [2, 4]]);
        assert_eq!(fits_joined(&[2, 8, 4], &[16, 32]), [[1, 8], [8, 1]]);
        assert_eq!(fits_joined(&[16, 4], &[16, 32]), [[1, 8]]);
        assert_eq!(fits_joined(&[3, 4], &[16, 32]), [[0u64; 2]; 0]);
        assert_eq!(fits_joined(&[1], &[]), [[0u64; 0]]);
        assert_eq!(fits_joined(&[0, 4], &[0, 4]), [[0u64; 2]; 0]);
    }

    #[test]
    fn partial_values_say_so() {
        let split = Split {
            dims: vec![DimSplit::Axes(vec![])],
            partial: Some(Partial {
                of: "sums",
                axes: vec!["data".into(), "pod".into()],
            }),
        };
        assert_eq!(split.to_string(), "partial sums over data+pod of P(_)");
        assert!(!split.is_whole());
        assert!(Split::of_spec(&PartitionSpec::replicated(2)).is_whole());
    }
}
