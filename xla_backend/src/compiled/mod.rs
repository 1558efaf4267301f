//! What a compiled program takes and gives, and what it tells of itself, whether it runs here or was compiled for a cluster
//! that is not there.

mod advice;
mod remarks;
mod told;

use std::sync::Arc;

use shardax_core::{Dim, Role, TensorType};
use shardax_sharding::Note;

use crate::array::Sharding;
pub(crate) use advice::Compiled;
pub use advice::{Advice, set_advice_hook, silence_advice};
pub(crate) use remarks::remarks;
pub(crate) use told::CompiledFrom;

/// An argument of a program.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its path in the arguments.
    pub path: String,
    /// Element type and shape.
    pub ty: Arc<TensorType>,
    /// How it lies on the devices.
    pub sharding: Arc<Sharding>,
    /// The names of its dimensions, if an annotation gives them; it says how it lies then.
    pub dims: Option<Vec<Dim>>,
    /// Whether it is a parameter, as arguments are that nothing else is said of, or state.
    pub role: Role,
    /// Choices that the layout made for it.
    pub notes: Vec<Note>,
}

impl Input {
    pub(crate) fn described(&self) -> String {
        described("argument", &self.path, &self.ty)
    }

    /// Its path and its type.
    fn short(&self) -> String {
        described("", &self.path, &self.ty).trim_start().to_owned()
    }
}

/// `argument `state.params.wte` f32[256,64]`
pub(crate) fn described(kind: &str, path: &str, ty: &TensorType) -> String {
    match path {
        "" => format!("the {kind} {ty}"),
        path => format!("{kind} `{path}` {ty}"),
    }
}

/// A result of a program.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its path in the result.
    pub path: String,
    /// Element type and shape.
    pub ty: Arc<TensorType>,
    /// How it lies on the devices.
    pub sharding: Arc<Sharding>,
}
