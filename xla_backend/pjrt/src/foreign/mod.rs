//! Code of the user's that a program calls: XLA's foreign function interface.
//!
//! A program names what it calls by the target of a `custom_call`. Behind the target is a *handler*, a C function that is
//! registered with the plugin for as long as the process lives. This crate registers one, `shardax_host`, which calls Rust
//! closures ([`HostCalls`]); a user can register others with [`Client::register_handler`].
//!
//! `structs` are the C structs, `calls` the closures and how devices share one call, `handler` the handler.

mod array;
mod calls;
mod handler;
mod structs;
#[cfg(test)]
mod tests;

use std::ffi::c_void;

use super::client::Client;
use super::ffi;
use super::plugin::Plugin;
use crate::error::{Error, Result};
pub use array::HostArray;
pub(super) use calls::Running;
pub use calls::{HostCall, HostCalls, HostFunction};

/// A handler of XLA's FFI (`XLA_FFI_Handler` in its header): takes a pointer to the call frame (`XLA_FFI_CallFrame`), and
/// returns null or an error made with the functions in the frame (`XLA_FFI_Error`).
pub type Handler = unsafe extern "C" fn(call_frame: *mut c_void) -> *mut c_void;

/// The target by which a program calls a closure; the attribute `id` (i64) is what [`HostCalls::add`] gave.
pub const HOST_TARGET: &str = "shardax_host";

/// The platform on which closures can be called: its devices are the process itself, and operands in
/// memory that it reads.
pub const HOST_PLATFORM: &str = "cpu";

impl Client {
    /// Registers a handler as target of a `custom_call` with `api_version = 4`, on the platform of this client.
    ///
    /// It holds for the whole process, and for every client of the same plugin and platform. Registering the same handler
    /// again does nothing.
    ///
    /// # Errors
    /// [`Error::Foreign`] when the name is taken, by another handler or by this crate, or the plugin has no FFI.
    ///
    /// # Safety
    /// `handler` follows the contract of XLA's FFI: it answers the query of its metadata, reads operands and writes results
    /// within the frame's dimensions, may be called on several threads at once, and never unwinds.
    pub unsafe fn register_handler(&self, name: &str, handler: Handler) -> Result<()> {
        if name.is_empty() || name == HOST_TARGET {
            return Err(Error::Foreign {
                target: name.to_owned(),
                reason: "this name is not free: choose another for the handler".to_owned(),
            });
        }
        // SAFETY: the caller vouches for the handler.
        unsafe { register(self.plugin(), name, self.platform_name(), handler) }
    }

    /// Makes closures callable by programs of this client.
    pub(super) fn enable_host_calls(&self) -> Result<()> {
        if self.platform_name() != HOST_PLATFORM {
            return Err(Error::Foreign {
                target: HOST_TARGET.to_owned(),
                reason: format!(
                    "host functions run on the CPU platform alone, and this client is of platform \
                     {:?}: take host functions and prints out of programs for it",
                    self.platform_name()
                ),
            });
        }
        // SAFETY: the handler is written for this, and never unwinds.
        unsafe {
            register(
                self.plugin(),
                HOST_TARGET,
                HOST_PLATFORM,
                handler::host_handler,
            )
        }
    }
}

/// Registers a handler once.
///
/// # Safety
/// As for [`Client::register_handler`].
unsafe fn register(plugin: &Plugin, name: &str, platform: &str, handler: Handler) -> Result<()> {
    // Plugins keep the first of two handlers of one name and say nothing, so it is this crate that knows.
    let mut known = plugin.handlers();
    let key = (name.to_owned(), platform.to_owned());
    let address = handler as usize;
    match known.get(&key) {
        Some(&other) if other == address => return Ok(()),
        Some(_) => {
            return Err(Error::Foreign {
                target: name.to_owned(),
                reason: "another handler has this name: choose another name for this one"
                    .to_owned(),
            });
        }
        None => {}
    }
    let api = plugin.api();
    let Some(register) = api.ffi_register() else {
        return Err(Error::Foreign {
            target: name.to_owned(),
            reason: format!(
                "the plugin {} has no FFI extension: use another plugin",
                plugin.path().display()
            ),
        });
    };
    let mut arguments = ffi::FfiRegisterHandler {
        struct_size: ffi::FfiRegisterHandler::STRUCT_SIZE,
        name: name.as_ptr().cast(),
        name_size: name.len(),
        handler: handler as *mut c_void,
        platform: platform.as_ptr().cast(),
        platform_size: platform.len(),
        traits: 0,
    };
    // SAFETY: the texts outlive the call, which copies them; the caller vouches for the handler.
    unsafe {
        let error = register(&mut arguments);
        api.check("PJRT_FFI_Register_Handler", error)?;
    }
    known.insert(key, address);
    Ok(())
}
