//! Layouts as a reader sees them: the mesh, and a line for each rule.

use std::fmt;

use crate::layout::{Every, Layout};
use crate::reduction::Summed;
use crate::rule::{Rule, bare};

/// What a layout prints behind a rule for parameters at rest.
const AT_REST: &str = "   (parameters at rest)";

/// What a layout prints behind what it says of leaves at a path.
const OVERRIDE: &str = "   (by path)";

/// What a layout prints behind what it says of a named value.
const NAMED: &str = "   (values of that name)";

/// What a layout prints behind the element type of sums over devices.
const REDUCED: &str = "   (type of reductions)";

/// A rule as it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// What the rule is for.
    pub(crate) subject: String,
    /// What it says of it.
    pub(crate) says: String,
    /// Which kind of rule it is, where that is not plain.
    pub(crate) kind: &'static str,
}

impl Every {
    /// What a layout prints behind such a rule.
    fn remark(self) -> &'static str {
        match self {
            Every::Parameter => AT_REST,
            Every::Gradient => "   (gradients and optimizer state)",
            Every::State => "   (optimizer state and summed gradients)",
        }
    }
}

impl Layout {
    /// The rules, one line each.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let line = |subject: String, says: String, kind| Line {
            subject,
            says,
            kind,
        };
        let named = |rule: &Rule, kind| line(rule.name.clone(), rule.to_string(), kind);
        let mut lines: Vec<Line> = Vec::new();
        lines.extend(self.rules().iter().map(|rule| named(rule, "")));
        lines.extend(self.storage_rules().iter().map(|rule| named(rule, AT_REST)));
        let every = self
            .every()
            .into_iter()
            .filter(|(_, axes)| !axes.is_empty());
        lines.extend(every.map(|(kind, axes)| line(kind.name().into(), bare(axes), kind.remark())));
        let overrides = self.overrides().iter();
        lines.extend(overrides.map(|one| line(one.to_string(), one.spec.to_string(), OVERRIDE)));
        let constrained = self.constrained().iter();
        lines.extend(constrained.map(|one| line(one.name.clone(), one.spec.to_string(), NAMED)));
        let reduced = Summed::ALL.into_iter();
        let reduced = reduced.filter_map(|of| Some((of, self.reductions().said(of)?)));
        lines.extend(reduced.map(|(of, ty)| line(of.name().into(), ty.to_string(), REDUCED)));
        lines
    }
}

/// The mesh on one line, then one line a rule.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.mesh().device_count();
        let plural = if count == 1 { "" } else { "s" };
        writeln!(
            f,
            "mesh {}, {count} device{plural}, partitioner {}",
            self.mesh(),
            self.chosen_partitioner()
        )?;
        let lines = self.lines();
        let width = lines.iter().map(|line| line.subject.chars().count()).max();
        let width = width.unwrap_or(0);
        for Line {
            subject,
            says,
            kind,
        } in lines
        {
            writeln!(f, "  {subject:width$} -> {says}{kind}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Partitioner;
    use crate::mesh::Mesh;
    use crate::reduction::ReductionType;
    use crate::resolve::Role;

    fn mesh() -> Mesh {
        Mesh::new([("data", 2), ("model", 4)]).unwrap()
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
    fn prints_what_is_said_of_single_tensors() {
        let layout = Layout::new(mesh())
            .shard("seq", ("data", "?"))
            .shard_where_free("seq", "model")
            .priority("seq", 1)
            .shard("embed", "?")
            .override_as("wte", Role::State, ("data:(1)2", ()))
            .constrain("scores", ("?", "model"))
            .reduce_gradients_in(ReductionType::Own);
        assert_eq!(
            layout.to_string(),
            "mesh data=2 x model=4, 8 devices, partitioner shardy\n\
             \x20 seq          -> data or further, and model where free, priority 1\n\
             \x20 embed        -> open\n\
             \x20 wte as state -> P(\"data:(1)2\", _)   (by path)\n\
             \x20 scores       -> P(?, \"model\")   (values of that name)\n\
             \x20 gradients    -> own   (type of reductions)\n"
        );
    }
}
