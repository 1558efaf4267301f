//! Compiles StableHLO text for two nodes of eight H100s that are not there, and shows what they would run.
//!
//! The first run fetches XLA's CUDA plugin and the assembler that it needs, about 230 MB.
//!
//! ```sh
//! cargo run -p shardax-pjrt --example absent_h100s
//! ```

use std::path::Path;
use std::time::Duration;

use shardax_pjrt::child::{AheadJob, compile};
use shardax_pjrt::find::{Environment, Package, PluginFile, Progress};
use shardax_pjrt::{CompileOptions, GpuTarget};

/// A product whose contracted dimension is split over the GPUs of a node, and whose rows are split over the nodes.
const PRODUCT: &str = r#"
module @product {
  sdy.mesh @mesh = <["data"=2, "model"=8]>
  func.func public @main(
      %x: tensor<8192x16384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
      %y: tensor<16384x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>})
      -> (tensor<8192x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %z = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<8192x16384xbf16>, tensor<16384x4096xbf16>) -> tensor<8192x4096xbf16>
    return %z : tensor<8192x4096xbf16>
  }
}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let environment = Environment::of_process();
    let file = |backend| {
        let package = Package::for_backend(backend, &environment)?;
        PluginFile::find_or_fetch_in(&environment, package, Progress::Stderr)
    };
    let (plugin, ptxas) = (file("cuda")?, file("ptxas")?);
    // The folder that has `bin/ptxas`.
    let toolkit = ptxas.path().parent().and_then(Path::parent);

    let h100 = GpuTarget {
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: 84_942_979_072,
        memory_bandwidth: 3_352_320_000_000,
        memory_clock: 2_619_000,
    };
    let options = CompileOptions::partitioned(16)
        // Calls of cuBLAS, which compile in a moment.
        .option("xla_gpu_enable_triton_gemm", false)
        .option(
            "xla_gpu_cuda_data_dir",
            text(toolkit.ok_or("ptxas is in no toolkit")?)?,
        );
    let job = AheadJob {
        plugin: text(plugin.path())?.to_owned(),
        target: h100.config(),
        // Two NVLink domains of one host with eight GPUs.
        topology: "2x1x8".to_owned(),
        module: PRODUCT.to_owned(),
        options: vec![options.encode()],
    };

    // In a process of its own, since XLA may abort.
    let compiled = compile(&job, Duration::from_secs(600)).map_err(|fault| fault.to_string())?;
    println!("compiled in {:.1} s", compiled.seconds);
    println!(
        "arguments of one GPU  {:>12} bytes",
        compiled.memory.argument
    );
    println!("results of one GPU    {:>12} bytes", compiled.memory.output);
    println!("peak memory of a GPU  {:>12} bytes", compiled.memory.peak);
    println!(
        "scheduled program     {:>12} bytes of HLO",
        compiled.hlo.len()
    );
    Ok(())
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str()
        .ok_or_else(|| format!("the path {} is not UTF-8", path.display()))
}
