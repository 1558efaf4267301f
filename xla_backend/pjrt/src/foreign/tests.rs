//! Calls of closures and of foreign handlers, on a real CPU plugin.

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::structs::{CallFrame, Extension, FfiBuffer, METADATA, MetadataExtension, VERSION};
use super::*;
use crate::element::{ArrayType, ElementType};
use crate::find::{PluginFile, Progress};
use crate::tests::{bytes as to_bytes, floats};
use crate::{Buffer, CompileOptions, ExecuteOptions, Execution, LoadedExecutable, Plugin};

fn client(devices: usize) -> Client {
    let plugin = PluginFile::find_or_fetch(Progress::Stderr).unwrap();
    Client::cpu(&Plugin::load(plugin.path()).unwrap(), devices).unwrap()
}

fn shaped(values: &[f32], dims: &[usize]) -> HostArray {
    HostArray::new(ArrayType::new(ElementType::F32, dims), to_bytes(values)).unwrap()
}

fn f32s(values: &[f32]) -> HostArray {
    shaped(values, &[values.len()])
}

fn values(array: &HostArray) -> Vec<f32> {
    floats(array.bytes())
}

type Outcome = std::result::Result<Vec<HostArray>, String>;

/// A module of one argument that returns what the closure makes of it.
fn module(operand: &str, result: &str, id: i64) -> String {
    format!(
        r#"
module @host {{
  func.func public @main(%x: tensor<{operand}>) -> tensor<{result}> {{
    %y = stablehlo.custom_call @shardax_host(%x) {{api_version = 4 : i32, backend_config = {{id = {id} : i64}}}}
      : (tensor<{operand}>) -> tensor<{result}>
    return %y : tensor<{result}>
  }}
}}"#
    )
}

fn host_call(
    function: impl Fn(&[HostArray]) -> Outcome + Send + Sync + 'static,
    devices: usize,
) -> HostCall {
    HostCall {
        function: Arc::new(function),
        name: "test".into(),
        line: "model.rs:12:5".into(),
        devices,
        ordered: false,
    }
}

/// Calls a closure from a program on one device.
fn compile(
    client: &Client,
    operand: &str,
    result: &str,
    function: impl Fn(&[HostArray]) -> Outcome + Send + Sync + 'static,
) -> LoadedExecutable {
    let mut calls = HostCalls::new();
    let id = calls.add(host_call(function, 1));
    let text = module(operand, result, id);
    client
        .compile_with_calls(
            text.as_bytes(),
            &CompileOptions::partitioned(1),
            &Arc::new(calls),
        )
        .unwrap()
}

/// Launches a program on the same argument for each device.
fn launch_bytes(program: &LoadedExecutable, x: &HostArray) -> Result<Execution> {
    let (element, dims) = (x.ty().element, &x.ty().dims);
    let on = |&device: &usize| {
        program
            .client()
            .buffer_from_host(x.bytes(), element, dims, device)
            .unwrap()
    };
    let arguments: Vec<Buffer> = program.devices().iter().map(on).collect();
    program.execute(
        1,
        |device, _| &arguments[device],
        &ExecuteOptions::default(),
    )
}

fn launch(program: &LoadedExecutable, x: &[f32], dims: &[usize]) -> Result<Execution> {
    launch_bytes(program, &shaped(x, dims))
}

/// The values of each result on each device.
fn run(program: &LoadedExecutable, x: &[f32], dims: &[usize]) -> Result<Vec<Vec<f32>>> {
    let outputs = launch(program, x, dims)?.outputs;
    let read = |output: &Buffer| Ok(floats(&output.to_host()?));
    outputs.iter().map(read).collect()
}

#[test]
fn a_program_calls_a_closure() {
    let client = client(1);
    let square = |x: &[HostArray]| {
        let squares: Vec<f32> = values(&x[0]).iter().map(|v| v * v).collect();
        Ok(vec![shaped(&squares, &[4, 1])])
    };
    let program = compile(&client, "2x2xf32", "4x1xf32", square);
    let squares = run(&program, &[0f32, 1.0, 2.0, 3.0], &[2, 2]).unwrap();
    assert_eq!(squares, [[0.0, 1.0, 4.0, 9.0]]);
}

