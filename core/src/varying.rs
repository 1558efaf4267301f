//! Over which manual axes a value may differ between devices.
//!
//! Inside of a manual region every device computes for itself. Whether two devices are known to
//! hold the same value decides what a derivative means: the gradient of a value that is the same on
//! all of them is the sum over all of them, of one that is each device's own it is not. So a type
//! carries the set of axes that its value *varies* over, collectives change it, and it is checked
//! where a region hands its results back. (JAX calls it varying manual axes.)

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{PoisonError, RwLock};

/// A set of manual mesh axes; empty outside of manual regions.
///
/// A number for a set that the process knows, so that types stay small: a program has a handful.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Varying(u32);

type Names = &'static [&'static str];

/// The sets by number, the first of which is empty, and the numbers by set.
struct Sets {
    by_number: Vec<Names>,
    numbers: HashMap<Names, u32>,
}

static SETS: RwLock<Option<Sets>> = RwLock::new(None);

impl Varying {
    /// The empty set.
    pub const NOTHING: Varying = Varying(0);

    /// The set of these axes.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = BTreeSet::from_iter(names).into_iter().collect();
        if names.is_empty() {
            return Varying::NOTHING;
        }
        let known = SETS.read().unwrap_or_else(PoisonError::into_inner);
        let find = |sets: &Sets| sets.numbers.get(names.as_slice()).copied();
        if let Some(number) = known.as_ref().and_then(find) {
            return Varying(number);
        }
        drop(known);
        let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
        let sets = sets.get_or_insert_with(|| Sets {
            by_number: vec![&[]],
            numbers: HashMap::new(),
        });
        // Another thread may have been first.
        let number = find(sets).unwrap_or_else(|| {
            let number = sets.by_number.len() as u32;
            let own: Vec<&'static str> = names
                .iter()
                .map(|name| -> &'static str { Box::leak(Box::from(*name)) })
                .collect();
            let own: Names = Vec::leak(own);
            sets.by_number.push(own);
            sets.numbers.insert(own, number);
            number
        });
        Varying(number)
    }

    /// The axes, in alphabetical order.
    pub fn names(self) -> &'static [&'static str] {
        let sets = SETS.read().unwrap_or_else(PoisonError::into_inner);
        let of = |sets: &Sets| sets.by_number.get(self.0 as usize).copied();
        sets.as_ref().and_then(of).unwrap_or_default()
    }

    /// Whether it is the empty set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the axis is in it.
    pub fn contains(self, name: &str) -> bool {
        self.names().contains(&name)
    }

    /// The axes of either.
    #[must_use]
    pub fn union(self, other: Varying) -> Varying {
        match (self, other) {
            (one, other) if one == other || other.is_empty() => one,
            (one, other) if one.is_empty() => other,
            (one, other) => Varying::new(one.names().iter().chain(other.names()).copied()),
        }
    }

    /// The axes of this one that are not in the other.
    #[must_use]
    pub fn without(self, other: Varying) -> Varying {
        if self.is_empty() || other.is_empty() {
            return self;
        }
        Varying::new(self.names().iter().copied().filter(|n| !other.contains(n)))
    }

    /// Whether all its axes are in the other.
    pub fn is_within(self, other: Varying) -> bool {
        self == other || self.without(other).is_empty()
    }
}

impl fmt::Debug for Varying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// `{data,model}`
impl fmt::Display for Varying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.names().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_equal_names_are_equal() {
        let both = Varying::new(["b", "a"]);
        assert_eq!(both, Varying::new(["a", "b", "a"]));
        assert_eq!(both.to_string(), "{a,b}");
        assert_eq!(Varying::new([]), Varying::NOTHING);
        assert_eq!(Varying::NOTHING.to_string(), "{}");
    }

    #[test]
    fn unions_and_differences() {
        let [a, b] = [Varying::new(["a"]), Varying::new(["b"])];
        let both = a.union(b);
        assert_eq!(both.without(a), b);
        assert_eq!(a.union(Varying::NOTHING), a);
        assert!(a.is_within(both) && !both.is_within(a));
        assert!(Varying::NOTHING.is_within(a));
        assert!(both.contains("b") && !a.contains("b"));
    }
}
