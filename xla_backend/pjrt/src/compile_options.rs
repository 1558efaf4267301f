//! How a program is compiled: replicas, partitions, partitioner, devices and XLA's own options.
//!
//! XLA reads a serialized `CompileOptionsProto`; the messages below have the few of its fields that are used, under
//! the field numbers of XLA's `compile_options.proto`. Encoding is deterministic, so the bytes can be part of a cache key.

use std::collections::{BTreeMap, HashSet};

use prost::Message;

use crate::error::{Error, Result};

/// Options for compiling one program.
///
/// ```
/// use shardax_pjrt::CompileOptions;
/// let options = CompileOptions::partitioned(8).option("xla_backend_optimization_level", 1);
/// assert_eq!(options.num_devices(), 8);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// Copies of the program that run side by side, at least 1.
    pub num_replicas: usize,
    /// Devices that one copy is partitioned over, at least 1.
    pub num_partitions: usize,
    /// Whether XLA partitions the program after its sharding annotations (SPMD).
    pub use_spmd_partitioning: bool,
    /// Shardy instead of GSPMD.
    pub use_shardy_partitioner: bool,
    /// Ids of the devices to run on, replica by replica and in it partition by partition; `None` leaves it to the plugin.
    pub device_assignment: Option<Vec<i32>>,
    /// Whether XLA may choose the sharding of a parameter without one: one value for all parameters, or one each.
    pub allow_propagation_to_parameters: Vec<bool>,
    /// Whether XLA may choose the sharding of a result without one: one value for all results, or one each.
    pub allow_propagation_to_outputs: Vec<bool>,
    /// XLA's `xla_*` debug options for this compilation. A name that XLA does not know is an error when compiling.
    pub debug_options: BTreeMap<String, OptionValue>,
}

/// The value of an XLA debug option. Its kind must be the option's own: a boolean is not a number.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A string, or the name of an enum's value.
    String(String),
    /// A boolean.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Double(f64),
}

impl From<&str> for OptionValue {
    fn from(value: &str) -> Self {
        OptionValue::String(value.into())
    }
}

impl From<bool> for OptionValue {
    fn from(value: bool) -> Self {
        OptionValue::Bool(value)
    }
}

impl From<i64> for OptionValue {
    fn from(value: i64) -> Self {
        OptionValue::Int(value)
    }
}

impl From<i32> for OptionValue {
    fn from(value: i32) -> Self {
        OptionValue::Int(value.into())
    }
}

impl From<f64> for OptionValue {
    fn from(value: f64) -> Self {
        OptionValue::Double(value)
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self::partitioned(1)
    }
}

impl CompileOptions {
    /// One replica over this many devices, partitioned by Shardy.
    pub fn partitioned(num_partitions: usize) -> Self {
        CompileOptions {
            num_replicas: 1,
            num_partitions,
            use_spmd_partitioning: true,
            use_shardy_partitioner: true,
            device_assignment: None,
            allow_propagation_to_parameters: vec![],
            allow_propagation_to_outputs: vec![],
            debug_options: BTreeMap::new(),
        }
    }

