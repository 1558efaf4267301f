//! [`Array`]: a concrete value, on the host or spread over devices.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use shardax_core::{DType, Element, Leaf, Path, TensorType, Tree};
use shardax_sharding::{Mesh, PartitionSpec};
use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::intern::{intern_sharding, intern_type};
use crate::pjrt::{Buffer, Client};

/// How an array lies on the devices of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sharding {
    mesh: Mesh,
    spec: PartitionSpec,
}

impl Sharding {
    /// `spec` on `mesh`.
    pub fn new(mesh: Mesh, spec: PartitionSpec) -> Self {
        Sharding { mesh, spec }
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Which axes split which dimension.
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }
}

/// `P("data", _) on data=2 x model=4`
impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.spec, self.mesh)
    }
}

/// A concrete value. Cloning shares it.
///
/// A result of a jitted function may still be on its way: reading it waits. An array made from host
/// data stays on the host until it is passed to a jitted function, which puts every shard where the
/// program wants it.
#[derive(Clone)]
pub struct Array {
    inner: Arc<Inner>,
}

struct Inner {
    ty: Arc<TensorType>,
    place: Place,
}

/// One for each device; on one device without an allocation of its own.
pub(crate) type Shards = SmallVec<[Buffer; 1]>;

enum Place {
    Host(Vec<u8>),
    Devices {
        sharding: Arc<Sharding>,
        /// One for each device of the mesh, in the mesh's order.
        shards: Shards,
    },
}

impl Leaf for Array {}

impl Array {
    /// An array on the host with these elements in row-major order.
    ///
    /// # Errors
    ///
    /// When there are not as many elements as the shape has.
    pub fn from_slice<T: Element>(values: &[T], shape: impl AsRef<[usize]>) -> Result<Self> {
        let ty = TensorType::new(T::DTYPE, shape);
        if ty.element_count() != values.len() {
            return Err(Error::ElementCount {
                array: ty.to_string(),
                expected: ty.element_count(),
                actual: values.len(),
            });
        }
        Ok(Self::on_host(ty, T::to_bytes(values)))
    }

    /// A scalar on the host.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::on_host(TensorType::scalar(T::DTYPE), T::to_bytes(&[value]))
    }

    /// An array on the host with these bytes, which are as many as the type has.
    fn on_host(ty: TensorType, bytes: Vec<u8>) -> Self {
        Array {
            inner: Arc::new(Inner {
                ty: intern_type(ty),
                place: Place::Host(bytes),
            }),
        }
    }

    /// An array of shards, one for each device of the sharding's mesh.
    pub(crate) fn on_devices(ty: Arc<TensorType>, sharding: Arc<Sharding>, shards: Shards) -> Self {
        Array {
            inner: Arc::new(Inner {
                ty,
                place: Place::Devices { sharding, shards },
            }),
        }
    }

    /// Copies an array to the devices of a client, each its shard. Devices of the mesh are those of
    /// the client in order.
    ///
    /// # Errors
    ///
    /// When the spec does not fit the array or the mesh the client, or the array cannot be read.
    pub fn put(&self, client: &Client, sharding: Sharding) -> Result<Array> {
        self.put_shared(client, &intern_sharding(sharding))
    }

    pub(crate) fn put_shared(&self, client: &Client, sharding: &Arc<Sharding>) -> Result<Array> {
        let ty = &self.inner.ty;
        let devices = sharding.mesh.device_count();
        if devices > client.device_count() {
            sharding.mesh.check_devices(client.device_count())?;
        }
        let bytes = self.bytes()?;
        let misfit = |faults| Error::misfit(format!("array {ty}"), faults);
        let shard_shape = sharding
            .spec
            .shard_shape(&sharding.mesh, &ty.shape)
            .map_err(misfit)?;
        let whole = shard_shape[..] == ty.shape[..];
        let mut shards = Shards::with_capacity(devices);
        for position in 0..devices {
            let buffer = if whole {
                client.buffer_from_host(&bytes, ty.dtype, &shard_shape, position)?
            } else {
                let bounds = sharding
                    .spec
                    .shard_bounds(&sharding.mesh, &ty.shape, position)
                    .map_err(misfit)?;
                let part = cut(&bytes, ty, &bounds);
                client.buffer_from_host(&part, ty.dtype, &shard_shape, position)?
            };
            shards.push(buffer);
        }
        Ok(Self::on_devices(ty.clone(), sharding.clone(), shards))
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.inner.ty
    }

    pub(crate) fn shared_type(&self) -> &Arc<TensorType> {
        &self.inner.ty
    }

    /// Dimension sizes.
    pub fn shape(&self) -> &[usize] {
        &self.inner.ty.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.inner.ty.dtype
    }

    /// How it lies on devices; `None` while it is on the host.
    pub fn sharding(&self) -> Option<&Sharding> {
        self.shared_sharding().map(Arc::as_ref)
    }

    pub(crate) fn shared_sharding(&self) -> Option<&Arc<Sharding>> {
        match &self.inner.place {
            Place::Host(_) => None,
            Place::Devices { sharding, .. } => Some(sharding),
        }
    }

    /// The shards, one for each device of the mesh in its order; none while it is on the host.
    pub fn shards(&self) -> &[Buffer] {
        match &self.inner.place {
            Place::Host(_) => &[],
            Place::Devices { shards, .. } => shards,
        }
    }

    /// Waits until the value is there.
    ///
    /// # Errors
    ///
    /// The error of the program that was to compute it.
    pub fn wait(&self) -> Result<()> {
        for shard in self.shards() {
            shard.ready_event()?.wait()?;
        }
        Ok(())
    }

    /// The elements in row-major order; waits for them.
    ///
    /// # Errors
    ///
    /// When `T` is not the element type, the array was donated, or its program failed.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::ReadType {
                array: self.ty().to_string(),
                asked: T::DTYPE,
            });
        }
        Ok(T::from_bytes(&self.bytes()?))
    }

    /// The element of an array that has one; waits for it.
    ///
    /// # Errors
    ///
    /// When there is not exactly one, and as for [`Array::to_vec`].
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec::<T>()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(Error::NotOneElement {
                array: self.ty().to_string(),
            }),
        }
    }

    /// The bytes of all elements in row-major order; waits for them.
    ///
    /// # Errors
    ///
    /// When the array was donated or its program failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.bytes().map(Cow::into_owned)
    }

    /// [`Array::to_bytes`], borrowed where they are on the host.
    fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        let (sharding, shards) = match &self.inner.place {
            Place::Host(bytes) => return Ok(Cow::Borrowed(bytes)),
            Place::Devices { sharding, shards } => (sharding, shards),
        };
        let ty = &self.inner.ty;
        if sharding.spec.is_replicated(&sharding.mesh) {
            return shards[0].to_host().map(Cow::Owned);
        }
        let mut bytes = vec![0; ty.host_bytes()];
        let mut read: Vec<Vec<Range<usize>>> = Vec::new();
        for (position, shard) in shards.iter().enumerate() {
            let bounds = sharding
                .spec
                .shard_bounds(&sharding.mesh, &ty.shape, position)
                .map_err(|faults| Error::misfit(format!("array {ty}"), faults))?;
            if read.contains(&bounds) {
                continue;
            }
            paste(&mut bytes, ty, &bounds, &shard.to_host()?);
            read.push(bounds);
        }
        Ok(Cow::Owned(bytes))
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sharding() {
            Some(sharding) => write!(f, "Array({}, {sharding})", self.ty()),
            None => write!(f, "Array({}, on the host)", self.ty()),
        }
    }
}

