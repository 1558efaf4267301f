//! How arrays get to devices: from the host, from another client, or block by block from a callback.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::ops::Range;
use std::sync::Arc;

use shardax_core::{DType, Element, TensorType};
use shardax_pjrt::{Buffer, Client};
use shardax_sharding::Blocks;

use super::intern::{intern_sharding, intern_type};
use super::{Array, Sharding, Shards, window};
use crate::error::{Error, Result};
use crate::lower::element_type;
use crate::runtime::Runtime;

impl Array {
    /// The array on the devices of a runtime, lying as `sharding` says: the first devices of the
    /// runtime in order are those of the mesh.
    ///
    /// From the host each device gets its block and no more. An array that is on devices of this
    /// runtime moves between them as [`Array::reshard`] says. One of another runtime goes through the
    /// host a block at a time, and is cut up or put together on whichever side has more devices.
    ///
    /// # Errors
    ///
    /// When the sharding does not fit the array or the mesh the runtime, the array was donated, or its
    /// program failed.
    pub fn put(&self, runtime: &Runtime, sharding: &Sharding) -> Result<Array> {
        self.put_shared(runtime, &intern_sharding(sharding.clone()))
    }

    pub(crate) fn put_shared(&self, runtime: &Runtime, sharding: &Arc<Sharding>) -> Result<Array> {
        let Some((from, client)) = self.shared_sharding().zip(self.client()) else {
            runtime.check_mesh(sharding.mesh())?;
            return self.put_from_host(runtime.client(), sharding);
        };
        if client.is_same(runtime.client()) {
            return self.reshard_on(runtime, sharding);
        }
        runtime.check_mesh(sharding.mesh())?;
        if sharding.mesh().device_count() <= client.device_count() {
            let there = self.reshard_on(&Runtime::of_client(client)?, sharding)?;
            return there.put_from_client(runtime.client());
        }
        // The runtime has more devices than the array's client, so it has those of its mesh.
        debug_assert!(from.mesh().device_count() <= runtime.client().device_count());
        let here = self.put_from_client(runtime.client())?;
        here.reshard_on(runtime, sharding)
    }

    /// Puts an array that is on the host on devices of a client, which has those of the mesh.
    pub(crate) fn put_from_host(&self, client: &Client, sharding: &Arc<Sharding>) -> Result<Array> {
        let (ty, bytes) = (self.shared_type(), self.bytes()?);
        let blocks = sharding.blocks(ty)?;
        let whole = blocks.count() == 1;
        let shards = fill(client, ty, &blocks, |bounds| {
            Ok(match whole {
                true => bytes.clone(),
                false => window::cut(&bytes, ty, bounds).into(),
            })
        })?;
        Ok(Self::on_devices(ty.clone(), sharding.clone(), shards))
    }

    /// The same blocks on the devices of another client, at the same positions.
    fn put_from_client(&self, client: &Client) -> Result<Array> {
        let (ty, Some(sharding)) = (self.shared_type(), self.shared_sharding()) else {
            return Ok(self.clone());
        };
        let blocks = sharding.blocks(ty)?;
        let mut shards = self.distinct_shards()?;
        shards.sort_by_key(|shard| blocks.of_devices()[shard.device()]);
        let mut shards = shards.iter();
        let shards = fill(client, ty, &blocks, |_| {
            let bytes = shards
                .next()
                .map_or(Ok(Vec::new()), |shard| shard.to_bytes());
            bytes.map(Into::into)
        })?;
        Ok(Self::on_devices(ty.clone(), sharding.clone(), shards))
    }

