//! Functions in which a key from outside would give numbers that depend on how they are called.

use std::cell::Cell;
use std::panic::Location;

use super::refuse;
use crate::context::manual_axes;
use crate::tensor::Tensor;
use crate::trace::{FrameId, current_frame, note};

/// Where keys have to come from, and what to do about one that does not.
#[derive(Clone, Copy)]
struct Guard {
    frame: FrameId,
    help: &'static str,
}

thread_local! {
    static GUARD: Cell<Option<Guard>> = const { Cell::new(None) };
}

/// Runs `f`, a part of the function being traced that a transform repeats, in which drawing from a key of
/// the outside, or from one made of a seed, is a mistake: every repetition would draw the same
/// numbers. `help` says what to do instead.
///
/// Keys that are made of the arguments of the function being traced may be drawn from.
///
/// ```
/// use shardax_core::random::{Key, only_keys_from_inside};
/// use shardax_core::{DType, Tensor, TensorType, trace, vmap};
///
/// let noise = |key: Key, x: Tensor| {
///     vmap(|x: Tensor| {
///         only_keys_from_inside("map over keys too", || x + key.normal(DType::F32, []))
///     })(x)
/// };
/// let types = (Key(TensorType::new(DType::U32, [2])), TensorType::new(DType::F32, [4]));
/// assert!(trace(noise, types).is_err());
/// ```
pub fn only_keys_from_inside<R>(help: &'static str, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Guard>);
    impl Drop for Restore {
        fn drop(&mut self) {
            GUARD.set(self.0);
        }
    }
    let frame = current_frame();
    let _restore = Restore(GUARD.replace(frame.map(|frame| Guard { frame, help })));
    f()
}

/// Ends the trace if a draw from this key, or the making of one from a seed, is a mistake here.
pub(super) fn check(key: Option<Tensor>) {
    let Some(guard) = GUARD.get() else { return };
    match key {
        Some(key) if key.frame >= guard.frame => {}
        Some(_) => refuse(
            "the key comes from outside of a function that is repeated".to_owned(),
            Some(guard.help),
        ),
        None => refuse(
            "a key is made of a seed in a function that is repeated".to_owned(),
            Some(guard.help),
        ),
    }
}

/// Keeps a note if every device of a manual region draws the same numbers from this key, though it may draw its own.
#[track_caller]
pub(super) fn tell_of_common(key: Tensor) {
    let split = manual_axes().iter().any(|axis| axis.size() > 1);
    if split && key.ty().varying.is_empty() {
        let text = "every device of the region draws the same numbers from this key, as a mask of dropout should not be: \
                    make a key of each device's own with `key.fold_in(axis_index(..))`, or draw outside of the region";
        note(text, Location::caller());
    }
}
