//! How the compiler has split the values that a program names.

use std::fmt;

use shardax_core::{Source, TensorType};
use shardax_sharding::Mesh;

use super::program::Program;
use crate::error::Result;
use crate::lower::{Made, Named};
use crate::report::HloModule;

/// A value that was given a name by [`Tensor::named`](shardax_core::Tensor::named), and what each
/// device has of it.
#[derive(Clone, Debug)]
pub struct NamedSharding {
    /// The name.
    pub name: String,
    /// Element type and shape of the whole value.
    pub ty: TensorType,
    /// The user's line that names it.
    pub source: Source,
    /// The shape that a device holds; none if the compiler has no such value any more. Several if
    /// it computes the value in several ways.
    pub shards: Vec<Vec<usize>>,
    /// For each of `shards`, the mesh axes that split each dimension, as far as sizes tell.
    axes: Vec<Vec<String>>,
}

impl Program {
    /// How the compiler has split each value that the program names.
    ///
    /// Read from the optimized program: from the shapes that instructions of the value's line have
    /// on one device. A value that was fused away, or is only ever part of another, has none.
    ///
    /// # Errors
    ///
    /// As for [`Program::optimized`].
    pub fn shardings(&self) -> Result<Vec<NamedSharding>> {
        let optimized = self.optimized()?;
        let of = |named: &Named| self.sharding_of(named, &optimized);
        Ok(self.inner.module.named().iter().map(of).collect())
    }

    fn sharding_of(&self, named: &Named, optimized: &HloModule) -> NamedSharding {
        let mesh = self.inner.layout.mesh();
        let whole = named.ty.shape.as_slice();
        let mut shards: Vec<Vec<usize>> = Vec::new();
        match named.made {
            Made::Argument(position) => {
                let input = self.inner.inputs.get(position);
                let shard = input.map(|i| i.sharding.spec().shard_shape(mesh, whole));
                shards.extend(shard.and_then(std::result::Result::ok));
            }
            Made::Location(number) => {
                let instructions = optimized
                    .computations()
                    .iter()
                    .flat_map(|c| c.instructions());
                for instruction in instructions {
                    if self.inner.module.location_of(instruction.op_name()) != Some(number) {
                        continue;
                    }
                    for array in instruction.shape().arrays() {
                        let dims: Vec<usize> = array.dims.iter().map(|&d| d as usize).collect();
                        let fits = dims.len() == whole.len()
                            && dims.iter().zip(whole).all(|(&d, &w)| d > 0 && w % d == 0);
                        if fits && !shards.contains(&dims) {
                            shards.push(dims);
                        }
                    }
                }
            }
            Made::Unknown => {}
        }
        let axes = shards
            .iter()
            .map(|shard| axes(mesh, whole, shard))
            .collect();
        NamedSharding {
            name: named.name.clone(),
            ty: named.ty.clone(),
            source: named.source,
            shards,
            axes,
        }
    }
}

/// The axes that may split each dimension: those whose sizes multiply to the number of parts.
fn axes(mesh: &Mesh, whole: &[usize], shard: &[usize]) -> Vec<String> {
    let dimension = |(&whole, &part): (&usize, &usize)| {
        let parts = whole / part.max(1);
        if parts <= 1 {
            return "_".to_owned();
        }
        let all = mesh.axes();
        let fits: Vec<String> = (1..1usize << all.len())
            .map(|set| (0..all.len()).filter(|i| set >> i & 1 == 1).collect())
            .filter(|set: &Vec<usize>| {
                set.iter().map(|&i| all[i].size()).product::<usize>() == parts
                    && set.iter().all(|&i| all[i].size() > 1)
            })
            .map(|set| {
                let names: Vec<&str> = set.iter().map(|&i| all[i].name()).collect();
                names.join("+")
            })
            .collect();
        match fits.as_slice() {
            [] => format!("{parts} parts"),
            several => several.join(" or "),
        }
    };
    whole.iter().zip(shard).map(dimension).collect()
}

/// `hidden f32[32,256] at src/main.rs:16: f32[16,64] on each device, split by (data, model)`
impl fmt::Display for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.source.file(), self.source.line());
        write!(f, "{} {} at {file}:{line}: ", self.name, self.ty)?;
        if self.shards.is_empty() {
            return f.write_str("not a value of its own in the compiled program");
        }
        for (i, (shard, axes)) in self.shards.iter().zip(&self.axes).enumerate() {
            let ty = TensorType::new(self.ty.dtype, shard);
            let and = if i == 0 { "" } else { "; and " };
            write!(f, "{and}{ty} on each device")?;
            if axes.iter().any(|a| a != "_") {
                write!(f, ", split by ({})", axes.join(", "))?;
            }
        }
        Ok(())
    }
}
