//! Manual regions.

use shardax::prelude::*;

use super::{Outcome, chapter, ones};

chapter![
    a_collective_outside_of_a_region,
    specs_that_do_not_fit,
    a_result_that_differs_between_devices,
    devices_that_would_wait_for_ever,
    a_region_over_some_axes_under_gspmd,
];

/// A collective outside of a region
///
/// Devices tell each other something in a function that is given to `manual` with the axis.
fn a_collective_outside_of_a_region() -> Outcome {
    let layout = Layout::new(Mesh::new([("data", 2)])?);
    let total = |x: Tensor| psum(x.sum(0), "data");
    jit(total).layout(&layout).call(ones(&[4, 3]))?;
    Ok(())
}

/// Specs that do not fit
///
/// A spec names axes of the region, each once, and cuts dimensions into equal blocks.
fn specs_that_do_not_fit() -> Outcome {
    let layout = Layout::new(Mesh::new([("data", 2), ("model", 4)])?);
    let rows = PartitionSpec::new(("data", "model"));
    let whole = PartitionSpec::whole();
    let total = manual("data", rows, whole, |x: Tensor| psum(x.sum(..), "data"));
    jit(total).layout(&layout).call(ones(&[3, 8]))?;
    Ok(())
}

/// A result that differs between devices
///
/// What every device returns for itself is put together along an axis that the spec names, or made
/// one value by a collective.
fn a_result_that_differs_between_devices() -> Outcome {
    let layout = Layout::new(Mesh::new([("data", 2)])?);
    let rows = PartitionSpec::new(("data",));
    let mean = manual("data", rows, PartitionSpec::whole(), |x: Tensor| x.mean(..));
    jit(mean).layout(&layout).call(ones(&[4, 3]))?;
    Ok(())
}

/// Devices that would wait for ever
///
/// A collective in a branch needs all devices of its axis to take that branch.
fn devices_that_would_wait_for_ever() -> Outcome {
    let layout = Layout::new(Mesh::new([("data", 2)])?);
    let rows = || PartitionSpec::new(("data",));
    let first = |x: Tensor| {
        let is_first = axis_index("data").eq(0);
        cond(is_first, x, |x| psum(x, "data"), |x| x * 2.0)
    };
    let step = manual("data", rows(), rows(), first);
    jit(step).layout(&layout).call(ones(&[4, 3]))?;
    Ok(())
}

/// A region over some axes under GSPMD
///
/// XLA's older partitioner cannot go on splitting inside of a region. Give all axes to it, or use Shardy.
fn a_region_over_some_axes_under_gspmd() -> Outcome {
    let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    let layout = Layout::new(mesh).partitioner(Partitioner::Gspmd);
    let rows = PartitionSpec::new(("data",));
    let region = |x: Tensor| psum(x.sum(..), "data");
    let total = manual("data", rows, PartitionSpec::whole(), region);
    jit(total).layout(&layout).call(ones(&[4, 3]))?;
    Ok(())
}
