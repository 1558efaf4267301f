//! Transforms: programs in, programs out.
//!
//! Each reads a graph equation by equation and emits another one into the innermost frame, with the
//! same functions that the user's own operations go through. `linearize.rs` is the engine (forward
//! derivative, then its transpose); the other files are one construct each.

pub(crate) mod close;
mod grad;
mod linearize;
mod remat;
mod residuals;
mod scan;

pub use grad::{Objective, grad, jvp, value_and_grad, vjp};
pub use remat::remat;
pub use scan::{scan, scan_reverse};

pub(crate) use linearize::{Dual, Mode, Tangents};
pub(crate) use remat::{jvp_remat, transpose_remat};
pub(crate) use scan::{jvp_scan, transpose_scan};