#[test]
fn values_of_every_type_pass_through() {
    let client = client(1);
    for element in ElementType::ALL {
        let spelled = match element {
            ElementType::Bool => "i1".to_owned(),
            ElementType::F8E4M3FN => "f8E4M3FN".to_owned(),
            ElementType::F8E5M2 => "f8E5M2".to_owned(),
            ElementType::C64 => "complex<f32>".to_owned(),
            // Their own test is below.
            ElementType::I4 | ElementType::U4 => continue,
            _ => element.name().replace('u', "ui"),
        };
        let program = compile(
            &client,
            &format!("3x{spelled}"),
            &format!("3x{spelled}"),
            |x| Ok(x.to_vec()),
        );
        let bytes = match element {
            ElementType::Bool => vec![1, 0, 1],
            _ => (0..3 * element.host_bytes() as u8)
                .map(|i| 7 + i * 9)
                .collect(),
        };
        let x = HostArray::new(ArrayType::new(element, [3]), bytes).unwrap();
        let outputs = launch_bytes(&program, &x).unwrap().outputs;
        assert_eq!(outputs[0].to_host().unwrap(), x.bytes(), "{element}");
    }
    let empty = compile(&client, "0xf32", "0xf32", |x| Ok(x.to_vec()));
    assert_eq!(run(&empty, &[], &[0]).unwrap(), [[]]);
    let scalar = compile(&client, "f32", "f32", |x| Ok(x.to_vec()));
    assert_eq!(run(&scalar, &[7.0], &[]).unwrap(), [[7.0]]);
}

#[test]
fn what_goes_wrong_in_a_closure_is_an_error_with_its_line() {
    let client = client(1);
    let error = |function: fn(&[HostArray]) -> Outcome| {
        let program = compile(&client, "4xf32", "4xf32", function);
        run(&program, &[0f32; 4], &[4]).unwrap_err().to_string()
    };
    let failed = "the host function `test` called at model.rs:12:5 failed: ";
    assert_eq!(
        error(|_| Err("the table is empty".to_owned())),
        format!("{failed}the table is empty")
    );
    assert_eq!(
        error(|_| panic!("no row {}", 7)),
        format!("{failed}it panicked: no row 7")
    );
    assert_eq!(
        error(|_| Ok(vec![f32s(&[1.0])])),
        format!("{failed}it returned f32[1] as result 0, which is declared f32[4]")
    );
    assert_eq!(
        error(|_| Ok(vec![])),
        format!("{failed}it returned 0 arrays, and 1 are declared")
    );
}

#[test]
fn a_type_that_no_literal_has_is_an_error() {
    let client = client(1);
    let mut calls = HostCalls::new();
    let id = calls.add(host_call(|x| Ok(x.to_vec()), 1));
    let text = format!(
        r#"
module @host {{
  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
    %c = stablehlo.convert %x : (tensor<2xf32>) -> tensor<2xi4>
    %y = stablehlo.custom_call @shardax_host(%c) {{api_version = 4 : i32, backend_config = {{id = {id} : i64}}}}
      : (tensor<2xi4>) -> tensor<2xi4>
    %z = stablehlo.convert %y : (tensor<2xi4>) -> tensor<2xf32>
    return %z : tensor<2xf32>
  }}
}}"#
    );
    let options = CompileOptions::partitioned(1);
    let program = client
        .compile_with_calls(text.as_bytes(), &options, &Arc::new(calls))
        .unwrap();
    assert_eq!(
        run(&program, &[0f32; 2], &[2]).unwrap_err().to_string(),
        "the host function `test` called at model.rs:12:5 failed: operand 0 is i4[2], whose elements host functions cannot \
         have: convert it before the call"
    );
}

#[test]
fn a_call_of_no_closure_is_an_error() {
    let client = client(1);
    let mut calls = HostCalls::new();
    let id = calls.add(host_call(|x| Ok(x.to_vec()), 1));
    let options = CompileOptions::partitioned(1);
    let error = |text: String, calls| {
        let program = client
            .compile_with_calls(text.as_bytes(), &options, &Arc::new(calls))
            .unwrap();
        run(&program, &[0f32], &[1]).unwrap_err().to_string()
    };
    let text = module("1xf32", "1xf32", id).replace("id =", "number =");
    assert!(error(text, calls).ends_with("the call has no attribute `id` of type i64"));
    let mut calls = HostCalls::new();
    calls.add(host_call(|x| Ok(x.to_vec()), 1));
    assert!(
        error(module("1xf32", "1xf32", -1), calls)
            .ends_with("there is no host function -1: the program outlived its closures")
    );
}

