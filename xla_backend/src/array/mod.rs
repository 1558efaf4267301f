//! [`Array`]: a concrete value, on the host or spread over devices.
//!
//! This file has the value and how it is read. How it gets to devices is in `put`, how it moves from
//! one sharding to another in `reshard`, and what is done with whole trees of arrays in `tree`.

mod display;
mod intern;
mod put;
mod reshard;
mod shard;
mod sharding;
mod tree;
mod window;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use shardax_core::{DType, Element, Leaf, TensorType};
use shardax_pjrt::{Buffer, Client};
use smallvec::SmallVec;

use crate::error::{Error, Result};
pub(crate) use intern::{intern_sharding, intern_type};
pub use reshard::Reshard;
pub use shard::Shard;
pub use sharding::Sharding;
pub(crate) use tree::try_replace;
pub use tree::{ArrayTree, TypeTree};

/// A concrete value. Cloning shares it.
///
/// A result of a jitted function may still be on its way: reading it waits. An array made from host
/// data stays on the host until it is passed to a jitted function, which puts every shard where the
/// program wants it. An array on devices stays where it is until it is moved, by
/// [`Array::reshard`] or, with the rest of its tree, by [`ArrayTree::place`].
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
    /// The shards of another array, whose sharding has the same blocks on the same devices.
    Same {
        sharding: Arc<Sharding>,
        of: Array,
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
        Ok(Self::on_host(intern_type(ty), T::to_bytes(values)))
    }

    /// A scalar on the host.
    pub fn scalar<T: Element>(value: T) -> Self {
        let ty = TensorType::scalar(T::DTYPE);
        Self::on_host(intern_type(ty), T::to_bytes(&[value]))
    }

    /// An array on the host with these bytes, which are as many as the type has.
    fn on_host(ty: Arc<TensorType>, bytes: Vec<u8>) -> Self {
        Self::at(ty, Place::Host(bytes))
    }

    /// An array of shards, one for each device of the sharding's mesh.
    pub(crate) fn on_devices(ty: Arc<TensorType>, sharding: Arc<Sharding>, shards: Shards) -> Self {
        Self::at(ty, Place::Devices { sharding, shards })
    }

    /// The same shards under another sharding, which has the same blocks on the same devices.
    fn relabelled(&self, sharding: Arc<Sharding>) -> Self {
        let of = self.clone();
        Self::at(self.inner.ty.clone(), Place::Same { sharding, of })
    }

    fn at(ty: Arc<TensorType>, place: Place) -> Self {
        Array {
            inner: Arc::new(Inner { ty, place }),
        }
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
            Place::Devices { sharding, .. } | Place::Same { sharding, .. } => Some(sharding),
        }
    }

    /// The memory on each device of the mesh, in its order; none while it is on the host.
    /// [`Array::shards`] says which part of the array each holds.
    pub fn buffers(&self) -> &[Buffer] {
        match &self.inner.place {
            Place::Host(_) => &[],
            Place::Devices { shards, .. } => shards,
            Place::Same { of, .. } => of.buffers(),
        }
    }

    /// What clones have in common.
    fn identity(&self) -> *const () {
        Arc::as_ptr(&self.inner).cast()
    }

    /// The client whose devices it is on; `None` while it is on the host.
    pub(crate) fn client(&self) -> Option<&Client> {
        self.buffers().first().map(Buffer::client)
    }

    /// Waits until the value is there.
    ///
    /// # Errors
    ///
    /// The error of the program that was to compute it.
    pub fn wait(&self) -> Result<()> {
        for buffer in self.buffers() {
            buffer.ready_event()?.wait()?;
        }
        Ok(())
    }

    /// The elements in row-major order; waits for them.
    ///
    /// # Errors
    ///
    /// When `T` is not the element type, the array was donated, or its program failed.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_element::<T>()?;
        Ok(T::from_bytes(&self.bytes()?))
    }

    fn check_element<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype() {
            return Ok(());
        }
        Err(Error::ReadType {
            array: self.ty().to_string(),
            asked: T::DTYPE,
        })
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

    /// The bytes of all elements in row-major order; waits for them. A 4-bit integer takes a byte.
    ///
    /// # Errors
    ///
    /// When the array was donated or its program failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.bytes().map(Cow::into_owned)
    }

    /// The array on the host, where no sharding binds it any more and a program of any layout takes it.
    /// Waits for the value, and copies each block once.
    ///
    /// # Errors
    ///
    /// As for [`Array::to_bytes`].
    pub fn to_host(&self) -> Result<Array> {
        match &self.inner.place {
            Place::Host(_) => Ok(self.clone()),
            Place::Devices { .. } | Place::Same { .. } => {
                Ok(Self::on_host(self.inner.ty.clone(), self.to_bytes()?))
            }
        }
    }

    /// [`Array::to_bytes`], borrowed where they are on the host.
    fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        if let Place::Host(bytes) = &self.inner.place {
            return Ok(Cow::Borrowed(bytes));
        }
        let shards = self.distinct_shards()?;
        if let [shard] = shards.as_slice() {
            return shard.to_bytes().map(Cow::Owned);
        }
        let ty = self.ty();
        let mut bytes = vec![0; ty.host_bytes()];
        for shard in shards {
            window::paste(&mut bytes, ty, shard.bounds(), &shard.to_bytes()?);
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

#[cfg(test)]
mod tests {
    use super::*;

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
