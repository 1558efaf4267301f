//! The crate against a reference interpreter and finite differences.

mod derivatives;
mod interpreter;
mod loops;
mod random;
mod snapshots;
mod support;
mod values;
