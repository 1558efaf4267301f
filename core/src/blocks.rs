//! Scans along a dimension that devices split: one exchange, of one element a block.
//!
//! What runs along a dimension reads, at its end, what is at its beginning. Written over the whole
//! dimension, a scan of `n` elements is `log2 n` steps, and in each the partitioner moves elements from
//! device to device. Written in blocks, of which a device has one or several whole ones, it is
//!
//! 1. a scan of each block, which is local,
//! 2. a scan of the blocks' totals, for which devices tell each other one element a block,
//! 3. each element combined with the total of the blocks before its own, which is local again.
//!
//! (Blelloch: "Prefix sums and their applications", 1990, section 1.3.)
//!
//! Blocks need not be as many as devices: any multiple will do. So where nothing is known of a dimension,
//! it is taken apart for all devices that could split it, and a dimension that none splits is computed by
//! each device as before.

use shardax_sharding::{Axes, Dim, Mesh, Role};
use smallvec::smallvec;

use crate::context::{layout, manual_axes};
use crate::dtype::DType;
use crate::lax;
use crate::op::{Constraint, Dims};
use crate::tensor::Tensor;
use crate::trace::split_of;
use crate::types::TensorType;

/// Into how many blocks dimension `dim` of a value of this shape is taken for a scan along it, so that no
/// device has a part of a block; 1 if that cannot be.
///
/// `split` says of each dimension what is known of how devices split it, `manual` are the axes of the
/// manual regions around, along which everything is local.
pub fn block_count(
    mesh: &Mesh,
    manual: &[&str],
    split: &[Axes],
    shape: &[usize],
    dim: usize,
) -> usize {
    let size = shape[dim];
    let parts = |axes: &Axes| {
        let names = axes.names().iter();
        names.filter_map(|name| mesh.part(name)).collect::<Vec<_>>()
    };
    let own: usize = parts(&split[dim]).iter().map(|part| part.size).product();
    if size == 0 || own > 1 {
        let is_even = size > 0 && size.is_multiple_of(own);
        return if is_even { own } else { 1 };
    }
    // Any axes that split no other dimension may split this one.
    let others = split.iter().enumerate().filter(|(d, _)| *d != dim);
    let taken: Vec<_> = others.flat_map(|(_, axes)| parts(axes)).collect();
    let free = mesh.axes().iter().enumerate().map(|(index, axis)| {
        let taken = taken.iter().filter(|part| part.index == index);
        let taken: usize = taken.map(|part| part.size).product();
        match manual.contains(&axis.name()) {
            true => 1,
            false => (axis.size() / taken).max(1),
        }
    });
    gcd(size, free.product())
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

/// A scan in blocks of several tensors together, along a dimension of each.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub(crate) dims: &'a [usize],
    pub(crate) reverse: bool,
    pub(crate) count: usize,
}

/// Combines elements of several tensors with as many others: on the left what a scan meets first.
pub(crate) type Combine<'a> = &'a dyn Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>;

/// Scans several tensors, each along the dimension that is told.
type Scan<'a> = &'a dyn Fn(&[Tensor], &[usize]) -> Vec<Tensor>;

/// What is combined, and how it is scanned.
pub(crate) struct Scanned<'a> {
    pub(crate) combine: Combine<'a>,
    /// Scans the elements of blocks, along the dimensions behind those of the blocks.
    pub(crate) of_blocks: Scan<'a>,
    /// Scans along dimensions of which every device has all.
    pub(crate) of_whole: Scan<'a>,
    /// Scans along dimensions that devices may split.
    pub(crate) of_split: Scan<'a>,
    /// What changes nothing that is combined with it, by tensor, if there is such a thing.
    pub(crate) identity: Option<&'a [Tensor]>,
}

impl<'a> Blocks<'a> {
    /// The blocks for a scan of tensors, by what the layout and the program so far say of where they lie.
    pub(crate) fn of(xs: &[Tensor], dims: &'a [usize], reverse: bool) -> Self {
        let counts = xs.iter().zip(dims).map(|(&x, &dim)| counted(x, dim));
        // What is known of one holds for all: over what it is split, or over what it cannot be.
        let counts = counts.reduce(|one, other| match (one.0, other.0) {
            (false, false) => one.min(other),
            _ => one.max(other),
        });
        let (_, count) = counts.unwrap_or((false, 1));
        Blocks {
            dims,
            reverse,
            count,
        }
    }

    /// The scan of `xs`.
    pub(crate) fn scan(self, xs: &[Tensor], scanned: &Scanned) -> Vec<Tensor> {
        let Blocks { dims, count, .. } = self;
        let size = match (xs.first(), dims.first()) {
            (Some(x), Some(&dim)) => x.shape()[dim] / count,
            _ => return Vec::new(),
        };
        // Brought to every device, the totals are to take no more than a block there.
        let gathers = count <= size || scanned.identity.is_none();
        if count == 1 || (size == 1 && !gathers) {
            return (scanned.of_split)(xs, dims);
        }
        let stated = |xs: Vec<Tensor>| match gathers {
            true => each(&xs, dims, whole),
            false => xs,
        };
        let of_totals = match gathers {
            true => scanned.of_whole,
            false => scanned.of_split,
        };
        if size == 1 {
            return stated(of_totals(&stated(xs.to_vec()), dims));
        }
        let inner: Dims = dims.iter().map(|dim| dim + 1).collect();
        let apart = each(xs, dims, |x, dim| apart(x, dim, count));
        let local = (scanned.of_blocks)(&apart, &inner);
        let last = match self.reverse {
            false => size - 1,
            true => 0,
        };
        let totals = each(&local, dims, |x, dim| {
            joined(lax::slice_dim(x, dim + 1, last, last + 1), dim)
        });
        let totals = of_totals(&stated(totals), dims);
        let before = stated(self.before(&totals, scanned.identity));
        let before = each(&before, dims, |x, dim| repeated(x, dim, size));
        let local = each(&local, dims, joined);
        let found = (scanned.combine)(&before, &local);
        match scanned.identity {
            Some(_) => found,
            None => self.or_local(size, &local, &found),
        }
    }

