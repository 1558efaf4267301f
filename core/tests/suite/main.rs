//! The crate against a reference interpreter and finite differences.

mod interpreter;
mod support;
mod values;
