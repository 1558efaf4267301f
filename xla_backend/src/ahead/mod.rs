//! Compilation for a cluster that is not there.
//!
//! XLA's compiler for CUDA needs a description of the GPUs and of how they are joined, and no GPU. What comes out is the
//! program that the cluster would run: partitioned, scheduled, with its memory assigned. XLA aborts the process over some
//! programs, so it works in a child process (`process` is the parent's side, `worker` the child's, `protocol` what they
//! tell each other, and `pjrt::worker` says how the child comes to be); an abort is an error here.
//!
//! The compiler and the assembler that it runs (`ptxas`) are fetched on first use, about 230 MB, as the plugin for the CPU
//! is; programs are kept in the same cache.

mod process;
mod program;
mod protocol;
mod target;
mod worker;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prost::Message;
use shardax_sharding::{Cluster, Layout, Partitioner};

use crate::cache::{CacheKey, CompileCache};
use crate::error::{AheadFault, Error, Result};
use crate::lower::Module;
use crate::pjrt::{CompileOptions, OptionValue};
use crate::plugin::{Environment, Package, PluginFile, Progress};
pub use program::AheadProgram;
pub(crate) use program::Inner;
use protocol::{Compiled, Request};
pub(crate) use worker::work;

/// The option of XLA's that names the folder with `bin/ptxas` and `nvvm/libdevice`.
const DATA_DIR: &str = "xla_gpu_cuda_data_dir";

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
        let mut compile_options = self.options();
        let own_tools = compile_options.debug_options.contains_key(DATA_DIR);
        let ptxas = match own_tools {
            true => None,
            false => Some(file("ptxas")?),
        };
        let target = target::target_config(self.cluster.chip());
        let topology = target::topology(self.cluster);
        let key = CacheKey::new(&[
            b"compiled for a cluster",
            self.module.identity().as_bytes(),
            &compile_options.encode(),
            target.as_bytes(),
            topology.as_bytes(),
            &plugin.sha256(),
            &ptxas.as_ref().map_or([0; 32], PluginFile::sha256),
            // XLA reads its options from there too.
            environment
                .variable("XLA_FLAGS")
                .unwrap_or_default()
                .as_encoded_bytes(),
        ]);
        let cache = options.cache.as_ref().unwrap_or_else(|| shared_cache());
        let kept = cache.get(&key);
        if let Some(compiled) = kept.and_then(|bytes| Compiled::decode(&*bytes).ok()) {
            return Ok((compiled, true));
        }
        // Not a part of the key: where the tools are does not matter, and their sum is one.
        if let Some(ptxas) = &ptxas {
            compile_options =
                compile_options.option(DATA_DIR, self.text_of(toolkit(ptxas.path()))?);
        }
        let request = Request {
            plugin: self.text_of(plugin.path())?.to_owned(),
            target,
            topology,
            module: self.module.text(),
            options: compile_options.encode(),
        };
        let compiled = process::compile(&request, options.time_limit).map_err(|f| self.fault(f))?;
        cache.put(&key, &compiled.encode_to_vec());
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

    fn options(&self) -> CompileOptions {
        let options = CompileOptions {
            use_shardy_partitioner: self.layout.chosen_partitioner() == Partitioner::Shardy,
            ..CompileOptions::partitioned(self.layout.mesh().device_count())
        }
        // Products become calls of cuBLAS. Kernels of Triton could only be guessed at, since trying them takes a GPU, and
        // compiling them takes five times as long.
        .option("xla_gpu_enable_triton_gemm", false);
        self.xla.iter().fold(options, |options, (name, value)| {
            options.option(name.clone(), value.clone())
        })
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

/// The folder of the toolkit that an assembler is in: it is `bin/ptxas` there.
fn toolkit(ptxas: &Path) -> &Path {
    ptxas.parent().and_then(Path::parent).unwrap_or(ptxas)
}

fn shared_cache() -> &'static Arc<CompileCache> {
    static CACHE: OnceLock<Arc<CompileCache>> = OnceLock::new();
    CACHE.get_or_init(|| Arc::new(CompileCache::from_environment(&Environment::of_process())))
}
