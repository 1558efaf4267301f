//! The rules of a layout for logical names.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::axes::Axes;
use crate::error::RuleConflict;

/// What a layout says of the dimensions of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// The axes that split them; empty if they are expressly not split.
    pub(crate) axes: Option<Axes>,
    /// The same, as far as they divide the dimension.
    pub(crate) dividing: Option<Axes>,
    /// Axes that split them besides where no other dimension has them.
    pub(crate) free: Option<Axes>,
    /// How early the partitioner follows it, 0 first.
    pub(crate) priority: Option<u32>,
}

impl Rule {
    /// The axes of all parts.
    pub(crate) fn all_axes(&self) -> Axes {
        let parts = self.axes.iter().chain(&self.dividing).chain(&self.free);
        parts.flat_map(Axes::names).collect()
    }
}

/// `data x model`, `context, and model where free`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = match (&self.axes, &self.free) {
            (Some(axes), Some(_)) if axes == &Axes::default() => None,
            (axes, _) => axes.as_ref().map(bare),
        };
        let free = self
            .free
            .as_ref()
            .map(|free| format!("{} where free", bare(free)));
        let dividing = self.dividing.as_ref();
        let dividing = dividing.map(|axes| format!("{} as far as it divides", bare(axes)));
        let both: Vec<String> = plain.into_iter().chain(dividing).chain(free).collect();
        f.write_str(&both.join(", and "))?;
        match self.priority {
            Some(priority) if both.is_empty() => write!(f, "priority {priority}"),
            Some(priority) => write!(f, ", priority {priority}"),
            None => Ok(()),
        }
    }
}

/// Rules in the order in which their names were first given, at most one for each. The order is for
/// readers: rules in another order are equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(Vec<Rule>);

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        self.sorted() == other.sorted()
    }
}

impl Eq for Rules {}

impl Hash for Rules {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sorted().hash(state);
    }
}

impl Rules {
    fn sorted(&self) -> Vec<&Rule> {
        let mut rules: Vec<&Rule> = self.0.iter().collect();
        rules.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        rules
    }

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
                    dividing: None,
                    free: None,
                    priority: None,
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
            let fits = unite(&mut own.axes, &other.axes)
                & unite(&mut own.dividing, &other.dividing)
                & !(own.axes.is_some() && own.dividing.is_some())
                & unite(&mut own.free, &other.free)
                & unite(&mut own.priority, &other.priority);
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
fn unite<T: Clone + PartialEq>(own: &mut Option<T>, other: &Option<T>) -> bool {
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
    let names = axes.names().join(" x ");
    match (axes.is_empty(), axes.is_open()) {
        (true, true) => "open".to_owned(),
        (true, false) => "not split".to_owned(),
        (false, true) => format!("{names} or further"),
        (false, false) => names,
    }
}
