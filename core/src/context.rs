//! What is around the function being traced: the layout it is traced for, and the mesh axes that
//! are in its own hands.
//!
//! A model does not know its layout. Some functions must: a manual region has to know how many
//! devices there are, and attention whether the sequence that it looks along is split.

use std::cell::RefCell;
use std::rc::Rc;

use shardax_sharding::Layout;

use crate::op::ManualAxis;

thread_local! {
    static LAYOUT: RefCell<Option<Rc<Layout>>> = const { RefCell::new(None) };
    static MANUAL: RefCell<Vec<ManualAxis>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, whose traces are for this layout: `jit` does so with its own.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, layout, trace, under};
/// use shardax_sharding::{Layout, Mesh};
///
/// let eight = Layout::new(Mesh::new([("data", 8)])?);
/// let devices = |x: Tensor| x * layout().mesh().device_count() as f64;
/// let program = under(&eight, || trace(devices, TensorType::scalar(DType::F32)))?;
/// assert!(program.graph.to_string().contains("constant 8.0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn under<R>(layout: &Layout, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Rc<Layout>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LAYOUT.set(self.0.take());
        }
    }
    let _restore = Restore(LAYOUT.replace(Some(Rc::new(layout.clone()))));
    f()
}

/// The layout that the function is traced for: that of the `jit` around it; one device if there is
/// none.
///
/// Inside of a manual region its rules leave out the region's axes: along those, every device has
/// its own block already.
pub fn layout() -> Rc<Layout> {
    LAYOUT
        .with_borrow(Clone::clone)
        .unwrap_or_else(|| Rc::new(Layout::single()))
}

/// Runs `f` inside of a region with these axes in its own hands, beside those around it.
pub(crate) fn in_region<R>(axes: &[ManualAxis], f: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            MANUAL.with_borrow_mut(|axes| axes.truncate(self.0));
        }
    }
    let outer = MANUAL.with_borrow_mut(|all| {
        let outer = all.len();
        all.extend(axes);
        outer
    });
    let _restore = Restore(outer);
    let names: Vec<&str> = axes.iter().map(|axis| axis.name()).collect();
    let inner = layout().without_axes(&names);
    under(&inner, f)
}

/// The axes that are in the function's own hands, outermost region first.
pub(crate) fn manual_axes() -> Vec<ManualAxis> {
    MANUAL.with_borrow(Clone::clone)
}

/// Whether the function is in a manual region.
pub(crate) fn is_manual() -> bool {
    MANUAL.with_borrow(|axes| !axes.is_empty())
}
