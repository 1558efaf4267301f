//! The rules of a layout for logical names.

use std::fmt;

use crate::axes::Axes;
use crate::error::RuleConflict;

/// What a layout says of the dimensions of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// The axes that split them; empty if they are expressly not split.
    pub(crate) axes: Option<Axes>,
    /// Axes that split them besides where no other dimension has them.
    pub(crate) free: Option<Axes>,
}

impl Rule {
    /// The axes of both parts.
    pub(crate) fn all_axes(&self) -> Axes {
        let parts = self.axes.iter().chain(&self.free);
        parts.flat_map(Axes::names).collect()
    }
}

/// `data x model`, `context, and model where free`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.axes, &self.free) {
            (Some(axes), Some(free)) if !axes.is_empty() => {
                write!(f, "{}, and {} where free", bare(axes), bare(free))
            }
            (_, Some(free)) => write!(f, "{} where free", bare(free)),
            (Some(axes), None) => f.write_str(&bare(axes)),
            (None, None) => Ok(()),
        }
    }
}

/// Rules in the order in which their names were first given, at most one for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rules(Vec<Rule>);

impl Rules {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Rule> {
        self.0.iter_mut()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Rule> {
        self.iter().find(|rule| rule.name == name)
    }

    /// The rule for a name, made if there is none.
    pub(crate) fn entry(&mut self, name: String) -> &mut Rule {
        let found = self.0.iter().position(|rule| rule.name == name);
        let index = match found {
            Some(index) => index,
            None => {
                self.0.push(Rule {
                    name,
                    axes: None,
                    free: None,
                });
                self.0.len() - 1
            }
        };
        &mut self.0[index]
    }

    /// Takes over what `others` have; where both say something else of one name it is a conflict, told
    /// with `kind` behind the name.
    pub(crate) fn merge(&mut self, others: &Rules, kind: &str) -> Vec<RuleConflict> {
        let mut conflicts = Vec::new();
        for other in others.iter() {
            let own = self.entry(other.name.clone());
            let before = own.clone();
            let fits = unite(&mut own.axes, &other.axes) & unite(&mut own.free, &other.free);
            if !fits {
                conflicts.push(RuleConflict {
                    rule: format!("`{}`{kind}", other.name),
                    axes: [before.to_string(), other.to_string()],
                });
            }
        }
        conflicts
    }
}

/// Takes over a part of a rule; `false` if there is another one.
fn unite(own: &mut Option<Axes>, other: &Option<Axes>) -> bool {
    match (&own, other) {
        (_, None) => true,
        (None, Some(_)) => {
            own.clone_from(other);
            true
        }
        (Some(own), Some(other)) => own == other,
    }
}

/// Axes for a reader: without quotes.
pub(crate) fn bare(axes: &Axes) -> String {
    match axes.names() {
        [] => "not split".to_owned(),
        names => names.join(" x "),
    }
}
