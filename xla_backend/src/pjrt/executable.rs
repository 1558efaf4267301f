//! Compiling a program, and looking at what was compiled.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use shardax_core::TensorType;

use super::client::{Client, broken};
use super::compile_options::CompileOptions;
use super::dtype::from_buffer_type;
use super::ffi::{self, Program, RawExecutable, RawLoadedExecutable};
use super::foreign::{HostCalls, Running};
use super::hlo::{InputAlias, Interface};
use crate::error::Result;

/// A program that is compiled and loaded on its devices. Cloning gives another handle to it.
///
/// It is freed with the last handle, after the launches in flight.
#[derive(Clone, Debug)]
pub struct LoadedExecutable {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    handle: Handle,
    name: String,
    num_replicas: usize,
    num_partitions: usize,
    /// Positions of the devices in the client's list, in the order of the program's device numbers.
    pub(super) devices: Vec<usize>,
    pub(super) inputs: Vec<Arc<TensorType>>,
    pub(super) outputs: Vec<Arc<TensorType>>,
    aliases: Vec<InputAlias>,
    /// For every argument, whether a launch consumes it.
    pub(super) donated: Vec<bool>,
    /// The closures that it calls.
    pub(super) running: Option<Running>,
}

/// Both of PJRT's handles to a program: the one that runs and the one that tells.
#[derive(Debug)]
struct Handle {
    loaded: NonNull<RawLoadedExecutable>,
    executable: Option<NonNull<RawExecutable>>,
    client: Client,
}

// SAFETY: PJRT executables may be used and freed on any thread, and at the same time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let api = self.client.api();
        if let Some(executable) = self.executable {
            let mut arguments = ffi::ExecutableDestroy {
                executable: executable.as_ptr(),
                ..Default::default()
            };
            // SAFETY: the handle is alive and nothing uses it any more. That freeing fails is no use to anyone.
            let _ = unsafe { api.call(&mut arguments) };
        }
        let mut arguments = ffi::LoadedExecutableDestroy {
            executable: self.loaded.as_ptr(),
            ..Default::default()
        };
        // SAFETY: as above; the plugin keeps the code for launches under way.
        let _ = unsafe { api.call(&mut arguments) };
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

impl Client {
    /// Compiles a StableHLO module in MLIR text or bytecode.
    ///
    /// # Errors
    /// [`Error::CompileOptions`](crate::Error::CompileOptions) for options that XLA would not survive,
    /// [`Error::Pjrt`](crate::Error::Pjrt) for what XLA refuses in its own words.
    pub fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<LoadedExecutable> {
        self.compile_with_calls(program, options, &Arc::default())
    }

    /// Compiles a module that calls closures: `custom_call @shardax_host` with `api_version = 4` and the attribute `id` in
    /// its `backend_config`.
    ///
    /// An error of a closure comes from the results of the launch, as [`Error::HostFunction`](crate::Error::HostFunction).
    ///
    /// # Errors
    /// As for [`Client::compile`]; and [`Error::Foreign`](crate::Error::Foreign) on a platform that cannot call closures.
    pub fn compile_with_calls(
        &self,
        program: &[u8],
        options: &CompileOptions,
        calls: &Arc<HostCalls>,
    ) -> Result<LoadedExecutable> {
        const FORMAT: &str = "mlir";
        options.check(self.device_ids())?;
        if !calls.is_empty() {
            self.enable_host_calls()?;
        }
        let options = options.encode();
        let program = Program {
            // The API's struct serves for results too, hence the pointer to mutable; arguments are only read.
            code: program.as_ptr().cast_mut().cast(),
            code_size: program.len(),
            format: FORMAT.as_ptr().cast(),
            format_size: FORMAT.len(),
            ..Default::default()
        };
        let mut arguments = ffi::ClientCompile {
            client: self.raw(),
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..Default::default()
        };
        // SAFETY: the client is alive; program and options outlive the call; the result is ours.
        unsafe {
            self.api().call(&mut arguments)?;
            LoadedExecutable::from_raw(arguments.executable, self, calls)
        }
    }

