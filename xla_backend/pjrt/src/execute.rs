//! Launching a compiled program: the hot path.
//!
//! A launch makes a fixed number of allocations, whatever the number of arguments, and checks each argument by comparing
//! pointers and one atomic operation. The checks are always on, for what they prevent is silent: XLA reads a buffer of the
//! wrong type with the right number of bytes as if it were right.

use std::ptr::null_mut;
use std::sync::Arc;

use super::buffer::Buffer;
use super::event::{self, EventHandle};
use super::executable::LoadedExecutable;
use super::ffi::{self, RawBuffer, RawEvent, RawExecuteOptions};
use super::foreign::Running;
use super::window::Launch;
use crate::error::{ArgumentFault, Error, Result};

/// Options of one launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// Arguments that this launch must not consume although the program was compiled to.
    pub non_donatable_inputs: Vec<usize>,
}

/// The results of a launch, which may be under way.
#[derive(Debug)]
pub struct Execution {
    /// All results: those of the first result on every device, in the order of [`LoadedExecutable::devices`], then those of
    /// the second, and so on.
    pub outputs: Vec<Buffer>,
    /// The launch, for waiting.
    pub launch: Launch,
}

impl LoadedExecutable {
    /// Launches the program on all its devices.
    ///
    /// `argument(device, input)` is the buffer for an argument on a device, `device` being a position in [`Self::devices`]; it
    /// is asked once for each of them. Returns as soon as the work is handed to the devices, which may be after earlier
    /// launches are done: only a bounded number of them is in flight. Arguments that the program consumes are gone
    /// afterwards, unless this returns an error.
    ///
    /// # Errors
    /// [`Error::Arguments`] with every argument that does not fit; nothing is launched then. [`Error::LaunchedInCallback`]
    /// inside of a host function or an event's callback. [`Error::Pjrt`] for what the plugin refuses. An error of the program itself comes from its results, or from [`Launch::wait`].
    pub fn execute<'a>(
        &self,
        num_arguments: usize,
        argument: impl Fn(usize, usize) -> &'a Buffer,
        options: &ExecuteOptions,
    ) -> Result<Execution> {
        if event::in_callback() {
            return Err(Error::LaunchedInCallback {
                program: self.name().into(),
            });
        }
        let num_devices = self.inner.devices.len();
        let donated = self.donated(options);
        let mut faults = options_faults(options, self.inner.inputs.len());
        if num_arguments != self.inner.inputs.len() {
            faults.push(ArgumentFault::Count {
                expected: self.inner.inputs.len(),
                actual: num_arguments,
            });
            return Err(self.refuse(faults));
        }
        let mut buffers = Vec::with_capacity(num_devices * num_arguments);
        for device in 0..num_devices {
            buffers.extend((0..num_arguments).map(|input| argument(device, input)));
        }
        self.check(&buffers, &mut faults);
        if !faults.is_empty() {
            return Err(self.refuse(faults));
        }
        let turn = self.inner.running.as_ref().and_then(Running::turn);
        // Claimed only when it is this launch's turn, so that waiting for it keeps no buffer from anyone.
        let (outputs, completion) = self.client().window().launch(num_devices, || {
            let claims = Claims::take(&buffers, &donated).map_err(|faults| self.refuse(faults))?;
            let launched = self.launch(&buffers, options)?;
            claims.launched();
            Ok(launched)
        })?;
        if let Some(running) = &self.inner.running {
            running.launched(&completion, turn);
        }
        Ok(Execution {
            outputs,
            launch: Launch::new(completion, self.client()),
        })
    }

    /// For every argument, whether this launch consumes it.
    fn donated(&self, options: &ExecuteOptions) -> std::borrow::Cow<'_, [bool]> {
        let mut donated = std::borrow::Cow::Borrowed(self.inner.donated.as_slice());
        for &input in &options.non_donatable_inputs {
            if self.is_donated(input) {
                donated.to_mut()[input] = false;
            }
        }
        donated
    }

    fn refuse(&self, faults: Vec<ArgumentFault>) -> Error {
        Error::Arguments {
            program: self.name().into(),
            faults,
        }
    }

    /// Compares each buffer with what the program was compiled for.
    fn check(&self, buffers: &[&Buffer], faults: &mut Vec<ArgumentFault>) {
        let client = self.client();
        let inputs = &self.inner.inputs;
        let mut buffers = buffers.iter();
        for (device, &position) in self.inner.devices.iter().enumerate() {
            for (argument, (expected, buffer)) in inputs.iter().zip(buffers.by_ref()).enumerate() {
                if !buffer.client().is_same(client) {
                    faults.push(ArgumentFault::Client { argument, device });
                    continue;
                }
                let actual = buffer.shared_type();
                if !Arc::ptr_eq(expected, actual) && expected != actual {
                    faults.push(ArgumentFault::Type {
                        argument,
                        device,
                        expected: expected.to_string(),
                        actual: actual.to_string(),
                    });
                }
                if buffer.device() != position {
                    faults.push(ArgumentFault::Device {
                        argument,
                        expected: position,
                        actual: buffer.device(),
                    });
                }
            }
        }
    }

    /// Calls the plugin. `buffers` are checked and claimed, device by device.
    fn launch(
        &self,
        buffers: &[&Buffer],
        options: &ExecuteOptions,
    ) -> Result<(Vec<Buffer>, Vec<EventHandle>)> {
        let client = self.client();
        let devices = &self.inner.devices;
        let types = &self.inner.outputs;
        let arguments: Vec<*mut RawBuffer> = buffers.iter().map(|buffer| buffer.raw()).collect();
        let mut results: Vec<*mut RawBuffer> = vec![null_mut(); devices.len() * types.len()];
        let mut events: Vec<*mut RawEvent> = vec![null_mut(); devices.len()];
        let inputs = self.inner.inputs.len();
        let argument_lists: Vec<_> = (0..devices.len())
            .map(|d| arguments[d * inputs..].as_ptr())
            .collect();
        let result_lists: Vec<_> = (0..devices.len())
            .map(|d| results[d * types.len()..].as_mut_ptr())
            .collect();
        let kept: Vec<i64> = options
            .non_donatable_inputs
            .iter()
            .map(|&input| input as i64)
            .collect();
        let mut raw_options = RawExecuteOptions {
            non_donatable_input_indices: kept.as_ptr(),
            num_non_donatable_input_indices: kept.len(),
            ..Default::default()
        };
        let mut call = ffi::LoadedExecutableExecute {
            executable: self.raw(),
            options: &mut raw_options,
            argument_lists: argument_lists.as_ptr(),
            num_devices: devices.len(),
            num_args: inputs,
            output_lists: result_lists.as_ptr(),
            device_complete_events: events.as_mut_ptr(),
            ..Default::default()
        };
        // SAFETY: program and buffers are alive; every device has its list of as many arguments as the program takes, each of
        // the right type on the right device and claimed against deletion, and its list for as many results as it gives.
        unsafe { client.api().call(&mut call) }?;
        // SAFETY: the events are ours; the window waits for them before the client ends.
        let events = events
            .into_iter()
            .filter_map(|raw| unsafe { EventHandle::from_raw(client.api(), raw) });
        let events = events.collect();
        let mut outputs = Vec::with_capacity(results.len());
        for (output, array_type) in types.iter().enumerate() {
            for (device, &position) in devices.iter().enumerate() {
                let raw = results[device * types.len() + output];
                // SAFETY: the result is ours; the program gives this type at this place.
                outputs
                    .push(unsafe { Buffer::from_raw(raw, array_type.clone(), position, client) }?);
            }
        }
        Ok((outputs, events))
    }
}

