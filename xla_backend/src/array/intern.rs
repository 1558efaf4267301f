//! One handle for equal types and shardings, so that a call compares pointers.
//!
//! A process has few different ones, and they are kept for good.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use shardax_core::TensorType;

use super::Sharding;

static TYPES: LazyLock<Mutex<HashSet<Arc<TensorType>>>> = LazyLock::new(Mutex::default);
static SHARDINGS: LazyLock<Mutex<HashSet<Arc<Sharding>>>> = LazyLock::new(Mutex::default);

/// The process's handle of a type.
pub(crate) fn intern_type(ty: TensorType) -> Arc<TensorType> {
    intern(&TYPES, ty)
}

/// The process's handle of a sharding.
pub(crate) fn intern_sharding(sharding: Sharding) -> Arc<Sharding> {
    intern(&SHARDINGS, sharding)
}

fn intern<T: Eq + Hash>(known: &Mutex<HashSet<Arc<T>>>, value: T) -> Arc<T> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = known.get(&value) {
        return handle.clone();
    }
    let handle = Arc::new(value);
    known.insert(handle.clone());
    handle
}

#[cfg(test)]
mod tests {
    use shardax_core::DType;

    use super::*;

    #[test]
    fn equal_types_have_one_handle() {
        let make = || intern_type(TensorType::new(DType::F32, [7, 11]));
        assert!(Arc::ptr_eq(&make(), &make()));
        let other = intern_type(TensorType::new(DType::F32, [11, 7]));
        assert!(!Arc::ptr_eq(&make(), &other));
    }
}
