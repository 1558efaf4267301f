//! Where the arrays of a program lie: the only thing that changes between strategies.
//!
//! A model is annotated with logical names. A layout has one rule for each name it cares about; trying
//! another strategy means other rules, never another model.

use std::fmt;
use std::str::FromStr;

use crate::axes::Axes;
use crate::error::{Error, RuleFault};
use crate::fault::SpecFault;
use crate::mesh::Mesh;
use crate::spec::unknown_axis;

/// A mesh, and rules from logical dimension names to its axes.
///
/// A name without a rule is not split. A later rule for a name replaces the earlier one, so that a
/// preset can be changed: `Layout::megatron(mesh)?.shard("seq", "model")`.
///
/// ```
/// use shardax_sharding::{Layout, Mesh};
///
/// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
/// let layout = Layout::new(mesh)
///     .shard("batch", "data")
///     .shard("mlp", "model")
///     .shard_parameters("embed", "data");
/// assert_eq!(
///     layout.to_string(),
///     "\
/// mesh data=2 x model=4, 8 devices, partitioner shardy
///   batch -> data
///   mlp   -> model
///   embed -> data   (parameters at rest)
/// "
/// );
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    mesh: Mesh,
    partitioner: Partitioner,
    /// Rules for parameters and activations alike.
    rules: Vec<Rule>,
    /// Rules for parameters at rest, inside those above.
    storage_rules: Vec<Rule>,
    /// Axes that split every parameter at rest, along whichever dimension they can.
    every_parameter: Axes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rule {
    name: String,
    axes: Axes,
}

impl Layout {
    /// A layout without rules: every device holds everything.
    pub fn new(mesh: Mesh) -> Self {
        Layout {
            mesh,
            partitioner: Partitioner::default(),
            rules: Vec::new(),
            storage_rules: Vec::new(),
            every_parameter: Axes::default(),
        }
    }

    /// One device.
    pub fn single() -> Self {
        Self::new(Mesh::single())
    }

    /// Splits every dimension called `name`, of parameters and activations, over `axes`.
    ///
    /// Several axes (`("data", "model")`) are written major first; `()` takes a preset's rule away.
    #[must_use]
    pub fn shard(mut self, name: impl Into<String>, axes: impl Into<Axes>) -> Self {
        set(&mut self.rules, name.into(), axes.into());
        self
    }

    /// Splits every dimension called `name` of parameters *at rest* over `axes`.
    ///
    /// Parameters (and what has their layout: gradients, optimizer state) are stored split and gathered
    /// over these axes where they are used. Activations do not change. Where [`Layout::shard`] has a
    /// rule for the name too, these axes come inside it.
    #[must_use]
    pub fn shard_parameters(mut self, name: impl Into<String>, axes: impl Into<Axes>) -> Self {
        set(&mut self.storage_rules, name.into(), axes.into());
        self
    }

    /// Splits every parameter at rest over `axes`, along one dimension of each: fully sharded.
    ///
    /// The dimension is the first of `embed`, `mlp`, `vocab`, `heads`, `kv_heads`, `head_dim` that the
    /// parameter has, that is not split yet and that the axes divide; else the largest dimension that
    /// they divide, but never `layers`, `stage` or one annotated `_` or with a mesh axis. A parameter
    /// that has none stays whole. Whatever is not the first choice comes back as a
    /// [`Note`](crate::Note).
    #[must_use]
    pub fn shard_every_parameter(mut self, axes: impl Into<Axes>) -> Self {
        self.every_parameter = axes.into();
        self
    }

    /// The same layout, none of whose rules names these axes.
    ///
    /// What holds inside of a manual region over them: along those axes, every device has its own
    /// block already.
    #[must_use]
    pub fn without_axes(&self, names: &[&str]) -> Self {
        let mut layout = self.clone();
        let rules = layout.rules.iter_mut().chain(&mut layout.storage_rules);
        let axes = rules.map(|rule| &mut rule.axes);
        for axes in axes.chain([&mut layout.every_parameter]) {
            axes.retain(|axis| !names.contains(&axis));
        }
        layout
    }

    /// Chooses the partitioner of XLA; [`Partitioner::Shardy`] unless this is called.
    #[must_use]
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.partitioner = partitioner;
        self
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The partitioner chosen.
    pub fn chosen_partitioner(&self) -> Partitioner {
        self.partitioner
    }

    /// The logical names that have a rule.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let rules = self.rules.iter().chain(&self.storage_rules);
        rules.map(|rule| rule.name.as_str())
    }

    /// The axes of [`Layout::shard`] for a logical name.
    pub(crate) fn axes_of(&self, name: &str) -> Option<&Axes> {
        find(&self.rules, name)
    }

    /// The axes of [`Layout::shard_parameters`] for a logical name.
    pub(crate) fn storage_axes_of(&self, name: &str) -> Option<&Axes> {
        find(&self.storage_rules, name)
    }

    /// The axes of [`Layout::shard_every_parameter`].
    pub(crate) fn every_parameter_axes(&self) -> &Axes {
        &self.every_parameter
    }

    /// Checks every rule against the mesh, also those that no array has used yet.
    ///
    /// # Errors
    ///
    /// [`Error::Rules`] with every axis that the mesh does not have and every axis that one rule names
    /// twice.
    pub fn validate(&self) -> Result<(), Error> {
        let named = self.rules.iter().chain(&self.storage_rules);
        let mut faults: Vec<RuleFault> = named
            .flat_map(|rule| self.faults_of(&format!("`{}`", rule.name), &rule.axes))
            .collect();
        faults.extend(self.faults_of("every parameter", &self.every_parameter));
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::Rules {
                mesh: self.mesh.clone(),
                faults,
            }),
        }
    }

    fn faults_of(&self, rule: &str, axes: &Axes) -> Vec<RuleFault> {
        let fault_of = |(index, axis): (usize, &String)| {
            if self.mesh.axis_size(axis).is_none() {
                Some(unknown_axis(&self.mesh, axis, None))
            } else if axes.names()[..index].contains(axis) {
                let axis = axis.clone();
                Some(SpecFault::AxisTwice {
                    axis,
                    first: None,
                    second: None,
                })
            } else {
                None
            }
        };
        let faults = axes.names().iter().enumerate().filter_map(fault_of);
        faults
            .map(|fault| RuleFault {
                rule: rule.to_owned(),
                fault,
            })
            .collect()
    }
}

