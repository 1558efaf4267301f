//! From the names of an annotation to the spec of one array.

use std::cmp::Reverse;
use std::fmt;

use crate::axes::Axes;
use crate::dim::Dim;
use crate::fault::{Dimension, Note, SpecFault};
use crate::layout::{Every, Layout};
use crate::part::overlap;
use crate::spec::{PartitionSpec, no_axis};

/// What an array is for, which decides the rules that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A value computed on the way: the rules of [`Layout::shard`] and [`Layout::shard_where_free`].
    Activation,
    /// A parameter at rest: these, and those of [`Layout::shard_parameters`] and
    /// [`Layout::shard_every_parameter`].
    Parameter,
    /// A parameter where it is used, gathered over the axes that split it at rest only: the rules for an
    /// activation.
    ParameterAtUse,
    /// The gradient of a parameter, summed over devices: the rules for the parameter at rest, and inside
    /// them those of [`Layout::shard_every_gradient`] and [`Layout::shard_every_state`].
    Gradient,
    /// What an optimizer keeps of a parameter: the rules for the gradient, which an optimizer needs
    /// where the state lies. Overrides can tell the two apart.
    State,
}

impl Role {
    /// How far the rules of [`Layout::every`] apply.
    fn stored(self) -> &'static [Every] {
        match self {
            Role::Activation | Role::ParameterAtUse => &[],
            Role::Parameter => &[Every::Parameter],
            Role::Gradient | Role::State => &[Every::Parameter, Every::Gradient, Every::State],
        }
    }

    /// Whether it is of something that outlasts a step, or is summed over one.
    pub(crate) fn is_stored(self) -> bool {
        !self.stored().is_empty()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Activation => "activation",
            Role::Parameter => "parameter",
            Role::ParameterAtUse => "parameter at use",
            Role::Gradient => "gradient",
            Role::State => "state",
        })
    }
}

/// The spec of one array, and what a report should say of how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Valid for the array's shape on the layout's mesh.
    pub spec: PartitionSpec,
    /// Choices that were made for the user.
    pub notes: Vec<Note>,
    /// By dimension, the priority of its rule; only of what is inside of a program.
    pub priorities: Vec<Option<u32>>,
}

impl Resolved {
    /// A spec without notes and priorities.
    pub(crate) fn of(spec: PartitionSpec) -> Self {
        Resolved {
            priorities: vec![None; spec.entries().len()],
            spec,
            notes: Vec::new(),
        }
    }
}

/// Names that are split first when every parameter is, in this order.
const PREFERRED: [&str; 6] = ["embed", "mlp", "vocab", "heads", "kv_heads", "head_dim"];

/// Names that are never split because every parameter is: a loop or a pipeline walks them.
const WALKED: [&str; 2] = ["layers", "stage"];

impl Layout {
    /// The spec of an array of this shape whose dimensions are annotated with `dims`.
    ///
    /// On a mesh without axes there is nothing to split, so mesh axes named in `dims` are ignored
    /// there: an annotated program runs on one device as it is.
    ///
    /// # Errors
    ///
    /// Everything that is wrong: `dims` of another length than `shape`, an axis that the mesh does not
    /// have, an axis that two dimensions want, a dimension that its axes do not divide.
    pub fn resolve(
        &self,
        role: Role,
        dims: &[Dim],
        shape: &[usize],
    ) -> Result<Resolved, Vec<SpecFault>> {
        let entries = dims.iter().enumerate();
        let entries = entries.map(|(index, dim)| match shape.get(index) {
            // What is left of a dimension in rows and columns of a parameter.
            Some(1) if role == Role::State => Axes::default(),
            Some(&size) => self
                .dividing(*dim, size)
                .unwrap_or_else(|| self.entry(*dim)),
            None => self.entry(*dim),
        });
        let mut spec: PartitionSpec = entries.collect();
        self.split_where_free(&mut spec, dims);
        let mut priorities = vec![None; dims.len()];
        if role.is_stored() {
            self.split_at_rest(&mut spec, dims);
            spec = spec.closed();
        } else {
            priorities = dims.iter().map(|dim| self.priority_of(*dim)).collect();
        }
        let faults = spec.faults(self.mesh(), shape, Some(dims));
        if !faults.is_empty() {
            return Err(faults);
        }
        let may_split =
            |index: usize| matches!(dims[index], Dim::Logical(name) if !WALKED.contains(&name));
        let notes = self.split_as_every(role, &mut spec, shape, Some(dims), may_split)?;
        Ok(Resolved {
            spec,
            notes,
            priorities,
        })
    }