    /// An array of which `block` gives each distinct block: its elements in row-major order, for the
    /// part of the array within the bounds.
    ///
    /// The callback is called once for each block, in row-major order of the blocks, one after the
    /// other; a block is on its devices before the next is asked for. So the host never holds more
    /// than one, however large the array is. It is on the process's own runtime.
    ///
    /// ```no_run
    /// use shardax_core::TensorType;
    /// use shardax_sharding::{Mesh, PartitionSpec};
    /// use shardax_xla::{Array, Sharding};
    ///
    /// let rows = Sharding::new(Mesh::new([("data", 8)])?, PartitionSpec::new(["data"]));
    /// let squares = Array::from_callback([64], &rows, |bounds| {
    ///     Ok::<_, std::io::Error>(bounds[0].clone().map(|i| (i * i) as f32).collect())
    /// })?;
    /// assert_eq!(squares.to_vec::<f32>()?[63], 3969.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the sharding does not fit the array or the process's devices;
    /// [`Error::BlockCallback`] with the callback's own error and the block, or when it gives more or
    /// fewer elements than the block has.
    pub fn from_callback<T, E>(
        shape: impl AsRef<[usize]>,
        sharding: &Sharding,
        mut block: impl FnMut(&[Range<usize>]) -> Result<Vec<T>, E>,
    ) -> Result<Array>
    where
        T: Element,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let runtime = Runtime::shared(sharding.mesh().device_count())?;
        let ty = TensorType::new(T::DTYPE, shape);
        let bytes = |bounds: &[Range<usize>]| block(bounds).map(|values| T::to_bytes(&values));
        Array::from_callback_on(&runtime, ty, sharding, bytes)
    }

    /// [`Array::from_callback`] on a given runtime, for an element type that is known only while the
    /// program runs: the callback gives the bytes of its elements (a 4-bit integer takes a byte).
    ///
    /// # Errors
    ///
    /// As for [`Array::from_callback`].
    pub fn from_callback_on<E>(
        runtime: &Runtime,
        ty: TensorType,
        sharding: &Sharding,
        block: impl FnMut(&[Range<usize>]) -> Result<Vec<u8>, E>,
    ) -> Result<Array>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let sharding = intern_sharding(sharding.clone());
        let what = format!("array {ty}");
        from_blocks(runtime, intern_type(ty), sharding, &what, block)
    }
}

/// An array of the blocks that a callback gives; `what` names it in messages.
pub(super) fn from_blocks<E>(
    runtime: &Runtime,
    ty: Arc<TensorType>,
    sharding: Arc<Sharding>,
    what: &str,
    mut block: impl FnMut(&[Range<usize>]) -> Result<Vec<u8>, E>,
) -> Result<Array>
where
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    runtime.check_mesh(sharding.mesh())?;
    let blocks = Blocks::new(sharding.spec(), sharding.mesh(), &ty.shape)
        .map_err(|faults| Error::misfit(what.to_owned(), faults))?;
    let shards = fill(runtime.client(), &ty, &blocks, |bounds| {
        let fault = |source| Error::BlockCallback {
            what: what.to_owned(),
            block: bounds.to_vec(),
            source,
        };
        let bytes = block(bounds).map_err(|error| fault(error.into()))?;
        let width = ty.dtype.host_bytes();
        let elements: usize = bounds.iter().map(ExactSizeIterator::len).product();
        if bytes.len() != elements * width {
            let (given, rest) = (bytes.len() / width, bytes.len() % width);
            let given = match rest {
                0 => format!("{given} elements"),
                rest => format!("{given} elements and {rest} bytes"),
            };
            return Err(fault(
                format!(
                    "it gave {given} ({} bytes), and the block has {elements} ({} bytes)",
                    bytes.len(),
                    elements * width
                )
                .into(),
            ));
        }
        if ty.dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(fault(
                "a boolean is 0 or 1, and it gave another byte".into(),
            ));
        }
        Ok(bytes.into())
    })?;
    Ok(Array::on_devices(ty, sharding, shards))
}

/// Buffers for every device of a mesh; `bytes` is asked for each block once, in order.
fn fill<'a>(
    client: &Client,
    ty: &TensorType,
    blocks: &Blocks,
    mut bytes: impl FnMut(&[Range<usize>]) -> Result<Cow<'a, [u8]>>,
) -> Result<Shards> {
    let shape = blocks.block_shape();
    let mut of_devices: Vec<Option<Buffer>> = blocks.of_devices().iter().map(|_| None).collect();
    for block in 0..blocks.count() {
        let bytes = bytes(&blocks.bounds(block))?;
        for device in blocks.holders(block) {
            of_devices[device] =
                Some(client.buffer_from_host(&bytes, element_type(ty.dtype), &shape, device)?);
        }
    }
    // Every device holds one of the blocks.
    Ok(of_devices.into_iter().flatten().collect())
}
