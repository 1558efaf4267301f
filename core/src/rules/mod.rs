//! One file a rule, each with an arm for every primitive.

pub(crate) mod jvp;
pub(crate) mod shape;
pub(crate) mod transpose;