    /// The spec of an array without annotation.
    ///
    /// Whole on every device, except that a parameter at rest is split where
    /// [`Layout::shard_every_parameter`] asks for it, along the largest dimension that divides. The
    /// first `leading` dimensions, which containers such as a stack of layers put there, are not split.
    ///
    /// # Errors
    ///
    /// The axes of [`Layout::shard_every_parameter`] that the mesh does not have.
    pub fn resolve_unannotated(
        &self,
        role: Role,
        leading: usize,
        shape: &[usize],
    ) -> Result<Resolved, Vec<SpecFault>> {
        let mut spec = PartitionSpec::replicated(shape.len());
        let notes = self.split_as_every(role, &mut spec, shape, None, |index| index >= leading)?;
        let priorities = vec![None; shape.len()];
        Ok(Resolved {
            spec,
            notes,
            priorities,
        })
    }

    pub(crate) fn entry(&self, dim: Dim) -> Axes {
        match dim {
            Dim::Unsharded => Axes::default(),
            Dim::Open => Axes::default().open(),
            Dim::Mesh(_) if self.mesh().axes().is_empty() => Axes::default(),
            Dim::Mesh(axes) => {
                let mut axes = Axes::from(axes);
                axes.retain(|axis| !self.away().iter().any(|away| overlap(away, axis)));
                axes
            }
            Dim::Logical(name) => {
                let rule = self.rules().get(name);
                rule.and_then(|rule| rule.axes.clone()).unwrap_or_default()
            }
        }
    }

    /// Does what [`Layout::shard_where_divides`] says of a dimension, if it says anything.
    fn dividing(&self, dim: Dim, size: usize) -> Option<Axes> {
        let Dim::Logical(name) = dim else { return None };
        let axes = self.rules().get(name)?.dividing.as_ref()?;
        let mut left = size;
        let mut taken = Vec::new();
        for axis in axes.names() {
            // An axis that is not there is told of with all others.
            let Some(part) = self.mesh().part(axis) else {
                taken.push(axis.clone());
                continue;
            };
            let divides =
                |count: &usize| left.is_multiple_of(*count) && part.size.is_multiple_of(*count);
            let common = (1..=part.size).rev().find(divides).unwrap_or(1);
            if common == part.size {
                taken.push(axis.clone());
            } else if common > 1 {
                let whole = self.mesh().axes()[part.index].name();
                taken.push(format!("{whole}:({}){common}", part.before));
            }
            if common < part.size {
                break;
            }
            left /= common;
        }
        let taken = Axes::from_iter(taken);
        Some(if axes.is_open() { taken.open() } else { taken })
    }

    fn priority_of(&self, dim: Dim) -> Option<u32> {
        match dim {
            Dim::Logical(name) => self.rules().get(name)?.priority,
            Dim::Unsharded | Dim::Open | Dim::Mesh(_) => None,
        }
    }

    /// Does what [`Layout::shard_where_free`] says.
    pub(crate) fn split_where_free(&self, spec: &mut PartitionSpec, dims: &[Dim]) {
        for (index, dim) in dims.iter().enumerate() {
            let Dim::Logical(name) = dim else { continue };
            let free = self.rules().get(name).and_then(|rule| rule.free.as_ref());
            for axis in free.into_iter().flat_map(Axes::names) {
                if !spec.is_split_over(axis) {
                    spec.push_minor(index, axis);
                }
            }
            if free.is_some_and(Axes::is_open) {
                spec.leave_open(index);
            }
        }
    }

    /// Does what [`Layout::shard_parameters`] says.
    fn split_at_rest(&self, spec: &mut PartitionSpec, dims: &[Dim]) {
        for (index, dim) in dims.iter().enumerate() {
            let Dim::Logical(name) = dim else { continue };
            let rule = self.storage_rules().get(name);
            let axes = rule.and_then(|rule| rule.axes.as_ref());
            for axis in axes.into_iter().flat_map(Axes::names) {
                spec.push_minor(index, axis);
            }
        }
    }

    /// Does what the rules for all parameters, gradients and states say, one after the other, so that
    /// what has more of them is split further and not otherwise.
    fn split_as_every(
        &self,
        role: Role,
        spec: &mut PartitionSpec,
        shape: &[usize],
        dims: Option<&[Dim]>,
        may_split: impl Fn(usize) -> bool,
    ) -> Result<Vec<Note>, Vec<SpecFault>> {
        let mut notes = Vec::new();
        for (kind, axes) in self.every() {
            if role.stored().contains(&kind) {
                notes.extend(self.split_somewhere(axes, spec, shape, dims, &may_split)?);
            }
        }
        Ok(notes)
    }

