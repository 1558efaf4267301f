//! Compilation for a cluster that is not there.
//!
//! XLA's compiler for CUDA needs a description of the GPUs and of how they are joined, and no GPU; it works in a process of its
//! own ([`shardax_pjrt::child`]). What is added here is the layout, the cluster in XLA's words, the cache, and what the program
//! tells with the help of what it was traced from.
//!
//! The compiler and the assembler that it runs (`ptxas`) are fetched on first use, about 230 MB, as the plugin for the CPU
//! is; programs are kept in the same cache.

mod program;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shardax_pjrt::child::{self, AheadJob, Compiled};
use shardax_pjrt::find::{Environment, Package, PluginFile, Progress};
use shardax_pjrt::{AheadFault, CompileOptions, GpuTarget, OptionValue};
use shardax_sharding::{Chip, Cluster, Layout, Partitioner};

use crate::cache::{CacheKey, CompileCache};
use crate::error::{Error, Result};
use crate::lower::Module;
pub use program::AheadProgram;
pub(crate) use program::Inner;

/// The option of XLA's that names the folder with `bin/ptxas` and `nvvm/libdevice`.
const DATA_DIR: &str = "xla_gpu_cuda_data_dir";

/// The option of XLA's that makes kernels of Triton out of products, rather than calls of cuBLAS. On a GPU XLA tries
/// both and takes the faster one; here it cannot. Calls take a fifth of the time to compile. But cuBLAS lacks some
/// products (one of f32 that gives bf16, for one), over which XLA refuses the whole program: only then are they all
/// made of Triton.
const TRITON: &str = "xla_gpu_enable_triton_gemm";

/// The option of XLA's that names a file with the time that each instruction takes.
const PROFILE: &str = "xla_gpu_pgle_profile_file_or_directory_path";

/// How a program is compiled for a cluster, beside the cluster itself.
#[derive(Clone, Debug)]
pub struct AheadOptions {
    time_limit: Duration,
    cache: Option<Arc<CompileCache>>,
}

impl Default for AheadOptions {
    /// An hour, and the cache of the process.
    fn default() -> Self {
        AheadOptions {
            time_limit: Duration::from_secs(3600),
            cache: None,
        }
    }
}

impl AheadOptions {
    /// Stops the compiler after this time. A step of a large model takes seconds to minutes.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Keeps compiled programs there.
    #[must_use]
    pub fn cache(mut self, cache: CompileCache) -> Self {
        self.cache = Some(Arc::new(cache));
        self
    }
}

/// A lowered program and what it is to be compiled for.
pub(crate) struct Job<'a> {
    pub(crate) name: &'a str,
    pub(crate) module: &'a Module,
    pub(crate) layout: &'a Layout,
    pub(crate) cluster: &'a Cluster,
    /// XLA's options that the user sets.
    pub(crate) xla: &'a [(String, OptionValue)],
}

