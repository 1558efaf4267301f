//! Why a compiled program cannot be read.

/// What the fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of reading a compiled program.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes that are no optimized HLO.
    #[error(
        "the compiled program's HLO cannot be decoded: {source}; give the bytes of an HloModuleProtoWithConfig \
         (PJRT format `hlo_with_config`)"
    )]
    Decode {
        /// What the decoder found.
        source: prost::DecodeError,
    },

    /// HLO that contradicts itself, or says something that this crate does not know.
    #[error(
        "the HLO of `{module}` cannot be read: {problem}; it is damaged, or from an XLA that this crate does not know"
    )]
    Malformed {
        /// Name of the HLO module.
        module: String,
        /// What is wrong, and in which instruction.
        problem: String,
    },

    /// A mesh for the report that is not the one the program was compiled for.
    #[error(
        "mesh {mesh} has {mesh_devices} devices, but `{module}` was compiled for {program_devices}; give the mesh of \
         the layout that it was compiled with"
    )]
    Mesh {
        /// Name of the HLO module.
        module: String,
        /// The mesh given.
        mesh: String,
        /// Its number of devices.
        mesh_devices: usize,
        /// Replicas times partitions of the program.
        program_devices: usize,
    },
}

shardax_sharding::debug_is_the_message!(Error);