    /// Loads what [`LoadedExecutable::serialize`] gave, on the devices and with the options it was compiled for.
    ///
    /// # Errors
    /// [`Error::Pjrt`](crate::Error::Pjrt) when the bytes are corrupt or of another plugin. A version of the plugin is not
    /// checked by the plugin itself, so keep the plugin's hash beside the bytes.
    pub fn deserialize_and_load(&self, bytes: &[u8]) -> Result<LoadedExecutable> {
        let mut arguments = ffi::ExecutableDeserializeAndLoad {
            client: self.raw(),
            bytes: bytes.as_ptr().cast(),
            bytes_size: bytes.len(),
            ..Default::default()
        };
        // SAFETY: the client is alive; the bytes outlive the call; the result is ours.
        unsafe {
            self.api().call(&mut arguments)?;
            LoadedExecutable::from_raw(arguments.loaded_executable, self, &Arc::default())
        }
    }
}

impl LoadedExecutable {
    /// Takes ownership of a loaded program and reads what never changes about it.
    ///
    /// # Safety
    /// `loaded` is null or a loaded executable of `client` that nothing else frees.
    unsafe fn from_raw(
        loaded: *mut RawLoadedExecutable,
        client: &Client,
        calls: &Arc<HostCalls>,
    ) -> Result<Self> {
        let loaded = NonNull::new(loaded).ok_or_else(|| broken("it returned no executable"))?;
        let mut handle = Handle {
            loaded,
            executable: None,
            client: client.clone(),
        };
        let mut get = ffi::LoadedExecutableGetExecutable {
            loaded_executable: loaded.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the program is loaded; the second handle is ours too.
        unsafe { client.api().call(&mut get) }?;
        handle.executable = NonNull::new(get.executable);
        let interface = Interface::decode(&handle.optimized_program()?.code)?;
        let mut donated = vec![false; interface.inputs.len()];
        for input in interface.donated {
            donated[input] = true;
        }
        let (num_replicas, num_partitions) = handle.copies()?;
        let inner = Inner {
            name: handle.name()?,
            num_replicas,
            num_partitions,
            devices: handle.devices()?,
            inputs: interface
                .inputs
                .into_iter()
                .map(|input| client.intern(input))
                .collect(),
            outputs: handle.outputs()?,
            aliases: interface.aliases,
            donated,
            running: (!calls.is_empty()).then(|| Running::new(calls.clone())),
            handle,
        };
        if inner.devices.is_empty() {
            return Err(broken("it loaded a program on no device of this process"));
        }
        Ok(LoadedExecutable {
            inner: Arc::new(inner),
        })
    }

    /// The program's name: that of its module.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The client that it belongs to.
    pub fn client(&self) -> &Client {
        &self.inner.handle.client
    }

    /// Copies that run side by side.
    pub fn num_replicas(&self) -> usize {
        self.inner.num_replicas
    }

    /// Devices that a copy is partitioned over.
    pub fn num_partitions(&self) -> usize {
        self.inner.num_partitions
    }

    /// The devices of this process that it runs on, as positions in [`Client::devices`].
    pub fn devices(&self) -> &[usize] {
        &self.inner.devices
    }

    /// The type of each argument on one device: that of a shard, for an argument that is sharded.
    pub fn input_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.inner.inputs.iter().map(Arc::as_ref)
    }

