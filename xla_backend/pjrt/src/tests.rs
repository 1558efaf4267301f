//! The runtime against a real CPU plugin.

use std::sync::mpsc;

use super::*;
use crate::error::{Error, ErrorCode, Result};
use crate::find::{PluginFile, Progress};

/// The plugin that the tests run on.
fn test_plugin() -> Plugin {
    Plugin::load(PluginFile::find_or_fetch(Progress::Stderr).unwrap().path()).unwrap()
}

pub(crate) fn client(devices: usize) -> Client {
    Client::cpu(&test_plugin(), devices).unwrap()
}

pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks_exact(4).map(value).collect()
}

/// Sums the rows of a 16x4 array whose rows are spread over 8 devices; each device gets the sum.
const SUM: &str = r#"
module @sum {
  sdy.mesh @mesh = <["data"=8]>
  func.func public @main(%x: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<16x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}"#;

/// Adds the mean over all devices to every element, reusing the first argument's memory; the second is added too.
const STEP: &str = r#"
module @step {
  sdy.mesh @mesh = <["data"=8]>
  func.func public @main(
      %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, tf.aliasing_output = 0 : i32},
      %y: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %count = stablehlo.constant dense<8.0> : tensor<4xf32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %mean = stablehlo.divide %sum, %count : tensor<4xf32>
    %all = stablehlo.broadcast_in_dim %mean, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
    %a = stablehlo.add %x, %all : tensor<8x4xf32>
    %b = stablehlo.add %a, %y : tensor<8x4xf32>
    return %b : tensor<8x4xf32>
  }
}"#;

const DOUBLE: &str = r#"
module @double {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
}"#;

fn compile(client: &Client, program: &str, devices: usize) -> LoadedExecutable {
    client
        .compile(program.as_bytes(), &CompileOptions::partitioned(devices))
        .unwrap()
}

/// The same bytes on each of eight devices, for one argument.
fn shards(client: &Client, values: &[f32], dims: &[usize]) -> Vec<Buffer> {
    let on = |device| {
        client
            .buffer_from_host(&bytes(values), ElementType::F32, dims, device)
            .unwrap()
    };
    (0..8).map(on).collect()
}

fn run(program: &LoadedExecutable, arguments: &[&[Buffer]]) -> Result<Execution> {
    let argument = |device: usize, input: usize| &arguments[input][device];
    program.execute(arguments.len(), argument, &ExecuteOptions::default())
}

#[test]
fn a_plugin_is_loaded_once_and_describes_itself() {
    let plugin = test_plugin();
    assert!(plugin.api_version() >= (0, 81));
    assert!(matches!(
        plugin.attribute("xla_version"),
        Some(Attribute::Int(_))
    ));
    assert!(
        matches!(plugin.attribute("stablehlo_current_version"), Some(Attribute::IntList(v)) if v.len() == 3)
    );
    let again = Plugin::load(plugin.path()).unwrap();
    assert!(std::ptr::eq(again.path(), plugin.path()));
}

#[test]
fn what_is_no_plugin_is_an_error() {
    let error = Plugin::load("/no/such/plugin.so").unwrap_err().to_string();
    assert!(
        error.starts_with("cannot load /no/such/plugin.so as a PJRT plugin: No such file"),
        "{error}"
    );
    let error = Plugin::load(env!("CARGO_MANIFEST_DIR"))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("it is a directory, not a shared library"),
        "{error}"
    );
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert!(matches!(Plugin::load(text), Err(Error::PluginLoad { .. })));
}

#[test]
fn a_client_lists_its_devices_and_memories() {
    let client = client(8);
    assert_eq!(
        (
            client.platform_name(),
            client.device_count(),
            client.process_index()
        ),
        ("cpu", 8, 0)
    );
    for (position, device) in client.devices().iter().enumerate() {
        assert_eq!(device.id(), position as i32);
        assert!(
            device.is_addressable()
                && !device.kind().is_empty()
                && !device.debug_string().is_empty()
        );
        let kinds: Vec<&str> = device
            .memories()
            .iter()
            .map(|memory| memory.kind.as_str())
            .collect();
        assert!(
            kinds.contains(&device.default_memory().unwrap().kind.as_str()),
            "{kinds:?}"
        );
    }
}