    /// Adds one of XLA's debug options.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<OptionValue>) -> Self {
        self.debug_options.insert(name.into(), value.into());
        self
    }

    /// The number of devices that the program runs on.
    pub fn num_devices(&self) -> usize {
        self.num_replicas.saturating_mul(self.num_partitions)
    }

    /// Every fault that XLA would answer with an abort or by a silent guess, for a client with these device ids.
    ///
    /// # Errors
    /// [`Error::CompileOptions`] with all faults.
    pub(super) fn check(&self, device_ids: &[i32]) -> Result<()> {
        let mut faults = vec![];
        for (name, value) in [
            ("num_replicas", self.num_replicas),
            ("num_partitions", self.num_partitions),
        ] {
            if value == 0 {
                faults.push(format!("{name} is 0, it must be at least 1"));
            }
        }
        let devices = self.num_devices();
        if devices > device_ids.len() {
            faults.push(format!(
                "{} replicas x {} partitions need {devices} devices, the client has {}; create it with more devices \
                 or use a smaller mesh",
                self.num_replicas,
                self.num_partitions,
                device_ids.len()
            ));
        }
        if self.num_partitions > 1 && !self.use_spmd_partitioning {
            faults.push(format!(
                "{} partitions need use_spmd_partitioning",
                self.num_partitions
            ));
        }
        if let Some(assignment) = &self.device_assignment {
            if assignment.len() != devices {
                faults.push(format!(
                    "device_assignment lists {} devices for {devices} replicas x partitions",
                    assignment.len()
                ));
            }
            let mut seen = HashSet::new();
            for id in assignment {
                if !device_ids.contains(id) {
                    faults.push(format!(
                        "device_assignment names device id {id}, which the client does not have"
                    ));
                }
                if !seen.insert(id) {
                    faults.push(format!("device_assignment names device id {id} twice"));
                }
            }
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Error::CompileOptions { faults })
        }
    }

    /// The bytes that XLA reads, the same for equal options.
    pub fn encode(&self) -> Vec<u8> {
        let device_assignment = self.device_assignment.as_ref().map(|ids| {
            let partition = |partition: usize| ComputationDevice {
                replica_device_ids: ids
                    .iter()
                    .skip(partition)
                    .step_by(self.num_partitions.max(1))
                    .map(|&id| i64::from(id))
                    .collect(),
            };
            DeviceAssignmentProto {
                replica_count: self.num_replicas as i32,
                computation_count: self.num_partitions as i32,
                computation_devices: (0..self.num_partitions).map(partition).collect(),
            }
        });
        let overrides = self.debug_options.iter().map(|(name, value)| {
            let value = match value.clone() {
                OptionValue::String(value) => override_value::Value::String(value),
                OptionValue::Bool(value) => override_value::Value::Bool(value),
                OptionValue::Int(value) => override_value::Value::Int(value),
                OptionValue::Double(value) => override_value::Value::Double(value),
            };
            (name.clone(), OptionOverrideProto { value: Some(value) })
        });
        CompileOptionsProto {
            executable_build_options: Some(ExecutableBuildOptionsProto {
                device_ordinal: -1,
                num_replicas: self.num_replicas as i64,
                num_partitions: self.num_partitions as i64,
                use_spmd_partitioning: self.use_spmd_partitioning,
                device_assignment,
                allow_propagation_to_output: self.allow_propagation_to_outputs.clone(),
                allow_propagation_to_parameters: self.allow_propagation_to_parameters.clone(),
                use_shardy_partitioner: self.use_shardy_partitioner,
            }),
            env_option_overrides: overrides.collect(),
        }
        .encode_to_vec()
    }
}

#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverrideProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ExecutableBuildOptionsProto {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignmentProto>,
    #[prost(bool, repeated, tag = "12")]
    allow_propagation_to_output: Vec<bool>,
    #[prost(bool, repeated, tag = "18")]
    allow_propagation_to_parameters: Vec<bool>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceAssignmentProto {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct OptionOverrideProto {
    #[prost(oneof = "override_value::Value", tags = "1, 2, 3, 4")]
    value: Option<override_value::Value>,
}

mod override_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Value {
        #[prost(string, tag = "1")]
        String(String),
        #[prost(bool, tag = "2")]
        Bool(bool),
        #[prost(int64, tag = "3")]
        Int(i64),
        #[prost(double, tag = "4")]
        Double(f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_the_fields_that_xla_reads() {
        let options = CompileOptions {
            num_replicas: 2,
            num_partitions: 2,
            device_assignment: Some(vec![3, 2, 1, 0]),
            ..CompileOptions::partitioned(2)
        };
        let options = options.option("xla_b", true).option("xla_a", 7);
        let decoded = CompileOptionsProto::decode(options.encode().as_slice()).unwrap();
        let build = decoded.executable_build_options.unwrap();
        assert_eq!((build.num_replicas, build.num_partitions), (2, 2));
        assert!(build.use_spmd_partitioning && build.use_shardy_partitioner);
        let assignment = build.device_assignment.unwrap();
        let columns: Vec<_> = assignment
            .computation_devices
            .iter()
            .map(|c| c.replica_device_ids.clone())
            .collect();
        assert_eq!(columns, [[3, 1], [2, 0]]);
        let names: Vec<_> = decoded.env_option_overrides.keys().collect();
        assert_eq!(names, ["xla_a", "xla_b"]);
        assert_eq!(options.encode(), options.clone().encode());
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let options = CompileOptions {
            num_replicas: 0,
            device_assignment: Some(vec![0, 0, 9]),
            use_spmd_partitioning: false,
            ..CompileOptions::partitioned(2)
        };
        assert_eq!(
            options.check(&[0, 1]).unwrap_err().to_string(),
            "compile options: num_replicas is 0, it must be at least 1; 2 partitions need use_spmd_partitioning; \
             device_assignment lists 3 devices for 0 replicas x partitions; device_assignment names device id 0 twice; \
             device_assignment names device id 9, which the client does not have"
        );
        let error = CompileOptions::partitioned(8).check(&[0, 1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "compile options: 1 replicas x 8 partitions need 8 devices, the client has 2; create it with more devices \
             or use a smaller mesh"
        );
        assert!(CompileOptions::partitioned(2).check(&[0, 1]).is_ok());
    }
}
