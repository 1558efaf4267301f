//! The part of the PJRT C API that this crate calls, as plain data.
//!
//! Every PJRT function takes one struct of arguments and returns an error pointer. So one trait, [`Function`], ties an
//! argument struct to its slot in the plugin's function table, and one method, [`Api::call`], makes every call. A struct
//! says its own size, by which a plugin of another version knows which fields the caller has; the sizes here are those of
//! API 0.81, which newer plugins accept.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{size_of, transmute};
use std::ptr::NonNull;

use crate::error::{Error, ErrorCode, HostFault, PjrtError, Result};

mod structs;

pub(crate) use structs::*;

/// The only major version of the C API there is.
pub(crate) const API_MAJOR: i32 = 0;
/// The oldest minor version whose structs these are.
pub(crate) const API_MINOR_MIN: i32 = 81;

/// An argument struct of a PJRT function.
///
/// # Safety
/// `SLOT` is the index of the function in the API's table and `Self` has the C layout of its argument struct.
pub(crate) unsafe trait Function {
    /// Index in the function table, counted from its first function.
    const SLOT: usize;
    /// The C name, for messages.
    const NAME: &'static str;
}

/// The head of the table of functions; the functions follow it, one pointer each.
#[repr(C)]
pub(crate) struct ApiTable {
    struct_size: usize,
    extension_start: *mut c_void,
    version_struct_size: usize,
    version_extension_start: *mut c_void,
    major_version: c_int,
    minor_version: c_int,
}

/// A loaded plugin's function table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Api {
    table: NonNull<ApiTable>,
}

// SAFETY: the table is constant data of a library that is never unloaded, and PJRT functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// The table that a plugin's `GetPjrtApi` returned; an error when its version is none that this crate speaks.
    ///
    /// # Safety
    /// `table` is what `GetPjrtApi` returned, and its library stays loaded.
    pub(crate) unsafe fn new(table: NonNull<ApiTable>) -> Result<Self> {
        let api = Api { table };
        let (major, minor) = api.version();
        if major != API_MAJOR || minor < API_MINOR_MIN {
            return Err(Error::ApiVersion { major, minor });
        }
        Ok(api)
    }

    /// The version of the C API that the plugin was built with: major, minor.
    pub(crate) fn version(self) -> (i32, i32) {
        // SAFETY: the table's head is there in every version of the API and never changes.
        let table = unsafe { self.table.as_ref() };
        (table.major_version, table.minor_version)
    }

    /// Calls a function of the plugin; the outputs are then in `arguments`.
    ///
    /// # Safety
    /// The pointers in `arguments` satisfy what the C API asks of that function: handles are alive and of this plugin, and
    /// arrays have the lengths beside them.
    pub(crate) unsafe fn call<F: Function>(self, arguments: &mut F) -> Result<()> {
        // SAFETY: of all functions only the two about errors return nothing, and those go through `call_void`.
        let function: unsafe extern "C" fn(*mut F) -> *mut RawError =
            unsafe { transmute(self.slot::<F>()?) };
        // SAFETY: the caller vouches for the arguments.
        let error = unsafe { function(arguments) };
        // SAFETY: a function returns an error that the caller owns, or null.
        unsafe { self.check(F::NAME, error) }
    }

    /// Calls a function that returns nothing.
    ///
    /// # Safety
    /// As for [`Self::call`]; and the function is `PJRT_Error_Destroy` or `PJRT_Error_Message`.
    unsafe fn call_void<F: Function>(self, arguments: &mut F) -> Result<()> {
        // SAFETY: the caller vouches that this is the signature.
        let function: unsafe extern "C" fn(*mut F) = unsafe { transmute(self.slot::<F>()?) };
        // SAFETY: the caller vouches for the arguments.
        unsafe { function(arguments) };
        Ok(())
    }

    /// The pointer in the function's slot, if the plugin's table reaches so far.
    fn slot<F: Function>(self) -> Result<NonNull<c_void>> {
        let end = size_of::<ApiTable>() + (F::SLOT + 1) * size_of::<*mut c_void>();
        // SAFETY: the table's head is there in every version of the API and never changes.
        let size = unsafe { self.table.as_ref() }.struct_size;
        let function = if size < end {
            None
        } else {
            // SAFETY: the table is at least `end` bytes long, so the slot lies in it; a slot may be null.
            unsafe {
                let slots = self.table.as_ptr().add(1).cast::<*mut c_void>();
                NonNull::new(slots.add(F::SLOT).read())
            }
        };
        function.ok_or_else(|| {
            let (major, minor) = self.version();
            Error::MissingFunction {
                function: F::NAME,
                major,
                minor,
            }
        })
    }

    /// Turns an error of the plugin into ours and frees it; null is success.
    ///
    /// # Safety
    /// `error` is null or an error of this plugin that the caller owns.
    pub(crate) unsafe fn check(self, function: &'static str, error: *mut RawError) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = ErrorMessage {
            error,
            ..Default::default()
        };
        let mut code = ErrorGetCode {
            error,
            ..Default::default()
        };
        let mut destroy = ErrorDestroy {
            error,
            ..Default::default()
        };
        // SAFETY: `error` is alive until the last of these calls, and the message is copied before that. The code's own
        // error return, which would mean that `error` is no error, is null for a live error.
        let (code, message) = unsafe {
            self.call_void(&mut message)?;
            let text = string(message.message, message.message_size);
            let got_code = self.call_without_error(&mut code);
            self.call_void(&mut destroy)?;
            (got_code.then_some(code.code), text)
        };
        if let Some(fault) = HostFault::decode(&message) {
            return Err(Error::HostFunction(fault));
        }
        Err(Error::Pjrt(PjrtError {
            function,
            code: code.map_or(ErrorCode::Unknown, ErrorCode::from_raw),
            message,
        }))
    }

    /// The function that registers handlers of XLA's FFI, if the plugin has it.
    pub(crate) fn ffi_register(self) -> Option<RegisterHandler> {
        // SAFETY: the table's head is there in every version of the API.
        let mut next = unsafe { self.table.as_ref() }
            .extension_start
            .cast::<Extension>();
        // SAFETY: the chain is constant data of the library, each entry beginning with this head; one of this kind and size
        // has the fields of this type.
        unsafe {
            while let Some(extension) = next.as_ref() {
                if extension.kind == Extension::FFI
                    && extension.struct_size >= size_of::<FfiExtension>()
                {
                    return (*next.cast::<FfiExtension>()).register_handler;
                }
                next = extension.next;
            }
        }
        None
    }

    /// Calls a function while an error is being read: a second error is not read in turn.
    ///
    /// # Safety
    /// As for [`Self::call`].
    unsafe fn call_without_error<F: Function>(self, arguments: &mut F) -> bool {
        let Ok(slot) = self.slot::<F>() else {
            return false;
        };
        // SAFETY: the signature of every function but the two that return nothing.
        let function: unsafe extern "C" fn(*mut F) -> *mut RawError = unsafe { transmute(slot) };
        // SAFETY: the caller vouches for the arguments.
        unsafe { function(arguments) }.is_null()
    }
}

