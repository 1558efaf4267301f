//! A machine that looks for faults: it makes random programs, runs them under random layouts, and
//! checks what comes out.
//!
//! Reading order: `program.rs` (what a program is), `operations/` (what it calls), `run.rs` (how it
//! is traced), `generate.rs` (how one is made up), `oracle.rs` (what it should compute), `check.rs`
//! (whether it does), `laws.rs` (what must hold without any device), `shrink.rs` and `print.rs` (how
//! a failure becomes a few lines of Rust), `watch.rs` and `worker.rs` (the processes).

#![forbid(unsafe_code)]

mod again;
pub mod check;
mod constructs;
mod cut;
pub mod dice;
pub mod generate;
mod laws;
pub mod operations;
pub mod oracle;
pub mod print;
pub mod program;
mod region;
pub mod report;
pub mod run;
pub mod shrink;
pub mod values;
pub mod watch;
pub mod worker;