/// A tree of arrays, such as a model while it runs.
pub trait ArrayTree: Tree<Array> {
    /// The same structure with the arrays' types, to compile a function for: `step.compile((state.types(), ...))`.
    fn types(&self) -> Self::With<TensorType> {
        self.map_leaves(&mut Path::root(), &mut |_, array| array.ty().clone())
    }
}

impl<T: Tree<Array>> ArrayTree for T {}

/// Rows of a window: (offset in the array, offset in the window), in bytes, and their length.
fn rows(ty: &TensorType, bounds: &[Range<usize>]) -> (Vec<(usize, usize)>, usize) {
    let width = ty.dtype.host_bytes();
    let Some((last, outer)) = bounds.split_last() else {
        return (vec![(0, 0)], width);
    };
    let length = last.len() * width;
    let mut offsets = vec![last.start];
    let mut stride = *ty.shape.last().unwrap_or(&1);
    // Inner dimensions vary fastest, so each outer one repeats what is there.
    for (bound, size) in outer.iter().zip(&ty.shape).rev() {
        offsets = bound
            .clone()
            .flat_map(|i| {
                offsets
                    .iter()
                    .map(move |offset| offset + i * stride)
                    .collect::<Vec<_>>()
            })
            .collect();
        stride *= size;
    }
    let rows = offsets.iter().enumerate();
    (
        rows.map(|(row, offset)| (offset * width, row * length))
            .collect(),
        length,
    )
}

fn cut(bytes: &[u8], ty: &TensorType, bounds: &[Range<usize>]) -> Vec<u8> {
    let (rows, length) = rows(ty, bounds);
    let mut part = vec![0; rows.len() * length];
    for (from, to) in rows {
        part[to..to + length].copy_from_slice(&bytes[from..from + length]);
    }
    part
}

fn paste(bytes: &mut [u8], ty: &TensorType, bounds: &[Range<usize>], part: &[u8]) {
    let (rows, length) = rows(ty, bounds);
    for (to, from) in rows {
        bytes[to..to + length].copy_from_slice(&part[from..from + length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_and_pasting_are_inverse() {
        let ty = TensorType::new(DType::U8, [4, 3, 2]);
        let bytes: Vec<u8> = (0..24).collect();
        let windows = [
            [0..2, 0..3, 0..1],
            [2..4, 0..3, 0..1],
            [0..2, 0..3, 1..2],
            [2..4, 0..3, 1..2],
        ];
        let mut pasted = vec![0; 24];
        for window in &windows {
            paste(&mut pasted, &ty, window, &cut(&bytes, &ty, window));
        }
        assert_eq!(pasted, bytes);
        assert_eq!(cut(&bytes, &ty, &[1..2, 1..3, 0..2]), [8, 9, 10, 11]);
        assert_eq!(cut(&[7], &TensorType::scalar(DType::U8), &[]), [7]);
    }

    #[test]
    fn host_arrays_check_their_count() {
        let error = Array::from_slice(&[1f32, 2.0], [3])
            .map(|_| ())
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 elements were given for f32[3], which has 3"
        );
        let array = Array::from_slice(&[1f32, 2.0], [2]).unwrap();
        let error = array.to_vec::<i32>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "f32[2] cannot be read as i32; read it as f32, or convert it in the program with `.cast(...)`"
        );
        assert!(array.item::<f32>().is_err());
    }
}
