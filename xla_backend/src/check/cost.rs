//! What a layout costs: memory of one device, and what it sends.

use serde::Serialize;
use shardax_core::{Role, TensorType};

use crate::array::Sharding;
use crate::error::{Error, Result};
use crate::jit::Program;
use crate::report::Total;

/// Memory of one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceBytes {
    /// Of the state, all that is not optimizer state: parameters.
    pub parameters: u64,
    /// Of the state, what an optimizer keeps ([`Role::State`]).
    pub optimizer: u64,
    /// Of the gradients.
    pub gradients: u64,
    /// All arguments, as the compiler says: state and batch.
    pub arguments: u64,
    /// Everything between arguments and results, as the compiler says.
    pub temporary: u64,
}

impl DeviceBytes {
    /// Those of a step that takes a state of leaves of these roles first, and returns behind it a loss
    /// and gradients.
    pub(super) fn of_step(program: &Program, roles: &[Role]) -> Result<Self> {
        let mut bytes = Self::of_results(program)?;
        for (role, input) in roles.iter().zip(program.inputs()) {
            let own = shard_bytes(&input.ty, &input.sharding)?;
            match role {
                Role::State => bytes.optimizer += own,
                _ => bytes.parameters += own,
            }
        }
        for output in program.outputs().iter().skip(roles.len() + 1) {
            bytes.gradients += shard_bytes(&output.ty, &output.sharding)?;
        }
        Ok(bytes)
    }

    /// What the compiler says.
    pub(super) fn of_results(program: &Program) -> Result<Self> {
        let memory = program.memory()?;
        Ok(DeviceBytes {
            arguments: memory.argument,
            temporary: memory.temp,
            ..Self::default()
        })
    }
}

fn shard_bytes(ty: &TensorType, sharding: &Sharding) -> Result<u64> {
    let shard = sharding.spec().shard_shape(sharding.mesh(), &ty.shape);
    let shape = shard.map_err(|faults| Error::misfit(format!("array {ty}"), faults))?;
    Ok(ty.with_shape(shape).host_bytes() as u64)
}

/// What devices tell each other over the same mesh axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AxisTraffic {
    /// The axes; none if the groups of devices are not those of axes.
    pub axes: Option<Vec<String>>,
    /// Bytes that one device sends in a step.
    pub bytes_sent: u64,
    /// By kind of collective, in the order in which they first occur.
    pub collectives: Vec<Total>,
}

/// The collectives of a program by axes, in the order in which they first occur.
pub(super) fn traffic(program: &Program) -> Result<Vec<AxisTraffic>> {
    let mut all: Vec<AxisTraffic> = Vec::new();
    for total in program.collectives()?.totals() {
        // No device talks to another.
        if total.axes.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        match all.iter_mut().find(|known| known.axes == total.axes) {
            Some(known) => {
                known.bytes_sent += total.bytes_sent;
                known.collectives.push(total);
            }
            None => all.push(AxisTraffic {
                axes: total.axes.clone(),
                bytes_sent: total.bytes_sent,
                collectives: vec![total],
            }),
        }
    }
    Ok(all)
}