    /// The total of all blocks before each; of the first the identity, or its own if there is none.
    fn before(self, totals: &[Tensor], identity: Option<&[Tensor]>) -> Vec<Tensor> {
        let part = |x, dim, from, to| lax::slice_dim(x, dim, from, to);
        let (count, reverse) = (self.count, self.reverse);
        let shifted = |(i, (&x, &dim)): (usize, (&Tensor, &usize))| {
            let others = match reverse {
                false => part(x, dim, 0, count - 1),
                true => part(x, dim, 1, count),
            };
            let Some(identity) = identity else {
                let parts = match reverse {
                    false => [part(x, dim, 0, 1), others],
                    true => [others, part(x, dim, count - 1, count)],
                };
                return lax::concatenate(&parts, dim);
            };
            let around = match reverse {
                false => [1, 0],
                true => [0, 1],
            };
            lax::pad_dim(others, dim, around, identity[i])
        };
        totals
            .iter()
            .zip(self.dims)
            .enumerate()
            .map(shifted)
            .collect()
    }

    /// What was combined, and in the block that the scan meets first what there was before.
    fn or_local(self, size: usize, local: &[Tensor], found: &[Tensor]) -> Vec<Tensor> {
        let both = local.iter().zip(found).zip(self.dims);
        both.map(|((&local, &found), &dim)| {
            let shape = local.shape();
            let places = TensorType::new(DType::I32, &shape);
            let place = lax::iota(places, dim);
            let is_first = match self.reverse {
                false => place.lt(size as i64),
                true => place.ge((shape[dim] - size) as i64),
            };
            lax::select(is_first, local, found)
        })
        .collect()
    }
}

/// The blocks along a dimension of a tensor, and whether it is known that devices split it: by what the
/// layout and the program so far say.
fn counted(x: Tensor, dim: usize) -> (bool, usize) {
    let (layout, shape) = (layout(), x.shape());
    let mesh = layout.mesh();
    if mesh.device_count() == 1 {
        return (false, 1);
    }
    let resolve = |constraint: &Constraint, ty: &TensorType| {
        let resolved = layout.resolve(constraint.role, &constraint.dims, &ty.shape);
        let entries = resolved.ok()?.spec.closed();
        Some(entries.entries().iter().cloned().collect())
    };
    let split = split_of(x, &resolve);
    let regions = manual_axes();
    let manual: Vec<&str> = regions.iter().map(|axis| axis.name()).collect();
    (
        !split[dim].is_empty(),
        block_count(mesh, &manual, &split, &shape, dim),
    )
}

/// The blocks of a dimension of which it is known that devices split it; `None` of any other.
pub(crate) fn known_blocks(x: Tensor, dim: usize) -> Option<usize> {
    let (is_known, count) = counted(x, dim);
    (is_known && count > 1).then_some(count)
}

pub(crate) fn each(
    xs: &[Tensor],
    dims: &[usize],
    f: impl Fn(Tensor, usize) -> Tensor,
) -> Vec<Tensor> {
    xs.iter().zip(dims).map(|(&x, &dim)| f(x, dim)).collect()
}

/// A dimension taken apart into blocks and their elements.
pub(crate) fn apart(x: Tensor, dim: usize, count: usize) -> Tensor {
    let mut shape = x.shape();
    let size = std::mem::replace(&mut shape[dim], count) / count;
    shape.insert(dim + 1, size);
    lax::reshape(x, &shape)
}

/// A dimension and the one after it taken as one.
pub(crate) fn joined(x: Tensor, dim: usize) -> Tensor {
    let mut shape = x.shape();
    shape[dim] *= shape.remove(dim + 1);
    lax::reshape(x, &shape)
}

/// Every element along a dimension `size` times.
fn repeated(x: Tensor, dim: usize, size: usize) -> Tensor {
    let mut shape = x.shape();
    let kept: Dims = (0..shape.len()).map(|d| d + usize::from(d > dim)).collect();
    shape.insert(dim + 1, size);
    joined(lax::broadcast(x, &shape, &kept), dim)
}

/// The same value, of which every device has all along a dimension.
pub(crate) fn whole(x: Tensor, dim: usize) -> Tensor {
    let mut dims = smallvec![Dim::Open; x.rank()];
    dims[dim] = Dim::Unsharded;
    let constraint = Constraint {
        dims,
        role: Role::Activation,
        leaf: None,
        leaves_batch_open: true,
    };
    lax::shard(x, constraint)
}
