//! Where the arrays of a program lie: the only thing that changes between strategies.
//!
//! A model is annotated with logical names. A layout has one rule for each name it cares about; trying
//! another strategy means other rules, never another model.

use std::fmt;
use std::str::FromStr;

use crate::axes::Axes;
use crate::error::{Error, RuleConflict, RuleFault};
use crate::fault::SpecFault;
use crate::mesh::Mesh;
use crate::overrides::{Constrained, Override};
use crate::part::overlap;
use crate::reduction::{ReductionType, Reductions, Summed};
use crate::resolve::Role;
use crate::rule::{Rules, bare};
use crate::spec::{PartitionSpec, no_axis, wanted_twice};

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
    rules: Rules,
    /// Rules for parameters at rest, inside those above.
    storage_rules: Rules,
    /// Axes that split every parameter at rest, along whichever dimension they can.
    every_parameter: Axes,
    /// Axes that split every gradient and its optimizer state besides.
    every_gradient: Axes,
    /// Axes that split all optimizer state besides.
    every_state: Axes,
    /// What is said of single leaves, the last that matches first.
    overrides: Vec<Override>,
    /// What is said of named values.
    constrained: Vec<Constrained>,
    reductions: Reductions,
    /// Axes of manual regions around, which annotations in there are not about.
    away: Vec<String>,
}

impl Layout {
    /// A layout without rules: every device holds everything.
    pub fn new(mesh: Mesh) -> Self {
        Layout {
            mesh,
            partitioner: Partitioner::default(),
            rules: Rules::default(),
            storage_rules: Rules::default(),
            every_parameter: Axes::default(),
            every_gradient: Axes::default(),
            every_state: Axes::default(),
            overrides: Vec::new(),
            constrained: Vec::new(),
            reductions: Reductions::default(),
            away: Vec::new(),
        }
    }

    /// One device.
    pub fn single() -> Self {
        Self::new(Mesh::single())
    }

    /// Splits every dimension called `name`, of parameters and activations, over `axes`.
    ///
    /// Several axes (`("data", "model")`) are written major first; `()` takes a preset's rule away, and
    /// `"?"` leaves it to the partitioner whether these dimensions are split. See [`Axes`].
    #[must_use]
    pub fn shard(mut self, name: impl Into<String>, axes: impl Into<Axes>) -> Self {
        let rule = self.rules.entry(name.into());
        (rule.axes, rule.dividing) = (Some(axes.into()), None);
        self
    }

    /// Splits every dimension called `name` over `axes` as far as they divide it, in place of a rule of [`Layout::shard`].
    ///
    /// Of the axes, major first, each splits what is left by as large a part of it as divides: 2 key heads on an axis
    /// `model` of 4 are split over the first half of it, `model:(1)2`, and each is on two devices; 3 are whole. Where
    /// [`Layout::shard`] would be an error, this is what grouped heads are meant to do. Nothing is said of it in
    /// [`Resolved::notes`](crate::Resolved), since it was asked for.
    ///
    /// ```
    /// use shardax_sharding::{Dim, Layout, Mesh, Role};
    ///
    /// let layout = Layout::megatron(Mesh::new([("model", 4)])?)?.shard_where_divides("kv_heads", "model");
    /// let spec = |heads| layout.resolve(Role::Activation, &[Dim::Logical("kv_heads")], &[heads]);
    /// assert_eq!(spec(8).unwrap().spec.to_string(), r#"P("model")"#);
    /// assert_eq!(spec(2).unwrap().spec.to_string(), r#"P("model:(1)2")"#);
    /// assert_eq!(spec(3).unwrap().spec.to_string(), "P(_)");
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    #[must_use]
    pub fn shard_where_divides(mut self, name: impl Into<String>, axes: impl Into<Axes>) -> Self {
        let rule = self.rules.entry(name.into());
        (rule.axes, rule.dividing) = (None, Some(axes.into()));
        self
    }

