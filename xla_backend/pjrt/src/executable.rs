//! Compiling a program, and looking at what was compiled.

use std::ptr::NonNull;
use std::sync::Arc;

use super::client::{Client, broken};
use super::compile_options::CompileOptions;
use super::compiled::{CompiledMemoryStats, Executable, OptimizedProgram, mlir};
use super::element::ArrayType;
use super::ffi::{self, RawLoadedExecutable};
use super::foreign::{HOST_PLATFORM, HostCalls, Running};
use super::interface::{InputAlias, Interface};
use super::order;
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
    /// Freed first, as the client goes with `handle`.
    executable: Executable,
    handle: Handle,
    name: String,
    num_replicas: usize,
    num_partitions: usize,
    /// Positions of the devices in the client's list, in the order of the program's device numbers.
    pub(super) devices: Vec<usize>,
    pub(super) inputs: Vec<Arc<ArrayType>>,
    pub(super) outputs: Vec<Arc<ArrayType>>,
    aliases: Vec<InputAlias>,
    /// For every argument, whether a launch consumes it.
    pub(super) donated: Vec<bool>,
    /// The closures that it calls.
    pub(super) running: Option<Running>,
}

/// PJRT's handle to a program that runs.
#[derive(Debug)]
struct Handle {
    loaded: NonNull<RawLoadedExecutable>,
    client: Client,
}

// SAFETY: PJRT executables may be used and freed on any thread, and at the same time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut arguments = ffi::LoadedExecutableDestroy {
            executable: self.loaded.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the handle is alive and nothing uses it any more; the plugin keeps the code for launches under way. That
        // freeing fails is no use to anyone.
        let _ = unsafe { self.client.api().call(&mut arguments) };
    }
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
        options.check(self.device_ids())?;
        if !calls.is_empty() {
            self.enable_host_calls()?;
        }
        let options = options.encode();
        let program = mlir(program);
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
        let handle = Handle {
            loaded,
            client: client.clone(),
        };
        let mut get = ffi::LoadedExecutableGetExecutable {
            loaded_executable: loaded.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the program is loaded; the second handle is ours too.
        let executable = unsafe {
            client.api().call(&mut get)?;
            Executable::from_raw(get.executable, client.api())
        }?;
        let interface = Interface::decode(&executable.optimized_program()?.code)?;
        let mut donated = vec![false; interface.inputs.len()];
        for input in interface.donated {
            donated[input] = true;
        }
        let (num_replicas, num_partitions) = executable.copies()?;
        let inner = Inner {
            name: executable.name()?,
            num_replicas,
            num_partitions,
            devices: handle.devices()?,
            inputs: interface
                .inputs
                .into_iter()
                .map(|input| client.intern(input))
                .collect(),
            outputs: executable
                .outputs()?
                .into_iter()
                .map(|output| client.intern(output))
                .collect(),
            aliases: interface.aliases,
            donated,
            running: (!calls.is_empty()).then(|| Running::new(calls.clone())),
            executable,
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
    pub fn input_types(&self) -> impl ExactSizeIterator<Item = &ArrayType> {
        self.inner.inputs.iter().map(Arc::as_ref)
    }

    /// The type of each result on one device.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = &ArrayType> {
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
    /// When the plugin cannot serialize; and [`Error::Serialize`](crate::Error::Serialize) for a program of a CPU whose
    /// collectives would have no order when it is loaded, and could then wait for each other.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let bytes = self.inner.executable.serialize()?;
        if self.client().platform_name() == HOST_PLATFORM {
            order::restored(&bytes)
        } else {
            Ok(bytes)
        }
    }

    /// The program after XLA's optimizations, partitioned and scheduled.
    ///
    /// # Errors
    /// When the plugin does not keep it.
    pub fn optimized_program(&self) -> Result<OptimizedProgram> {
        self.inner.executable.optimized_program()
    }

    /// The memory that the program needs on one device.
    ///
    /// # Errors
    /// When the plugin does not know.
    pub fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        self.inner.executable.memory_stats()
    }

    /// The compiler's own hash of the program. Different plugins give the same for different code.
    ///
    /// # Errors
    /// When the plugin has none.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        self.inner.executable.fingerprint()
    }

    pub(super) fn raw(&self) -> *mut RawLoadedExecutable {
        self.inner.handle.loaded.as_ptr()
    }
}

impl Handle {
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
}
