//! Waiting for asynchronous work.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use super::client::Client;
use super::ffi::{self, Api, RawError, RawEvent};
use crate::error::Result;

/// An event of the plugin, freed when dropped. It does not keep its client alive.
#[derive(Debug)]
pub(super) struct EventHandle {
    api: Api,
    raw: NonNull<RawEvent>,
}

// SAFETY: PJRT events may be used and freed on any thread.
unsafe impl Send for EventHandle {}
// SAFETY: all functions on an event that are used here may run at the same time.
unsafe impl Sync for EventHandle {}

impl EventHandle {
    /// Takes ownership of an event; null stands for work that is done, for which there is nothing to own.
    ///
    /// # Safety
    /// `raw` is null or an event of this plugin that nothing else frees, and its client outlives the handle.
    pub(super) unsafe fn from_raw(api: Api, raw: *mut RawEvent) -> Option<Self> {
        NonNull::new(raw).map(|raw| EventHandle { api, raw })
    }

    /// Whether the work is complete, be it with an error.
    pub(super) fn is_ready(&self) -> Result<bool> {
        let mut arguments = ffi::EventIsReady {
            event: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the event is alive.
        unsafe { self.api.call(&mut arguments) }?;
        Ok(arguments.is_ready)
    }

    /// Blocks until the work is complete, and returns how it ended.
    pub(super) fn wait(&self) -> Result<()> {
        let mut arguments = ffi::EventAwait {
            event: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the event is alive.
        unsafe { self.api.call(&mut arguments) }
    }
}

impl Drop for EventHandle {
    fn drop(&mut self) {
        let mut arguments = ffi::EventDestroy {
            event: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the event is alive and nothing uses it any more. That freeing fails is no use to anyone.
        let _ = unsafe { self.api.call(&mut arguments) };
    }
}

/// Work on a device that completes at some time, with success or an error.
///
/// Dropping an event does not cancel the work.
#[derive(Debug)]
pub struct Event {
    /// `None` when the work was done already. Declared first, so that it is freed before the client can be.
    handle: Option<EventHandle>,
    client: Client,
}

impl Event {
    /// Takes ownership of an event of this client; null stands for work that is done.
    ///
    /// # Safety
    /// `raw` is null or an event of this client that nothing else frees.
    pub(super) unsafe fn from_raw(raw: *mut RawEvent, client: &Client) -> Self {
        Event {
            // SAFETY: as the caller says; `client` lives as long as `self`.
            handle: unsafe { EventHandle::from_raw(client.api(), raw) },
            client: client.clone(),
        }
    }

    /// Whether the work is complete, be it with an error.
    ///
    /// # Errors
    /// When the plugin cannot tell.
    pub fn is_ready(&self) -> Result<bool> {
        self.handle.as_ref().map_or(Ok(true), EventHandle::is_ready)
    }

    /// Blocks until the work is complete.
    ///
    /// # Errors
    /// The error that the work ended with.
    pub fn wait(&self) -> Result<()> {
        self.handle.as_ref().map_or(Ok(()), EventHandle::wait)
    }

    /// Calls `callback` with the outcome when the work is complete, at once if it is.
    ///
    /// It runs on a thread of the plugin, so it must be short, and must neither launch a program nor wait for another
    /// event. A panic in it is caught and ignored.
    ///
    /// # Errors
    /// When the plugin does not take the callback; it is dropped then.
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        let api = self.client.api();
        let call = move |error: *mut RawError| {
            // SAFETY: the plugin hands over the error, or null.
            callback(unsafe { api.check("PJRT_Event_OnReady", error) });
        };
        let Some(handle) = &self.handle else {
            run(Box::new(call), std::ptr::null_mut());
            return Ok(());
        };
        // A thin pointer for C: the outer box is what holds the closure's type.
        let boxed: Box<Callback> = Box::new(Box::new(call));
        let user_arg = Box::into_raw(boxed);
        let mut arguments = ffi::EventOnReady {
            event: handle.raw.as_ptr(),
            callback: Some(trampoline),
            user_arg: user_arg.cast(),
            ..Default::default()
        };
        // SAFETY: the event is alive, and `user_arg` stays valid until the callback takes it, which happens once.
        let registered = unsafe { api.call(&mut arguments) };
        if registered.is_err() {
            // SAFETY: a callback that was refused is never called, so the box is still ours.
            drop(unsafe { Box::from_raw(user_arg) });
        }
        registered
    }
}

type Callback = Box<dyn FnOnce(*mut RawError) + Send>;

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is the plugin's and runs code of ours. A client must not be destroyed there: it would wait for the
/// very thread that destroys it.
pub(super) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs code on a thread of the plugin's; it must not unwind.
pub(super) fn callback<R>(code: impl FnOnce() -> R) -> R {
    let outer = IN_CALLBACK.replace(true);
    let result = code();
    IN_CALLBACK.set(outer);
    result
}

unsafe extern "C" fn trampoline(error: *mut RawError, user_arg: *mut c_void) {
    // SAFETY: `user_arg` is the box that `on_ready` leaked, and each callback is called once.
    let callback = unsafe { Box::from_raw(user_arg.cast::<Callback>()) };
    run(*callback, error);
}

/// Runs a callback; a panic must not unwind into C.
fn run(callback: Callback, error: *mut RawError) {
    let _ = self::callback(|| catch_unwind(AssertUnwindSafe(|| callback(error))));
}

/// Keeps `owner` alive until the work behind a raw event is complete, and frees the event.
///
/// # Safety
/// `raw` is null or an event of this client that nothing else frees.
pub(super) unsafe fn keep_until_ready(
    raw: *mut RawEvent,
    client: &Client,
    owner: impl Send + Sync + 'static,
) -> Result<()> {
    // SAFETY: as the caller says.
    let event = unsafe { Event::from_raw(raw, client) };
    let owner = Arc::new(owner);
    let kept = owner.clone();
    event.on_ready(move |_| drop(kept)).or_else(|_| {
        // Without a callback, this thread has to be the one that keeps it.
        let outcome = event.wait();
        drop(owner);
        outcome
    })
}
