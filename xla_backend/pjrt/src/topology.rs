//! A topology: devices that need not be there, which a plugin compiles for without a client.
//!
//! The topology's description is the plugin's affair, as a client's options are.

use std::ptr::NonNull;

use super::client::{ClientOption, broken, named_value};
use super::compiled::{CompiledMemoryStats, Executable, OptimizedProgram, mlir};
use super::ffi::{self, NamedValue, RawTopology};
use super::plugin::Plugin;
use crate::error::Result;

/// The description of devices to compile for.
#[derive(Debug)]
pub(crate) struct Topology {
    raw: NonNull<RawTopology>,
    plugin: Plugin,
}

// SAFETY: a topology does not change once it is made, and may be read and freed on any thread.
unsafe impl Send for Topology {}
// SAFETY: as above.
unsafe impl Sync for Topology {}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut arguments = ffi::TopologyDestroy {
            topology: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the handle is alive and nothing uses it any more. That freeing fails is no use to anyone.
        let _ = unsafe { self.plugin.api().call(&mut arguments) };
    }
}

/// A program that was compiled for a [`Topology`], and is loaded on no device.
#[derive(Debug)]
pub(crate) struct AheadExecutable {
    executable: Executable,
}

impl Topology {
    /// Describes devices to a plugin. What the name and the options mean, each plugin decides.
    ///
    /// # Errors
    /// [`Error::Pjrt`](crate::Error::Pjrt) for what the plugin refuses,
    /// [`Error::MissingFunction`](crate::Error::MissingFunction) for a plugin that cannot describe absent devices.
    pub(crate) fn new(
        plugin: &Plugin,
        name: &str,
        options: &[(String, ClientOption)],
    ) -> Result<Self> {
        let values: Vec<NamedValue> = options
            .iter()
            .map(|(name, option)| named_value(name, option))
            .collect();
        let mut arguments = ffi::TopologyCreate {
            name: name.as_ptr().cast(),
            name_size: name.len(),
            create_options: values.as_ptr(),
            num_options: values.len(),
            ..Default::default()
        };
        // SAFETY: the name, the options and what they point to outlive the call, which copies them.
        unsafe { plugin.api().call(&mut arguments) }?;
        let raw = NonNull::new(arguments.topology)
            .ok_or_else(|| broken("PJRT_TopologyDescription_Create returned no topology"))?;
        Ok(Topology {
            raw,
            plugin: *plugin,
        })
    }

    /// Compiles a StableHLO module in MLIR text or bytecode for these devices, with the options that
    /// [`CompileOptions::encode`](super::CompileOptions::encode) gave.
    ///
    /// XLA may abort the process over a program, options or a topology that it did not foresee, so this is for a process
    /// that nobody minds losing.
    ///
    /// # Errors
    /// [`Error::Pjrt`](crate::Error::Pjrt) for what XLA refuses in its own words.
    pub(crate) fn compile(&self, program: &[u8], options: &[u8]) -> Result<AheadExecutable> {
        let program = mlir(program);
        let mut arguments = ffi::Compile {
            topology: self.raw.as_ptr(),
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..Default::default()
        };
        let api = self.plugin.api();
        // SAFETY: the topology is alive; program and options outlive the call; no client is given; the result is ours.
        let executable = unsafe {
            api.call(&mut arguments)?;
            Executable::from_raw(arguments.executable, api)
        }?;
        Ok(AheadExecutable { executable })
    }
}

impl AheadExecutable {
    /// The program after XLA's optimizations, partitioned and scheduled.
    ///
    /// # Errors
    /// When the plugin does not keep it.
    pub(crate) fn optimized_program(&self) -> Result<OptimizedProgram> {
        self.executable.optimized_program()
    }

    /// The memory that the program needs on one device.
    ///
    /// # Errors
    /// When the plugin does not know.
    pub(crate) fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        self.executable.memory_stats()
    }
}