fn set(rules: &mut Vec<Rule>, name: String, axes: Axes) {
    match rules.iter_mut().find(|rule| rule.name == name) {
        Some(rule) => rule.axes = axes,
        None => rules.push(Rule { name, axes }),
    }
}

fn find<'a>(rules: &'a [Rule], name: &str) -> Option<&'a Axes> {
    rules
        .iter()
        .find(|rule| rule.name == name)
        .map(|rule| &rule.axes)
}

/// The mesh on one line, then one line a rule.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.mesh.device_count();
        let plural = if count == 1 { "" } else { "s" };
        writeln!(
            f,
            "mesh {}, {count} device{plural}, partitioner {}",
            self.mesh, self.partitioner
        )?;
        let at_rest = "   (parameters at rest)";
        let mut lines: Vec<(&str, String, &str)> = Vec::new();
        lines.extend(
            self.rules
                .iter()
                .map(|rule| (rule.name.as_str(), bare(&rule.axes), "")),
        );
        let storage = self.storage_rules.iter();
        lines.extend(storage.map(|rule| (rule.name.as_str(), bare(&rule.axes), at_rest)));
        if !self.every_parameter.is_empty() {
            lines.push(("every parameter", bare(&self.every_parameter), at_rest));
        }
        let width = lines
            .iter()
            .map(|(name, ..)| name.chars().count())
            .max()
            .unwrap_or(0);
        for (name, axes, remark) in lines {
            writeln!(f, "  {name:width$} -> {axes}{remark}")?;
        }
        Ok(())
    }
}

/// Axes for a reader: without quotes.
fn bare(axes: &Axes) -> String {
    match axes.names() {
        [] => "not split".to_owned(),
        names => names.join(" x "),
    }
}

/// Which partitioner of XLA turns the one program into that of each device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partitioner {
    /// Shardy, on the `sdy` dialect.
    #[default]
    Shardy,
    /// GSPMD, on `mhlo.sharding` attributes.
    Gspmd,
}

impl fmt::Display for Partitioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Partitioner::Shardy => "shardy",
            Partitioner::Gspmd => "gspmd",
        })
    }
}

/// Parses `shardy` or `gspmd`.
impl FromStr for Partitioner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "shardy" => Ok(Partitioner::Shardy),
            "gspmd" => Ok(Partitioner::Gspmd),
            _ => Err(Error::UnknownName {
                what: "partitioner",
                name: text.to_owned(),
                known: &["shardy", "gspmd"],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        Mesh::new([("data", 2), ("model", 4)]).unwrap()
    }

    #[test]
    fn a_later_rule_replaces_an_earlier_one() {
        let layout = Layout::new(mesh())
            .shard("mlp", "model")
            .shard("mlp", ("data", "model"));
        assert_eq!(layout, Layout::new(mesh()).shard("mlp", ("data", "model")));
    }

    #[test]
    fn every_rule_is_checked_against_the_mesh() {
        let layout = Layout::new(mesh())
            .shard("batch", "dat")
            .shard("mlp", ("model", "model"))
            .shard_parameters("embed", "pipe")
            .shard_every_parameter("fsdp");
        assert_eq!(
            layout.validate().unwrap_err().to_string(),
            "the layout does not fit mesh data=2 x model=4:\
             \n  - rule for `batch`: the mesh has no axis `dat`: did you mean `data`? There are data, \
             model\
             \n  - rule for `mlp`: mesh axis `model` is wanted twice, by the same rule: an \
             axis splits one dimension of an array, once\
             \n  - rule for `embed`: the mesh has no axis `pipe`: there are data, model\
             \n  - rule for every parameter: the mesh has no axis `fsdp`: there are data, model"
        );
        assert_eq!(Layout::new(mesh()).shard("mlp", "model").validate(), Ok(()));
    }

    #[test]
    fn prints_its_rules() {
        let layout = Layout::new(mesh())
            .shard("batch", ("data", "model"))
            .shard("seq", ())
            .shard_every_parameter("data")
            .partitioner(Partitioner::Gspmd);
        assert_eq!(
            layout.to_string(),
            "mesh data=2 x model=4, 8 devices, partitioner gspmd\n\
             \x20 batch           -> data x model\n\
             \x20 seq             -> not split\n\
             \x20 every parameter -> data   (parameters at rest)\n"
        );
        assert_eq!(
            Layout::single().to_string(),
            "mesh (one device), 1 device, partitioner shardy\n"
        );
    }

    #[test]
    fn partitioners_are_read_by_name() {
        assert_eq!("gspmd".parse(), Ok(Partitioner::Gspmd));
        assert_eq!(
            "shardly".parse::<Partitioner>().unwrap_err().to_string(),
            "unknown partitioner `shardly`: did you mean `shardy`? There are shardy, gspmd"
        );
    }
}
