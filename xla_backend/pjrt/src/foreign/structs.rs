//! Structs of XLA's FFI, by hand and only what is read here.
//!
//! The FFI is a C interface of its own beside PJRT's: XLA calls a *handler* with a call frame, which holds the operands,
//! the memory for the results, the attributes of the operation, and XLA's own functions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::size_of;

/// An error that XLA owns.
#[repr(C)]
pub(super) struct RawFfiError {
    _private: [u8; 0],
}

/// What XLA knows of the execution that a call belongs to.
#[repr(C)]
pub(super) struct RawContext {
    _private: [u8; 0],
}

/// The head of an entry in a chain of extensions.
#[repr(C)]
pub(super) struct Extension {
    pub(super) struct_size: usize,
    pub(super) kind: c_uint,
    pub(super) next: *mut Extension,
}

/// Extension by which XLA asks a handler, before it calls it, for the version it was written for.
pub(super) const METADATA: c_uint = 1;

/// The extension of kind [`METADATA`].
#[repr(C)]
pub(super) struct MetadataExtension {
    pub(super) base: Extension,
    pub(super) metadata: *mut Metadata,
}

/// What a handler tells of itself.
#[repr(C)]
pub(super) struct Metadata {
    pub(super) struct_size: usize,
    pub(super) version: Version,
    pub(super) traits: u32,
    /// The type of a handler's state; 0 for one without.
    pub(super) state_type: i64,
}

/// A version of the FFI.
#[repr(C)]
pub(super) struct Version {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

/// The oldest version in which everything is that is used here; XLA takes handlers of older versions.
pub(super) const VERSION: (c_int, c_int) = (0, 1);

/// The stage at which a program runs; at the stages before it there are no operands.
pub(super) const EXECUTE: c_uint = 3;
/// The number of [`INTERNAL`](crate::ErrorCode::Internal) among the codes of errors.
pub(super) const ERROR_INTERNAL: c_uint = 13;
/// The kind of an operand or a result that is an array.
pub(super) const BUFFER: c_uint = 1;
/// The kind of an attribute that is one number.
pub(super) const SCALAR: c_uint = 3;
/// The element type of a 64-bit signed integer, as in HLO.
pub(super) const S64: c_uint = 5;

/// One call of a handler.
#[repr(C)]
pub(super) struct CallFrame {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) api: *const FfiApi,
    pub(super) context: *mut RawContext,
    pub(super) stage: c_uint,
    pub(super) operands: Values,
    pub(super) results: Values,
    pub(super) attributes: Attributes,
}

/// Operands or results.
#[repr(C)]
pub(super) struct Values {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) size: i64,
    pub(super) kinds: *const c_uint,
    pub(super) values: *const *mut FfiBuffer,
}

/// Attributes by name.
#[repr(C)]
pub(super) struct Attributes {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) size: i64,
    pub(super) kinds: *const c_uint,
    pub(super) names: *const *mut ByteSpan,
    pub(super) values: *const *mut c_void,
}

/// Text with its length.
#[repr(C)]
pub(super) struct ByteSpan {
    pub(super) data: *const c_char,
    pub(super) size: usize,
}

/// An attribute of kind [`SCALAR`].
#[repr(C)]
pub(super) struct Scalar {
    pub(super) element_type: c_uint,
    pub(super) value: *mut c_void,
}

/// An array in row-major order.
#[repr(C)]
pub(super) struct FfiBuffer {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) element_type: c_uint,
    pub(super) data: *mut c_void,
    pub(super) rank: i64,
    pub(super) dims: *const i64,
}

/// A function of XLA's that takes one struct.
pub(super) type FfiFunction<A> = Option<unsafe extern "C" fn(*mut A) -> *mut RawFfiError>;
/// A function that is not used here.
type Unused = *const c_void;

/// XLA's functions.
#[repr(C)]
pub(super) struct FfiApi {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) version: Version,
    pub(super) internal: *const c_void,
    pub(super) error_create: FfiFunction<ErrorCreate>,
    error_get_message: Unused,
    pub(super) error_destroy: Option<unsafe extern "C" fn(*mut ErrorDestroy)>,
    handler_register: Unused,
    stream_get: Unused,
    type_register: Unused,
    context_get: Unused,
    state_set: Unused,
    state_get: Unused,
    device_memory_allocate: Unused,
    device_memory_free: Unused,
    thread_pool_schedule: Unused,
    thread_pool_num_threads: Unused,
    future_create: Unused,
    future_set_available: Unused,
    future_set_error: Unused,
    pub(super) run_id_get: FfiFunction<RunIdGet>,
    pub(super) device_ordinal_get: FfiFunction<DeviceOrdinalGet>,
}

/// Arguments for making an error.
#[repr(C)]
pub(super) struct ErrorCreate {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    /// Ends with a zero byte.
    pub(super) message: *const c_char,
    pub(super) code: c_uint,
}

/// Arguments for freeing an error.
#[repr(C)]
pub(super) struct ErrorDestroy {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) error: *mut RawFfiError,
}

/// Arguments for asking which launch a call belongs to: one number for all devices.
#[repr(C)]
pub(super) struct RunIdGet {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) context: *mut RawContext,
    pub(super) run_id: i64,
}

/// Arguments for asking which device makes a call.
#[repr(C)]
pub(super) struct DeviceOrdinalGet {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut Extension,
    pub(super) context: *mut RawContext,
    pub(super) device_ordinal: i32,
}

impl RunIdGet {
    /// Up to the last field, as the interface counts.
    pub(super) const STRUCT_SIZE: usize = size_of::<Self>();
}

impl DeviceOrdinalGet {
    /// Without the padding at the end, as the interface counts.
    pub(super) const STRUCT_SIZE: usize = size_of::<Self>() - size_of::<i32>();
}

impl ErrorCreate {
    /// Without the padding at the end, as the interface counts.
    pub(super) const STRUCT_SIZE: usize = size_of::<Self>() - size_of::<c_uint>();
}

impl ErrorDestroy {
    /// Up to the last field, as the interface counts.
    pub(super) const STRUCT_SIZE: usize = size_of::<Self>();
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Sizes and offsets as a C compiler computes them from the header of FFI 0.4.
    #[test]
    fn structs_have_the_layout_of_the_header() {
        assert_eq!(size_of::<Extension>(), 24);
        assert_eq!(offset_of!(MetadataExtension, metadata), 24);
        assert_eq!(size_of::<Version>(), 24);
        assert_eq!(offset_of!(Metadata, traits), 32);
        assert_eq!(offset_of!(Metadata, state_type), 40);
        assert_eq!(size_of::<Values>(), 40);
        assert_eq!(size_of::<Attributes>(), 48);
        assert_eq!(offset_of!(CallFrame, operands), 40);
        assert_eq!(offset_of!(CallFrame, results), 80);
        assert_eq!(offset_of!(CallFrame, attributes), 120);
        assert_eq!(size_of::<FfiBuffer>(), 48);
        assert_eq!(offset_of!(FfiApi, error_create), 48);
        assert_eq!(offset_of!(FfiApi, run_id_get), 176);
        assert_eq!(offset_of!(FfiApi, device_ordinal_get), 184);
        assert_eq!(ErrorCreate::STRUCT_SIZE, 28);
        assert_eq!(ErrorDestroy::STRUCT_SIZE, 24);
        assert_eq!(RunIdGet::STRUCT_SIZE, 32);
        assert_eq!(DeviceOrdinalGet::STRUCT_SIZE, 28);
    }
}
