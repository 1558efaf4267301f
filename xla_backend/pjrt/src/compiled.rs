//! A compiled program, loaded on devices or not, and what it tells of itself.

use std::ffi::c_char;
use std::ptr::NonNull;

use super::client::broken;
use super::element::{ArrayType, ElementType};
use super::ffi::{self, Api, Program, RawExecutable};
use crate::error::Result;

/// The handle of PJRT's that tells of a program.
///
/// Whoever has one that a client made keeps the client too.
#[derive(Debug)]
pub(super) struct Executable {
    raw: NonNull<RawExecutable>,
    api: Api,
}

// SAFETY: PJRT executables may be used and freed on any thread, and at the same time.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut arguments = ffi::ExecutableDestroy {
            executable: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the handle is alive and nothing uses it any more. That freeing fails is no use to anyone.
        let _ = unsafe { self.api.call(&mut arguments) };
    }
}

/// The memory that a program needs on one device, in bytes, as XLA assigned it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompiledMemoryStats {
    /// Machine code.
    pub generated_code: u64,
    /// Arguments.
    pub argument: u64,
    /// Results.
    pub output: u64,
    /// The part of the results that reuses arguments.
    pub alias: u64,
    /// Intermediate values.
    pub temp: u64,
    /// Arguments in host memory.
    pub host_argument: u64,
    /// Results in host memory.
    pub host_output: u64,
    /// The part of the results in host memory that reuses arguments.
    pub host_alias: u64,
    /// Intermediate values in host memory.
    pub host_temp: u64,
    /// The most that is in use at one time.
    pub peak: u64,
}

/// A program after XLA's optimizations.
#[derive(Clone, Debug)]
pub struct OptimizedProgram {
    /// What `code` is: `hlo_with_config` for a serialized `HloModuleProtoWithConfig`.
    pub format: String,
    /// The serialized program.
    pub code: Vec<u8>,
}

/// A module in MLIR text or bytecode as C sees it; it points into `code`.
pub(super) fn mlir(code: &[u8]) -> Program {
    const FORMAT: &str = "mlir";
    Program {
        // The API's struct serves for results too, hence the pointer to mutable; arguments are only read.
        code: code.as_ptr().cast_mut().cast(),
        code_size: code.len(),
        format: FORMAT.as_ptr().cast(),
        format_size: FORMAT.len(),
        ..Default::default()
    }
}

impl Executable {
    /// Takes ownership of an executable.
    ///
    /// # Safety
    /// `raw` is null or an executable of this plugin that nothing else frees.
    pub(super) unsafe fn from_raw(raw: *mut RawExecutable, api: Api) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(|| broken("it returned no executable"))?;
        Ok(Executable { raw, api })
    }

    pub(super) fn name(&self) -> Result<String> {
        let mut arguments = ffi::ExecutableName {
            executable: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the executable is alive, and so is its name.
        unsafe {
            self.api.call(&mut arguments)?;
            Ok(ffi::string(arguments.name, arguments.name_size))
        }
    }

    /// Replicas and partitions.
    pub(super) fn copies(&self) -> Result<(usize, usize)> {
        let executable = self.raw.as_ptr();
        let mut replicas = ffi::ExecutableNumReplicas {
            executable,
            ..Default::default()
        };
        let mut partitions = ffi::ExecutableNumPartitions {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe {
            self.api.call(&mut replicas)?;
            self.api.call(&mut partitions)?;
        }
        Ok((replicas.num_replicas, partitions.num_partitions))
    }

    pub(super) fn outputs(&self) -> Result<Vec<ArrayType>> {
        let executable = self.raw.as_ptr();
        let mut count = ffi::ExecutableNumOutputs {
            executable,
            ..Default::default()
        };
        let mut types = ffi::ExecutableOutputElementTypes {
            executable,
            ..Default::default()
        };
        let mut dimensions = ffi::ExecutableOutputDimensions {
            executable,
            ..Default::default()
        };
        let api = self.api;
        // SAFETY: the executable is alive, and the lists live as long as it; `ranks` tells how long `dims` is.
        let (types, ranks, dims) = unsafe {
            api.call(&mut count)?;
            api.call(&mut types)?;
            api.call(&mut dimensions)?;
            let ranks = ffi::slice(dimensions.dim_sizes, dimensions.num_outputs);
            let dims = ffi::slice(dimensions.dims, ranks.iter().sum());
            (ffi::slice(types.types, types.num_types), ranks, dims)
        };
        if types.len() != count.num_outputs || ranks.len() != count.num_outputs {
            return Err(broken(
                "it tells different numbers of results of one program",
            ));
        }
        let mut dims = dims.iter();
        let mut outputs = vec![];
        for (&element_type, &rank) in types.iter().zip(ranks) {
            let shape = dims.by_ref().take(rank).map(|&size| usize::try_from(size));
            let shape = shape.collect::<Result<Vec<_>, _>>();
            let shape = shape.map_err(|_| broken("a result has a negative size"))?;
            outputs.push(ArrayType::new(
                ElementType::from_buffer_type(element_type)?,
                shape,
            ));
        }
        Ok(outputs)
    }

    pub(super) fn optimized_program(&self) -> Result<OptimizedProgram> {
        let mut program = Program::default();
        let mut arguments = ffi::ExecutableOptimizedProgram {
            executable: self.raw.as_ptr(),
            program: &mut program,
            ..Default::default()
        };
        let api = self.api;
        // SAFETY: the executable is alive; without a place for the code the plugin only tells its size.
        unsafe { api.call(&mut arguments) }?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast::<c_char>();
        arguments.program = &mut program;
        // SAFETY: `code` has the size that the plugin asked for.
        unsafe { api.call(&mut arguments) }?;
        // SAFETY: the name of the format is the plugin's, and lives as long as the executable.
        let format = unsafe { ffi::string(program.format, program.format_size) };
        Ok(OptimizedProgram { format, code })
    }

    pub(super) fn serialize(&self) -> Result<Vec<u8>> {
        let mut arguments = ffi::ExecutableSerialize {
            executable: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the executable is alive; the bytes live until the deleter is called, which happens once.
        unsafe {
            self.api.call(&mut arguments)?;
            let bytes = ffi::bytes(arguments.bytes, arguments.bytes_size);
            if let Some(deleter) = arguments.deleter {
                deleter(arguments.serialized);
            }
            Ok(bytes)
        }
    }

    pub(super) fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        let mut stats = ffi::ExecutableMemoryStats {
            executable: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { self.api.call(&mut stats) }?;
        let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        Ok(CompiledMemoryStats {
            generated_code: bytes(stats.generated_code),
            argument: bytes(stats.argument),
            output: bytes(stats.output),
            alias: bytes(stats.alias),
            temp: bytes(stats.temp),
            host_argument: bytes(stats.host_argument),
            host_output: bytes(stats.host_output),
            host_alias: bytes(stats.host_alias),
            host_temp: bytes(stats.host_temp),
            peak: bytes(stats.peak_memory),
        })
    }

    pub(super) fn fingerprint(&self) -> Result<Vec<u8>> {
        let mut arguments = ffi::ExecutableFingerprint {
            executable: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the executable is alive, and so is its fingerprint.
        unsafe {
            self.api.call(&mut arguments)?;
            Ok(ffi::bytes(
                arguments.fingerprint,
                arguments.fingerprint_size,
            ))
        }
    }
}