/// `x, f(x)` on 8 devices, `x` in shards.
fn partitioned(shardy: bool, id: i64) -> String {
    let (mesh, shards, result) = if shardy {
        (
            "sdy.mesh @mesh = <[\"data\"=8]>",
            "sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}]>",
            "sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>, <@mesh, []>]>",
        )
    } else {
        (
            "",
            "mhlo.sharding = \"{devices=[8]<=[8]}\"",
            "mhlo.sharding = \"{{replicated}, {replicated}}\"",
        )
    };
    format!(
        r#"
module @host attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
  {mesh}
  func.func public @main(%x: tensor<16xf32> {{{shards}}}) -> (tensor<16xf32> {{{shards}}}, tensor<ui8>) {{
    %o = stablehlo.constant dense<0> : tensor<ui8>
    %y:2 = stablehlo.custom_call @shardax_host(%x, %o) {{
      api_version = 4 : i32, backend_config = {{id = {id} : i64}}, {result}
    }} : (tensor<16xf32>, tensor<ui8>) -> (tensor<16xf32>, tensor<ui8>)
    return %y#0, %y#1 : tensor<16xf32>, tensor<ui8>
  }}
}}"#
    )
}

fn compile_partitioned(
    client: &Client,
    shardy: bool,
    function: impl Fn(&[HostArray]) -> Outcome + Send + Sync + 'static,
) -> LoadedExecutable {
    let mut calls = HostCalls::new();
    let id = calls.add(HostCall {
        ordered: true,
        ..host_call(function, 8)
    });
    let options = CompileOptions {
        use_shardy_partitioner: shardy,
        ..CompileOptions::partitioned(8)
    };
    let text = partitioned(shardy, id);
    client
        .compile_with_calls(text.as_bytes(), &options, &Arc::new(calls))
        .unwrap()
}

#[test]
fn eight_devices_make_one_call() {
    let client = client(8);
    for shardy in [true, false] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        // What it returns differs from call to call: the devices agree only if there is one.
        let program = compile_partitioned(&client, shardy, move |x| {
            assert_eq!(x.len(), 1);
            assert_eq!(x[0].ty().dims[..], [16]);
            let call = counted.fetch_add(1, Ordering::SeqCst) as f32;
            Ok(vec![f32s(&[call; 16])])
        });
        for launch in 0..50 {
            let outputs = run(&program, &[1f32, 2.0], &[2]).unwrap();
            assert_eq!(outputs[..8], vec![vec![launch as f32; 2]; 8]);
        }
        assert_eq!(count.load(Ordering::SeqCst), 50);
    }
}

#[test]
fn an_error_reaches_all_devices() {
    let client = client(8);
    for shardy in [true, false] {
        let program = compile_partitioned(&client, shardy, |_| Err("not today".to_owned()));
        let Execution { outputs, launch } = launch(&program, &[1f32, 2.0], &[2]).unwrap();
        for output in &outputs[..8] {
            assert!(
                matches!(output.to_host(), Err(Error::HostFunction(fault)) if fault.message == "not today")
            );
        }
        assert!(launch.wait().is_err());
    }
}

