//! [`Shard`]: the part of an array that one device holds, as checkpoints and checks read it.

use std::ops::Range;

use shardax_core::{DType, Element, TensorType};
use shardax_pjrt::Buffer;

use super::Array;
use crate::error::Result;

/// The part of an array that one device holds.
#[derive(Clone, Debug)]
pub struct Shard<'a> {
    array: &'a Array,
    device: usize,
    replica: usize,
    bounds: Vec<Range<usize>>,
}

impl Array {
    /// The part of the array on each device of its mesh, in the mesh's order; none while it is on the
    /// host.
    ///
    /// # Errors
    ///
    /// None for arrays that this crate made: their shardings fit them.
    pub fn shards(&self) -> Result<Vec<Shard<'_>>> {
        let Some(sharding) = self.sharding() else {
            return Ok(Vec::new());
        };
        let blocks = sharding.blocks(self.ty())?;
        let mut copies = vec![0; blocks.count()];
        let shards = blocks.of_devices().iter().enumerate();
        let shards = shards.map(|(device, &block)| {
            copies[block] += 1;
            Shard {
                array: self,
                device,
                replica: copies[block] - 1,
                bounds: blocks.bounds(block),
            }
        });
        Ok(shards.collect())
    }

    /// Of each block of the array the first copy: together they are the array, each element once.
    ///
    /// # Errors
    ///
    /// As for [`Array::shards`].
    pub fn distinct_shards(&self) -> Result<Vec<Shard<'_>>> {
        let mut shards = self.shards()?;
        shards.retain(|shard| shard.replica == 0);
        Ok(shards)
    }
}

impl<'a> Shard<'a> {
    /// The position of its device in the mesh.
    pub fn device(&self) -> usize {
        self.device
    }

    /// How many devices before this one, in the mesh's order, hold the same part: 0 for the first copy.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// The part of the array that it is, as a range of each dimension.
    pub fn bounds(&self) -> &[Range<usize>] {
        &self.bounds
    }

    /// Element type and shape of the part.
    pub fn ty(&self) -> TensorType {
        let shape: Vec<usize> = self.bounds.iter().map(ExactSizeIterator::len).collect();
        TensorType::new(self.array.dtype(), shape)
    }

    /// Its memory on the device.
    pub fn buffer(&self) -> &'a Buffer {
        &self.array.buffers()[self.device]
    }

    /// Its elements in row-major order; waits for them.
    ///
    /// # Errors
    ///
    /// When `T` is not the element type, the array was donated, or its program failed.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.array.check_element::<T>()?;
        Ok(T::from_bytes(&self.to_bytes()?))
    }

    /// The bytes of its elements in row-major order; waits for them. A 4-bit integer takes a byte.
    ///
    /// # Errors
    ///
    /// When the array was donated or its program failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = self.buffer().to_host()?;
        // XLA's constants leave the upper half of the byte as it is.
        match self.array.dtype() {
            DType::I4 => bytes
                .iter_mut()
                .for_each(|byte| *byte = ((*byte << 4) as i8 >> 4) as u8),
            DType::U4 => bytes.iter_mut().for_each(|byte| *byte &= 0x0F),
            _ => {}
        }
        Ok(bytes)
    }
}
