//! Specs in the terms of the two partitioners.

use std::fmt::Write;

use shardax_core::{Constraint, TensorType};
use shardax_sharding::{Axes, Layout, Mesh, PartitionSpec, Partitioner, SpecFault};

use super::writer::{Ssa, tensor_type};

/// Writes the layout's specs for its partitioner.
pub(super) struct Annotations<'a> {
    layout: &'a Layout,
}

impl<'a> Annotations<'a> {
    pub(super) fn new(layout: &'a Layout) -> Self {
        Annotations { layout }
    }

    /// Whether there is one device, and nothing to say.
    pub(super) fn is_single(&self) -> bool {
        self.layout.mesh().device_count() == 1
    }

    /// The line that declares the mesh, if there is one to declare.
    pub(super) fn mesh(&self) -> Option<String> {
        if self.is_single() || self.layout.chosen_partitioner() == Partitioner::Gspmd {
            return None;
        }
        let axes: Vec<String> = self
            .layout
            .mesh()
            .axes()
            .iter()
            .map(|axis| format!("{:?}={}", axis.name(), axis.size()))
            .collect();
        Some(format!("sdy.mesh @mesh = <[{}]>", axes.join(", ")))
    }

    /// The attribute of an argument or result; `None` on one device.
    pub(super) fn attribute(&self, spec: Option<&PartitionSpec>, rank: usize) -> Option<String> {
        if self.is_single() {
            return None;
        }
        let whole;
        let spec = match spec {
            Some(spec) => spec,
            None => {
                whole = PartitionSpec::replicated(rank);
                &whole
            }
        };
        Some(match self.layout.chosen_partitioner() {
            Partitioner::Shardy => format!("sdy.sharding = #sdy.sharding<{}>", shardy(spec)),
            Partitioner::Gspmd => {
                format!("mhlo.sharding = \"{}\"", gspmd(spec, self.layout.mesh()))
            }
        })
    }

    /// The operation that constrains `operand`; `None` where there is nothing to say.
    pub(super) fn constraint(
        &self,
        constraint: &Constraint,
        operand: Ssa,
        ty: &TensorType,
    ) -> Result<Option<String>, Vec<SpecFault>> {
        let spec = self.resolve(constraint, ty)?;
        Ok((!self.is_single()).then(|| self.statement(&spec, operand, ty)))
    }

    /// Where a constraint says that a value of this type lies.
    pub(super) fn resolve(
        &self,
        constraint: &Constraint,
        ty: &TensorType,
    ) -> Result<PartitionSpec, Vec<SpecFault>> {
        let resolved = self
            .layout
            .resolve(constraint.role, &constraint.dims, &ty.shape)?;
        Ok(resolved.spec)
    }

    /// The number of devices along axes of the mesh.
    pub(super) fn devices_along(&self, axes: &Axes) -> usize {
        let sizes = axes
            .names()
            .iter()
            .filter_map(|name| self.layout.mesh().axis_size(name));
        sizes.product()
    }

    /// The operation that states where a value lies.
    pub(super) fn statement(&self, spec: &PartitionSpec, operand: Ssa, ty: &TensorType) -> String {
        let text = tensor_type(ty);
        match self.layout.chosen_partitioner() {
            Partitioner::Shardy => {
                format!(
                    "sdy.sharding_constraint {operand} <{}> : {text}",
                    shardy(spec)
                )
            }
            Partitioner::Gspmd => format!(
                "stablehlo.custom_call @Sharding({operand}) {{mhlo.sharding = \"{}\"}} : ({text}) -> {text}",
                gspmd(spec, self.layout.mesh())
            ),
        }
    }
}

/// `@mesh, [{"data"}, {}]`
fn shardy(spec: &PartitionSpec) -> String {
    let dims: Vec<String> = spec
        .entries()
        .iter()
        .map(|axes| {
            let axes: Vec<String> = axes
                .names()
                .iter()
                .map(|axis| format!("{axis:?}"))
                .collect();
            format!("{{{}}}", axes.join(", "))
        })
        .collect();
    format!("@mesh, [{}]", dims.join(", "))
}

/// `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`: the mesh's devices, counted in its own order,
/// transposed so that the axes of dimension 0 come first and unused axes last.
fn gspmd(spec: &PartitionSpec, mesh: &Mesh) -> String {
    if spec.is_replicated(mesh) {
        return "{replicated}".to_owned();
    }
    let axes = mesh.axes();
    let position = |name: &String| axes.iter().position(|axis| axis.name() == name);
    let mut order: Vec<usize> = spec
        .entries()
        .iter()
        .flat_map(|entry| entry.names().iter().filter_map(position))
        .collect();
    let used = order.len();
    order.extend(
        (0..axes.len())
            .filter(|axis| !order[..used].contains(axis))
            .collect::<Vec<_>>(),
    );
    let mut tiles: Vec<usize> = spec
        .entries()
        .iter()
        .map(|entry| {
            entry
                .names()
                .iter()
                .filter_map(|name| mesh.axis_size(name))
                .product()
        })
        .collect();
    let copies: usize = order[used..]
        .iter()
        .map(|&axis| axes[axis].size())
        .product();
    if copies > 1 {
        tiles.push(copies);
    }
    let numbers: Vec<String> = tiles.iter().map(usize::to_string).collect();
    let mut text = format!("{{devices=[{}]<=[", numbers.join(","));
    let joined = |numbers: Vec<usize>| {
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        numbers.join(",")
    };
    // XLA takes several sizes only together with a transposition. Writing to a string does not fail.
    let _ = if order.is_sorted() {
        write!(text, "{}]", mesh.device_count())
    } else {
        let sizes = joined(axes.iter().map(|axis| axis.size()).collect());
        write!(text, "{sizes}]T({})", joined(order))
    };
    if copies > 1 {
        text.push_str(" last_tile_dim_replicate");
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gspmd_counts_the_devices_of_the_mesh() -> Result<(), shardax_sharding::Error> {
        let mesh = Mesh::new([("data", 2), ("model", 4)])?;
        let text = |spec: PartitionSpec| gspmd(&spec, &mesh);
        assert_eq!(text(PartitionSpec::replicated(2)), "{replicated}");
        assert_eq!(
            text(PartitionSpec::new(("data", ()))),
            "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"
        );
        assert_eq!(
            text(PartitionSpec::new(("model", ()))),
            "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
        );
        assert_eq!(
            text(PartitionSpec::new(("data", "model"))),
            "{devices=[2,4]<=[8]}"
        );
        assert_eq!(
            text(PartitionSpec::new(("model", "data"))),
            "{devices=[4,2]<=[2,4]T(1,0)}"
        );
        Ok(())
    }
}