#[test]
fn closures_live_as_long_as_the_launches_that_call_them() {
    let client = client(8);
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let owned = Arc::new(());
    let watched = Arc::downgrade(&owned);
    let program = compile_partitioned(&client, true, move |x| {
        let _owned = &owned;
        wait.lock().unwrap().recv().map_err(|e| e.to_string())?;
        Ok(x.to_vec())
    });
    let execution = launch(&program, &[1f32, 2.0], &[2]).unwrap();
    drop(program);
    assert!(watched.upgrade().is_some());
    go.send(()).unwrap();
    assert_eq!(
        execution.outputs[0].to_host().unwrap(),
        to_bytes(&[1.0, 2.0])
    );
    execution.launch.wait().unwrap();
    let start = std::time::Instant::now();
    while watched.upgrade().is_some() {
        assert!(
            start.elapsed().as_secs() < 20,
            "the closure is never dropped"
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_closure_cannot_launch_a_program() {
    let client = client(1);
    let inner = compile(&client, "1xf32", "1xf32", |x| Ok(x.to_vec()));
    let outer = compile(&client, "1xf32", "1xf32", move |_| {
        let outcome = run(&inner, &[1f32], &[1]);
        Err(outcome.map_or_else(|error| error.to_string(), |_| "it ran".to_owned()))
    });
    assert_eq!(
        run(&outer, &[1f32], &[1]).unwrap_err().to_string(),
        "the host function `test` called at model.rs:12:5 failed: `host` cannot be launched from a host function or a callback, \
         whose thread it may wait for: launch it before, and pass its results as arguments"
    );
}

#[test]
fn launches_with_effects_happen_one_after_the_other() {
    let client = client(8);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let program = |number: u32| {
        let order = order.clone();
        compile_partitioned(&client, true, move |x| {
            // The earlier launch takes longer.
            std::thread::sleep(std::time::Duration::from_millis(u64::from(
                20 * (3 - number),
            )));
            order.lock().unwrap().push(number);
            Ok(x.to_vec())
        })
    };
    let programs = [program(0), program(1), program(2)];
    let launches = programs
        .each_ref()
        .map(|p| launch(p, &[1f32, 2.0], &[2]).unwrap());
    for execution in launches {
        execution.launch.wait().unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}

/// Doubles one `f32` array: a handler as a user would write it.
unsafe extern "C" fn double(frame: *mut c_void) -> *mut c_void {
    // SAFETY: this is called by XLA alone, with a frame that lives for the call, on operands and results of this type.
    unsafe {
        let frame = &*frame.cast::<CallFrame>();
        if let Some(&Extension { kind: METADATA, .. }) = frame.extension_start.as_ref() {
            let metadata = (*frame.extension_start.cast::<MetadataExtension>()).metadata;
            ((*metadata).version.major, (*metadata).version.minor) = VERSION;
            return null_mut();
        }
        let (x, y): (*mut FfiBuffer, *mut FfiBuffer) =
            (*frame.operands.values, *frame.results.values);
        for i in 0..*(*x).dims as usize {
            *(*y).data.cast::<f32>().add(i) = 2.0 * *(*x).data.cast::<f32>().add(i);
        }
    }
    null_mut()
}

unsafe extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
    null_mut()
}

#[test]
fn a_handler_of_the_users_own_is_called() {
    let client = client(1);
    // SAFETY: the handler follows the contract for the program below.
    unsafe {
        client.register_handler("test_double", double).unwrap();
        client.register_handler("test_double", double).unwrap();
    }
    let text = module("3xf32", "3xf32", 0).replace("@shardax_host", "@test_double");
    let options = CompileOptions::partitioned(1);
    let program = client.compile(text.as_bytes(), &options).unwrap();
    let doubled = run(&program, &[1f32, 2.0, 3.0], &[3]).unwrap();
    assert_eq!(doubled, [[2.0, 4.0, 6.0]]);
}

#[test]
fn a_name_has_one_handler() {
    let client = client(1);
    // SAFETY: none of them is ever called.
    let (taken, ours) = unsafe {
        client.register_handler("test_taken", double).unwrap();
        (
            client.register_handler("test_taken", nothing).unwrap_err(),
            client.register_handler(HOST_TARGET, double).unwrap_err(),
        )
    };
    assert_eq!(
        taken.to_string(),
        "custom call target `test_taken`: another handler has this name: choose another name for this one"
    );
    assert_eq!(
        ours.to_string(),
        "custom call target `shardax_host`: this name is not free: choose another for the handler"
    );
}

#[test]
fn a_target_that_nobody_registered_is_an_error() {
    let text = module("1xf32", "1xf32", 0).replace("@shardax_host", "@test_missing");
    let client = client(1);
    let outcome = client.compile(text.as_bytes(), &CompileOptions::partitioned(1));
    let error = outcome
        .and_then(|program| run(&program, &[1f32], &[1]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("test_missing"), "{error}");
}
