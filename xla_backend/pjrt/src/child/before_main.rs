//! A second life of the running program: as a process that compiles and nothing else.
//!
//! XLA aborts the process over some programs. So what may abort runs in a child, and the child is the user's own
//! executable, started again with [`WORKER_VARIABLE`]: no second program has to be built, shipped and found, and both
//! sides are of one build. A function that the system calls before `main` sees the variable, does the work and ends the
//! process, so that `main` is never reached, whatever it does. This works in tests, examples and user programs alike.
//!
//! Rust's standard library promises nothing for the time before `main`. What is used here (environment, files, threads,
//! processes) works on Linux, where the runtime that `main` would be called from only sets up signal handlers. The
//! function stands behind the initializer of the standard library's arguments, and before all others.

use std::sync::atomic::{AtomicBool, Ordering};

/// Names a request to a child; see the [module](super).
pub(super) const WORKER_VARIABLE: &str = "SHARDAX_WORKER";

/// Whether [`before_main`] ran in this process, and so would run in a child.
static REGISTERED: AtomicBool = AtomicBool::new(false);

#[cfg(target_os = "linux")]
#[used]
// SAFETY: the loader calls what stands in this section once, in one thread, with arguments that the function ignores.
#[unsafe(link_section = ".init_array.00100")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// A panic in here ends the process, as it must at a boundary to C.
#[cfg(target_os = "linux")]
extern "C" fn before_main() {
    // A program that runs with more rights than its user must not load what a variable names.
    if has_extra_rights() {
        return;
    }
    REGISTERED.store(true, Ordering::Relaxed);
    let Some(told) = std::env::var_os(WORKER_VARIABLE) else {
        return;
    };
    // SAFETY: this is the only thread of the process.
    unsafe { std::env::remove_var(WORKER_VARIABLE) };
    exit_now(super::work::work(&told));
}

/// Whether a child of this program would know a worker's variable.
pub(super) fn is_registered() -> bool {
    REGISTERED.load(Ordering::Relaxed)
}

/// Whether the system runs the program with rights that whoever started it does not have (set-user-ID and the like).
#[cfg(target_os = "linux")]
fn has_extra_rights() -> bool {
    use std::ffi::c_ulong;
    unsafe extern "C" {
        safe fn getauxval(kind: c_ulong) -> c_ulong;
    }
    const AT_SECURE: c_ulong = 23;
    getauxval(AT_SECURE) != 0
}

/// Ends the process without running what is registered for its end: a plugin's threads may be in the middle of their work.
pub(super) fn exit_now(code: i32) -> ! {
    use std::ffi::c_int;
    unsafe extern "C" {
        safe fn _exit(code: c_int) -> !;
    }
    _exit(code)
}
