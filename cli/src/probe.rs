//! Loads a plugin and runs a program on its devices, in a process of its own.
//!
//! XLA ends the process where it meets a flag in `XLA_FLAGS` that it does not know, and a library that is no plugin can
//! do anything at all. The doctor wants to report that, so it starts this command as a child.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shardax::xla::Error;
use shardax::xla::pjrt::{Attribute, Buffer, Client, CompileOptions, ExecuteOptions, Plugin};

/// Virtual devices asked of a CPU plugin.
const CPU_DEVICES: usize = 8;
/// A probe takes a second; one that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the child is told.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The plugin library.
    plugin: PathBuf,
}

/// What a plugin says of itself and its devices.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// Version of the PJRT C API, as `0.115`.
    pub(crate) api: String,
    /// The plugin's attributes, such as `xla_version`.
    pub(crate) attributes: BTreeMap<String, String>,
    /// The platform, as `cpu`.
    pub(crate) platform: String,
    /// Its version in its own words.
    pub(crate) platform_version: String,
    /// Its devices.
    pub(crate) devices: Vec<Device>,
    /// How long it took to load the plugin and make a client, in seconds.
    pub(crate) start_seconds: f64,
    /// How long it took to compile the program and run it on all devices, in seconds.
    pub(crate) program_seconds: f64,
}

/// A device of the plugin.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    /// Its number.
    pub(crate) id: i32,
    /// What kind of device it is.
    pub(crate) kind: String,
    /// The kinds of its memories, the default one first.
    pub(crate) memories: Vec<String>,
}

/// The child: prints a [`Probe`] or an error, as JSON.
pub(crate) fn run(options: &Options) -> ExitCode {
    let outcome = probe(&options.plugin);
    match serde_json::to_string(&outcome) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The parent: starts the child and reads what it found, or says how it ended.
pub(crate) fn in_child(plugin: &Path) -> Result<Probe, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("no path of this program: {error}"))?;
    let mut child = Command::new(program)
        .arg("probe")
        .arg(plugin)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("the probe cannot be started: {error}"))?;
    let output = child.stdout.take().map(read_in_background);
    let errors = child.stderr.take().map(read_in_background);
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => {
                // Whether it can be killed or not, there is nothing more to learn from it.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer for {} s", PATIENCE.as_secs()));
            }
        }
    };
    let collect = |reader: Option<std::thread::JoinHandle<String>>| {
        reader
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default()
    };
    let (output, errors) = (collect(output), collect(errors));
    if let Ok(outcome) = serde_json::from_str::<Result<Probe, String>>(&output) {
        return outcome;
    }
    let how = match status.signal() {
        Some(signal) => format!("XLA ended the process with signal {signal}"),
        None => format!("XLA ended the process with {status}"),
    };
    let said: Vec<&str> = errors
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.contains("absl::InitializeLog"))
        // What matters comes before the stack trace.
        .take_while(|line| !line.starts_with("***"))
        .collect();
    let said = &said[said.len().saturating_sub(4)..];
    Err(format!("{how}\n{}", said.join("\n")))
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is kept.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn probe(path: &Path) -> Result<Probe, String> {
    let start = Instant::now();
    let plugin = Plugin::load(path).map_err(|error| error.to_string())?;
    // Plugins for other devices refuse the number of CPU devices.
    let client = Client::cpu(&plugin, CPU_DEVICES)
        .or_else(|_| Client::new(&plugin, &[]))
        .map_err(|error| error.to_string())?;
    let start_seconds = start.elapsed().as_secs_f64();
    let devices = client
        .devices()
        .iter()
        .map(|device| {
            let default = device.default_memory();
            let mut memories: Vec<String> = default
                .map(|memory| memory.kind.clone())
                .into_iter()
                .collect();
            let others = device
                .memories()
                .iter()
                .filter(|memory| Some(*memory) != default);
            memories.extend(others.map(|memory| memory.kind.clone()));
            Device {
                id: device.id(),
                kind: device.kind().to_owned(),
                memories,
            }
        })
        .collect();
    let start = Instant::now();
    sum_over_devices(&client)?;
    let (major, minor) = plugin.api_version();
    Ok(Probe {
        api: format!("{major}.{minor}"),
        attributes: plugin
            .attributes()
            .iter()
            .map(|(name, value)| (name.clone(), attribute_text(value)))
            .collect(),
        platform: client.platform_name().to_owned(),
        platform_version: client.platform_version().to_owned(),
        devices,
        start_seconds,
        program_seconds: start.elapsed().as_secs_f64(),
    })
}

fn attribute_text(value: &Attribute) -> String {
    match value {
        Attribute::String(text) => text.clone(),
        Attribute::Int(number) => number.to_string(),
        Attribute::IntList(numbers) => {
            let parts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            parts.join(".")
        }
        Attribute::Float(number) => number.to_string(),
        Attribute::Bool(flag) => flag.to_string(),
    }
}

/// Adds up the numbers of the devices with an all-reduce, the collective that every layout needs.
fn sum_over_devices(client: &Client) -> Result<(), String> {
    let count = client.device_count();
    let program = format!(
        r#"module @doctor {{
  sdy.mesh @devices = <["device"={count}]>
  func.func public @main(
      %numbers: tensor<{count}xui32> {{sdy.sharding = #sdy.sharding<@devices, [{{"device"}}]>}})
      -> (tensor<ui32> {{sdy.sharding = #sdy.sharding<@devices, []>}}) {{
    %zero = stablehlo.constant dense<0> : tensor<ui32>
    %sum = stablehlo.reduce(%numbers init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<{count}xui32>, tensor<ui32>) -> tensor<ui32>
    return %sum : tensor<ui32>
  }}
}}
"#
    );
    let options = CompileOptions::partitioned(count);
    let sums = run_on_all(client, &program, &options).map_err(|error| error.to_string())?;
    let expected: u32 = (0u32..).take(count).sum();
    if sums.iter().all(|sum| *sum == expected.to_le_bytes()) {
        Ok(())
    } else {
        Err(format!(
            "a sum over {count} devices should be {expected} everywhere, and is {sums:?} (as bytes)"
        ))
    }
}

/// Runs a program with one argument, whose shard on each device is the device's number.
fn run_on_all(
    client: &Client,
    program: &str,
    options: &CompileOptions,
) -> Result<Vec<Vec<u8>>, Error> {
    let executable = client.compile(program.as_bytes(), options)?;
    let mut numbers = Vec::new();
    for input in executable.input_types() {
        for (number, device) in (0u32..).zip(executable.devices()) {
            let bytes = number.to_le_bytes();
            numbers.push(client.buffer_from_host(&bytes, input.element, &input.dims, *device)?);
        }
    }
    let execution =
        executable.execute(1, |device, _| &numbers[device], &ExecuteOptions::default())?;
    let read = |output: &Buffer| Ok(output.to_host()?);
    execution.outputs.iter().map(read).collect()
}
