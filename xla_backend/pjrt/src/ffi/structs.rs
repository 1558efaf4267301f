//! Structs and constants of the C API, by hand and only those that are used.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;

use super::Function;

/// Types that only the plugin knows the inside of.
macro_rules! opaque {
    ($($name:ident),* $(,)?) => {
        $(
            #[repr(C)]
            pub(crate) struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

opaque!(
    RawBuffer,
    RawClient,
    RawDevice,
    RawDeviceDescription,
    RawError,
    RawEvent,
    RawExecutable,
    RawLoadedExecutable,
    RawMemory,
    RawSerializedExecutable,
    RawTopology,
);

/// A struct of the C API: its own size and the extension chain come first, in every one of them.
macro_rules! c_struct {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) struct_size: usize,
            pub(crate) extension_start: *mut c_void,
            $(pub(crate) $field: $type,)*
        }

        impl $name {
            /// Offset of the last field and its size, as the API defines the size of a struct (no padding at the end).
            pub(crate) const STRUCT_SIZE: usize = {
                let ends = [
                    offset_of!($name, extension_start) + size_of::<*mut c_void>(),
                    $(offset_of!($name, $field) + size_of::<$type>(),)*
                ];
                ends[ends.len() - 1]
            };
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    struct_size: Self::STRUCT_SIZE,
                    extension_start: null_mut(),
                    $($field: Default::default(),)*
                }
            }
        }
    };
}

/// One line a function: slot, C name, the Rust name of its arguments, and the fields.
macro_rules! functions {
    ($($slot:literal $c_name:ident $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            c_struct! { $name { $($field: $type),* } }

            // SAFETY: slot and fields are those of the C header; a test compares slots and sizes with it.
            unsafe impl Function for $name {
                const SLOT: usize = $slot;
                const NAME: &'static str = stringify!($c_name);
            }
        )*

        /// Name, slot and struct size of every function here.
        #[cfg(test)]
        const FUNCTIONS: &[(&str, usize, usize)] =
            &[$((stringify!($c_name), $slot, $name::STRUCT_SIZE)),*];
    };
}

c_struct! {
    /// A key with a value of one of five kinds.
    NamedValue {
        name: *const c_char,
        name_size: usize,
        kind: c_uint,
        value: Value,
        value_size: usize,
    }
}

/// The value of a [`NamedValue`], by its kind.
#[repr(C)]
pub(crate) union Value {
    pub(crate) string: *const c_char,
    pub(crate) int64: i64,
    pub(crate) int64_list: *const i64,
    pub(crate) float: f32,
    pub(crate) boolean: bool,
}

impl Default for Value {
    fn default() -> Self {
        Value { int64: 0 }
    }
}

impl NamedValue {
    pub(crate) const STRING: c_uint = 0;
    pub(crate) const INT64: c_uint = 1;
    pub(crate) const INT64_LIST: c_uint = 2;
    pub(crate) const FLOAT: c_uint = 3;
    pub(crate) const BOOL: c_uint = 4;
}

c_struct! {
    /// A program and the name of its format.
    Program {
        code: *mut c_char,
        code_size: usize,
        format: *const c_char,
        format_size: usize,
    }
}

c_struct! {
    /// The order of the dimensions in memory, and tiles.
    MemoryLayoutTiled {
        minor_to_major: *const i64,
        minor_to_major_size: usize,
        tile_dims: *const i64,
        tile_dim_sizes: *const usize,
        num_tiles: usize,
    }
}

c_struct! {
    /// A memory layout. In C `tiled` shares its place with a list of strides, which is smaller and not used here.
    MemoryLayout {
        tiled: MemoryLayoutTiled,
        kind: c_uint,
    }
}

impl MemoryLayout {
    pub(crate) const TILED: c_uint = 0;
}