#[test]
fn a_bad_device_count_is_an_error() {
    for count in [0, 5000, usize::MAX] {
        let error = Client::cpu(&test_plugin(), count).unwrap_err();
        assert!(matches!(error, Error::DeviceCount { .. }), "{error}");
    }
    let option = |value| [("cpu_device_count".to_owned(), value)];
    let error = Client::new(&test_plugin(), &option(ClientOption::Int(-1)))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "client option `cpu_device_count` is -1: it must be a whole number from 1 to 2048"
    );
    assert!(Client::new(&test_plugin(), &option(ClientOption::Float(2.0))).is_err());
}

#[test]
fn every_element_type_survives_the_round_trip() {
    use ElementType::*;
    let client = client(2);
    let types = [
        Bool, I4, I8, I16, I32, I64, U4, U8, U16, U32, U64, F8E4M3FN, F8E5M2, F16, BF16, F32, F64,
        C64,
    ];
    for dtype in types {
        for dims in [&[] as &[usize], &[5], &[2, 3], &[2, 0], &[2, 1, 3]] {
            let size = dims.iter().product::<usize>() * dtype.host_bytes();
            // Values that every type holds unchanged: 0 and 1 for booleans and the unsigned 4-bit integer.
            let data: Vec<u8> = (0..size).map(|i| (i % 2) as u8).collect();
            let buffer = client.buffer_from_host(&data, dtype, dims, 1).unwrap();
            assert_eq!(
                (buffer.element_type(), buffer.dims(), buffer.device()),
                (dtype, dims, 1)
            );
            assert_eq!(buffer.to_host().unwrap(), data, "{dtype} {dims:?}");
            let owned = client
                .buffer_from_owned(data.clone(), dtype, dims, 0)
                .unwrap();
            owned.ready_event().unwrap().wait().unwrap();
            let mut read = vec![7; size];
            owned.copy_to_host(&mut read).unwrap();
            assert_eq!(read, data, "{dtype} {dims:?}");
        }
    }
}

#[test]
fn rows_stay_rows() {
    let client = client(1);
    let data: Vec<u8> = (0..24).collect();
    let buffer = client
        .buffer_from_host(&data, ElementType::U8, &[2, 3, 4], 0)
        .unwrap();
    assert_eq!(buffer.to_host().unwrap(), data);
    assert_eq!(buffer.on_device_size().unwrap(), 24);
    assert_eq!(
        Some(&buffer.memory().unwrap()),
        client.devices()[0].default_memory()
    );
}

#[test]
fn host_data_of_the_wrong_size_and_missing_devices_are_errors() {
    let client = client(2);
    let error = client
        .buffer_from_host(&[0; 10], ElementType::F32, &[2, 3], 0)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "copying to the device: f32[2,3] takes 24 bytes on the host, but the slice has 10; \
         pass all elements in row-major order"
    );
    let error = client
        .buffer_from_host(&[0; 24], ElementType::F32, &[2, 3], 2)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "device 2: the client has 2 devices, numbered from 0");
    for dims in [
        &[usize::MAX, 4] as &[usize],
        &[1 << 62, 1],
        &[0, usize::MAX, 2],
    ] {
        let error = client
            .buffer_from_host(&[], ElementType::F32, dims, 0)
            .unwrap_err();
        assert!(matches!(error, Error::Dimensions { .. }), "{error}");
    }
    let buffer = client
        .buffer_from_host(&[0; 24], ElementType::F32, &[2, 3], 0)
        .unwrap();
    assert!(matches!(
        buffer.copy_to_host(&mut [0; 23]),
        Err(Error::HostSize { .. })
    ));
    assert_eq!(
        buffer.copy_to_device(0).unwrap_err().to_string(),
        "device 0: the buffer is on it already"
    );
    assert!(buffer.copy_to_device(9).is_err());
}

