//! What is different between two layouts.

use std::fmt;

use crate::dim::Dim;
use crate::error::{ArrayFault, Error};
use crate::layout::{Layout, Partitioner};
use crate::mesh::Mesh;
use crate::print::Line;
use crate::resolve::Role;
use crate::spec::PartitionSpec;

/// An array of a program, as far as a layout decides where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredArray {
    /// Its path.
    pub path: String,
    /// What it is.
    pub role: Role,
    /// The names of its dimensions, if they have any.
    pub dims: Option<Vec<Dim>>,
    /// The sizes of its dimensions.
    pub shape: Vec<usize>,
    /// The bytes of the whole array.
    pub bytes: u64,
}

/// What is different between two layouts: made by [`Layout::diff`] and [`Layout::diff_of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutDiff {
    /// The meshes, if they differ.
    pub mesh: Option<[Mesh; 2]>,
    /// The partitioners, if they differ.
    pub partitioner: Option<[Partitioner; 2]>,
    /// The rules that differ.
    pub rules: Vec<RuleDiff>,
    /// The arrays that lie differently, of those that were given.
    pub arrays: Vec<ArrayDiff>,
    /// The bytes that a device has of all arrays that were given, before and after.
    pub bytes: Option<[u64; 2]>,
}

/// A rule that only one of two layouts has, or that says something else in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDiff {
    /// What the rule is for, as a layout prints it.
    pub rule: String,
    /// What the first layout says, if it has the rule.
    pub before: Option<String>,
    /// What the second layout says, if it has the rule.
    pub after: Option<String>,
}

/// An array that lies differently under two layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayDiff {
    /// Its path.
    pub path: String,
    /// How it lies before and after.
    pub specs: [PartitionSpec; 2],
    /// The bytes that a device has of it, before and after.
    pub bytes: [u64; 2],
}

impl LayoutDiff {
    /// Whether nothing is different.
    pub fn is_empty(&self) -> bool {
        let same_rules = self.rules.is_empty() && self.arrays.is_empty();
        same_rules && self.mesh.is_none() && self.partitioner.is_none()
    }
}

impl Layout {
    /// What is different in `other`: mesh, partitioner and rules.
    ///
    /// ```
    /// use shardax_sharding::{Layout, Mesh};
    ///
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let before = Layout::megatron(mesh.clone())?;
    /// let after = Layout::megatron_sp(mesh)?.shard("vocab", ()).shard_every_state("data");
    /// assert_eq!(
    ///     before.diff(&after).to_string(),
    ///     "\
    /// ~ vocab -> not split, was model
    /// + seq -> model where free
    /// + every state -> data   (optimizer state and summed gradients)
    /// "
    /// );
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    pub fn diff(&self, other: &Layout) -> LayoutDiff {
        let (before, after) = (self.lines(), other.lines());
        let same =
            |one: &Line, other: &Line| (&one.subject, one.kind) == (&other.subject, other.kind);
        let rule = |line: &Line| match line.kind {
            "" => line.subject.clone(),
            kind => format!("{}{kind}", line.subject),
        };
        let mut rules = Vec::new();
        for line in &before {
            let after = after.iter().find(|other| same(line, other));
            if after.is_none_or(|after| after.says != line.says) {
                rules.push(RuleDiff {
                    rule: rule(line),
                    before: Some(line.says.clone()),
                    after: after.map(|after| after.says.clone()),
                });
            }
        }
        let added = after
            .iter()
            .filter(|line| !before.iter().any(|other| same(line, other)));
        rules.extend(added.map(|line| RuleDiff {
            rule: rule(line),
            before: None,
            after: Some(line.says.clone()),
        }));
        let meshes = [self.mesh().clone(), other.mesh().clone()];
        let partitioners = [self.chosen_partitioner(), other.chosen_partitioner()];
        LayoutDiff {
            mesh: (meshes[0] != meshes[1]).then_some(meshes),
            partitioner: (partitioners[0] != partitioners[1]).then_some(partitioners),
            rules,
            arrays: Vec::new(),
            bytes: None,
        }
    }

    /// [`Layout::diff`], with the arrays of a program that lie differently, and the bytes that a device
    /// has of all of them.
    ///
    /// # Errors
    ///
    /// [`Error::Arrays`] with every array that one of the layouts cannot place.
    pub fn diff_of(&self, other: &Layout, arrays: &[StoredArray]) -> Result<LayoutDiff, Error> {
        let mut diff = self.diff(other);
        let (mut faults, mut total) = (Vec::new(), [0, 0]);
        for array in arrays {
            let mut placed = Vec::new();
            for (layout, which) in [(self, "first"), (other, "second")] {
                let (dims, shape) = (array.dims.as_deref(), &array.shape);
                match layout.resolve_leaf(array.role, &array.path, dims, shape) {
                    Ok(resolved) => {
                        let copies = resolved.spec.replicas(layout.mesh());
                        let parts = layout.mesh().device_count() / copies.max(1);
                        placed.push((resolved.spec, array.bytes / parts.max(1) as u64));
                    }
                    Err(found) => faults.extend(found.into_iter().map(|fault| ArrayFault {
                        path: array.path.clone(),
                        layout: which,
                        fault,
                    })),
                }
            }
            let Ok([(before, bytes), (after, bytes_after)]) = <[_; 2]>::try_from(placed) else {
                continue;
            };
            total = [total[0] + bytes, total[1] + bytes_after];
            if before != after || bytes != bytes_after {
                diff.arrays.push(ArrayDiff {
                    path: array.path.clone(),
                    specs: [before, after],
                    bytes: [bytes, bytes_after],
                });
            }
        }
        diff.bytes = Some(total);
        match faults.is_empty() {
            true => Ok(diff),
            false => Err(Error::Arrays { faults }),
        }
    }
}