/// What the plugin may do with host data: copy it before the call returns.
pub(crate) const IMMUTABLE_ONLY_DURING_CALL: c_uint = 0;
/// What the plugin may do with host data: read it until the `done_with_host_buffer` event.
pub(crate) const IMMUTABLE_UNTIL_TRANSFER_COMPLETES: c_uint = 1;

c_struct! {
    /// Options of one launch.
    RawExecuteOptions {
        send_callbacks: *mut *mut c_void,
        recv_callbacks: *mut *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut c_void,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
    }
}

/// The head of an entry in the plugin's chain of extensions.
#[repr(C)]
pub(crate) struct Extension {
    pub(crate) struct_size: usize,
    pub(crate) kind: c_uint,
    pub(crate) next: *mut Extension,
}

impl Extension {
    /// The kind of an [`FfiExtension`].
    pub(crate) const FFI: c_uint = 5;
}

/// The extension for code that programs call.
#[repr(C)]
pub(crate) struct FfiExtension {
    base: Extension,
    type_register: *mut c_void,
    user_data_add: *mut c_void,
    pub(crate) register_handler: Option<RegisterHandler>,
}

/// Registers a handler.
pub(crate) type RegisterHandler = unsafe extern "C" fn(*mut FfiRegisterHandler) -> *mut RawError;

/// Arguments for registering a handler, in version 3 of the extension. The version before has one field more: it refuses
/// this struct by its size.
#[repr(C)]
pub(crate) struct FfiRegisterHandler {
    pub(crate) struct_size: usize,
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
    pub(crate) handler: *mut c_void,
    pub(crate) platform: *const c_char,
    pub(crate) platform_size: usize,
    pub(crate) traits: c_uint,
}

impl FfiRegisterHandler {
    /// Without the padding at the end, as the API counts.
    pub(crate) const STRUCT_SIZE: usize =
        offset_of!(FfiRegisterHandler, traits) + size_of::<c_uint>();
}

/// Called when an event is ready, with its error (owned by the callee) or null.
pub(crate) type OnReadyCallback = unsafe extern "C" fn(*mut RawError, *mut c_void);
/// Frees the memory behind the bytes of a serialized executable.
pub(crate) type SerializedDeleter = unsafe extern "C" fn(*mut RawSerializedExecutable);

