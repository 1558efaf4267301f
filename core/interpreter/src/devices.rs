//! Manual regions: what each device computes for itself, and what devices tell each other.
//!
//! Devices run in lockstep, one equation after another, each as a [`Lane`]. Outside of regions there
//! is one.

use shardax_core::{
    Number, PartitionSpec, Reducer, TensorType,
    ir::{Collective, CollectiveOp, Manual},
};

use super::elementwise::binary;
use super::{Array, Observer, fit, indices, offset, reduction, run};

/// A device in the regions around an equation.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// Its position along each axis of the regions, outermost region first.
    pub(crate) position: Vec<(&'static str, usize)>,
    /// The values that it computes with.
    pub(crate) values: Vec<Array>,
}

impl Lane {
    fn along(&self, axis: &str) -> usize {
        let found = self.position.iter().find(|(name, _)| *name == axis);
        found.map_or(0, |(_, position)| *position)
    }

    /// The position along several axes, major first.
    fn along_all(&self, collective: &Collective) -> usize {
        let axes = collective.axes.iter();
        axes.fold(0, |at, axis| at * axis.size() + self.along(axis.name()))
    }
}

/// The results of a region on each of the devices around it.
pub(crate) fn manual(
    region: &Manual,
    types: &[TensorType],
    lanes: &[Lane],
    observer: &mut dyn Observer,
) -> Vec<Vec<Array>> {
    let sizes: Vec<usize> = region.axes.iter().map(|axis| axis.size()).collect();
    let positions = indices(&sizes);
    let mut inner = Vec::new();
    for lane in lanes {
        for at in &positions {
            let own = region
                .axes
                .iter()
                .zip(at)
                .map(|(axis, &at)| (axis.name(), at));
            let mut device = Lane {
                position: lane.position.iter().copied().chain(own).collect(),
                values: Vec::new(),
            };
            let blocks = lane.values.iter().zip(&region.inputs);
            device.values = blocks
                .map(|(x, spec)| block(region, &device, x, spec))
                .collect();
            inner.push(device);
        }
    }
    let found = run(&region.body, &inner, observer);
    let devices = inner
        .chunks(positions.len())
        .zip(found.chunks(positions.len()));
    let joined = devices.map(|(devices, found)| {
        let each = types.iter().zip(&region.outputs).enumerate();
        each.map(|(r, (ty, spec))| whole(region, devices, found, r, ty, spec))
            .collect()
    });
    joined.collect()
}

/// Where the block of a device begins along each dimension.
fn starts(region: &Manual, device: &Lane, shape: &[usize], spec: &PartitionSpec) -> Vec<usize> {
    let mut entries = spec.entries().iter();
    let start = |&block: &usize| {
        let names = entries
            .next()
            .map(|entry| entry.names())
            .unwrap_or_default();
        let at = names.iter().fold(0, |at, name| {
            let axis = region.axes.iter().find(|axis| axis.name() == name);
            at * axis.map_or(1, |axis| axis.size()) + device.along(name)
        });
        at * block
    };
    shape.iter().map(start).collect()
}

fn block(region: &Manual, device: &Lane, x: &Array, spec: &PartitionSpec) -> Array {
    let mut counts = region.blocks(spec).into_iter();
    let sizes =
        x.ty.shape
            .iter()
            .map(|size| size / counts.next().unwrap_or(1));
    let ty = x.ty.with_shape(sizes.collect::<Vec<_>>());
    let starts = starts(region, device, &ty.shape, spec);
    Array::from_fn(ty, |i| {
        let at: Vec<usize> = i.iter().zip(&starts).map(|(i, start)| i + start).collect();
        x.at(&at)
    })
}

fn whole(
    region: &Manual,
    devices: &[Lane],
    found: &[Vec<Array>],
    result: usize,
    ty: &TensorType,
    spec: &PartitionSpec,
) -> Array {
    let mut whole = Array::from_fn(ty.clone(), |_| Number::Int(0));
    for (device, found) in devices.iter().zip(found) {
        let own = &found[result];
        let starts = starts(region, device, &own.ty.shape, spec);
        for i in indices(&own.ty.shape) {
            let at: Vec<usize> = i.iter().zip(&starts).map(|(i, start)| i + start).collect();
            whole.data[offset(&at, &ty.shape)] = own.at(&i);
        }
    }
    whole
}

/// What each device has after all were told.
pub(crate) fn collective(of: &Collective, ty: &TensorType, lanes: &[Lane]) -> Vec<Array> {
    let others = |lane: &Lane| -> Vec<(&'static str, usize)> {
        let own = |name: &str| of.axes.iter().any(|axis| axis.name() == name);
        let others = lane.position.iter().filter(|(name, _)| !own(name));
        others.copied().collect()
    };
    let result = |lane: &Lane| {
        let mut group: Vec<&Lane> = lanes.iter().filter(|l| others(l) == others(lane)).collect();
        group.sort_by_key(|lane| lane.along_all(of));
        assert_eq!(group.len(), of.size(), "devices that do not take part");
        let values: Vec<&Array> = group
            .iter()
            .filter_map(|lane| lane.values.first())
            .collect();
        told(of, ty, &values, lane.along_all(of))
    };
    lanes.iter().map(result).collect()
}

/// What the device at a position has, of the values of all that take part.
fn told(of: &Collective, ty: &TensorType, values: &[&Array], at: usize) -> Array {
    let dtype = ty.dtype;
    let combined = |reducer: Reducer| {
        let (first, op) = reduction(reducer, dtype);
        let like = values[0].ty.clone();
        Array::from_fn(like, |i| {
            let each = values.iter().map(|x| x.at(i));
            each.fold(fit(first, dtype), |sum, v| {
                fit(binary(op, sum, v, dtype), dtype)
            })
        })
    };
    match &of.kind {
        CollectiveOp::Psum => combined(Reducer::Sum),
        CollectiveOp::Pmax => combined(Reducer::Max),
        CollectiveOp::Pmin => combined(Reducer::Min),
        CollectiveOp::AllGather { dim, .. } => {
            let size = values[0].ty.shape[*dim];
            Array::from_fn(ty.clone(), |i| {
                let mut from = i.to_vec();
                from[*dim] %= size;
                values[i[*dim] / size].at(&from)
            })
        }
        CollectiveOp::ReduceScatter(dim) => {
            let sum = combined(Reducer::Sum);
            Array::from_fn(ty.clone(), |i| {
                let mut from = i.to_vec();
                from[*dim] += at * ty.shape[*dim];
                sum.at(&from)
            })
        }
        CollectiveOp::AllToAll { split, join } => {
            let piece = values[0].ty.shape[*split] / values.len();
            let joined = match split == join {
                true => piece,
                false => values[0].ty.shape[*join],
            };
            Array::from_fn(ty.clone(), |i| {
                let sender = i[*join] / joined.max(1);
                let mut from = i.to_vec();
                from[*join] %= joined.max(1);
                from[*split] += at * piece;
                values[sender].at(&from)
            })
        }
        CollectiveOp::Ppermute(pairs) => match pairs.iter().find(|(_, to)| *to == at) {
            Some((from, _)) => values[*from].clone(),
            None => Array::from_fn(ty.clone(), |_| Number::Int(0)),
        },
        CollectiveOp::AxisIndex => Array::from_fn(ty.clone(), |_| Number::Int(at as i64)),
        CollectiveOp::Vary | CollectiveOp::AssumeInvariant => values[at].clone(),
    }
}
