//! The mesh axes that split one dimension, and the literals they are written as.

use std::fmt;

/// The mesh axes that split one dimension, major first; none for a dimension that stays whole.
///
/// Whatever takes axes takes `impl Into<Axes>`: `"data"`, `("data", "model")`, an array or a `Vec` of
/// names, `None`, or `()` for no axis.
///
/// ```
/// use shardax_sharding::Axes;
///
/// assert_eq!(Axes::from("data").to_string(), r#""data""#);
/// assert_eq!(Axes::from(("data", "model")).to_string(), r#"("data", "model")"#);
/// assert_eq!(Axes::from(()).to_string(), "_");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Axes(Vec<String>);

impl Axes {
    /// The names, major first.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Whether no axis splits the dimension.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `axis` is one of them.
    pub fn contains(&self, axis: &str) -> bool {
        self.0.iter().any(|name| name == axis)
    }

    /// Keeps the axes of which `keep` says so.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name| keep(name));
    }

    /// Adds an axis inside those that are there, unless it is one of them.
    pub(crate) fn push_minor(&mut self, axis: &str) {
        if !self.contains(axis) {
            self.0.push(axis.to_owned());
        }
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names() {
            [] => f.write_str("_"),
            [axis] => write!(f, "{axis:?}"),
            axes => {
                f.write_str("(")?;
                for (i, axis) in axes.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{axis:?}")?;
                }
                f.write_str(")")
            }
        }
    }
}

impl<S: Into<String>> FromIterator<S> for Axes {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Axes(names.into_iter().map(Into::into).collect())
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
        Axes(vec![axis])
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
                Axes(vec![$($name.into()),+])
            }
        }
    };
}

axes_from_tuple!(a: A);
axes_from_tuple!(a: A, b: B);
axes_from_tuple!(a: A, b: B, c: C);
axes_from_tuple!(a: A, b: B, c: C, d: D);
