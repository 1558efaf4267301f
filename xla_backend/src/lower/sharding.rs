//! Specs in the terms of the two partitioners.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use shardax_core::ir::split::Entries;
use shardax_core::{
    Role, Shape, TensorType,
    ir::{Constraint, ManualAxis, Name, block_count},
};
use shardax_sharding::{
    Axes, AxisPart, Dim, Layout, Mesh, MeshAxis, PartitionSpec, Partitioner, ReductionType,
    Resolved, SpecFault,
};

use smallvec::SmallVec;

use super::manual::groups;
use super::writer::{Ssa, tensor_type};

/// Writes the layout's specs for its partitioner.
pub(super) struct Annotations<'a> {
    layout: Cow<'a, Layout>,
    leaves: Vec<LeafOf<'a>>,
    /// Axes of the manual regions around, along which there is nothing to say.
    manual: Vec<String>,
    /// What constraints say, which is the same of many values.
    known: RefCell<FxHashMap<Asked, Rc<Stated>>>,
}

/// A constraint, as far as it matters where a value lies.
#[derive(PartialEq, Eq, Hash)]
struct Asked {
    role: Role,
    dims: SmallVec<[Dim; 4]>,
    /// Where the layout tells leaves apart.
    leaf: Option<Arc<str>>,
    shape: Shape,
}

/// Where a constraint says that values lie.
pub(super) struct Stated {
    pub(super) spec: PartitionSpec,
    /// How they are split at least.
    pub(super) entries: Entries,
    /// As the partitioner spells it.
    spelled: String,
}

/// An argument, as a leaf that annotations in the program may be of.
#[derive(Clone, Copy)]
pub(super) struct LeafOf<'a> {
    pub(super) path: &'a str,
    pub(super) rank: usize,
    pub(super) is_state: bool,
}

impl<'a> Annotations<'a> {
    pub(super) fn new(layout: &'a Layout, leaves: Vec<LeafOf<'a>>) -> Self {
        Annotations {
            layout: Cow::Borrowed(layout),
            leaves,
            manual: Vec::new(),
            known: RefCell::default(),
        }
    }

