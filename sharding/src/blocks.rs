//! Which block of an array lies on which device.
//!
//! A spec cuts an array into a grid of equal blocks and gives each device one of them; devices along
//! unused axes have the same. Whoever reads, writes or moves an array works on the distinct blocks.

use std::ops::Range;

use crate::fault::SpecFault;
use crate::mesh::Mesh;
use crate::spec::PartitionSpec;

/// The blocks that a spec cuts an array into, numbered in row-major order of their grid, and the
/// devices that hold them.
///
/// ```
/// use shardax_sharding::{Blocks, Mesh, PartitionSpec};
///
/// let mesh = Mesh::new([("data", 2), ("model", 2)])?;
/// let blocks = Blocks::new(&PartitionSpec::new(("model", ())), &mesh, &[6, 5]).unwrap();
/// assert_eq!(blocks.count(), 2);
/// assert_eq!(blocks.bounds(1), [3..6, 0..5]);
/// assert_eq!(blocks.holders(1).collect::<Vec<_>>(), [1, 3]);
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    shape: Vec<usize>,
    /// Into how many parts each dimension is split.
    grid: Vec<usize>,
    /// The block of each device.
    of_device: Vec<usize>,
}

impl Blocks {
    /// The blocks of an array of this shape.
    ///
    /// # Errors
    ///
    /// What [`PartitionSpec::validate`] finds.
    pub fn new(spec: &PartitionSpec, mesh: &Mesh, shape: &[usize]) -> Result<Self, Vec<SpecFault>> {
        let grid = spec.parts(mesh, shape)?;
        let places = (0..mesh.device_count()).filter_map(|position| spec.block(mesh, position));
        Ok(Blocks {
            of_device: places.map(|place| number(&grid, &place)).collect(),
            shape: shape.to_vec(),
            grid,
        })
    }

    /// The array's dimension sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Into how many blocks each dimension is cut.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// The number of distinct blocks.
    pub fn count(&self) -> usize {
        self.grid.iter().product()
    }

    /// Dimension sizes of one block.
    pub fn block_shape(&self) -> Vec<usize> {
        let sizes = self.shape.iter().zip(&self.grid);
        sizes.map(|(size, parts)| size / parts).collect()
    }

    /// The number of each device's block, in the order of positions in the mesh.
    pub fn of_devices(&self) -> &[usize] {
        &self.of_device
    }

    /// Which part of the array a block is, as a range of each dimension.
    pub fn bounds(&self, block: usize) -> Vec<Range<usize>> {
        let sizes = self.block_shape();
        let starts = self.place(block);
        let bounds = starts.iter().zip(sizes);
        bounds
            .map(|(at, size)| at * size..(at + 1) * size)
            .collect()
    }

    /// The positions of the devices that hold a block, rising.
    pub fn holders(&self, block: usize) -> impl Iterator<Item = usize> {
        let devices = self.of_device.iter().enumerate();
        devices.filter_map(move |(device, &held)| (held == block).then_some(device))
    }

    /// Where a block stands in the grid.
    pub(crate) fn place(&self, block: usize) -> Vec<usize> {
        place(&self.grid, block)
    }
}

/// The number of a place in a grid, in row-major order.
pub(crate) fn number(grid: &[usize], place: &[usize]) -> usize {
    let along = grid.iter().zip(place);
    along.fold(0, |number, (size, at)| number * size + at)
}

/// The place in a grid that has a number.
pub(crate) fn place(grid: &[usize], number: usize) -> Vec<usize> {
    let mut rest = number;
    let mut place = vec![0; grid.len()];
    for (at, size) in place.iter_mut().zip(grid).rev() {
        *at = rest % size;
        rest /= size;
    }
    place
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::axes::Axes;
    use crate::spec::tests::meshes;

    #[test]
    fn faults_of_the_spec_come_out() -> Result<(), crate::Error> {
        let mesh = Mesh::new([("data", 8)])?;
        let faults = Blocks::new(&PartitionSpec::new(["data"]), &mesh, &[17]).unwrap_err();
        assert_eq!(
            faults[0].to_string(),
            "dimension 0 of size 17 is not divisible by data=8: make the size a multiple of 8, \
             choose mesh sizes that divide 17, or leave the dimension unsplit"
        );
        Ok(())
    }

    proptest! {
        #[test]
        fn agree_with_the_bounds_of_each_device((mesh, chosen) in meshes(), whole in 0usize..3) {
            let spec = PartitionSpec::new(((), Axes::from(chosen)));
            let shape = [2, whole * mesh.device_count()];
            let blocks = Blocks::new(&spec, &mesh, &shape).unwrap();
            prop_assert_eq!(blocks.count() * spec.replicas(&mesh), mesh.device_count());
            for (device, &block) in blocks.of_devices().iter().enumerate() {
                prop_assert!(blocks.holders(block).any(|holder| holder == device));
                prop_assert_eq!(
                    Ok(blocks.bounds(block)),
                    spec.shard_bounds(&mesh, &shape, device)
                );
            }
        }
    }
}
