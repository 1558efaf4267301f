//! From the names of an annotation to the spec of one array.

use std::cmp::Reverse;

use crate::axes::Axes;
use crate::dim::Dim;
use crate::fault::{Dimension, Note, SpecFault};
use crate::layout::Layout;
use crate::spec::{PartitionSpec, unknown_axis};

/// What an array is for, which decides the rules that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A value computed on the way: the rules of [`Layout::shard`].
    Activation,
    /// A parameter at rest, its gradient, its optimizer state: all rules.
    Parameter,
    /// A parameter where it is used, gathered over the axes that split it at rest only: the rules of
    /// [`Layout::shard`].
    ParameterAtUse,
}

/// The spec of one array, and what a report should say of how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Valid for the array's shape on the layout's mesh.
    pub spec: PartitionSpec,
    /// Choices that were made for the user.
    pub notes: Vec<Note>,
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
        let mut spec: PartitionSpec = dims.iter().map(|dim| self.entry(role, *dim)).collect();
        let faults = spec.faults(self.mesh(), shape, Some(dims));
        if !faults.is_empty() {
            return Err(faults);
        }
        let notes = match role {
            Role::Activation | Role::ParameterAtUse => Vec::new(),
            Role::Parameter => self.split_somewhere(
                &mut spec,
                shape,
                Some(dims),
                |index| matches!(dims[index], Dim::Logical(name) if !WALKED.contains(&name)),
            )?,
        };
        Ok(Resolved { spec, notes })
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
        let notes = match role {
            Role::Activation | Role::ParameterAtUse => Vec::new(),
            Role::Parameter => {
                self.split_somewhere(&mut spec, shape, None, |index| index >= leading)?
            }
        };
        Ok(Resolved { spec, notes })
    }

    fn entry(&self, role: Role, dim: Dim) -> Axes {
        match dim {
            Dim::Unsharded | Dim::Open => Axes::default(),
            Dim::Mesh(_) if self.mesh().axes().is_empty() => Axes::default(),
            Dim::Mesh(axes) => Axes::from(axes),
            Dim::Logical(name) => {
                let mut axes = self.axes_of(name).cloned().unwrap_or_default();
                if role == Role::Parameter {
                    let storage = self.storage_axes_of(name).into_iter();
                    storage
                        .flat_map(Axes::names)
                        .for_each(|axis| axes.push_minor(axis));
                }
                axes
            }
        }
    }

    /// Does what [`Layout::shard_every_parameter`] says to a valid spec; `is_free` tells which
    /// dimensions may be chosen for their size alone.
    fn split_somewhere(
        &self,
        spec: &mut PartitionSpec,
        shape: &[usize],
        dims: Option<&[Dim]>,
        is_free: impl Fn(usize) -> bool,
    ) -> Result<Vec<Note>, Vec<SpecFault>> {
        let axes = self.unused_axes(spec)?;
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
            .filter(|&index| is_free(index) && shard[index].is_multiple_of(parts))
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

    /// The axes of [`Layout::shard_every_parameter`] that do not split the array yet, with their sizes.
    fn unused_axes(&self, spec: &PartitionSpec) -> Result<Vec<(String, usize)>, Vec<SpecFault>> {
        let (mut axes, mut faults) = (Vec::new(), Vec::new());
        for axis in self.every_parameter_axes().names() {
            let is_used = spec.entries().iter().any(|entry| entry.contains(axis))
                || axes.iter().any(|(used, _)| used == axis);
            match self.mesh().axis_size(axis) {
                None => faults.push(unknown_axis(self.mesh(), axis, None)),
                Some(size) if !is_used => axes.push((axis.clone(), size)),
                Some(_) => {}
            }
        }
        match faults.is_empty() {
            true => Ok(axes),
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