    /// Goes into a manual region with these axes; returns what holds outside of it.
    pub(super) fn enter(&mut self, axes: &[&str]) -> Annotations<'a> {
        let manual = self.manual.iter().cloned();
        let inside = Annotations {
            layout: Cow::Owned(self.layout.without_axes(axes)),
            leaves: self.leaves.clone(),
            manual: manual
                .chain(axes.iter().map(|&axis| axis.to_owned()))
                .collect(),
            known: RefCell::default(),
        };
        std::mem::replace(self, inside)
    }

    /// The partitioner.
    pub(super) fn partitioner(&self) -> Partitioner {
        self.layout.chosen_partitioner()
    }

    /// The element type in which gradients are reduced.
    pub(super) fn gradient_reduction(&self) -> ReductionType {
        self.layout.gradient_reduction()
    }

    /// The element type in which other products are reduced.
    pub(super) fn activation_reduction(&self) -> ReductionType {
        self.layout.activation_reduction()
    }

    /// Groups of devices that take part together in a collective over these axes.
    pub(super) fn groups(&self, axes: &[ManualAxis]) -> Vec<Vec<usize>> {
        groups(self.layout.mesh(), axes)
    }

    /// Axes of more than one device along which the partitioner still splits.
    pub(super) fn automatic_axes(&self) -> impl Iterator<Item = &str> {
        let axes = self.layout.mesh().axes().iter();
        let split = axes.filter(|axis| axis.size() > 1).map(MeshAxis::name);
        split.filter(|name| !self.manual.iter().any(|manual| manual == name))
    }

    /// A spec as Shardy spells it.
    pub(super) fn shardy(&self, spec: &PartitionSpec) -> String {
        shardy(spec, &[], self.layout.mesh())
    }

    /// A spec as a GSPMD sharding.
    pub(super) fn gspmd(&self, spec: &PartitionSpec) -> String {
        gspmd(spec, self.layout.mesh())
    }

    /// Whether there is nothing to say: on one device, and where a manual region has all axes.
    pub(super) fn is_single(&self) -> bool {
        self.automatic_axes().next().is_none()
    }

    /// Into how many blocks a dimension is taken for a scan along it.
    pub(super) fn block_count(&self, split: &[Axes], shape: &[usize], dim: usize) -> usize {
        let manual: Vec<&str> = self.manual.iter().map(String::as_str).collect();
        block_count(self.layout.mesh(), &manual, split, shape, dim)
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
                format!(
                    "sdy.sharding = #sdy.sharding<{}>",
                    shardy(spec, &[], self.layout.mesh())
                )
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
                    .map(|ty| {
                        let whole = PartitionSpec::replicated(ty.rank());
                        format!("<{}>", shardy(&whole, &[], self.layout.mesh()))
                    })
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

    /// The operation that constrains `operand`; `None` where there is nothing to say, nor anything to say it of: XLA may divide
    /// by the size of a dimension that it moves to other devices.
    pub(super) fn constraint(
        &self,
        constraint: &Constraint,
        operand: Ssa,
        ty: &TensorType,
    ) -> Result<Option<String>, Vec<SpecFault>> {
        let stated = self.lies(constraint.role, constraint, ty)?;
        let is_silent = self.is_single() || ty.element_count() == 0;
        Ok((!is_silent).then(|| self.written(&stated.spelled, operand, ty)))
    }

    /// The operation that constrains a value of this name, if the layout says anything of it.
    pub(super) fn named(
        &self,
        of: &Name,
        operand: Ssa,
        ty: &TensorType,
    ) -> Result<Option<String>, Vec<SpecFault>> {
        let Some(spec) = self.layout.constraint_of(&of.name) else {
            return Ok(None);
        };
        let resolved = self.layout.follow_mapped(spec, &of.mapped, &ty.shape)?;
        Ok((!self.is_single()).then(|| {
            let spelled = self.spelled(&resolved.spec, &resolved.priorities);
            self.written(&spelled, operand, ty)
        }))
    }

    /// Where a constraint says that a value of this type lies, if it is of this role.
    pub(super) fn lies(
        &self,
        role: Role,
        constraint: &Constraint,
        ty: &TensorType,
    ) -> Result<Rc<Stated>, Vec<SpecFault>> {
        let asked = Asked {
            role,
            dims: constraint.dims.clone(),
            leaf: constraint.leaf.clone().filter(|_| self.has_overrides()),
            shape: ty.shape.clone(),
        };
        if let Some(known) = self.known.borrow().get(&asked) {
            return Ok(Rc::clone(known));
        }
        let Resolved {
            spec, priorities, ..
        } = self.resolved(&asked)?;
        let stated = Rc::new(Stated {
            spelled: self.spelled(&spec, &priorities),
            entries: spec.entries().iter().cloned().map(Axes::closed).collect(),
            spec,
        });
        self.known.borrow_mut().insert(asked, Rc::clone(&stated));
        Ok(stated)
    }

    fn resolved(&self, asked: &Asked) -> Result<Resolved, Vec<SpecFault>> {
        let Asked {
            role,
            dims,
            leaf,
            shape,
        } = asked;
        let leaf = leaf.as_deref();
        match leaf.map(|leaf| self.overridden(*role, leaf, shape.len())) {
            Some(Ok(Some(spec))) => self.layout.follow(&spec, *role, Some(dims), shape),
            Some(Err(fault)) => Err(vec![fault]),
            Some(Ok(None)) | None => self.layout.resolve(*role, dims, shape),
        }
    }

    fn has_overrides(&self) -> bool {
        self.layout.unmatched_overrides(&[]).next().is_some()
    }

    /// The override for a leaf of which the end of its path is known. A layer's leaf is that of the
    /// stack without the dimension of layers.
    fn overridden(
        &self,
        role: Role,
        end: &str,
        rank: usize,
    ) -> Result<Option<PartitionSpec>, SpecFault> {
        let is_end = |path: &str| {
            let before = path.strip_suffix(end);
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let may_be = |leaf: &&LeafOf| {
            leaf.is_state == (role == Role::State)
                && (leaf.rank == rank || leaf.rank == rank + 1)
                && is_end(leaf.path)
        };
        let candidates: Vec<&LeafOf> = self.leaves.iter().filter(may_be).collect();
        let mut specs = candidates.iter().map(|leaf| {
            let spec = self.layout.overridden(role, leaf.path)?;
            let layers = usize::from(leaf.rank > rank);
            Some(spec.entries().iter().skip(layers).cloned().collect())
        });
        let first = specs.next().flatten();
        match specs.all(|spec| spec == first) {
            true => Ok(first),
            // Gradients are told once more, outside of the loop, by the whole path.
            false if role != Role::ParameterAtUse => Ok(None),
            false => Err(SpecFault::Ambiguous {
                path: end.to_owned(),
                candidates: candidates
                    .iter()
                    .map(|leaf| format!("`{}`", leaf.path))
                    .collect(),
            }),
        }
    }

    /// The axes and parts of axes that are meant, without those of one device.
    pub(super) fn parts(&self, axes: &Axes) -> Vec<AxisPart> {
        let names = axes.names().iter();
        let parts = names.filter_map(|name| self.layout.mesh().part(name));
        parts.filter(|part| part.size > 1).collect()
    }

    /// The names of axes and parts of axes.
    pub(super) fn axes<'p>(&self, parts: impl IntoIterator<Item = &'p AxisPart>) -> Axes {
        let name = |part: &AxisPart| {
            let axis = self.layout.mesh().axes()[part.index].name();
            match part.is_whole() {
                true => axis.to_owned(),
                false => format!("{axis}:({}){}", part.before, part.size),
            }
        };
        parts.into_iter().map(name).collect()
    }

    /// The operation that states where a value lies.
    pub(super) fn statement(&self, spec: &PartitionSpec, operand: Ssa, ty: &TensorType) -> String {
        self.written(&self.spelled(spec, &[]), operand, ty)
    }

    /// A spec in the partitioner's terms.
    fn spelled(&self, spec: &PartitionSpec, priorities: &[Option<u32>]) -> String {
        let mesh = self.layout.mesh();
        match self.partitioner() {
            Partitioner::Shardy => shardy(spec, priorities, mesh),
            Partitioner::Gspmd => {
                let open = spec.entries().iter().enumerate();
                let open: Vec<String> = open
                    .filter(|(_, entry)| entry.is_open())
                    .map(|(d, _)| d.to_string())
                    .collect();
                let config = match open.is_empty() {
                    true => String::new(),
                    false => format!(
                        "backend_config = \"unspecified_dims=[{}]\", ",
                        open.join(",")
                    ),
                };
                format!("{config}mhlo.sharding = \"{}\"", gspmd(spec, mesh))
            }
        }
    }

    /// The operation that states where a value lies, of which the spec is spelled.
    fn written(&self, spelled: &str, operand: Ssa, ty: &TensorType) -> String {
        let ty = tensor_type(ty);
        match self.partitioner() {
            Partitioner::Shardy => {
                format!("sdy.sharding_constraint {operand} <{spelled}> : {ty}")
            }
            Partitioner::Gspmd => {
                format!("stablehlo.custom_call @Sharding({operand}) {{{spelled}}} : ({ty}) -> {ty}")
            }
        }
    }
}

