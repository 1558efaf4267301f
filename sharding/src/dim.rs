//! The name that an annotation gives to one dimension.
//!
//! Models speak of `embed` or `heads`, not of mesh axes, so that changing the layout never touches
//! the model. This is the vocabulary in which they do so.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What a `#[shard(...)]` annotation says of one dimension.
///
/// An identifier (`embed`) is [`Dim::Logical`]; a string literal (`"data"`) is [`Dim::Mesh`] with
/// one axis; a tuple of string literals (`("data", "model")`) is [`Dim::Mesh`] with several, major
/// first; `_` is [`Dim::Unsharded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// `_`: the dimension is not split under any layout.
    Unsharded,
    /// The compiler decides: the dimension of a batch that `vmap` has added.
    Open,
    /// A logical name, which the [`Layout`](crate::Layout) maps to mesh axes.
    Logical(&'static str),
    /// Mesh axes named directly, major first.
    Mesh(&'static [&'static str]),
}

impl Dim {
    /// The logical name `name`, if it is computed: `Dim::named(&format!("expert_{i}"))`.
    ///
    /// Names live as long as the process, each once: make as many as a model has, not as many as it has steps.
    ///
    /// ```
    /// use shardax_sharding::Dim;
    ///
    /// let names = ["embed", "mlp"].map(|of| Dim::named(&format!("vision_{of}")));
    /// assert_eq!(names[1], Dim::Logical("vision_mlp"));
    /// ```
    pub fn named(name: &str) -> Dim {
        Dim::Logical(interned(name))
    }
}

/// The name as one of those that live as long as the process, each once.
pub fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(name);
    name
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Unsharded => f.write_str("_"),
            Dim::Open => f.write_str("?"),
            Dim::Logical(name) => f.write_str(name),
            Dim::Mesh([axis]) => write!(f, "{axis:?}"),
            Dim::Mesh(axes) => {
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
