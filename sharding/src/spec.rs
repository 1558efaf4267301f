//! How one array is split over a mesh.

use std::fmt;
use std::ops::Range;

use crate::axes::Axes;
use crate::dim::Dim;
use crate::fault::{Dimension, SpecFault};
use crate::mesh::Mesh;
use crate::part::{AxisPart, axis_of, overlap};

/// Which mesh axes split each dimension of one array, printed `P("data", _, ("data", "model"))`.
///
/// Made of a tuple or an array with one entry for each dimension. An entry is anything that converts
/// to [`Axes`]: a name, a tuple of names (major first), or `()` for a dimension that stays whole.
///
/// ```
/// use shardax_sharding::{Mesh, PartitionSpec};
///
/// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
/// let spec = PartitionSpec::new(("data", (), "model"));
/// assert_eq!(spec.shard_shape(&mesh, &[8, 3, 16]), Ok(vec![4, 3, 4]));
/// assert_eq!(spec.shard_bounds(&mesh, &[8, 3, 16], 5), Ok(vec![4..8, 0..3, 4..8]));
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionSpec {
    entries: Vec<Axes>,
}

impl PartitionSpec {
    /// The spec with these entries.
    pub fn new(entries: impl Into<PartitionSpec>) -> Self {
        entries.into()
    }

    /// The spec of an array of this rank that every device holds whole.
    pub fn replicated(rank: usize) -> Self {
        PartitionSpec {
            entries: vec![Axes::default(); rank],
        }
    }

    /// The entries, to be changed.
    pub(crate) fn entries_mut(&mut self) -> &mut [Axes] {
        &mut self.entries
    }

    /// A spec without entries: where fewer entries than dimensions are allowed, of an array of any rank
    /// that every device holds whole.
    pub fn whole() -> Self {
        Self::replicated(0)
    }

    /// The entries, one for each dimension.
    pub fn entries(&self) -> &[Axes] {
        &self.entries
    }

    /// Whether an axis splits any dimension.
    pub(crate) fn is_split_over(&self, axis: &str) -> bool {
        self.entries.iter().any(|entry| entry.overlaps(axis))
    }

    /// The axes of all dimensions.
    pub(crate) fn all_axes(&self) -> Axes {
        self.entries.iter().flat_map(Axes::names).collect()
    }

    /// Splits a dimension by an axis, inside those that split it already.
    pub(crate) fn push_minor(&mut self, index: usize, axis: &str) {
        self.entries[index].push_minor(axis);
    }

    /// Lets the partitioner split a dimension further.
    pub(crate) fn leave_open(&mut self, index: usize) {
        let entry = std::mem::take(&mut self.entries[index]);
        self.entries[index] = entry.open();
    }

    /// Splits a dimension by further axes, inside those that split it already.
    pub(crate) fn split(&mut self, index: usize, axes: &[(String, usize)]) {
        for (axis, _) in axes {
            self.push_minor(index, axis);
        }
    }

    /// The same spec with every dimension closed.
    #[must_use]
    pub fn closed(self) -> Self {
        let entries = self.entries.into_iter().map(Axes::closed).collect();
        PartitionSpec { entries }
    }

    /// Everything that is wrong with the spec for an array of this shape on this mesh.
    ///
    /// An entry too many or too few, an axis that the mesh does not have, an axis used twice, a
    /// dimension that its axes do not divide. Empty if nothing is.
    pub fn validate(&self, mesh: &Mesh, shape: &[usize]) -> Vec<SpecFault> {
        self.faults(mesh, shape, None)
    }