    /// Splits every dimension called `name` over `axes` in those arrays of which no other dimension is
    /// split over them.
    ///
    /// Sequence parallelism is `shard_where_free("seq", "model")`: the residual stream
    /// `(batch, seq, embed)` is split along `seq`, and `(batch, seq, heads, head_dim)`, whose heads have
    /// `model`, is not. Rules of [`Layout::shard`] come first, of all dimensions; then the dimensions
    /// take what is free from the first to the last, each axis by itself. Where [`Layout::shard`] has a
    /// rule for the name too, these axes come inside it. That the axes divide the dimension is demanded
    /// as everywhere: what does not is an error, not a dimension left whole.
    #[must_use]
    pub fn shard_where_free(mut self, name: impl Into<String>, axes: impl Into<Axes>) -> Self {
        self.rules.entry(name.into()).free = Some(axes.into());
        self
    }

    /// Splits every dimension called `name` of parameters *at rest* over `axes`.
    ///
    /// Parameters (and with them gradients and optimizer state) are stored split and gathered over these
    /// axes where they are used. Activations do not change. Where [`Layout::shard`] has a
    /// rule for the name too, these axes come inside it.
    #[must_use]
    pub fn shard_parameters(mut self, name: impl Into<String>, axes: impl Into<Axes>) -> Self {
        self.storage_rules.entry(name.into()).axes = Some(axes.into());
        self
    }

    /// Splits every parameter at rest over `axes`, along one dimension of each, and with it its gradient
    /// and its optimizer state: fully sharded, ZeRO-3.
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

    /// Splits every gradient, and its optimizer state with it, over `axes`, as
    /// [`Layout::shard_every_parameter`] splits parameters: ZeRO-2.
    ///
    /// Gradients are summed into shards and stay so, and the optimizer updates shards. Parameters are
    /// whole along these axes, and gathered once after the update. Gradient accumulation over
    /// micro-batches adds shards up, and reduces every micro-batch.
    #[must_use]
    pub fn shard_every_gradient(mut self, axes: impl Into<Axes>) -> Self {
        self.every_gradient = axes.into();
        self
    }

    /// Splits all optimizer state over `axes`, as [`Layout::shard_every_parameter`] splits parameters:
    /// ZeRO-1.
    ///
    /// Gradients are summed into shards, as the optimizer needs them, which updates shards, and the
    /// parameters are gathered once after the update. Parameters are whole along these axes. So it is
    /// [`Layout::shard_every_gradient`] but for gradient accumulation over micro-batches: that adds up
    /// whole gradients on each device, and reduces them into shards once, after the last micro-batch.
    #[must_use]
    pub fn shard_every_state(mut self, axes: impl Into<Axes>) -> Self {
        self.every_state = axes.into();
        self
    }

    /// When the partitioner follows the rule for `name`: rules of priority 0, and those without one,
    /// first, then 1 and so on, each as far as those before leave it free to spread.
    ///
    /// Priorities are Shardy's, and order what it does with annotations inside of a program. Under GSPMD
    /// a layout with a priority is an error.
    #[must_use]
    pub fn priority(mut self, name: impl Into<String>, priority: u32) -> Self {
        self.rules.entry(name.into()).priority = Some(priority);
        self
    }

    /// The element type in which gradients of parameters are reduced across devices;
    /// [`ReductionType::F32`] unless this is called.
    ///
    /// [`ReductionType::Own`] halves what is communicated for bf16 gradients, and rounds at every device.
    /// A parameter is what is annotated as one, a field of a module. It makes no difference to values in
    /// f32.
    #[must_use]
    pub fn reduce_gradients_in(mut self, ty: ReductionType) -> Self {
        self.reductions.say(Summed::Gradients, ty);
        self
    }