functions! {
    0 PJRT_Error_Destroy ErrorDestroy { error: *mut RawError }
    1 PJRT_Error_Message ErrorMessage { error: *const RawError, message: *const c_char, message_size: usize }
    2 PJRT_Error_GetCode ErrorGetCode { error: *const RawError, code: c_uint }
    3 PJRT_Plugin_Initialize PluginInitialize {}
    4 PJRT_Plugin_Attributes PluginAttributes { attributes: *const NamedValue, num_attributes: usize }
    5 PJRT_Event_Destroy EventDestroy { event: *mut RawEvent }
    6 PJRT_Event_IsReady EventIsReady { event: *mut RawEvent, is_ready: bool }
    8 PJRT_Event_Await EventAwait { event: *mut RawEvent }
    9 PJRT_Event_OnReady EventOnReady {
        event: *mut RawEvent,
        callback: Option<OnReadyCallback>,
        user_arg: *mut c_void,
    }
    10 PJRT_Client_Create ClientCreate {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *mut c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut RawClient,
        kv_try_get_callback: *mut c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    11 PJRT_Client_Destroy ClientDestroy { client: *mut RawClient }
    12 PJRT_Client_PlatformName ClientPlatformName {
        client: *mut RawClient,
        platform_name: *const c_char,
        platform_name_size: usize,
    }
    13 PJRT_Client_ProcessIndex ClientProcessIndex { client: *mut RawClient, process_index: c_int }
    14 PJRT_Client_PlatformVersion ClientPlatformVersion {
        client: *mut RawClient,
        platform_version: *const c_char,
        platform_version_size: usize,
    }
    15 PJRT_Client_Devices ClientDevices {
        client: *mut RawClient,
        devices: *const *mut RawDevice,
        num_devices: usize,
    }
    20 PJRT_Client_Compile ClientCompile {
        client: *mut RawClient,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut RawLoadedExecutable,
    }
    22 PJRT_Client_BufferFromHostBuffer ClientBufferFromHostBuffer {
        client: *mut RawClient,
        data: *const c_void,
        element_type: c_uint,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_uint,
        device: *mut RawDevice,
        memory: *mut RawMemory,
        device_layout: *mut MemoryLayout,
        done_with_host_buffer: *mut RawEvent,
        buffer: *mut RawBuffer,
    }
    23 PJRT_DeviceDescription_Id DeviceDescriptionId { description: *mut RawDeviceDescription, id: c_int }
    24 PJRT_DeviceDescription_ProcessIndex DeviceDescriptionProcessIndex {
        description: *mut RawDeviceDescription,
        process_index: c_int,
    }
    26 PJRT_DeviceDescription_Kind DeviceDescriptionKind {
        description: *mut RawDeviceDescription,
        kind: *const c_char,
        kind_size: usize,
    }
    27 PJRT_DeviceDescription_DebugString DeviceDescriptionDebugString {
        description: *mut RawDeviceDescription,
        debug_string: *const c_char,
        debug_string_size: usize,
    }
    29 PJRT_Device_GetDescription DeviceGetDescription {
        device: *mut RawDevice,
        description: *mut RawDeviceDescription,
    }
    30 PJRT_Device_IsAddressable DeviceIsAddressable { device: *mut RawDevice, is_addressable: bool }
    32 PJRT_Device_AddressableMemories DeviceAddressableMemories {
        device: *mut RawDevice,
        memories: *const *mut RawMemory,
        num_memories: usize,
    }
    33 PJRT_Device_DefaultMemory DeviceDefaultMemory { device: *mut RawDevice, memory: *mut RawMemory }
    35 PJRT_Memory_Id MemoryId { memory: *mut RawMemory, id: c_int }
    36 PJRT_Memory_Kind MemoryKind { memory: *mut RawMemory, kind: *const c_char, kind_size: usize }
    40 PJRT_Executable_Destroy ExecutableDestroy { executable: *mut RawExecutable }
    41 PJRT_Executable_Name ExecutableName {
        executable: *mut RawExecutable,
        name: *const c_char,
        name_size: usize,
    }
    42 PJRT_Executable_NumReplicas ExecutableNumReplicas { executable: *mut RawExecutable, num_replicas: usize }
    43 PJRT_Executable_NumPartitions ExecutableNumPartitions {
        executable: *mut RawExecutable,
        num_partitions: usize,
    }
    44 PJRT_Executable_NumOutputs ExecutableNumOutputs { executable: *mut RawExecutable, num_outputs: usize }
    48 PJRT_Executable_OptimizedProgram ExecutableOptimizedProgram {
        executable: *mut RawExecutable,
        program: *mut Program,
    }
    49 PJRT_Executable_Serialize ExecutableSerialize {
        executable: *const RawExecutable,
        bytes: *const c_char,
        bytes_size: usize,
        serialized: *mut RawSerializedExecutable,
        deleter: Option<SerializedDeleter>,
    }
    50 PJRT_LoadedExecutable_Destroy LoadedExecutableDestroy { executable: *mut RawLoadedExecutable }
    51 PJRT_LoadedExecutable_GetExecutable LoadedExecutableGetExecutable {
        loaded_executable: *mut RawLoadedExecutable,
        executable: *mut RawExecutable,
    }
    52 PJRT_LoadedExecutable_AddressableDevices LoadedExecutableAddressableDevices {
        executable: *mut RawLoadedExecutable,
        devices: *const *mut RawDevice,
        num_devices: usize,
    }
    55 PJRT_LoadedExecutable_Execute LoadedExecutableExecute {
        executable: *mut RawLoadedExecutable,
        options: *mut RawExecuteOptions,
        argument_lists: *const *const *mut RawBuffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut RawBuffer,
        device_complete_events: *mut *mut RawEvent,
        execute_device: *mut RawDevice,
    }
    56 PJRT_Executable_DeserializeAndLoad ExecutableDeserializeAndLoad {
        client: *mut RawClient,
        bytes: *const c_char,
        bytes_size: usize,
        loaded_executable: *mut RawLoadedExecutable,
        overridden_compile_options: *const c_char,
        overridden_compile_options_size: usize,
    }
    58 PJRT_Buffer_Destroy BufferDestroy { buffer: *mut RawBuffer }
    64 PJRT_Buffer_OnDeviceSizeInBytes BufferOnDeviceSize { buffer: *mut RawBuffer, bytes: usize }
    66 PJRT_Buffer_Memory BufferMemory { buffer: *mut RawBuffer, memory: *mut RawMemory }
    67 PJRT_Buffer_Delete BufferDelete { buffer: *mut RawBuffer }
    68 PJRT_Buffer_IsDeleted BufferIsDeleted { buffer: *mut RawBuffer, is_deleted: bool }
    69 PJRT_Buffer_CopyToDevice BufferCopyToDevice {
        buffer: *mut RawBuffer,
        device: *mut RawDevice,
        copy: *mut RawBuffer,
    }
    70 PJRT_Buffer_ToHostBuffer BufferToHostBuffer {
        buffer: *mut RawBuffer,
        host_layout: *mut MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut RawEvent,
    }
    72 PJRT_Buffer_ReadyEvent BufferReadyEvent { buffer: *mut RawBuffer, event: *mut RawEvent }
    82 PJRT_TopologyDescription_Create TopologyCreate {
        name: *const c_char,
        name_size: usize,
        create_options: *const NamedValue,
        num_options: usize,
        topology: *mut RawTopology,
    }
    83 PJRT_TopologyDescription_Destroy TopologyDestroy { topology: *mut RawTopology }
    89 PJRT_Compile Compile {
        topology: *const RawTopology,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut RawClient,
        executable: *mut RawExecutable,
    }
    90 PJRT_Executable_OutputElementTypes ExecutableOutputElementTypes {
        executable: *mut RawExecutable,
        types: *mut c_uint,
        num_types: usize,
    }
    91 PJRT_Executable_OutputDimensions ExecutableOutputDimensions {
        executable: *mut RawExecutable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    94 PJRT_Executable_Fingerprint ExecutableFingerprint {
        executable: *mut RawExecutable,
        fingerprint: *const c_char,
        fingerprint_size: usize,
    }
    96 PJRT_Executable_GetCompiledMemoryStats ExecutableMemoryStats {
        executable: *mut RawExecutable,
        generated_code: i64,
        argument: i64,
        output: i64,
        alias: i64,
        temp: i64,
        host_generated_code: i64,
        host_argument: i64,
        host_output: i64,
        host_alias: i64,
        host_temp: i64,
        peak_memory: i64,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ApiTable;
    use super::*;

    /// Name, offset of the pointer in `PJRT_Api` and size of the argument struct, as a C compiler computes them from the
    /// header of API 0.81 (`offsetof(PJRT_Api, F)` and `F_Args_STRUCT_SIZE`).
    const HEADER: &[(&str, usize, usize)] = &[
        ("PJRT_Error_Destroy", 40, 24),
        ("PJRT_Error_Message", 48, 40),
        ("PJRT_Error_GetCode", 56, 28),
        ("PJRT_Plugin_Initialize", 64, 16),
        ("PJRT_Plugin_Attributes", 72, 32),
        ("PJRT_Event_Destroy", 80, 24),
        ("PJRT_Event_IsReady", 88, 25),
        ("PJRT_Event_Await", 104, 24),
        ("PJRT_Event_OnReady", 112, 40),
        ("PJRT_Client_Create", 120, 88),
        ("PJRT_Client_Destroy", 128, 24),
        ("PJRT_Client_PlatformName", 136, 40),
        ("PJRT_Client_ProcessIndex", 144, 28),
        ("PJRT_Client_PlatformVersion", 152, 40),
        ("PJRT_Client_Devices", 160, 40),
        ("PJRT_Client_Compile", 200, 56),
        ("PJRT_Client_BufferFromHostBuffer", 216, 120),
        ("PJRT_DeviceDescription_Id", 224, 28),
        ("PJRT_DeviceDescription_ProcessIndex", 232, 28),
        ("PJRT_DeviceDescription_Kind", 248, 40),
        ("PJRT_DeviceDescription_DebugString", 256, 40),
        ("PJRT_Device_GetDescription", 272, 32),
        ("PJRT_Device_IsAddressable", 280, 25),
        ("PJRT_Device_AddressableMemories", 296, 40),
        ("PJRT_Device_DefaultMemory", 304, 32),
        ("PJRT_Memory_Id", 320, 28),
        ("PJRT_Memory_Kind", 328, 40),
        ("PJRT_Executable_Destroy", 360, 24),
        ("PJRT_Executable_Name", 368, 40),
        ("PJRT_Executable_NumReplicas", 376, 32),
        ("PJRT_Executable_NumPartitions", 384, 32),
        ("PJRT_Executable_NumOutputs", 392, 32),
        ("PJRT_Executable_OptimizedProgram", 424, 32),
        ("PJRT_Executable_Serialize", 432, 56),
        ("PJRT_LoadedExecutable_Destroy", 440, 24),
        ("PJRT_LoadedExecutable_GetExecutable", 448, 32),
        ("PJRT_LoadedExecutable_AddressableDevices", 456, 40),
        ("PJRT_LoadedExecutable_Execute", 480, 80),
        ("PJRT_Executable_DeserializeAndLoad", 488, 64),
        ("PJRT_Buffer_Destroy", 504, 24),
        ("PJRT_Buffer_OnDeviceSizeInBytes", 552, 32),
        ("PJRT_Buffer_Memory", 568, 32),
        ("PJRT_Buffer_Delete", 576, 24),
        ("PJRT_Buffer_IsDeleted", 584, 25),
        ("PJRT_Buffer_CopyToDevice", 592, 40),
        ("PJRT_Buffer_ToHostBuffer", 600, 56),
        ("PJRT_Buffer_ReadyEvent", 616, 32),
        ("PJRT_TopologyDescription_Create", 696, 56),
        ("PJRT_TopologyDescription_Destroy", 704, 24),
        ("PJRT_Compile", 752, 64),
        ("PJRT_Executable_OutputElementTypes", 760, 40),
        ("PJRT_Executable_OutputDimensions", 768, 48),
        ("PJRT_Executable_Fingerprint", 792, 40),
        ("PJRT_Executable_GetCompiledMemoryStats", 808, 112),
    ];

    #[test]
    fn slots_and_sizes_are_those_of_the_header() {
        assert_eq!(FUNCTIONS.len(), HEADER.len());
        for (&(name, slot, size), &(c_name, offset, c_size)) in FUNCTIONS.iter().zip(HEADER) {
            assert_eq!(name, c_name);
            assert_eq!(size_of::<ApiTable>() + 8 * slot, offset, "{name}");
            assert_eq!(size, c_size, "{name}");
        }
    }

    #[test]
    fn plain_structs_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<ApiTable>(), 40);
        assert_eq!(NamedValue::STRUCT_SIZE, 56);
        assert_eq!(Program::STRUCT_SIZE, 48);
        assert_eq!(MemoryLayoutTiled::STRUCT_SIZE, 56);
        assert_eq!(MemoryLayout::STRUCT_SIZE, 76);
        assert_eq!(RawExecuteOptions::STRUCT_SIZE, 112);
        assert_eq!(size_of::<FfiExtension>(), 48);
        assert_eq!(FfiRegisterHandler::STRUCT_SIZE, 52);
    }
}