    /// The type of each result on one device.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.inner.outputs.iter().map(Arc::as_ref)
    }

    /// Which arguments' memory which results reuse. A donated argument that is not here is consumed without any gain.
    pub fn input_aliases(&self) -> &[InputAlias] {
        &self.inner.aliases
    }

    /// Whether a launch consumes the argument at this position, unless its options say otherwise.
    pub fn is_donated(&self, input: usize) -> bool {
        self.inner.donated.get(input).copied().unwrap_or(false)
    }

    /// The compiled program as bytes that the same version of the plugin can load.
    ///
    /// # Errors
    /// When the plugin cannot serialize.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.inner.handle.serialize()
    }

    /// The program after XLA's optimizations, partitioned and scheduled.
    ///
    /// # Errors
    /// When the plugin does not keep it.
    pub fn optimized_program(&self) -> Result<OptimizedProgram> {
        self.inner.handle.optimized_program()
    }

    /// The memory that the program needs on one device.
    ///
    /// # Errors
    /// When the plugin does not know.
    pub fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        self.inner.handle.memory_stats()
    }

    /// The compiler's own hash of the program. Different plugins give the same for different code.
    ///
    /// # Errors
    /// When the plugin has none.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        self.inner.handle.fingerprint()
    }

    pub(super) fn raw(&self) -> *mut RawLoadedExecutable {
        self.inner.handle.loaded.as_ptr()
    }
}

impl Handle {
    fn executable(&self) -> Result<*mut RawExecutable> {
        let executable = self.executable.map(NonNull::as_ptr);
        executable.ok_or_else(|| broken("it returned no executable"))
    }

    fn name(&self) -> Result<String> {
        let mut arguments = ffi::ExecutableName {
            executable: self.executable()?,
            ..Default::default()
        };
        // SAFETY: the executable is alive, and so is its name.
        unsafe {
            self.client.api().call(&mut arguments)?;
            Ok(ffi::string(arguments.name, arguments.name_size))
        }
    }

    /// Replicas and partitions.
    fn copies(&self) -> Result<(usize, usize)> {
        let executable = self.executable()?;
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
            self.client.api().call(&mut replicas)?;
            self.client.api().call(&mut partitions)?;
        }
        Ok((replicas.num_replicas, partitions.num_partitions))
    }

    fn devices(&self) -> Result<Vec<usize>> {
        let mut arguments = ffi::LoadedExecutableAddressableDevices {
            executable: self.loaded.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the program is loaded; the list lives as long as it.
        let devices = unsafe {
            self.client.api().call(&mut arguments)?;
            ffi::slice(arguments.devices, arguments.num_devices)
        };
        devices
            .iter()
            .map(|&device| self.client.position(device))
            .collect()
    }

    fn outputs(&self) -> Result<Vec<Arc<TensorType>>> {
        let executable = self.executable()?;
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
        let api = self.client.api();
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
            let tensor_type = TensorType::new(from_buffer_type(element_type)?, shape);
            outputs.push(self.client.intern(tensor_type));
        }
        Ok(outputs)
    }

    fn optimized_program(&self) -> Result<OptimizedProgram> {
        let mut program = Program::default();
        let mut arguments = ffi::ExecutableOptimizedProgram {
            executable: self.executable()?,
            program: &mut program,
            ..Default::default()
        };
        let api = self.client.api();
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

    fn serialize(&self) -> Result<Vec<u8>> {
        let mut arguments = ffi::ExecutableSerialize {
            executable: self.executable()?,
            ..Default::default()
        };
        // SAFETY: the executable is alive; the bytes live until the deleter is called, which happens once.
        unsafe {
            self.client.api().call(&mut arguments)?;
            let bytes = ffi::bytes(arguments.bytes, arguments.bytes_size);
            if let Some(deleter) = arguments.deleter {
                deleter(arguments.serialized);
            }
            Ok(bytes)
        }
    }

    fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        let mut stats = ffi::ExecutableMemoryStats {
            executable: self.executable()?,
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { self.client.api().call(&mut stats) }?;
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

    fn fingerprint(&self) -> Result<Vec<u8>> {
        let mut arguments = ffi::ExecutableFingerprint {
            executable: self.executable()?,
            ..Default::default()
        };
        // SAFETY: the executable is alive, and so is its fingerprint.
        unsafe {
            self.client.api().call(&mut arguments)?;
            Ok(ffi::bytes(
                arguments.fingerprint,
                arguments.fingerprint_size,
            ))
        }
    }
}