#[test]
fn a_buffer_is_copied_to_another_device() {
    let client = client(2);
    let buffer = client
        .buffer_from_host(&[1, 2, 3], ElementType::U8, &[3], 0)
        .unwrap();
    let copy = buffer.copy_to_device(1).unwrap();
    drop(buffer);
    assert_eq!((copy.device(), copy.to_host().unwrap()), (1, vec![1, 2, 3]));
}

#[test]
fn a_deleted_buffer_is_an_error_everywhere() {
    let client = client(2);
    let program = compile(&client, DOUBLE, 1);
    let buffer = client
        .buffer_from_host(&bytes(&[1.0; 4]), ElementType::F32, &[4], 0)
        .unwrap();
    buffer.delete().unwrap();
    buffer.delete().unwrap();
    assert!(buffer.is_deleted());
    let errors = [
        buffer.to_host().unwrap_err(),
        buffer.copy_to_host(&mut [0; 16]).unwrap_err(),
        buffer.ready_event().unwrap_err(),
        buffer.on_device_size().unwrap_err(),
        buffer.memory().unwrap_err(),
        buffer.copy_to_device(1).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::BufferDeleted { .. }), "{error}");
    }
    let error = run(&program, &[&[buffer]]).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot run `double`: argument 0 on device 0 was donated or deleted before and holds no data any more"
    );
}