/// `@mesh, [{"data"}p1, {"model":(1)2, ?}, {?}]`
fn shardy(spec: &PartitionSpec, priorities: &[Option<u32>], mesh: &Mesh) -> String {
    let entry = |(d, axes): (usize, &Axes)| {
        let mut parts: Vec<String> = joined(axes, mesh)
            .into_iter()
            .map(|part| {
                let axis = mesh.axes()[part.index].name();
                match part.is_whole() {
                    true => format!("{axis:?}"),
                    false => format!("{axis:?}:({}){}", part.before, part.size),
                }
            })
            .collect();
        if axes.is_open() {
            parts.push("?".to_owned());
        }
        let priority = match priorities.get(d) {
            // What says nothing has no priority.
            Some(Some(priority)) if !parts.is_empty() => format!("p{priority}"),
            _ => String::new(),
        };
        format!("{{{}}}{priority}", parts.join(", "))
    };
    let dims: Vec<String> = spec.entries().iter().enumerate().map(entry).collect();
    format!("@mesh, [{}]", dims.join(", "))
}

/// The axes of an entry, parts that follow one another taken as one: Shardy has no other spelling.
fn joined(axes: &Axes, mesh: &Mesh) -> Vec<AxisPart> {
    let mut parts: Vec<AxisPart> = Vec::new();
    for part in axes.names().iter().filter_map(|name| mesh.part(name)) {
        match parts.last_mut() {
            Some(last) if last.index == part.index && last.end() == part.before => {
                last.size *= part.size;
            }
            _ => parts.push(part),
        }
    }
    parts
}

