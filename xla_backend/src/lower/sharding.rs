//! Specs in the terms of the two partitioners.

use std::borrow::Cow;
use std::fmt::Write;

use shardax_core::{Constraint, Dim, ManualAxis, TensorType};
use shardax_sharding::{Axes, Layout, Mesh, PartitionSpec, Partitioner, SpecFault};

use super::manual::groups;
use super::writer::{Ssa, tensor_type};

/// Writes the layout's specs for its partitioner.
pub(super) struct Annotations<'a> {
    layout: Cow<'a, Layout>,
    /// Axes of the manual regions around, along which there is nothing to say.
    manual: Vec<String>,
}

impl<'a> Annotations<'a> {
    pub(super) fn new(layout: &'a Layout) -> Self {
        Annotations {
            layout: Cow::Borrowed(layout),
            manual: Vec::new(),
        }
    }

    /// Goes into a manual region with these axes; returns what holds outside of it.
    pub(super) fn enter(&mut self, axes: &[&str]) -> Annotations<'a> {
        let manual = self.manual.iter().cloned();
        let inside = Annotations {
            layout: Cow::Owned(self.layout.without_axes(axes)),
            manual: manual
                .chain(axes.iter().map(|&axis| axis.to_owned()))
                .collect(),
        };
        std::mem::replace(self, inside)
    }

    /// The partitioner.
    pub(super) fn partitioner(&self) -> Partitioner {
        self.layout.chosen_partitioner()
    }

    /// Groups of devices that take part together in a collective over these axes.
    pub(super) fn groups(&self, axes: &[ManualAxis]) -> Vec<Vec<usize>> {
        groups(self.layout.mesh(), axes)
    }

    /// Axes of more than one device along which the partitioner still splits.
    pub(super) fn automatic_axes(&self) -> Vec<String> {
        let axes = self.layout.mesh().axes().iter();
        let automatic = axes.filter(|a| a.size() > 1 && !self.manual.iter().any(|m| m == a.name()));
        automatic.map(|axis| axis.name().to_owned()).collect()
    }

    /// A spec as a GSPMD sharding.
    pub(super) fn gspmd(&self, spec: &PartitionSpec) -> String {
        gspmd(spec, self.layout.mesh())
    }

    /// Whether there is nothing to say: on one device, and where a manual region has all axes.
    pub(super) fn is_single(&self) -> bool {
        self.automatic_axes().is_empty()
    }

    /// The number of devices.
    pub(super) fn device_count(&self) -> usize {
        self.layout.mesh().device_count()
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
            Partitioner::Shardy => {
                format!("sdy.sharding = #sdy.sharding<{}>", shardy(spec, &[]))
            }
            Partitioner::Gspmd => {
                format!("mhlo.sharding = \"{}\"", gspmd(spec, self.layout.mesh()))
            }
        })
    }

    /// The attribute of an operation whose results are whole on every device; `None` on one device.
    pub(super) fn whole(&self, results: &[TensorType]) -> Option<String> {
        if self.is_single() {
            return None;
        }
        Some(match (self.layout.chosen_partitioner(), results) {
            (Partitioner::Shardy, results) => {
                let all: Vec<String> = results
                    .iter()
                    .map(|ty| format!("<{}>", shardy(&PartitionSpec::replicated(ty.rank()), &[])))
                    .collect();
                format!(
                    "sdy.sharding = #sdy.sharding_per_value<[{}]>",
                    all.join(", ")
                )
            }
            (Partitioner::Gspmd, [_]) => "mhlo.sharding = \"{replicated}\"".to_owned(),
            (Partitioner::Gspmd, results) => {
                let all = vec!["{replicated}"; results.len()];
                format!("mhlo.sharding = \"{{{}}}\"", all.join(", "))
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
        let open: Vec<bool> = constraint.dims.iter().map(|&d| d == Dim::Open).collect();
        Ok((!self.is_single()).then(|| self.statement(&spec, &open, operand, ty)))
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

    /// The operation that states where a value lies. What is said of dimensions that are `open` is
    /// the least that they are split.
    pub(super) fn statement(
        &self,
        spec: &PartitionSpec,
        open: &[bool],
        operand: Ssa,
        ty: &TensorType,
    ) -> String {
        let text = tensor_type(ty);
        match self.layout.chosen_partitioner() {
            Partitioner::Shardy => {
                format!(
                    "sdy.sharding_constraint {operand} <{}> : {text}",
                    shardy(spec, open)
                )
            }
            Partitioner::Gspmd => {
                let free: Vec<String> = (0..open.len())
                    .filter(|&d| open[d])
                    .map(|d| d.to_string())
                    .collect();
                let config = match free.is_empty() {
                    true => String::new(),
                    false => format!(
                        "backend_config = \"unspecified_dims=[{}]\", ",
                        free.join(",")
                    ),
                };
                format!(
                    "stablehlo.custom_call @Sharding({operand}) {{{config}mhlo.sharding = \"{}\"}} : ({text}) -> {text}",
                    gspmd(spec, self.layout.mesh())
                )
            }
        }
    }
}

/// `@mesh, [{"data"}, {}, {?}]`
pub(super) fn shardy(spec: &PartitionSpec, open: &[bool]) -> String {
    let entry = |(d, axes): (usize, &Axes)| {
        let mut parts: Vec<String> = axes
            .names()
            .iter()
            .map(|axis| format!("{axis:?}"))
            .collect();
        if open.get(d) == Some(&true) {
            parts.push("?".to_owned());
        }
        format!("{{{}}}", parts.join(", "))
    };
    let dims: Vec<String> = spec.entries().iter().enumerate().map(entry).collect();
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
    use shardax_core::DType;

    use super::*;

    #[test]
    fn results_that_are_whole_on_every_device() -> Result<(), shardax_sharding::Error> {
        let results = [[2, 3], [4, 5]].map(|shape| TensorType::new(DType::F32, shape));
        let whole = |layout: &Layout, results: &[TensorType]| {
            Annotations::new(layout).whole(results).unwrap_or_default()
        };
        let shardy = Layout::new(Mesh::new([("data", 8)])?);
        assert_eq!(
            whole(&shardy, &results),
            "sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>, <@mesh, [{}, {}]>]>"
        );
        let gspmd = shardy.partitioner(Partitioner::Gspmd);
        assert_eq!(
            whole(&gspmd, &results),
            "mhlo.sharding = \"{{replicated}, {replicated}}\""
        );
        assert_eq!(
            whole(&gspmd, &results[..1]),
            "mhlo.sharding = \"{replicated}\""
        );
        assert_eq!(Annotations::new(&Layout::single()).whole(&results), None);
        Ok(())
    }

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