#[test]
fn eight_devices_sum_under_shardy() {
    let client = client(8);
    let program = compile(&client, SUM, 8);
    assert_eq!(
        (
            program.name(),
            program.num_replicas(),
            program.num_partitions()
        ),
        ("sum", 1, 8)
    );
    assert_eq!(program.devices(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(
        program
            .input_types()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["f32[2,4]"]
    );
    assert_eq!(
        program
            .output_types()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["f32[4]"]
    );
    assert_eq!(
        (program.input_aliases(), program.is_donated(0)),
        (&[] as &[InputAlias], false)
    );
    let x: Vec<Buffer> = (0..8)
        .map(|device| {
            let rows = [device as f32; 8];
            client
                .buffer_from_host(&bytes(&rows), ElementType::F32, &[2, 4], device)
                .unwrap()
        })
        .collect();
    let results = run(&program, &[&x]).unwrap();
    assert_eq!(results.outputs.len(), 8);
    for (device, output) in results.outputs.iter().enumerate() {
        assert_eq!(output.device(), device);
        assert_eq!(floats(&output.to_host().unwrap()), [56.0; 4]);
    }
    results.launch.wait().unwrap();
    assert!(results.launch.is_ready().unwrap());
}

#[test]
fn a_program_on_chosen_devices_takes_its_arguments_there() {
    let client = client(4);
    let options = CompileOptions {
        device_assignment: Some(vec![3]),
        ..CompileOptions::default()
    };
    let program = client.compile(DOUBLE.as_bytes(), &options).unwrap();
    assert_eq!(program.devices(), [3]);
    let on = |device| {
        client
            .buffer_from_host(
                &bytes(&[1.0, 2.0, 3.0, 4.0]),
                ElementType::F32,
                &[4],
                device,
            )
            .unwrap()
    };
    let results = run(&program, &[&[on(3)]]).unwrap();
    assert_eq!(
        floats(&results.outputs[0].to_host().unwrap()),
        [2.0, 4.0, 6.0, 8.0]
    );
    assert_eq!(
        run(&program, &[&[on(0)]]).unwrap_err().to_string(),
        "cannot run `double`: argument 0 must be on device 3, but is on device 0; copy it there first"
    );
}

#[test]
fn donation_takes_the_memory_and_reuse_is_an_error() {
    let client = client(8);
    let program = compile(&client, STEP, 8);
    assert!(program.is_donated(0) && !program.is_donated(1));
    let alias = program.input_aliases();
    assert!(
        alias.len() == 1 && (alias[0].input, alias[0].output) == (0, 0),
        "{alias:?}"
    );
    let x = shards(&client, &[1.0; 4], &[1, 4]);
    let y = shards(&client, &[2.0; 4], &[1, 4]);

    let keep = ExecuteOptions {
        non_donatable_inputs: vec![0],
    };
    let kept = program
        .execute(
            2,
            |device, input| [&x, &y][input].get(device).unwrap(),
            &keep,
        )
        .unwrap();
    assert_eq!(floats(&kept.outputs[7].to_host().unwrap()), [4.0; 4]);
    assert!(!x[0].is_deleted());

    let same = run(&program, &[&x, &x]).unwrap_err().to_string();
    assert!(
        same.starts_with("cannot run `step`: argument 1 on device 0 was donated")
            || same.starts_with(
                "cannot run `step`: argument 1 on device 0 is donated, but the same buffer"
            ),
        "{same}"
    );
    assert!(
        !x[0].is_deleted(),
        "nothing was launched, so nothing is gone"
    );

    let results = run(&program, &[&x, &y]).unwrap();
    assert_eq!(floats(&results.outputs[3].to_host().unwrap()), [4.0; 4]);
    assert!(x.iter().all(Buffer::is_deleted) && !y.iter().any(Buffer::is_deleted));
    assert!(matches!(x[0].to_host(), Err(Error::BufferDeleted { .. })));
    let error = run(&program, &[&x, &y]).unwrap_err();
    let Error::Arguments { faults, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(faults.len(), 8, "every device's buffer is named");
    assert!(
        error
            .to_string()
            .contains("argument 0 on device 7 was donated or deleted before")
    );
}

#[test]
fn arguments_that_do_not_fit_are_all_named() {
    let client = client(8);
    let program = compile(&client, STEP, 8);
    let x = shards(&client, &[1.0; 4], &[1, 4]);
    // The right number of bytes, but the wrong rank; then the wrong element type. XLA itself takes both.
    let flat = shards(&client, &[1.0; 4], &[4]);
    let error = run(&program, &[&x, &flat]).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot run `step`: argument 1 on device 0 must be f32[1,4], but is f32[4]; argument 1 on device 1"),
        "{error}"
    );
    let integers: Vec<Buffer> = (0..8)
        .map(|device| {
            client
                .buffer_from_host(&[0; 16], ElementType::I32, &[1, 4], device)
                .unwrap()
        })
        .collect();
    let error = run(&program, &[&integers, &x]).unwrap_err().to_string();
    assert!(
        error.contains("argument 0 on device 0 must be f32[1,4], but is i32[1,4]"),
        "{error}"
    );
    assert_eq!(
        run(&program, &[&x]).unwrap_err().to_string(),
        "cannot run `step`: it takes 2 arguments, 1 were given"
    );
    let other = self::client(8);
    let foreign = shards(&other, &[1.0; 4], &[1, 4]);
    let error = run(&program, &[&x, &foreign]).unwrap_err().to_string();
    assert!(
        error.contains("argument 1 on device 7 belongs to another client"),
        "{error}"
    );
    let options = ExecuteOptions {
        non_donatable_inputs: vec![5],
    };
    let error = program
        .execute(2, |device, _| &x[device], &options)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "cannot run `step`: non-donatable input 5 does not exist, there are 2 arguments"
    );
    assert!(x.iter().all(|buffer| !buffer.is_deleted()));
}

#[test]
fn bad_programs_and_options_are_errors_in_xlas_words() {
    let client = client(2);
    for program in ["", "module {", "not a program at all"] {
        let error = client
            .compile(program.as_bytes(), &CompileOptions::default())
            .unwrap_err();
        assert!(matches!(error, Error::Pjrt(_)), "{program:?}: {error}");
    }
    let options = CompileOptions::default().option("xla_no_such_option", true);
    let error = client.compile(DOUBLE.as_bytes(), &options).unwrap_err();
    assert!(error.to_string().contains("xla_no_such_option"), "{error}");
    let error = client
        .compile(SUM.as_bytes(), &CompileOptions::partitioned(8))
        .unwrap_err();
    assert!(matches!(error, Error::CompileOptions { .. }), "{error}");
}

#[test]
fn a_program_is_serialized_and_loaded() {
    let client = client(8);
    let program = compile(&client, STEP, 8);
    let blob = program.serialize().unwrap();
    let loaded = client.deserialize_and_load(&blob).unwrap();
    assert!(loaded.is_donated(0));
    assert_eq!(loaded.devices(), program.devices());
    assert!(
        loaded.input_types().eq(program.input_types())
            && loaded.output_types().eq(program.output_types())
    );
    let x = shards(&client, &[1.0; 4], &[1, 4]);
    let y = shards(&client, &[0.5; 4], &[1, 4]);
    let results = run(&loaded, &[&x, &y]).unwrap();
    assert_eq!(floats(&results.outputs[0].to_host().unwrap()), [2.5; 4]);
    let too_small = self::client(2).deserialize_and_load(&blob).unwrap_err();
    assert!(
        too_small.to_string().contains("No matching device"),
        "{too_small}"
    );
    for corrupt in [&b""[..], b"nonsense", &blob[..blob.len() / 2]] {
        let error = client.deserialize_and_load(corrupt).unwrap_err();
        assert!(matches!(error, Error::Pjrt(_)), "{error}");
    }
}

#[test]
fn a_program_tells_its_memory_and_its_optimized_form() {
    let client = client(8);
    let program = compile(&client, STEP, 8);
    let stats = program.memory_stats().unwrap();
    assert_eq!(
        (stats.argument, stats.output, stats.alias),
        (32, 16, 16),
        "{stats:?}"
    );
    let optimized = program.optimized_program().unwrap();
    assert_eq!(optimized.format, "hlo_with_config");
    let contains = |needle: &[u8]| {
        optimized
            .code
            .windows(needle.len())
            .any(|window| window == needle)
    };
    assert!(contains(b"all-reduce"));
    assert!(!program.fingerprint().unwrap().is_empty());
}

#[test]
fn two_thousand_launches_that_nobody_awaits() {
    let client = client(8);
    let program = compile(&client, STEP, 8);
    let mut x = shards(&client, &[0.0; 4], &[1, 4]);
    let y = shards(&client, &[0.25; 4], &[1, 4]);
    for step in 0..2000 {
        // Twice the value each step, so start anew before it overflows.
        if step % 16 == 0 {
            x = shards(&client, &[0.0; 4], &[1, 4]);
        }
        x = run(&program, &[&x, &y]).unwrap().outputs;
    }
    assert_eq!(floats(&x[5].to_host().unwrap()), [0.25 * 65535.0; 4]);
}

#[test]
fn threads_share_a_client() {
    let client = client(8);
    let (sum, step) = (compile(&client, SUM, 8), compile(&client, STEP, 8));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (client, sum, step) = (&client, &sum, &step);
            scope.spawn(move || {
                let rows = shards(client, &[thread as f32; 8], &[2, 4]);
                let y = shards(client, &[thread as f32; 4], &[1, 4]);
                for _ in 0..50 {
                    let x = shards(client, &[1.0; 4], &[1, 4]);
                    let total = run(sum, &[&rows]).unwrap().outputs;
                    let stepped = run(step, &[&x, &y]).unwrap().outputs;
                    assert_eq!(
                        floats(&total[1].to_host().unwrap()),
                        [16.0 * thread as f32; 4]
                    );
                    assert_eq!(
                        floats(&stepped[6].to_host().unwrap()),
                        [2.0 + thread as f32; 4]
                    );
                }
            });
        }
    });
}

