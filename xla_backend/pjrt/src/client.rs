//! A client: the devices of one process on one platform, and everything that is made on them.

use std::collections::HashSet;
use std::ffi::{c_char, c_uint};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::element::ArrayType;
use super::event;
use super::ffi::{
    self, Api, NamedValue, RawClient, RawDevice, RawDeviceDescription, RawMemory, Value,
};
use super::plugin::Plugin;
use super::window::Window;
use crate::error::{Error, Result};

/// The most virtual CPU devices that a client may have: XLA takes those beyond for another process's, and compiles no
/// program for them.
const MAX_CPU_DEVICES: i64 = 2048;

/// A connection to the devices of a plugin. Cloning gives another handle to the same client.
///
/// Buffers, events and compiled programs keep their client alive. When the last handle goes, the client waits for the
/// launches in flight and is destroyed.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    plugin: Plugin,
    raw: NonNull<RawClient>,
    platform_name: String,
    platform_version: String,
    process_index: i32,
    devices: Vec<Device>,
    device_ids: Vec<i32>,
    window: Window,
    /// One allocation for each type that a buffer or a program of this client has, so that equal types are mostly equal
    /// pointers.
    types: Mutex<HashSet<Arc<ArrayType>>>,
}

// SAFETY: PJRT clients and devices may be used from any thread and at the same time.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The value of an option for creating a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientOption {
    /// Text.
    String(String),
    /// A whole number.
    Int(i64),
    /// Whole numbers.
    IntList(Vec<i64>),
    /// A number.
    Float(f32),
    /// A boolean.
    Bool(bool),
}

impl fmt::Display for ClientOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientOption::String(value) => write!(f, "{value:?}"),
            ClientOption::Int(value) => write!(f, "{value}"),
            ClientOption::IntList(value) => write!(f, "{value:?}"),
            ClientOption::Float(value) => write!(f, "{value:?}"),
            ClientOption::Bool(value) => write!(f, "{value}"),
        }
    }
}

/// A device of a client.
#[derive(Debug)]
pub struct Device {
    raw: NonNull<RawDevice>,
    id: i32,
    kind: String,
    debug_string: String,
    process_index: i32,
    is_addressable: bool,
    memories: Vec<Memory>,
    default_memory: Option<usize>,
}

/// A memory that a device can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The number of this memory, unique on its platform.
    pub id: i32,
    /// Its kind, for example `device`, `pinned_host` or `unpinned_host`.
    pub kind: String,
}

impl Device {
    /// The device's number, unique over all hosts; compile options name devices by it.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The vendor's name of this kind of device, for example `cpu` or `NVIDIA H100 80GB HBM3`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// A description for messages.
    pub fn debug_string(&self) -> &str {
        &self.debug_string
    }

    /// The process that this device belongs to.
    pub fn process_index(&self) -> i32 {
        self.process_index
    }

    /// Whether this process can send work to it.
    pub fn is_addressable(&self) -> bool {
        self.is_addressable
    }

    /// The memories that it can use; empty for a device of another process.
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// The memory that holds buffers unless another is asked for.
    pub fn default_memory(&self) -> Option<&Memory> {
        self.default_memory.and_then(|i| self.memories.get(i))
    }

    pub(super) fn raw(&self) -> *mut RawDevice {
        self.raw.as_ptr()
    }
}

