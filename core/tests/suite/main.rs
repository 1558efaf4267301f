//! The crate against a reference interpreter and finite differences.

mod derivatives;
mod errors;
mod interpreter;
mod loops;
mod properties;
mod random;
mod scale;
mod snapshots;
mod sources;
mod support;
mod values;
