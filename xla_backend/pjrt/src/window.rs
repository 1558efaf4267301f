//! How many launches may be in flight.
//!
//! A CPU program on N devices blocks N threads of XLA's pool at every collective. Launches that nobody awaits take the
//! threads which the oldest launch needs to complete; after 40 seconds XLA aborts the process. So a launch waits until
//! the launches before it leave room: 64 devices' worth of them is what XLA's pool bears (8 launches on 8 devices and 2
//! on 32 ran clean over a thousand launches; 64 launches abort).
//!
//! Launches on several devices are made one after the other, so that all devices see them in one order: two programs with
//! collectives that start in different orders on two devices wait for each other for ever.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::client::Client;
use super::event::EventHandle;
use crate::error::Result;

/// The completion of one launch on all its devices.
#[derive(Debug)]
pub(super) struct Completion {
    events: Vec<EventHandle>,
    devices: usize,
}

impl Completion {
    /// Whether every device is done, be it with an error.
    pub(super) fn is_ready(&self) -> Result<bool> {
        for event in &self.events {
            if !event.is_ready()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for every device, also after one failed: none may be running when this returns.
    pub(super) fn wait(&self) -> Result<()> {
        let outcomes: Vec<Result<()>> = self.events.iter().map(EventHandle::wait).collect();
        outcomes.into_iter().collect()
    }
}

/// A launch that is under way, or done.
///
/// Waiting is never needed for correctness: reading a result waits for it. It tells when the devices are free, and the error
/// that the program ended with.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Declared first, so that the events are freed before the client can be.
    completion: Arc<Completion>,
    _client: Client,
}

impl Launch {
    pub(super) fn new(completion: Arc<Completion>, client: &Client) -> Self {
        Launch {
            completion,
            _client: client.clone(),
        }
    }

    /// Whether all devices are done with this launch, be it with an error.
    ///
    /// # Errors
    /// When the plugin cannot tell.
    pub fn is_ready(&self) -> Result<bool> {
        self.completion.is_ready()
    }

    /// Blocks until all devices are done.
    ///
    /// # Errors
    /// The error that the program ended with on the first device that failed.
    pub fn wait(&self) -> Result<()> {
        self.completion.wait()
    }
}

/// The launches of one client that are not known to be complete.
#[derive(Debug)]
pub(super) struct Window {
    max_devices: usize,
    max_launches: usize,
    state: Mutex<State>,
    /// Something left `state`, or became visible in it.
    changed: Condvar,
    /// Held while a program is launched on several devices.
    order: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    launched: VecDeque<Arc<Completion>>,
    /// Launches and their devices, those included that are being launched or awaited.
    launches: usize,
    devices: usize,
}

impl Window {
    /// The window for a platform as its plugin names it.
    pub(super) fn for_platform(name: &str) -> Self {
        match name {
            "cpu" => Self::new(64, 32),
            // A stream runs launches in order without holding threads; this only bounds the memory of what waits.
            _ => Self::new(usize::MAX, 256),
        }
    }

    fn new(max_devices: usize, max_launches: usize) -> Self {
        Window {
            max_devices,
            max_launches,
            state: Mutex::default(),
            changed: Condvar::new(),
            order: Mutex::new(()),
        }
    }

    /// Runs `launch`, which launches on this many devices, once there is room.
    pub(super) fn launch<T>(
        &self,
        devices: usize,
        launch: impl FnOnce() -> Result<(T, Vec<EventHandle>)>,
    ) -> Result<(T, Arc<Completion>)> {
        let _order = (devices > 1).then(|| lock(&self.order));
        self.reserve(devices);
        // Gives the place back when the launch fails or panics.
        let place = Place {
            window: self,
            devices,
        };
        let (value, events) = launch()?;
        let completion = Arc::new(Completion { events, devices });
        lock(&self.state).launched.push_back(completion.clone());
        std::mem::forget(place);
        self.changed.notify_all();
        Ok((value, completion))
    }

    /// Waits for the oldest launches until there is room for one more on this many devices, and takes it. Alone, a launch
    /// always has room.
    fn reserve(&self, devices: usize) {
        let mut state = lock(&self.state);
        loop {
            let room = state.devices.saturating_add(devices) <= self.max_devices
                && state.launches < self.max_launches;
            if room || state.launches == 0 {
                state.launches += 1;
                state.devices += devices;
                return;
            }
            if let Some(oldest) = state.launched.pop_front() {
                drop(state);
                // An error is that launch's own, and its results and its handle tell it.
                let _ = oldest.wait();
                self.release(oldest.devices);
                state = lock(&self.state);
            } else {
                // Other threads hold every place; each of them gives it back or makes it visible, and tells.
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn release(&self, devices: usize) {
        let mut state = lock(&self.state);
        state.launches -= 1;
        state.devices -= devices;
        drop(state);
        self.changed.notify_all();
    }

    /// Takes out everything in flight, for the end of the client.
    pub(super) fn take(&mut self) -> VecDeque<Arc<Completion>> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(state).launched
    }
}

/// A place in the window that is given back when dropped.
struct Place<'a> {
    window: &'a Window,
    devices: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.window.release(self.devices);
    }
}

/// The state is whole at every moment, so a panic of another thread does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_window_is_bounded_and_a_failed_launch_leaves_it() {
        let window = Window::new(16, 3);
        for _ in 0..10 {
            window.launch(8, || Ok(((), vec![]))).unwrap();
            let state = lock(&window.state);
            assert!(state.launches <= 2 && state.devices <= 16, "{state:?}");
        }
        let fault = || {
            Err(Error::PluginContract {
                what: "test".into(),
            })
        };
        assert!(window.launch::<()>(64, fault).is_err());
        assert_eq!(
            lock(&window.state).launches,
            0,
            "64 devices wait for all others"
        );
        window.launch(64, || Ok(((), vec![]))).unwrap();
        for _ in 0..10 {
            window.launch(1, || Ok(((), vec![]))).unwrap();
            assert!(lock(&window.state).launches <= 3);
        }
    }

    #[test]
    fn many_threads_share_the_window() {
        let window = Window::new(8, 4);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let window = &window;
                scope.spawn(move || {
                    for _ in 0..500 {
                        window.launch(1 + thread % 3, || Ok(((), vec![]))).unwrap();
                    }
                });
            }
        });
        let state = lock(&window.state);
        assert_eq!(state.launched.len(), state.launches);
        assert!(state.launches <= 4);
    }
}