    /// The element type in which products of which a contracted dimension is split, other than gradients,
    /// are reduced across devices; [`ReductionType::Own`] unless this is called, as usual for tensor
    /// parallelism.
    ///
    /// A product that the program converts to a wider type at once is reduced in that type, and sums,
    /// means and norms of narrow floats are f32 until they are rounded, whatever is said here.
    #[must_use]
    pub fn reduce_activations_in(mut self, ty: ReductionType) -> Self {
        self.reductions.say(Summed::Activations, ty);
        self
    }

    /// The type chosen by [`Layout::reduce_gradients_in`].
    pub fn gradient_reduction(&self) -> ReductionType {
        let said = self.reductions.said(Summed::Gradients);
        said.unwrap_or(ReductionType::F32)
    }

    /// The type chosen by [`Layout::reduce_activations_in`].
    pub fn activation_reduction(&self) -> ReductionType {
        let said = self.reductions.said(Summed::Activations);
        said.unwrap_or(ReductionType::Own)
    }

    /// The same layout, none of whose rules names these axes or parts of them, nor does an annotation.
    ///
    /// What holds inside of a manual region over them: along those axes, every device has its own
    /// block already.
    #[must_use]
    pub fn without_axes(&self, names: &[&str]) -> Self {
        let mut layout = self.clone();
        let rules = layout
            .rules
            .iter_mut()
            .chain(layout.storage_rules.iter_mut());
        let axes = rules.flat_map(|rule| {
            let parts = rule.axes.iter_mut().chain(&mut rule.dividing);
            parts.chain(&mut rule.free)
        });
        let every = [
            &mut layout.every_parameter,
            &mut layout.every_gradient,
            &mut layout.every_state,
        ];
        let overrides = layout.overrides.iter_mut().map(|of| &mut of.spec);
        let constrained = layout.constrained.iter_mut().map(|of| &mut of.spec);
        let specs = overrides.chain(constrained);
        let entries = specs.flat_map(PartitionSpec::entries_mut);
        for axes in axes.chain(every).chain(entries) {
            axes.retain(|axis| !names.iter().any(|name| overlap(name, axis)));
        }
        let names = names.iter().map(|&name| name.to_owned());
        layout.away.extend(names);
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
        let rules = self.rules.iter().chain(self.storage_rules.iter());
        rules.map(|rule| rule.name.as_str())
    }

    /// The rules of [`Layout::shard`] and [`Layout::shard_where_free`].
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The rules of [`Layout::shard_parameters`].
    pub(crate) fn storage_rules(&self) -> &Rules {
        &self.storage_rules
    }

    /// The rules for all arrays of a kind, widest first: each applies to what those before it apply to,
    /// and to more.
    pub(crate) fn every(&self) -> [(Every, &Axes); 3] {
        [
            (Every::Parameter, &self.every_parameter),
            (Every::Gradient, &self.every_gradient),
            (Every::State, &self.every_state),
        ]
    }

    /// The axes that [`Layout::without_axes`] took away.
    pub(crate) fn away(&self) -> &[String] {
        &self.away
    }

    pub(crate) fn reductions(&self) -> &Reductions {
        &self.reductions
    }

    pub(crate) fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    pub(crate) fn overrides_mut(&mut self) -> &mut Vec<Override> {
        &mut self.overrides
    }

    pub(crate) fn constrained(&self) -> &[Constrained] {
        &self.constrained
    }

    pub(crate) fn constrained_mut(&mut self) -> &mut Vec<Constrained> {
        &mut self.constrained
    }