    /// Does what [`Layout::shard_every_parameter`] says to a valid spec; `may_split` tells which
    /// dimensions may be chosen for their size alone.
    fn split_somewhere(
        &self,
        axes: &Axes,
        spec: &mut PartitionSpec,
        shape: &[usize],
        dims: Option<&[Dim]>,
        may_split: impl Fn(usize) -> bool,
    ) -> Result<Vec<Note>, Vec<SpecFault>> {
        let axes = self.unused_axes(axes, spec)?;
        let parts: usize = axes.iter().map(|(_, size)| size).product();
        let mut notes = Vec::new();
        if axes.is_empty() {
            return Ok(notes);
        }
        let dimensions: Vec<_> = (0..shape.len()).map(|i| Dimension::new(i, dims)).collect();

        for name in PREFERRED {
            let is_candidate = |index: &usize| {
                dimensions[*index].name == Some(name) && spec.entries()[*index].is_empty()
            };
            let Some(index) = (0..shape.len()).find(is_candidate) else {
                continue;
            };
            if shape[index].is_multiple_of(parts) {
                spec.split(index, &axes);
                return Ok(notes);
            }
            let (dimension, size) = (dimensions[index].clone(), shape[index]);
            notes.push(Note::PassedOver {
                dimension,
                size,
                axes: axes.clone(),
            });
        }

        let shard = spec.shard_shape(self.mesh(), shape)?;
        let largest = (0..shape.len())
            .filter(|&index| may_split(index) && shard[index].is_multiple_of(parts))
            .max_by_key(|&index| (shard[index], Reverse(index)));
        match largest {
            Some(index) => {
                spec.split(index, &axes);
                let (dimension, size) = (dimensions[index].clone(), shape[index]);
                notes.push(Note::FellBack {
                    dimension,
                    size,
                    axes,
                });
            }
            None if parts > 1 && shape.iter().product::<usize>() > 1 => {
                let shape = shape.to_vec();
                notes.push(Note::Replicated { shape, axes });
            }
            None => {}
        }
        Ok(notes)
    }