/// A line for each difference: `+` for what is only after, `-` for what is only before, `~` for what is
/// other.
impl fmt::Display for LayoutDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some([before, after]) = &self.mesh {
            writeln!(f, "~ mesh {after}, was {before}")?;
        }
        if let Some([before, after]) = &self.partitioner {
            writeln!(f, "~ partitioner {after}, was {before}")?;
        }
        for rule in &self.rules {
            let (name, kind) = match rule.rule.split_once("   (") {
                Some((name, kind)) => (name, format!("   ({kind}")),
                None => (rule.rule.as_str(), String::new()),
            };
            match (&rule.before, &rule.after) {
                (Some(before), Some(after)) => {
                    writeln!(f, "~ {name} -> {after}, was {before}{kind}")?;
                }
                (Some(before), None) => writeln!(f, "- {name} -> {before}{kind}")?,
                (None, after) => {
                    let after = after.as_deref().unwrap_or_default();
                    writeln!(f, "+ {name} -> {after}{kind}")?;
                }
            }
        }
        for array in &self.arrays {
            let [before, after] = &array.specs;
            let [bytes, bytes_after] = array.bytes;
            writeln!(
                f,
                "~ {} {after}, was {before}: {bytes_after} bytes a device, were {bytes}",
                array.path
            )?;
        }
        match self.bytes {
            Some([before, after]) => {
                writeln!(f, "all arrays: {after} bytes a device, were {before}")
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        Mesh::new([("data", 2), ("model", 4)]).unwrap()
    }

    fn array(path: &str, role: Role, size: usize) -> StoredArray {
        StoredArray {
            path: path.to_owned(),
            role,
            dims: Some(vec![Dim::Logical("embed"), Dim::Logical("mlp")]),
            shape: vec![size, size],
            bytes: (size * size * 4) as u64,
        }
    }

    #[test]
    fn equal_layouts_have_no_difference() {
        let layout = Layout::megatron(mesh()).unwrap();
        assert!(layout.diff(&layout).is_empty());
        assert_eq!(layout.diff(&layout).to_string(), "");
    }

    #[test]
    fn every_kind_of_difference_is_told() {
        let before = Layout::new(mesh())
            .shard("batch", "data")
            .shard_parameters("embed", "data")
            .override_spec("wte", ("data", ()));
        let after = Layout::new(Mesh::new([("data", 8)]).unwrap())
            .partitioner(Partitioner::Gspmd)
            .shard("batch", "data")
            .shard("embed", ())
            .override_spec("wte", ((), "data"))
            .constrain("scores", ["data"]);
        assert_eq!(
            before.diff(&after).to_string(),
            "~ mesh data=8, was data=2 x model=4\n\
             ~ partitioner gspmd, was shardy\n\
             - embed -> data   (parameters at rest)\n\
             ~ wte -> P(_, \"data\"), was P(\"data\", _)   (by path)\n\
             + embed -> not split\n\
             + scores -> P(\"data\")   (values of that name)\n"
        );
    }

    #[test]
    fn arrays_that_lie_otherwise_are_told_with_their_bytes() {
        let before = Layout::new(mesh()).shard("mlp", "model");
        let after = before.clone().shard_every_state("data");
        let arrays = [
            array("model.up", Role::Parameter, 8),
            array("moments.first.up", Role::State, 8),
        ];
        let diff = before.diff_of(&after, &arrays).unwrap();
        assert_eq!(
            diff.to_string(),
            "+ every state -> data   (optimizer state and summed gradients)\n\
             ~ moments.first.up P(\"data\", \"model\"), was P(_, \"model\"): 32 bytes a device, were \
             64\n\
             all arrays: 96 bytes a device, were 128\n"
        );
    }

    #[test]
    fn arrays_that_cannot_be_placed_are_told_together() {
        let before = Layout::new(mesh()).shard("mlp", "model");
        let after = Layout::new(mesh()).shard("embed", "data");
        let arrays = [
            array("a", Role::Parameter, 6),
            array("b", Role::Parameter, 7),
        ];
        let error = before.diff_of(&after, &arrays).unwrap_err().to_string();
        let starts = [
            "`a` under the first layout: dimension 1 (`mlp`) of size 6",
            "`b` under the first layout",
            "`b` under the second layout: dimension 0",
        ];
        for start in starts {
            assert!(error.contains(start), "{start} is not in:\n{error}");
        }
    }
}