impl Client {
    /// Creates a client of a plugin with options that the plugin defines.
    ///
    /// A flag in `XLA_FLAGS` that XLA does not know aborts the process here; XLA offers no way to check it before.
    ///
    /// # Errors
    /// [`Error::ClientOption`] for a bad `cpu_device_count`, [`Error::Pjrt`] for what the plugin itself refuses.
    pub fn new(plugin: &Plugin, options: &[(String, ClientOption)]) -> Result<Self> {
        for (name, option) in options {
            if name == "cpu_device_count"
                && !matches!(option, ClientOption::Int(count) if (1..=MAX_CPU_DEVICES).contains(count))
            {
                return Err(Error::ClientOption {
                    name: name.clone(),
                    value: option.to_string(),
                    advice: "it must be a whole number from 1 to 2048",
                });
            }
        }
        let values: Vec<NamedValue> = options
            .iter()
            .map(|(name, option)| named_value(name, option))
            .collect();
        let mut arguments = ffi::ClientCreate {
            create_options: values.as_ptr(),
            num_options: values.len(),
            ..Default::default()
        };
        let api = plugin.api();
        // SAFETY: the options and what they point to outlive the call, which copies them; no callbacks are given.
        unsafe { api.call(&mut arguments) }?;
        let raw = NonNull::new(arguments.client)
            .ok_or_else(|| broken("PJRT_Client_Create returned no client"))?;
        // From here on dropping `inner` destroys the client.
        let mut inner = Inner {
            plugin: *plugin,
            raw,
            platform_name: String::new(),
            platform_version: String::new(),
            process_index: 0,
            devices: vec![],
            device_ids: vec![],
            window: Window::for_platform(""),
            types: Mutex::default(),
        };
        inner.describe(api)?;
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// Creates a client of a CPU plugin with this many virtual devices.
    ///
    /// # Errors
    /// [`Error::DeviceCount`] unless there are 1 to 2048 devices, [`Error::Pjrt`] for what the plugin itself refuses.
    pub fn cpu(plugin: &Plugin, device_count: usize) -> Result<Self> {
        let count = i64::try_from(device_count).unwrap_or(i64::MAX);
        if !(1..=MAX_CPU_DEVICES).contains(&count) {
            return Err(Error::DeviceCount {
                count: device_count,
                most: MAX_CPU_DEVICES,
            });
        }
        Self::new(
            plugin,
            &[("cpu_device_count".into(), ClientOption::Int(count))],
        )
    }

    /// The plugin that this is a client of.
    pub fn plugin(&self) -> &Plugin {
        &self.inner.plugin
    }

    /// The platform's name, for example `cpu` or `cuda`.
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    /// The platform's version in its own words.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    /// The number of this process among those that work together; 0 for a single one.
    pub fn process_index(&self) -> i32 {
        self.inner.process_index
    }

    /// All devices, those of other processes included. Functions of this module name a device by its position here.
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// The number of devices, those of other processes included.
    pub fn device_count(&self) -> usize {
        self.inner.devices.len()
    }

    /// Whether both are handles to one client.
    pub fn is_same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(super) fn api(&self) -> Api {
        self.inner.plugin.api()
    }

    pub(super) fn raw(&self) -> *mut RawClient {
        self.inner.raw.as_ptr()
    }

    pub(super) fn window(&self) -> &Window {
        &self.inner.window
    }

    /// Ids of the devices, in the order of [`Self::devices`].
    pub(super) fn device_ids(&self) -> &[i32] {
        &self.inner.device_ids
    }

    /// The device at a position, if this process can use it.
    pub(super) fn device(&self, device: usize) -> Result<&Device> {
        let fault = |reason| Error::Device { device, reason };
        let found = self.inner.devices.get(device).ok_or_else(|| {
            fault(format!(
                "the client has {} devices, numbered from 0",
                self.device_count()
            ))
        })?;
        if found.is_addressable {
            Ok(found)
        } else {
            Err(fault(format!(
                "it belongs to process {}",
                found.process_index
            )))
        }
    }

    /// The position of a device that the plugin named by its pointer.
    pub(super) fn position(&self, raw: *mut RawDevice) -> Result<usize> {
        let position = self
            .inner
            .devices
            .iter()
            .position(|device| device.raw() == raw);
        position.ok_or_else(|| broken("it named a device that is not among the client's"))
    }

    /// The shared allocation of a type.
    pub(super) fn intern(&self, array_type: ArrayType) -> Arc<ArrayType> {
        let mut types = self
            .inner
            .types
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = types.get(&array_type) {
            return known.clone();
        }
        let new = Arc::new(array_type);
        types.insert(new.clone());
        new
    }
}

pub(super) fn broken(what: &str) -> Error {
    Error::PluginContract { what: what.into() }
}

/// An option as C sees it; it points into the arguments.
pub(super) fn named_value(name: &str, option: &ClientOption) -> NamedValue {
    let (kind, value, value_size): (c_uint, Value, usize) = match option {
        ClientOption::String(text) => {
            let string: *const c_char = text.as_ptr().cast();
            (NamedValue::STRING, Value { string }, text.len())
        }
        ClientOption::Int(int64) => (NamedValue::INT64, Value { int64: *int64 }, 1),
        ClientOption::IntList(list) => {
            let int64_list = list.as_ptr();
            (NamedValue::INT64_LIST, Value { int64_list }, list.len())
        }
        ClientOption::Float(float) => (NamedValue::FLOAT, Value { float: *float }, 1),
        ClientOption::Bool(boolean) => (NamedValue::BOOL, Value { boolean: *boolean }, 1),
    };
    NamedValue {
        name: name.as_ptr().cast(),
        name_size: name.len(),
        kind,
        value,
        value_size,
        ..Default::default()
    }
}

impl Inner {
    /// Reads what never changes about a client and its devices.
    fn describe(&mut self, api: Api) -> Result<()> {
        let client = self.raw.as_ptr();
        let mut name = ffi::ClientPlatformName {
            client,
            ..Default::default()
        };
        let mut version = ffi::ClientPlatformVersion {
            client,
            ..Default::default()
        };
        let mut process = ffi::ClientProcessIndex {
            client,
            ..Default::default()
        };
        let mut list = ffi::ClientDevices {
            client,
            ..Default::default()
        };
        // SAFETY: the client is alive; the texts and the list live as long as it, and their lengths are beside them.
        let devices = unsafe {
            api.call(&mut name)?;
            self.platform_name = ffi::string(name.platform_name, name.platform_name_size);
            api.call(&mut version)?;
            self.platform_version =
                ffi::string(version.platform_version, version.platform_version_size);
            api.call(&mut process)?;
            api.call(&mut list)?;
            ffi::slice(list.devices, list.num_devices)
        };
        self.process_index = process.process_index;
        self.window = Window::for_platform(&self.platform_name);
        let devices = devices.iter().map(|&device| describe_device(api, device));
        self.devices = devices.collect::<Result<_>>()?;
        self.device_ids = self.devices.iter().map(Device::id).collect();
        Ok(())
    }
}

fn describe_device(api: Api, device: *mut RawDevice) -> Result<Device> {
    let raw = NonNull::new(device).ok_or_else(|| broken("it listed a null device"))?;
    let mut of_device = ffi::DeviceGetDescription {
        device,
        ..Default::default()
    };
    let mut addressable = ffi::DeviceIsAddressable {
        device,
        ..Default::default()
    };
    // SAFETY: devices live as long as their client, which the caller keeps.
    unsafe {
        api.call(&mut of_device)?;
        api.call(&mut addressable)?;
    }
    let description: *mut RawDeviceDescription = of_device.description;
    let mut id = ffi::DeviceDescriptionId {
        description,
        ..Default::default()
    };
    let mut process = ffi::DeviceDescriptionProcessIndex {
        description,
        ..Default::default()
    };
    let mut kind = ffi::DeviceDescriptionKind {
        description,
        ..Default::default()
    };
    let mut debug = ffi::DeviceDescriptionDebugString {
        description,
        ..Default::default()
    };
    // SAFETY: a description lives as long as its device, and so do its texts.
    let (kind, debug_string) = unsafe {
        api.call(&mut id)?;
        api.call(&mut process)?;
        api.call(&mut kind)?;
        api.call(&mut debug)?;
        (
            ffi::string(kind.kind, kind.kind_size),
            ffi::string(debug.debug_string, debug.debug_string_size),
        )
    };
    let (memories, default_memory) = if addressable.is_addressable {
        memories(api, device)?
    } else {
        (vec![], None)
    };
    Ok(Device {
        raw,
        id: id.id,
        kind,
        debug_string,
        process_index: process.process_index,
        is_addressable: addressable.is_addressable,
        memories,
        default_memory,
    })
}

/// A device's memories, and which of them is the default.
fn memories(api: Api, device: *mut RawDevice) -> Result<(Vec<Memory>, Option<usize>)> {
    let mut list = ffi::DeviceAddressableMemories {
        device,
        ..Default::default()
    };
    let mut default = ffi::DeviceDefaultMemory {
        device,
        ..Default::default()
    };
    // SAFETY: the device is alive, and the list lives as long as it.
    let raw = unsafe {
        api.call(&mut list)?;
        api.call(&mut default)?;
        ffi::slice(list.memories, list.num_memories)
    };
    // SAFETY: a device's memories live as long as the client.
    let memories = raw
        .iter()
        .map(|&memory| unsafe { describe_memory(api, memory) });
    let position = raw.iter().position(|&memory| memory == default.memory);
    Ok((memories.collect::<Result<_>>()?, position))
}

/// # Safety
/// `memory` is a memory of a living client of this plugin.
pub(super) unsafe fn describe_memory(api: Api, memory: *mut RawMemory) -> Result<Memory> {
    let mut id = ffi::MemoryId {
        memory,
        ..Default::default()
    };
    let mut kind = ffi::MemoryKind {
        memory,
        ..Default::default()
    };
    // SAFETY: the memory is alive, and its text lives as long as it.
    unsafe {
        api.call(&mut id)?;
        api.call(&mut kind)?;
        Ok(Memory {
            id: id.id,
            kind: ffi::string(kind.kind, kind.kind_size),
        })
    }
}

/// What is left to do when a client ends.
struct Ending {
    api: Api,
    raw: NonNull<RawClient>,
}

// SAFETY: a client may be destroyed on any thread.
unsafe impl Send for Ending {}

impl Ending {
    fn destroy(self) {
        let mut arguments = ffi::ClientDestroy {
            client: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: everything made with the client held a handle to it, so nothing of it is left. That freeing fails is no
        // use to anyone.
        let _ = unsafe { self.api.call(&mut arguments) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let in_flight = self.window.take();
        let ending = Ending {
            api: self.plugin.api(),
            raw: self.raw,
        };
        let end = move || {
            for launch in in_flight {
                // The error of a launch whose results nobody kept.
                let _ = launch.wait();
            }
            ending.destroy();
        };
        if event::in_callback() {
            // On this thread the client would wait for itself. Should no thread be had, the client stays.
            let _ = thread::Builder::new()
                .name("pjrt-client-end".into())
                .spawn(end);
        } else {
            end();
        }
    }
}
