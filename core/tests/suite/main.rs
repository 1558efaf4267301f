//! The crate against a reference interpreter and finite differences.

mod derivatives;
mod interpreter;
mod support;
mod values;