    /// [`PartitionSpec::validate`], with the names that an annotation gives the dimensions.
    pub(crate) fn faults(
        &self,
        mesh: &Mesh,
        shape: &[usize],
        dims: Option<&[Dim]>,
    ) -> Vec<SpecFault> {
        let mut faults = Vec::new();
        if self.entries.len() != shape.len() {
            let (entries, shape) = (self.entries.len(), shape.to_vec());
            faults.push(SpecFault::Rank {
                rule: None,
                entries,
                shape,
            });
        }
        let dimension = |index| Dimension::new(index, dims);
        let mut used: Vec<(&str, AxisPart, usize)> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let mut axes = Vec::new();
            for axis in entry.names() {
                let Some(part) = mesh.part(axis) else {
                    faults.push(no_axis(mesh, axis, Some(dimension(index))));
                    continue;
                };
                if let Some((other, _, first)) = used.iter().find(|(used, ..)| overlap(used, axis))
                {
                    let (first, second) = (Some(dimension(*first)), Some(dimension(index)));
                    faults.push(wanted_twice([other, axis], [first, second]));
                    continue;
                }
                if let Some((other, ..)) = used.iter().find(|(_, used, _)| !used.fits(part)) {
                    faults.push(SpecFault::PartsApart {
                        parts: [(*other).to_owned(), axis.clone()],
                    });
                    continue;
                }
                used.push((axis, part, index));
                axes.push((axis.clone(), part.size));
            }
            let parts: usize = axes.iter().map(|(_, size)| size).product();
            match shape.get(index) {
                Some(&size) if !size.is_multiple_of(parts) => {
                    let dimension = dimension(index);
                    faults.push(SpecFault::Indivisible {
                        dimension,
                        size,
                        axes,
                    });
                }
                _ => {}
            }
        }
        faults
    }

    /// The shape of the part that one device holds.
    ///
    /// # Errors
    ///
    /// What [`PartitionSpec::validate`] finds.
    pub fn shard_shape(&self, mesh: &Mesh, shape: &[usize]) -> Result<Vec<usize>, Vec<SpecFault>> {
        let parts = self.parts(mesh, shape)?;
        Ok(shape
            .iter()
            .zip(parts)
            .map(|(size, parts)| size / parts)
            .collect())
    }

    /// The part, as a range of each dimension, that the device at `position` holds.
    ///
    /// # Errors
    ///
    /// What [`PartitionSpec::validate`] finds, or [`SpecFault::Position`].
    pub fn shard_bounds(
        &self,
        mesh: &Mesh,
        shape: &[usize],
        position: usize,
    ) -> Result<Vec<Range<usize>>, Vec<SpecFault>> {
        let shard = self.shard_shape(mesh, shape)?;
        let block = self.block(mesh, position).ok_or_else(|| {
            let device_count = mesh.device_count();
            vec![SpecFault::Position {
                position,
                device_count,
            }]
        })?;
        let bounds = shard
            .iter()
            .zip(block)
            .map(|(size, at)| at * size..(at + 1) * size);
        Ok(bounds.collect())
    }

    /// Into how many parts each dimension is split.
    pub(crate) fn parts(&self, mesh: &Mesh, shape: &[usize]) -> Result<Vec<usize>, Vec<SpecFault>> {
        let faults = self.validate(mesh, shape);
        if !faults.is_empty() {
            return Err(faults);
        }
        let size = |axis: &String| mesh.part(axis).map_or(1, |part| part.size);
        let parts = self
            .entries
            .iter()
            .map(|axes| axes.names().iter().map(size).product());
        Ok(parts.collect())
    }

    /// Which part along each dimension the device at `position` holds, if the mesh has that device.
    pub(crate) fn block(&self, mesh: &Mesh, position: usize) -> Option<Vec<usize>> {
        let coordinates = mesh.coordinates(position)?;
        let along = |axis: &String| {
            let part = mesh.part(axis)?;
            Some((part.coordinate(coordinates[part.index]), part.size))
        };
        let block = self.entries.iter().map(|axes| {
            let places = axes.names().iter().filter_map(along);
            places.fold(0, |at, (coordinate, size)| at * size + coordinate)
        });
        Some(block.collect())
    }

    /// On how many devices each element lies.
    pub fn replicas(&self, mesh: &Mesh) -> usize {
        let names = self.entries.iter().flat_map(Axes::names);
        let parts: Vec<AxisPart> = names.filter_map(|name| mesh.part(name)).collect();
        let unused = mesh.axes().iter().enumerate().map(|(index, axis)| {
            let used = parts.iter().filter(|part| part.index == index);
            axis.size() / used.map(|part| part.size).product::<usize>()
        });
        unused.product()
    }

    /// Whether every device holds the whole array.
    pub fn is_replicated(&self, mesh: &Mesh) -> bool {
        self.replicas(mesh) == mesh.device_count()
    }
}

/// The fault of a name that is no axis of the mesh, or no part of one.
pub(crate) fn no_axis(mesh: &Mesh, axis: &str, dimension: Option<Dimension>) -> SpecFault {
    match mesh.axis_size(axis_of(axis)) {
        Some(size) => SpecFault::NoPart {
            dimension,
            part: axis.to_owned(),
            axis: (axis_of(axis).to_owned(), size),
        },
        None => SpecFault::UnknownAxis {
            dimension,
            axis: axis_of(axis).to_owned(),
            known: mesh.axis_names().map(str::to_owned).collect(),
        },
    }
}

