//! Transforms: programs in, programs out.
//!
//! Each reads a graph equation by equation and emits another one into the innermost frame, with the
//! same functions that the user's own operations go through. `linearize.rs` is the engine (forward
//! derivative, then its transpose); the other files are one construct each.

mod body;
pub(crate) mod close;
mod cond;
mod cotangents;
mod custom;
mod finite;
mod foreign;
mod grad;
mod jacobian;
mod linearize;
mod manual;
mod once;
mod remat;
mod residuals;
mod scan;
mod vmap;
mod while_loop;

pub use cond::{cond, switch};
pub use custom::{custom_jvp, custom_vjp};
pub use finite::{CheckOrigin, CheckPoint, Checked, NonFinite, check_finite};
pub use foreign::{custom_call, host_call, host_effect};
pub use grad::{Objective, grad, jvp, linearize, value_and_grad, vjp};
pub use jacobian::{hessian, jacfwd, jacrev};
pub use manual::{Leaves, Specs, manual};
pub use remat::{remat, remat_with};
pub use scan::{scan, scan_reverse, scan_unrolled};
pub use vmap::{vmap, vmap_axes, vmap_named};
pub use while_loop::{fori_loop, while_loop};

pub(crate) use body::transpose_body;
pub(crate) use close::finished;
pub(crate) use cond::{batch_cond, jvp_cond, transpose_cond};
pub(crate) use custom::{batch_custom, jvp_custom, transpose_custom};
pub(crate) use foreign::batch_foreign;
pub(crate) use linearize::{Dual, Mode, Tangents, inline};
pub(crate) use manual::{batch_manual, jvp_manual, transpose_manual};
pub(crate) use remat::{batch_remat, jvp_remat, transpose_remat};
pub(crate) use scan::{batch_scan, jvp_scan, transpose_scan};
pub(crate) use vmap::Batch;
pub(crate) use while_loop::{batch_while, jvp_while};