impl Job<'_> {
    /// The compiled program, and whether it was in the cache.
    pub(crate) fn compile(&self, options: &AheadOptions) -> Result<(Compiled, bool)> {
        self.check()?;
        let environment = Environment::of_process();
        let file = |backend: &str| {
            let package = Package::for_backend(backend, &environment)?;
            PluginFile::find_or_fetch_in(&environment, package, Progress::Stderr)
        };
        let plugin = file("cuda")?;
        let mut attempts = self.attempts();
        let sets = |name: &str| self.xla.iter().any(|(set, _)| set == name);
        let ptxas = match sets(DATA_DIR) {
            true => None,
            false => Some(file("ptxas")?),
        };
        let target = gpu(self.cluster.chip()).config();
        let topology = topology(self.cluster);
        let key = CacheKey::new(&[
            b"compiled for a cluster",
            self.module.identity().as_bytes(),
            &encoded(&attempts).concat(),
            target.as_bytes(),
            topology.as_bytes(),
            &plugin.sha256(),
            &ptxas.as_ref().map_or([0; 32], PluginFile::sha256),
            &self.profile(),
            // XLA reads its options from there too.
            environment
                .variable("XLA_FLAGS")
                .unwrap_or_default()
                .as_encoded_bytes(),
        ]);
        let cache = options.cache.as_ref().unwrap_or_else(|| shared_cache());
        let kept = cache.get(&key);
        if let Some(compiled) = kept.and_then(|bytes| Compiled::from_bytes(&bytes)) {
            return Ok((compiled, true));
        }
        // Not a part of the key: where the tools are does not matter, and their sum is one.
        if let Some(ptxas) = &ptxas {
            let folder = self.text_of(toolkit(ptxas.path()))?;
            attempts = attempts.map(|options| options.option(DATA_DIR, folder));
        }
        let job = AheadJob {
            plugin: self.text_of(plugin.path())?.to_owned(),
            target,
            topology,
            module: self.module.text().to_owned(),
            options: encoded(&attempts),
        };
        let compiled = child::compile(&job, options.time_limit).map_err(|f| self.fault(f))?;
        cache.put(&key, &compiled.to_bytes());
        Ok((compiled, false))
    }

    /// What XLA would compile in silence, or nobody could run.
    fn check(&self) -> Result<()> {
        let mut faults = Vec::new();
        if let Err(fault) = self
            .layout
            .mesh()
            .check_devices(self.cluster.device_count())
        {
            faults.push(fault.to_string());
        }
        let calls = self.module.calls().described();
        faults.extend(calls.into_iter().map(|call| {
            format!(
                "it calls the host function {call}, which is of this process and cannot be compiled for another: \
                 leave the call out of the program that is to be compiled"
            )
        }));
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::AheadUnfit {
                program: self.name.to_owned(),
                cluster: self.cluster.to_string(),
                faults,
            }),
        }
    }

    /// The options to compile with, and those to try if the program is refused with them.
    fn attempts(&self) -> [CompileOptions; 2] {
        let options = CompileOptions {
            use_shardy_partitioner: self.layout.chosen_partitioner() == Partitioner::Shardy,
            ..CompileOptions::partitioned(self.layout.mesh().device_count())
        };
        [false, true].map(|triton| {
            let options = options.clone().option(TRITON, triton);
            self.xla.iter().fold(options, |options, (name, value)| {
                options.option(name.clone(), value.clone())
            })
        })
    }

    /// The profile that the program is to be scheduled by, for another one of the same name gives another program.
    fn profile(&self) -> Vec<u8> {
        let named = self.xla.iter().rev().find(|(name, _)| name == PROFILE);
        match named {
            // What cannot be read is for XLA to tell of.
            Some((_, OptionValue::String(path))) => std::fs::read(path).unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    fn text_of<'p>(&self, path: &'p Path) -> Result<&'p str> {
        path.to_str().ok_or_else(|| {
            self.fault(AheadFault::NotStarted {
                reason: format!(
                    "the path {} is not UTF-8; set SHARDAX_CACHE to a folder whose path is",
                    path.display()
                ),
            })
        })
    }

    fn fault(&self, fault: AheadFault) -> Error {
        Error::Ahead {
            program: self.name.to_owned(),
            cluster: self.cluster.to_string(),
            fault,
        }
    }
}

/// The options as XLA reads them; once, if both are the same.
fn encoded(attempts: &[CompileOptions]) -> Vec<Vec<u8>> {
    let mut encoded: Vec<Vec<u8>> = attempts.iter().map(CompileOptions::encode).collect();
    encoded.dedup();
    encoded
}

/// The folder of the toolkit that an assembler is in: it is `bin/ptxas` there.
fn toolkit(ptxas: &Path) -> &Path {
    ptxas.parent().and_then(Path::parent).unwrap_or(ptxas)
}

fn shared_cache() -> &'static Arc<CompileCache> {
    static CACHE: OnceLock<Arc<CompileCache>> = OnceLock::new();
    CACHE.get_or_init(|| Arc::new(CompileCache::from_environment(&Environment::of_process())))
}

/// The GPUs of a cluster as XLA's compiler is told of them.
fn gpu(chip: Chip) -> GpuTarget {
    GpuTarget {
        name: chip.full_name().to_owned(),
        memory_bytes: chip.memory_bytes(),
        memory_bandwidth: chip.memory_bandwidth(),
        memory_clock: match chip {
            Chip::H100 => 2_619_000,
            // The others of the Hopper generation.
            _ => 3_750_000,
        },
    }
}

/// `PxHxG`: NVLink domains, hosts in each, GPUs of each host. The numbers of the devices are row-major in it, as the
/// positions of a mesh are.
fn topology(cluster: &Cluster) -> String {
    let hosts = cluster.nodes_per_domain();
    let domains = cluster.nodes() / hosts;
    format!("{domains}x{hosts}x{}", cluster.gpus_per_node())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_domains_unless_a_switch_joins_them() {
        let cluster = Cluster::new(Chip::H100, 64, 8).unwrap();
        assert_eq!(topology(&cluster), "64x1x8");
        assert_eq!(topology(&cluster.nvlink_domain(32).unwrap()), "2x32x8");
    }

    #[test]
    fn the_memory_of_each_chip_is_told() {
        for chip in Chip::ALL {
            let memory = chip.memory_bytes().to_string();
            assert!(gpu(chip).config().contains(&memory));
        }
    }
}