/// A copy of text that the plugin owns; invalid UTF-8 is replaced.
///
/// # Safety
/// `data` is null or points to `size` bytes.
pub(crate) unsafe fn string(data: *const c_char, size: usize) -> String {
    // SAFETY: the caller vouches for data and size.
    String::from_utf8_lossy(&unsafe { bytes(data, size) }).into_owned()
}

/// A copy of bytes that the plugin owns.
///
/// # Safety
/// `data` is null or points to `size` bytes.
pub(crate) unsafe fn bytes(data: *const c_char, size: usize) -> Vec<u8> {
    // SAFETY: the caller vouches for data and size.
    unsafe { slice(data.cast::<u8>(), size) }.to_vec()
}

/// An array that the plugin owns. C writes an empty array as a null pointer too, which a Rust slice must not hold.
///
/// # Safety
/// `data` is null or points to `size` elements that live and stay unchanged for `'a`.
pub(crate) unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if data.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { std::slice::from_raw_parts(data, size) }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn a_short_table_is_an_error_not_a_wild_call() {
        let mut table = ApiTable {
            struct_size: size_of::<ApiTable>(),
            extension_start: null_mut(),
            version_struct_size: 24,
            version_extension_start: null_mut(),
            major_version: 0,
            minor_version: 81,
        };
        // SAFETY: the table outlives the calls, and says truly that it holds no function.
        let api = unsafe { Api::new(NonNull::from(&mut table)) }.unwrap();
        // SAFETY: nothing is called, since there is no such slot.
        let error = unsafe { api.call(&mut PluginInitialize::default()) }.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the PJRT plugin (API 0.81) has no function PJRT_Plugin_Initialize; use a newer plugin"
        );
        table.minor_version = 54;
        // SAFETY: as above.
        let error = unsafe { Api::new(NonNull::from(&mut table)) }.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the plugin speaks PJRT API 0.54, this crate needs major version 0 and minor version 81 or newer; \
             use another plugin"
        );
    }
}