    /// Those of the axes that do not split the array yet, with their sizes.
    fn unused_axes(
        &self,
        axes: &Axes,
        spec: &PartitionSpec,
    ) -> Result<Vec<(String, usize)>, Vec<SpecFault>> {
        let mut unused: Vec<(String, usize)> = Vec::new();
        let mut faults = Vec::new();
        for axis in axes.names() {
            let is_used =
                spec.is_split_over(axis) || unused.iter().any(|(used, _)| overlap(used, axis));
            match self.mesh().part(axis).map(|part| part.size) {
                None => faults.push(no_axis(self.mesh(), axis, None)),
                Some(size) if !is_used => unused.push((axis.clone(), size)),
                Some(_) => {}
            }
        }
        match faults.is_empty() {
            true => Ok(unused),
            false => Err(faults),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Mesh;

    const EMBED: Dim = Dim::Logical("embed");
    const MLP: Dim = Dim::Logical("mlp");
    const LAYERS: Dim = Dim::Logical("layers");

    fn mesh() -> Mesh {
        Mesh::new([("data", 2), ("model", 4)]).unwrap()
    }

    /// The spec and notes as a report prints them.
    fn parameter(layout: &Layout, dims: &[Dim], shape: &[usize]) -> (String, Vec<String>) {
        let resolved = layout.resolve(Role::Parameter, dims, shape).unwrap();
        assert_eq!(resolved.spec.validate(layout.mesh(), shape), []);
        let notes = resolved.notes.iter().map(ToString::to_string).collect();
        (resolved.spec.to_string(), notes)
    }

    fn faults(layout: &Layout, dims: &[Dim], shape: &[usize]) -> Vec<String> {
        let faults = layout.resolve(Role::Activation, dims, shape).unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn storage_rules_are_for_parameters_at_rest_only() {
        let layout = Layout::new(mesh())
            .shard("mlp", "model")
            .shard_parameters("embed", "data")
            .shard_parameters("mlp", "data");
        let spec = |role, dims: &[Dim], shape: &[usize]| {
            layout.resolve(role, dims, shape).unwrap().spec.to_string()
        };
        assert_eq!(spec(Role::Parameter, &[EMBED], &[8]), r#"P("data")"#);
        assert_eq!(
            spec(Role::Parameter, &[MLP], &[8]),
            r#"P(("model", "data"))"#
        );
        for role in [Role::Activation, Role::ParameterAtUse] {
            assert_eq!(spec(role, &[EMBED, MLP], &[3, 8]), r#"P(_, "model")"#);
        }
    }

    #[test]
    fn fsdp_splits_the_preferred_dimension() {
        let layout = Layout::fsdp(mesh()).unwrap();
        let spec = parameter(&layout, &[LAYERS, MLP, EMBED], &[12, 256, 64]);
        assert_eq!(spec, (r#"P(_, _, "data")"#.to_owned(), vec![]));
    }

    #[test]
    fn fsdp_passes_over_what_does_not_divide() {
        let layout = Layout::fsdp(mesh()).unwrap();
        let (spec, notes) = parameter(&layout, &[MLP, EMBED], &[256, 63]);
        assert_eq!(spec, r#"P("data", _)"#);
        assert_eq!(
            notes,
            ["dimension 1 (`embed`) of size 63 is not split: data=2 does not divide it"]
        );
    }

    #[test]
    fn fsdp_falls_back_to_the_largest_dimension_and_never_to_layers() {
        let layout = Layout::fsdp(mesh()).unwrap();
        let (spec, notes) = parameter(
            &layout,
            &[LAYERS, Dim::Logical("a"), Dim::Logical("b")],
            &[64, 8, 10],
        );
        assert_eq!(spec, r#"P(_, _, "data")"#);
        assert_eq!(
            notes,
            [
                "dimension 2 (`b`) of size 10 is split by data=2, the largest that can be: no \
                 dimension of a preferred name is whole and divisible"
            ]
        );
        let (spec, notes) = parameter(&layout, &[LAYERS, Dim::Unsharded], &[64, 8]);
        assert_eq!(spec, "P(_, _)");
        assert_eq!(
            notes,
            ["every device along data=2 keeps the whole [64, 8]: no dimension could be split"]
        );
        assert_eq!(parameter(&layout, &[], &[]), ("P()".to_owned(), vec![]));
    }

    #[test]
    fn unannotated_parameters_are_split_past_their_leading_dimensions() {
        let layout = Layout::fsdp(mesh()).unwrap();
        let spec = |role| {
            layout
                .resolve_unannotated(role, 1, &[64, 4, 6])
                .unwrap()
                .spec
        };
        assert_eq!(spec(Role::Parameter).to_string(), r#"P(_, _, "data")"#);
        assert_eq!(spec(Role::ParameterAtUse).to_string(), "P(_, _, _)");
    }

    #[test]
    fn megatron_fsdp_uses_both_axes() {
        let layout = Layout::megatron_fsdp(mesh()).unwrap();
        assert_eq!(
            parameter(&layout, &[EMBED, MLP], &[64, 256]).0,
            r#"P("data", "model")"#
        );
        assert_eq!(
            parameter(&layout, &[MLP], &[256]).0,
            r#"P(("model", "data"))"#
        );
        let at_use = layout
            .resolve(Role::ParameterAtUse, &[EMBED, MLP], &[64, 256])
            .unwrap();
        assert_eq!(at_use.spec.to_string(), r#"P(_, "model")"#);
    }

    #[test]
    fn free_axes_go_where_no_other_dimension_has_them() {
        let (seq, heads) = (Dim::Logical("seq"), Dim::Logical("heads"));
        let spec = |layout: &Layout, dims: &[Dim], shape: &[usize]| {
            let resolved = layout.resolve(Role::Activation, dims, shape).unwrap();
            resolved.spec.to_string()
        };
        let layout = Layout::new(mesh())
            .shard("heads", "model")
            .shard_where_free("seq", "model");
        assert_eq!(spec(&layout, &[seq, EMBED], &[8, 6]), r#"P("model", _)"#);
        assert_eq!(spec(&layout, &[seq, heads], &[8, 8]), r#"P(_, "model")"#);
        assert_eq!(spec(&layout, &[heads, seq], &[8, 8]), r#"P("model", _)"#);

        // The first of several takes an axis, and each axis is looked at by itself.
        let layout = Layout::new(mesh())
            .shard("heads", "model")
            .shard_where_free("seq", ("data", "model"))
            .shard_where_free("embed", "model");
        assert_eq!(
            spec(&layout, &[EMBED, seq], &[8, 8]),
            r#"P("model", "data")"#
        );
        assert_eq!(
            spec(&layout, &[seq, EMBED], &[8, 8]),
            r#"P(("data", "model"), _)"#
        );
        assert_eq!(
            spec(&layout, &[seq, heads], &[8, 8]),
            r#"P("data", "model")"#
        );

        // Both parts of a rule, the plain one outside.
        let layout = Layout::new(mesh())
            .shard_where_free("seq", "model")
            .shard("seq", "data");
        assert_eq!(spec(&layout, &[seq], &[8]), r#"P(("data", "model"))"#);
    }

    #[test]
    fn free_axes_must_divide_too() {
        let layout = Layout::new(mesh()).shard_where_free("seq", "model");
        assert_eq!(
            faults(&layout, &[Dim::Logical("seq"), EMBED], &[6, 8]),
            [
                "dimension 0 (`seq`) of size 6 is not divisible by model=4: make the size a \
                 multiple of 4, choose mesh sizes that divide 6, or remove the rule for `seq`"
            ]
        );
    }

    #[test]
    fn gradients_and_states_are_split_where_their_rules_say() {
        let spec = |layout: &Layout, role| {
            let resolved = layout.resolve(role, &[EMBED, MLP], &[8, 16]).unwrap();
            resolved.spec.to_string()
        };
        let (whole, split) = (r#"P(_, "model")"#, r#"P("data", "model")"#);
        let base = Layout::new(mesh()).shard("mlp", "model");
        let one = base.clone().shard_every_state("data");
        let two = base.clone().shard_every_gradient("data");
        let three = base.shard_every_parameter("data");
        for (layout, expected) in [
            (one, [whole, split, split]),
            (two, [whole, split, split]),
            (three, [split, split, split]),
        ] {
            let roles = [Role::Parameter, Role::Gradient, Role::State];
            assert_eq!(roles.map(|role| spec(&layout, role)), expected);
            assert_eq!(spec(&layout, Role::ParameterAtUse), whole);
        }
    }

    #[test]
    fn what_has_more_rules_is_split_further() {
        let mesh = Mesh::new([("replica", 2), ("data", 2), ("model", 2)]).unwrap();
        let layout = Layout::new(mesh)
            .shard_every_parameter("data")
            .shard_every_gradient(("data", "model"))
            .shard_every_state("replica");
        let spec = |role| {
            let resolved = layout.resolve(role, &[EMBED, MLP, LAYERS], &[8, 8, 8]);
            resolved.unwrap().spec.to_string()
        };
        assert_eq!(spec(Role::Parameter), r#"P("data", _, _)"#);
        let summed = r#"P(("data", "replica"), "model", _)"#;
        assert_eq!(spec(Role::Gradient), summed);
        assert_eq!(spec(Role::State), summed);
    }

    #[test]
    fn an_axis_of_size_one_divides_everything() {
        let mesh = Mesh::new([("data", 1), ("model", 1)]).unwrap();
        let layout = Layout::megatron_fsdp(mesh).unwrap();
        assert_eq!(parameter(&layout, &[EMBED, MLP], &[7, 3]).1, [""; 0]);
    }

    #[test]
    fn mesh_axes_in_annotations_are_taken_as_they_are() {
        let dims = [Dim::Mesh(&["data", "model"]), Dim::Unsharded];
        let layout = Layout::new(mesh());
        assert_eq!(
            parameter(&layout, &dims, &[8, 3]).0,
            r#"P(("data", "model"), _)"#
        );
        assert_eq!(parameter(&Layout::single(), &dims, &[8, 3]).0, "P(_, _)");
    }

    #[test]
    fn faults_name_dimension_size_and_axis() {
        let layout = Layout::new(mesh())
            .shard("mlp", "model")
            .shard("embed", "model");
        assert_eq!(
            faults(&layout, &[EMBED, MLP], &[6, 8]),
            [
                "dimension 0 (`embed`) of size 6 is not divisible by model=4: make the size a \
                 multiple of 4, choose mesh sizes that divide 6, or remove the rule for `embed`",
                "mesh axis `model` is wanted twice, by dimension 0 (`embed`) and by dimension 1 \
                 (`mlp`): an axis splits one dimension of an array, once",
            ]
        );
        assert_eq!(
            faults(&layout, &[Dim::Mesh(&["datum"])], &[6]),
            ["dimension 0: the mesh has no axis `datum`: there are data, model"]
        );
        assert_eq!(
            faults(&layout, &[MLP], &[8, 8]),
            [
                "1 entry for an array of shape [8, 8] with 2 dimensions: write one entry for each \
                 dimension, `_` where it is not split"
            ]
        );
        let layout = Layout::new(mesh()).shard_every_parameter("fsdp");
        let faults = layout.resolve(Role::Parameter, &[MLP], &[8]).unwrap_err();
        assert_eq!(
            faults[0].to_string(),
            "the mesh has no axis `fsdp`: there are data, model"
        );
    }
}
