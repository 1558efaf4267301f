//! A GPU in the words of XLA's CUDA compiler.

use std::fmt::Write;

/// The clock of the cores at its highest, in GHz.
const CLOCK: f64 = 1.98;
/// The clock at which the tensor cores reach their published rate.
const TENSOR_CLOCK: f64 = 1.829_520_1;

/// Rates of the plain cores: XLA's number of an element type, units in a multiprocessor, operations of
/// a unit in a clock.
const SCALAR_RATES: [(u32, u32, u32); 6] = [
    (4, 64, 1),   // s32
    (8, 64, 1),   // u32
    (10, 128, 2), // f16
    (11, 128, 1), // f32
    (12, 64, 1),  // f64
    (16, 128, 2), // bf16
];

/// XLA's numbers of the 8-bit types that tensor cores multiply: s8, u8, the kinds of f8, and those that
/// are computed as such.
const TENSOR_TYPES_OF_ONE_BYTE: [u32; 11] = [2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 36];

/// A GPU of the Hopper generation to compile for; its members differ in their memory alone.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuTarget {
    /// The vendor's full name, as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Bytes that the memory moves in a second.
    pub memory_bandwidth: u64,
    /// The clock of the memory, in kHz.
    pub memory_clock: u64,
}

impl GpuTarget {
    /// The device as a `GpuTargetConfigProto` in text form, for a topology's option `target_config`.
    pub fn config(&self) -> String {
        let GpuTarget {
            name,
            memory_bytes: memory,
            memory_bandwidth,
            memory_clock,
        } = self;
        let mut text = format!(
        "gpu_device_info {{
threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
registers_per_core_limit: 65536 registers_per_block_limit: 65536
core_count: 132 fpus_per_core: 128 clock_rate_ghz: {CLOCK}
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
device_memory_size: {memory} memory_bandwidth: {memory_bandwidth} l2_cache_size: 52428800 ecc_enabled: true
cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
device_vendor: \"NVIDIA Corporation\" name: \"{name}\" platform_version: \"Compute Capability 9.0a\"
model_str: \"sm_9.0a with {memory}B RAM, 132 cores, 1980000KHz clock, {memory_clock}KHz mem clock, 52428800B L2$\"
device_address_bits: 64 pcie_bandwidth: 34359738368 device_interconnect_info {{ active_links: 18 }}
driver_version: \"13.0.0\" runtime_version: \"12.8.0\" compile_time_toolkit_version: \"12.8.0\"
dnn_version: \"9.10.0\"
scalar_unit_description {{
"
    );
        for (element, units, operations) in SCALAR_RATES {
            rate(&mut text, element, CLOCK, units, operations);
        }
        text.push_str("}\nmatrix_unit_description {\n");
        for element in TENSOR_TYPES_OF_ONE_BYTE {
            rate(&mut text, element, TENSOR_CLOCK, 4, 1024);
        }
        for (element, clock, operations) in [
            (10, TENSOR_CLOCK, 512), // f16
            (16, TENSOR_CLOCK, 512), // bf16
            (11, TENSOR_CLOCK, 256), // f32, multiplied as tf32
            (12, CLOCK, 32),         // f64
        ] {
            rate(&mut text, element, clock, 4, operations);
        }
        // cuDNN is not there to be asked; its version decides which of its kernels XLA may write calls of.
        let _ = write!(
            text,
            "}}\n}}\nplatform_name: \"CUDA\"\ndnn_version_info {{ major: 9 minor: 10 patch: 0 }}\n\
         device_description_str: \"{name}\"\n"
        );
        text
    }
}

fn rate(text: &mut String, element: u32, clock: f64, units: u32, operations: u32) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "rate_infos {{ key: {element} value {{ clock_rate_ghz: {clock} units_per_core: {units} \
         ops_per_clock: {operations} }} }}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_close_and_the_memory_is_told() {
        let target = GpuTarget {
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 84_942_979_072,
            memory_bandwidth: 3_352_320_000_000,
            memory_clock: 2_619_000,
        };
        let text = target.config();
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert!(text.contains("device_memory_size: 84942979072"));
    }
}