/// `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`: the mesh's devices, counted in its own order,
/// transposed so that the axes of dimension 0 come first and unused axes last. An axis of which a part
/// is used is counted as a grid of its parts.
fn gspmd(spec: &PartitionSpec, mesh: &Mesh) -> String {
    if spec.is_replicated(mesh) {
        return "{replicated}".to_owned();
    }
    let parts = |entry: &Axes| -> Vec<AxisPart> {
        let names = entry.names().iter();
        names.filter_map(|name| mesh.part(name)).collect()
    };
    let used: Vec<AxisPart> = spec.entries().iter().flat_map(parts).collect();
    let grid = grid(mesh, &used);
    let within = |part: &AxisPart| {
        let (part, grid) = (*part, &grid);
        (0..grid.len()).filter(move |&i| {
            let cell = grid[i];
            cell.index == part.index && part.before <= cell.before && cell.end() <= part.end()
        })
    };
    let mut order: Vec<usize> = used.iter().flat_map(within).collect();
    let split = order.len();
    let unused: Vec<usize> = (0..grid.len())
        .filter(|cell| !order.contains(cell))
        .collect();
    order.extend(unused);
    let mut tiles: Vec<usize> = spec
        .entries()
        .iter()
        .map(|entry| parts(entry).iter().map(|part| part.size).product())
        .collect();
    let copies: usize = order[split..].iter().map(|&cell| grid[cell].size).product();
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
        let sizes = joined(grid.iter().map(|cell| cell.size).collect());
        write!(text, "{sizes}]T({})", joined(order))
    };
    if copies > 1 {
        text.push_str(" last_tile_dim_replicate");
    }
    text.push('}');
    text
}

/// The axes of the mesh, each cut where a part that is used begins or ends.
fn grid(mesh: &Mesh, used: &[AxisPart]) -> Vec<AxisPart> {
    let mut grid = Vec::new();
    for (index, axis) in mesh.axes().iter().enumerate() {
        let whole = axis.size();
        let own = used.iter().filter(|part| part.index == index);
        let mut cuts: Vec<usize> = own.flat_map(|part| [part.before, part.end()]).collect();
        cuts.extend([1, whole]);
        cuts.sort_unstable();
        cuts.dedup();
        // An axis of one device has one cut, and is a cell all the same.
        let ends = cuts
            .iter()
            .skip(1)
            .copied()
            .chain((whole == 1).then_some(1));
        grid.extend(cuts.iter().zip(ends).map(|(&before, end)| AxisPart {
            index,
            whole,
            before,
            size: end / before,
        }));
    }
    grid
}

#[cfg(test)]
mod tests {
    use shardax_core::DType;

    use super::*;

    #[test]
    fn results_that_are_whole_on_every_device() -> Result<(), shardax_sharding::Error> {
        let results = [[2, 3], [4, 5]].map(|shape| TensorType::new(DType::F32, shape));
        let whole = |layout: &Layout, results: &[TensorType]| {
            Annotations::new(layout, Vec::new())
                .whole(results)
                .unwrap_or_default()
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
        assert_eq!(
            Annotations::new(&Layout::single(), Vec::new()).whole(&results),
            None
        );
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

    #[test]
    fn parts_of_axes_are_spelled() -> Result<(), shardax_sharding::Error> {
        let mesh = Mesh::new([("data", 8), ("model", 2)])?;
        let spec = PartitionSpec::new(("data:(2)4", ("model", "data:(1)2")));
        assert_eq!(spec.validate(&mesh, &[8, 8]), []);
        assert_eq!(
            shardy(&spec, &[Some(1), None], &mesh),
            r#"@mesh, [{"data":(2)4}p1, {"model", "data":(1)2}]"#
        );
        assert_eq!(gspmd(&spec, &mesh), "{devices=[4,4]<=[2,4,2]T(1,2,0)}");
        let spec = PartitionSpec::new([("data:(1)2", "data:(2)2", "?")]);
        assert_eq!(shardy(&spec, &[], &mesh), r#"@mesh, [{"data":(1)4, ?}]"#);
        assert_eq!(
            gspmd(&spec, &mesh),
            "{devices=[4,4]<=[16] last_tile_dim_replicate}"
        );
        let spec = PartitionSpec::new([("data:(1)2", "data:(2)4")]);
        assert_eq!(shardy(&spec, &[], &mesh), r#"@mesh, [{"data"}]"#);
        Ok(())
    }
}
