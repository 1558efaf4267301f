//! Which strategies are checked, on which meshes.

use std::fmt;
use std::str::FromStr;

use shardax::{Mesh, Strategy};

/// A strategy, and how the step is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub strategy: Strategy,
    /// The batch is taken in parts ([`MICRO_BATCHES`]).
    pub accumulates: bool,
    /// Layers are computed again in the backward pass.
    pub remat: bool,
}

/// In how many parts a batch is taken by plans that accumulate.
pub(super) const MICRO_BATCHES: usize = 2;

/// Every strategy, and compositions.
const ALL: [&str; 28] = [
    "ddp",
    "zero1",
    "zero2",
    "fsdp",
    "hsdp",
    "megatron",
    "megatron-sp",
    "context",
    "zero1+megatron",
    "zero2+megatron",
    "fsdp+megatron",
    "zero1+megatron-sp",
    "zero2+megatron-sp",
    "fsdp+megatron-sp",
    "zero1+context",
    "zero2+context",
    "fsdp+context",
    "megatron+context",
    "hsdp+megatron",
    "hsdp+context",
    "ddp+accumulate",
    "zero1+accumulate",
    "zero2+accumulate",
    "fsdp+accumulate",
    "hsdp+accumulate",
    "zero1+megatron+accumulate",
    "fsdp+remat",
    "megatron-sp+remat",
];

impl Plan {
    pub(super) fn all() -> Result<Vec<Plan>, String> {
        ALL.iter().map(|name| name.parse()).collect()
    }

    /// The meshes of these sizes on which the strategy makes sense: its own axes, and an axis of data
    /// or of replicas outside of them if there is one size more.
    pub(super) fn mesh(&self, sizes: &[usize]) -> Option<Result<Mesh, String>> {
        let mut axes = self.strategy.axes();
        let order = ["replica", "data", "context", "model"];
        axes.sort_by_key(|axis| order.iter().position(|known| known == axis));
        if sizes.len() == axes.len() + 1 {
            let outer = ["data", "replica"];
            axes.insert(0, outer.into_iter().find(|outer| !axes.contains(outer))?);
        }
        (sizes.len() == axes.len()).then(|| {
            let axes = axes.into_iter().zip(sizes.iter().copied());
            Mesh::new(axes).map_err(|error| error.to_string())
        })
    }
}

/// The sizes of meshes of so many devices.
pub(super) fn shapes(devices: usize) -> Vec<Vec<usize>> {
    let half = devices / 2;
    let all = [
        vec![devices],
        vec![2, half],
        vec![half, 2],
        vec![4, devices / 4],
        vec![2, 2, devices / 4],
        vec![2, 2, 2, devices / 8],
    ];
    let mut shapes: Vec<Vec<usize>> = Vec::new();
    for shape in all {
        // On one device there is one mesh, and the partitioner has nothing to do.
        let is_grid = shape.iter().all(|&size| size > 1) || shape == [1];
        let fits = shape.iter().product::<usize>() == devices && is_grid;
        if fits && !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}

/// Parses presets with `+` between them, `accumulate` and `remat` among them.
impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut accumulates, mut remat) = (false, false);
        let mut presets = Vec::new();
        for part in text.split('+') {
            match part.trim() {
                "accumulate" => accumulates = true,
                "remat" => remat = true,
                preset => presets.push(preset),
            }
        }
        if presets.is_empty() {
            return Err(format!(
                "`{text}` names no layout, such as ddp or fsdp: write fsdp+{text}"
            ));
        }
        let strategy = presets.join("+").parse();
        Ok(Plan {
            strategy: strategy.map_err(|error: <Strategy as FromStr>::Err| error.to_string())?,
            accumulates,
            remat,
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.strategy)?;
        for (is, name) in [(self.accumulates, "accumulate"), (self.remat, "remat")] {
            if is {
                write!(f, "+{name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_devices_has_a_mesh() {
        for devices in [1, 2, 3, 5, 8, 12, 16] {
            let shapes = shapes(devices);
            assert_eq!(shapes[0], [devices]);
            for shape in shapes {
                assert_eq!(shape.iter().product::<usize>(), devices);
            }
        }
    }
}
