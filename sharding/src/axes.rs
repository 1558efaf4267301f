//! The mesh axes that split one dimension, and the literals they are written as.

use std::fmt;

use crate::part::overlap;

/// The mesh axes that split one dimension, major first; none for a dimension that stays whole.
///
/// Whatever takes axes takes `impl Into<Axes>`: `"data"`, `("data", "model")`, an array or a `Vec` of
/// names, `None`, or `()` for no axis.
///
/// A part of an axis is written as Shardy writes it: of an axis `data` of size 8, `"data:(1)2"` is the
/// major part of size 2, and `"data:(2)4"` the part of size 4 that is left. The number in parentheses is
/// the product of the sizes of what is before it.
///
/// `"?"` among the names leaves the dimension open: the partitioner may split it, further than the other
/// names say. An argument or result of a program cannot be open, and is taken as if it were not.
///
/// ```
/// use shardax_sharding::Axes;
///
/// assert_eq!(Axes::from("data").to_string(), r#""data""#);
/// assert_eq!(Axes::from(("data", "model:(1)2")).to_string(), r#"("data", "model:(1)2")"#);
/// assert_eq!(Axes::from(()).to_string(), "_");
/// assert_eq!(Axes::from(("data", "?")).to_string(), r#"("data", ?)"#);
/// assert!(Axes::from("?").is_open());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Axes {
    names: Vec<String>,
    is_open: bool,
}

/// What stands for an open dimension among names of axes.
const OPEN: &str = "?";

impl Axes {
    /// The names, major first.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether no axis is named.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the partitioner may split the dimension further.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The same axes, for the partitioner to add others.
    #[must_use]
    pub fn open(self) -> Self {
        let is_open = true;
        Axes { is_open, ..self }
    }

    /// The same axes and no others.
    #[must_use]
    pub fn closed(self) -> Self {
        let is_open = false;
        Axes { is_open, ..self }
    }

    /// Whether `axis` is one of them.
    pub fn contains(&self, axis: &str) -> bool {
        self.names.iter().any(|name| name == axis)
    }

    /// Whether `axis` or a part of it is one of them or a part of one.
    pub fn overlaps(&self, axis: &str) -> bool {
        self.names.iter().any(|name| overlap(name, axis))
    }

    /// Keeps the axes of which `keep` says so.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.names.retain(|name| keep(name));
    }

    /// Adds an axis inside those that are there, unless it is one of them.
    pub(crate) fn push_minor(&mut self, axis: &str) {
        if !self.contains(axis) {
            self.names.push(axis.to_owned());
        }
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.is_open.then(|| OPEN.to_owned());
        let names = self.names.iter().map(|axis| format!("{axis:?}"));
        let entries: Vec<String> = names.chain(open).collect();
        match entries.as_slice() {
            [] => f.write_str("_"),
            [entry] => f.write_str(entry),
            entries => write!(f, "({})", entries.join(", ")),
        }
    }
}

impl<S: Into<String>> FromIterator<S> for Axes {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        let mut axes = Axes::default();
        for name in names {
            let name = name.into();
            match name == OPEN {
                true => axes.is_open = true,
                false => axes.names.push(name),
            }
        }
        axes
    }
}

impl From<()> for Axes {
    fn from((): ()) -> Self {
        Axes::default()
    }
}

impl From<&str> for Axes {
    fn from(axis: &str) -> Self {
        Axes::from_iter([axis])
    }
}

impl From<String> for Axes {
    fn from(axis: String) -> Self {
        Axes::from_iter([axis])
    }
}

impl<T: Into<Axes>> From<Option<T>> for Axes {
    fn from(axes: Option<T>) -> Self {
        axes.map(Into::into).unwrap_or_default()
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Axes {
    fn from(axes: [S; N]) -> Self {
        Axes::from_iter(axes)
    }
}

impl<S: Into<String>> From<Vec<S>> for Axes {
    fn from(axes: Vec<S>) -> Self {
        Axes::from_iter(axes)
    }
}

impl From<&[&str]> for Axes {
    fn from(axes: &[&str]) -> Self {
        Axes::from_iter(axes.iter().copied())
    }
}

macro_rules! axes_from_tuple {
    ($($name:ident: $type:ident),+) => {
        impl<$($type: Into<String>),+> From<($($type,)+)> for Axes {
            fn from(($($name,)+): ($($type,)+)) -> Self {
                Axes::from_iter([$(Into::<String>::into($name)),+])
            }
        }
    };
}

axes_from_tuple!(a: A);
axes_from_tuple!(a: A, b: B);
axes_from_tuple!(a: A, b: B, c: C);
axes_from_tuple!(a: A, b: B, c: C, d: D);