#[test]
fn one_buffer_is_donated_by_one_thread_only() {
    let client = client(8);
    let program = compile(&client, STEP, 8);
    let y = shards(&client, &[0.0; 4], &[1, 4]);
    for _ in 0..20 {
        let x = shards(&client, &[1.0; 4], &[1, 4]);
        let successes: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| usize::from(run(&program, &[&x, &y]).is_ok())))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert!(successes <= 1 && x.iter().all(Buffer::is_deleted) == (successes == 1));
    }
}

#[test]
fn callbacks_are_called_and_their_panics_stay_inside() {
    let client = client(1);
    let program = compile(&client, DOUBLE, 1);
    let x = client
        .buffer_from_host(&bytes(&[1.0; 4]), ElementType::F32, &[4], 0)
        .unwrap();
    let results = run(&program, &[&[x]]).unwrap();
    let event = results.outputs[0].ready_event().unwrap();
    let (sender, receiver) = mpsc::channel();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    event.on_ready(|_| panic!("inside a callback")).unwrap();
    // The client's last handle may go in a callback, on the plugin's own thread.
    event
        .on_ready(move |outcome| sender.send((outcome.is_ok(), results)).unwrap())
        .unwrap();
    let (ok, results) = receiver.recv().unwrap();
    std::panic::set_hook(hook);
    assert!(ok);
    event.wait().unwrap();
    assert!(event.is_ready().unwrap());
    assert_eq!(floats(&results.outputs[0].to_host().unwrap()), [2.0; 4]);
}