fn options_faults(options: &ExecuteOptions, arguments: usize) -> Vec<ArgumentFault> {
    let indices = options.non_donatable_inputs.iter();
    let beyond = indices.filter(|&&index| index >= arguments);
    beyond
        .map(|&index| ArgumentFault::NonDonatableIndex { index, arguments })
        .collect()
}

/// The claims of one launch on its arguments, given back when dropped.
struct Claims<'a> {
    buffers: &'a [&'a Buffer],
    donated: &'a [bool],
    /// How many of `buffers` are claimed.
    taken: usize,
    launched: bool,
}

impl<'a> Claims<'a> {
    /// Claims all buffers or none: those that are donated for good, the others for the time of the call.
    fn take(buffers: &'a [&'a Buffer], donated: &'a [bool]) -> Result<Self, Vec<ArgumentFault>> {
        let mut claims = Claims {
            buffers,
            donated,
            taken: 0,
            launched: false,
        };
        for (buffer, donate) in claims.pairs(buffers.len()) {
            let claimed = if donate {
                buffer.claim_all()
            } else {
                buffer.claim()
            };
            if !claimed {
                return Err(claims.faults());
            }
            claims.taken += 1;
        }
        Ok(claims)
    }

    /// The first buffers, and whether each is donated.
    fn pairs(&self, count: usize) -> impl Iterator<Item = (&'a Buffer, bool)> + use<'a> {
        let donated = self.donated;
        let buffers = self.buffers.iter().take(count).copied();
        buffers.zip(donated.iter().copied().cycle())
    }

    /// Why claiming the next buffer failed, and every other buffer that is gone.
    fn faults(&self) -> Vec<ArgumentFault> {
        let mut faults = vec![];
        for (index, (buffer, donate)) in self.pairs(self.buffers.len()).enumerate() {
            let (device, argument) = (index / self.donated.len(), index % self.donated.len());
            let ours = index < self.taken;
            if buffer.is_deleted() && !(ours && donate) && !self.donated_here(buffer) {
                faults.push(ArgumentFault::Deleted { argument, device });
            } else if index == self.taken {
                faults.push(ArgumentFault::DonatedInUse { argument, device });
            }
        }
        faults
    }

    /// Whether this launch itself donates the buffer, at an earlier position.
    fn donated_here(&self, buffer: &Buffer) -> bool {
        let mut taken = self.pairs(self.taken);
        taken.any(|(other, donate)| donate && std::ptr::eq(other, buffer))
    }

    fn launched(mut self) {
        self.launched = true;
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for (buffer, donate) in self.pairs(self.taken) {
            match (donate, self.launched) {
                (false, _) => buffer.release(),
                (true, false) => buffer.unclaim_all(),
                (true, true) => {}
            }
        }
    }
}