/// The fault of two names that have a part in common.
pub(crate) fn wanted_twice(names: [&str; 2], dimensions: [Option<Dimension>; 2]) -> SpecFault {
    let [first, second] = dimensions;
    let axis = match names[0] == names[1] {
        true => names[0],
        false => axis_of(names[0]),
    };
    SpecFault::AxisTwice {
        axis: axis.to_owned(),
        first,
        second,
    }
}

impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P(")?;
        for (i, axes) in self.entries.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{axes}")?;
        }
        f.write_str(")")
    }
}

impl<A: Into<Axes>> FromIterator<A> for PartitionSpec {
    fn from_iter<I: IntoIterator<Item = A>>(entries: I) -> Self {
        PartitionSpec {
            entries: entries.into_iter().map(Into::into).collect(),
        }
    }
}

impl<A: Into<Axes>, const N: usize> From<[A; N]> for PartitionSpec {
    fn from(entries: [A; N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<A: Into<Axes>> From<Vec<A>> for PartitionSpec {
    fn from(entries: Vec<A>) -> Self {
        entries.into_iter().collect()
    }
}

/// The spec of a scalar.
impl From<()> for PartitionSpec {
    fn from((): ()) -> Self {
        PartitionSpec::replicated(0)
    }
}

macro_rules! spec_from_tuple {
    ($($name:ident: $type:ident),+) => {
        impl<$($type: Into<Axes>),+> From<($($type,)+)> for PartitionSpec {
            fn from(($($name,)+): ($($type,)+)) -> Self {
                PartitionSpec { entries: vec![$($name.into()),+] }
            }
        }
    };
}

spec_from_tuple!(a: A);
spec_from_tuple!(a: A, b: B);
spec_from_tuple!(a: A, b: B, c: C);
spec_from_tuple!(a: A, b: B, c: C, d: D);
spec_from_tuple!(a: A, b: B, c: C, d: D, e: E);
spec_from_tuple!(a: A, b: B, c: C, d: D, e: E, f: F);
spec_from_tuple!(a: A, b: B, c: C, d: D, e: E, f: F, g: G);
spec_from_tuple!(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H);

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A mesh of up to three axes, and a choice of its axes.
    pub(crate) fn meshes() -> impl Strategy<Value = (Mesh, Vec<String>)> {
        proptest::collection::vec((1usize..4, any::<bool>()), 1..4).prop_map(|axes| {
            let named = || ["x", "y", "z"].into_iter().zip(&axes);
            let mesh = Mesh::new(named().map(|(name, (size, _))| (name, *size))).unwrap();
            let chosen = named().filter(|(_, (_, chosen))| *chosen);
            (mesh, chosen.map(|(name, _)| name.to_owned()).collect())
        })
    }

    fn mesh() -> Mesh {
        Mesh::new([("data", 2), ("model", 4)]).unwrap()
    }

    fn messages(spec: PartitionSpec, shape: &[usize]) -> Vec<String> {
        spec.validate(&mesh(), shape)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn is_written_as_a_tuple_or_an_array() {
        let spec = PartitionSpec::new(("data", (), ("data", "model")));
        assert_eq!(spec.to_string(), r#"P("data", _, ("data", "model"))"#);
        assert_eq!(
            PartitionSpec::new([Some("data"), None]),
            PartitionSpec::new(("data", ()))
        );
        assert_eq!(PartitionSpec::new(()), PartitionSpec::replicated(0));
    }

    #[test]
    fn says_everything_that_is_wrong() {
        assert_eq!(
            messages(
                PartitionSpec::new(("modle", "data", "data", ("model", "data"))),
                &[4, 3]
            ),
            [
                "4 entries for an array of shape [4, 3] with 2 dimensions: write one entry for each \
                 dimension, `_` where it is not split",
                "dimension 0: the mesh has no axis `modle`: did you mean `model`? There are data, \
                 model",
                "dimension 1 of size 3 is not divisible by data=2: make the size a multiple of 2, \
                 choose mesh sizes that divide 3, or leave the dimension unsplit",
                "mesh axis `data` is wanted twice, by dimension 1 and by dimension 2: an axis splits \
                 one dimension of an array, once",
                "mesh axis `data` is wanted twice, by dimension 1 and by dimension 3: an axis splits \
                 one dimension of an array, once",
            ]
        );
        assert_eq!(
            messages(PartitionSpec::new(["data"]), &[4, 4]),
            [
                "1 entry for an array of shape [4, 4] with 2 dimensions: write one entry for each \
                 dimension, `_` where it is not split"
            ]
        );
        assert_eq!(
            messages(PartitionSpec::new([("data", "model")]), &[12]),
            [
                "dimension 0 of size 12 is not divisible by data=2 x model=4 (8 parts): make the \
                 size a multiple of 8, choose mesh sizes that divide 12, or leave the dimension \
                 unsplit"
            ]
        );
    }

    #[test]
    fn the_first_axis_of_an_entry_is_major() {
        let spec = PartitionSpec::new((("model", "data"), ()));
        assert_eq!(spec.shard_bounds(&mesh(), &[8, 5], 1), Ok(vec![2..3, 0..5]));
        assert_eq!(spec.shard_bounds(&mesh(), &[8, 5], 4), Ok(vec![1..2, 0..5]));
        assert_eq!(
            spec.shard_bounds(&mesh(), &[8, 5], 8).unwrap_err()[0].to_string(),
            "there is no device at position 8: the mesh has 8"
        );
    }

    #[test]
    fn parts_of_axes_are_axes() {
        let mesh = Mesh::new([("data", 8), ("model", 2)]).unwrap();
        let spec = PartitionSpec::new(("data:(2)4", ("model", "data:(1)2")));
        assert_eq!(spec.validate(&mesh, &[8, 8]), []);
        assert_eq!(spec.shard_shape(&mesh, &[8, 8]), Ok(vec![2, 2]));
        // data 5 = (1, 1) of 2 by 4, model 1.
        assert_eq!(spec.shard_bounds(&mesh, &[8, 8], 11), Ok(vec![2..4, 6..8]));
        assert_eq!(spec.replicas(&mesh), 1);
        assert_eq!(PartitionSpec::new(["data:(2)2"]).replicas(&mesh), 8);

        let messages = |spec: PartitionSpec, mesh: &Mesh| {
            let faults = spec.validate(mesh, &[24, 24]);
            faults.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            messages(
                PartitionSpec::new((("data:(1)2", "data"), "data:(1)3")),
                &mesh
            ),
            [
                "mesh axis `data` is wanted twice, by dimension 0: an axis splits one dimension of an \
                 array, once",
                "dimension 1: `data:(1)3` is no part of data=8: write `data:(M)K`, where M times K \
                 divides 8, K is more than 1, and M is the size of what comes before",
            ]
        );
        let mesh = Mesh::new([("data", 6)]).unwrap();
        assert_eq!(
            messages(PartitionSpec::new(("data:(1)2", "data:(3)2")), &mesh),
            [
                "`data:(1)2` and `data:(3)2` are not of one grid: what comes before the second must be \
                 a multiple of the first with what comes before it"
            ]
        );
    }

    #[test]
    fn counts_copies() {
        assert_eq!(PartitionSpec::new(("data", ())).replicas(&mesh()), 4);
        assert!(PartitionSpec::replicated(2).is_replicated(&mesh()));
        let mesh = Mesh::new([("data", 1), ("model", 4)]).unwrap();
        assert!(PartitionSpec::new(["data"]).is_replicated(&mesh));
    }

    #[test]
    fn a_dimension_of_size_zero_can_be_split() {
        assert_eq!(
            PartitionSpec::new(["model"]).shard_shape(&mesh(), &[0]),
            Ok(vec![0])
        );
    }

    proptest! {
        #[test]
        fn bounds_tile_the_array((mesh, chosen) in meshes(), whole in 1usize..3) {
            let axes = PartitionSpec::new((Axes::from(chosen), ()));
            let parts = mesh.device_count() / axes.replicas(&mesh);
            let shape = [parts * whole, 2];
            let mut covered = vec![0; shape[0]];
            for position in 0..mesh.device_count() {
                let bounds = axes.shard_bounds(&mesh, &shape, position).unwrap();
                prop_assert_eq!(&bounds[1], &(0..2));
                for row in bounds[0].clone() {
                    covered[row] += 1;
                }
            }
            prop_assert!(covered.iter().all(|&copies| copies == axes.replicas(&mesh)));
        }
    }
}