#[test]
fn the_last_handle_may_go_in_a_callback() {
    let (sender, receiver) = mpsc::channel();
    for _ in 0..20 {
        let program = compile(&client(2), DOUBLE, 1);
        let x = program
            .client()
            .buffer_from_host(&bytes(&[1.0; 4]), ElementType::F32, &[4], 0)
            .unwrap();
        let output = run(&program, &[&[x]]).unwrap().outputs.remove(0);
        let event = output.ready_event().unwrap();
        let sender = sender.clone();
        let held = (program, output);
        event
            .on_ready(move |outcome| {
                drop(held);
                sender.send(outcome.is_ok()).unwrap();
            })
            .unwrap();
        drop(event);
        assert!(receiver.recv().unwrap());
    }
}

#[test]
fn a_transposed_result_is_read_in_row_major_order() {
    let client = client(1);
    let program = r#"
      func.func public @main(%x: tensor<2x3xi32>) -> tensor<3x2xi32> {
        %y = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>
        return %y : tensor<3x2xi32>
      }"#;
    let program = compile(&client, program, 1);
    let data: Vec<u8> = (0..6i32).flat_map(i32::to_le_bytes).collect();
    let x = client
        .buffer_from_host(&data, ElementType::I32, &[2, 3], 0)
        .unwrap();
    let read = run(&program, &[&[x]]).unwrap().outputs[0]
        .to_host()
        .unwrap();
    let values: Vec<i32> = read.chunks_exact(4).map(|b| i32::from(b[0])).collect();
    assert_eq!(values, [0, 3, 1, 4, 2, 5]);
}

#[test]
fn everything_keeps_its_client_alive() {
    let program = compile(&client(8), SUM, 8);
    let x = shards(program.client(), &[1.0; 8], &[2, 4]);
    let results = run(&program, &[&x]).unwrap();
    drop((program, x));
    let copy = results.outputs[0].to_host_async().unwrap();
    drop(results);
    assert_eq!(floats(&copy.wait().unwrap()), [16.0; 4]);
}

#[test]
fn an_error_of_the_plugin_has_its_code() {
    let client = client(1);
    let options = CompileOptions::default().option("xla_no_such_option", true);
    let error = client.compile(DOUBLE.as_bytes(), &options).unwrap_err();
    let Error::Pjrt(error) = error else {
        panic!("{error}");
    };
    assert_eq!(
        (error.function, error.code),
        ("PJRT_Client_Compile", ErrorCode::InvalidArgument)
    );
    assert_eq!(
        error.message,
        "No such compile option: 'xla_no_such_option'"
    );
}