    /// Puts the rules of both together.
    pub(crate) fn merge(&mut self, other: &Layout) -> Vec<RuleConflict> {
        let mut conflicts = self.rules.merge(&other.rules, "");
        conflicts.extend(
            self.storage_rules
                .merge(&other.storage_rules, " (parameters at rest)"),
        );
        let every = [
            (&mut self.every_parameter, &other.every_parameter),
            (&mut self.every_gradient, &other.every_gradient),
            (&mut self.every_state, &other.every_state),
        ];
        for ((kind, _), (own, others)) in other.every().into_iter().zip(every) {
            if own.is_empty() {
                *own = others.clone();
            } else if !others.is_empty() && own != others {
                conflicts.push(RuleConflict {
                    rule: kind.name().to_owned(),
                    axes: [bare(own), bare(others)],
                });
            }
        }
        for other in &other.overrides {
            let same = |one: &&Override| one.path == other.path && one.role == other.role;
            match self.overrides.iter().find(same) {
                None => self.overrides.push(other.clone()),
                Some(own) if own.spec != other.spec => conflicts.push(RuleConflict {
                    rule: format!("`{other}`"),
                    axes: [own.spec.to_string(), other.spec.to_string()],
                }),
                Some(_) => {}
            }
        }
        for other in &other.constrained {
            let same = |one: &&Constrained| one.name == other.name;
            match self.constrained.iter().find(same) {
                None => self.constrained.push(other.clone()),
                Some(own) if own.spec != other.spec => conflicts.push(RuleConflict {
                    rule: format!("the value `{}`", other.name),
                    axes: [own.spec.to_string(), other.spec.to_string()],
                }),
                Some(_) => {}
            }
        }
        conflicts.extend(self.reductions.merge(&other.reductions));
        conflicts
    }

    /// Checks every rule against the mesh, also those that no array has used yet.
    ///
    /// # Errors
    ///
    /// [`Error::Rules`] with every axis that the mesh does not have and every axis that one rule names
    /// twice.
    pub fn validate(&self) -> Result<(), Error> {
        let named = self.rules.iter().chain(self.storage_rules.iter());
        let mut faults: Vec<RuleFault> = named
            .flat_map(|rule| self.faults_of(&format!("`{}`", rule.name), &rule.all_axes()))
            .collect();
        for (kind, axes) in self.every() {
            faults.extend(self.faults_of(kind.name(), axes));
        }
        for one in &self.overrides {
            let rule = format!("`{one}`");
            faults.extend(self.faults_of(&rule, &one.spec.all_axes()));
            if one.role == Some(Role::Activation) {
                let fault = SpecFault::NoPath;
                faults.push(RuleFault { rule, fault });
            }
        }
        for one in &self.constrained {
            let rule = format!("the value `{}`", one.name);
            faults.extend(self.faults_of(&rule, &one.spec.all_axes()));
        }
        if self.partitioner == Partitioner::Gspmd {
            let priorities = self.rules.iter().filter_map(|rule| {
                let fault = SpecFault::Priority {
                    priority: rule.priority?,
                };
                let rule = format!("`{}`", rule.name);
                Some(RuleFault { rule, fault })
            });
            faults.extend(priorities);
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::Rules {
                mesh: self.mesh.clone(),
                faults,
            }),
        }
    }

    pub(crate) fn faults_of(&self, rule: &str, axes: &Axes) -> Vec<RuleFault> {
        let fault_of = |(index, axis): (usize, &String)| {
            let before = &axes.names()[..index];
            if self.mesh.part(axis).is_none() {
                Some(no_axis(&self.mesh, axis, None))
            } else {
                let twice = before.iter().find(|other| overlap(other, axis))?;
                Some(wanted_twice([twice, axis], [None, None]))
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

/// The kinds of arrays that a rule can be for without regard to names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Every {
    Parameter,
    Gradient,
    State,
}

impl Every {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Every::Parameter => "every parameter",
            Every::Gradient => "every gradient",
            Every::State => "every state",
        }
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
    fn partitioners_are_read_by_name() {
        assert_eq!("gspmd".parse(), Ok(Partitioner::Gspmd));
        assert_eq!(
            "shardly".parse::<Partitioner>().unwrap_err().to_string(),
            "unknown partitioner `shardly`: did you mean `shardy`? There are shardy, gspmd"
        );
    }
}
