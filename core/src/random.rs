//! Random numbers from counters.
//!
//! A [`Key`] is a value; drawing from it twice gives the same numbers, and [`Key::split`] makes new
//! ones. Bits come from Threefry-2x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
//! as 1, 2, 3", 2011) of each element's position, so that they depend on neither layout nor number
//! of devices. For the same seed they equal JAX's default generator's.

use std::f64::consts::SQRT_2;

use crate::dtype::DType;
use crate::lax;
use crate::op::{Binary, Dims, Op};
use crate::tensor::Tensor;
use crate::tree::{Leaf, Path, Tree};
use crate::types::TensorType;

/// A random key: two 32-bit words, a leaf of type `u32[2]`.
#[derive(Clone, Copy, Debug)]
pub struct Key<L = Tensor>(pub L);

impl<L: Leaf> Tree<L> for Key<L> {
    type With<M: Leaf> = Key<M>;

    fn map_leaves<M: Leaf>(&self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &L) -> M) -> Key<M> {
        Key(f(path, &self.0))
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        f(path, &self.0);
    }

    fn same_structure<M: Leaf>(&self, _: &Key<M>) -> bool {
        true
    }
}
