//! The host's side of a training run: the data that is read, the loop that launches steps, and how a run is shown and
//! recorded.
//!
//! What is computed is in `shardax-train`, as functions over tensors. Nothing here is traced.

#![forbid(unsafe_code)]

mod data;
mod error;
mod hash;
mod log;
mod meter;
mod progress;
mod run_ahead;

pub use data::Text;
pub use error::{Error, Result};
pub use log::Log;
pub use meter::{Meter, StepRecord};
pub use progress::Progress;
pub use run_ahead::run_ahead;
