//! Runs StableHLO text on eight virtual CPU devices: XLA's partitioner splits the product and sums the parts.
//!
//! ```sh
//! cargo run -p shardax-pjrt --example eight_devices
//! ```

use shardax_pjrt::find::{PluginFile, Progress};
use shardax_pjrt::{Buffer, Client, CompileOptions, ElementType, Error, ExecuteOptions, Plugin};

const DEVICES: usize = 8;

/// `x y`, where the dimension that is summed over is split: each device has 2 of the 16 columns of `x` and rows of `y`.
const PRODUCT: &str = r#"
module @product {
  sdy.mesh @mesh = <["model"=8]>
  func.func public @main(
      %x: tensor<4x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
      %y: tensor<16x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>})
      -> (tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %z = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<4x16xf32>, tensor<16x3xf32>) -> tensor<4x3xf32>
    return %z : tensor<4x3xf32>
  }
}"#;

fn main() -> Result<(), Error> {
    let plugin = Plugin::load(PluginFile::find_or_fetch(Progress::Stderr)?.path())?;
    let client = Client::cpu(&plugin, DEVICES)?;
    println!(
        "{} devices of platform {}",
        client.device_count(),
        client.platform_name()
    );

    let options = CompileOptions::partitioned(DEVICES);
    let program = client.compile(PRODUCT.as_bytes(), &options)?;
    for (argument, ty) in program.input_types().enumerate() {
        println!("argument {argument} is {ty} on each device");
    }

    // Every element of x is 1, and row i of y is i: each element of the product is 0 + 1 + ... + 15.
    let mut arguments: Vec<[Buffer; 2]> = Vec::new();
    for device in 0..DEVICES {
        let x = [1f32; 4 * 2];
        let y: [f32; 2 * 3] = std::array::from_fn(|i| (2 * device + i / 3) as f32);
        let put = |values: &[f32], dims: &[usize]| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            client.buffer_from_host(&bytes, ElementType::F32, dims, device)
        };
        arguments.push([put(&x, &[4, 2])?, put(&y, &[2, 3])?]);
    }
    let results = program.execute(
        2,
        |device, argument| &arguments[device][argument],
        &ExecuteOptions::default(),
    )?;

    for (device, result) in results.outputs.iter().enumerate() {
        let bytes = result.to_host()?;
        let values: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        assert_eq!(values, [120.0; 12]);
        println!("device {device}: {values:?}");
    }
    Ok(())
}
