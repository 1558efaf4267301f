//! Messages of a few thunks, and programs that would hang without their order.

use std::collections::HashMap;
use std::process::Command;

use prost::Message;

use super::restored;
use super::thunk::{
    Buffers, COMMUNICATOR, Call, Collective, Conditional, Resource, ResourceUsers, Sequence,
    ShapedSlice, Slice, Thunk, While,
};
use crate::find::{PluginFile, Progress};
use crate::tests::{bytes, client};
use crate::{Buffer, Client, CompileOptions, ElementType, ExecuteOptions, LoadedExecutable};

fn slice(allocation: i64, size: i64) -> Slice {
    Slice {
        offset: 64,
        size,
        allocation,
        element_type: 11,
    }
}

/// A collective that writes a piece of this allocation.
fn collective(allocation: i64, size: i64) -> Thunk {
    let result = ShapedSlice {
        slice: Some(slice(allocation, size)),
    };
    Thunk {
        kind: "collective".into(),
        info: b"\x0a\x01c".to_vec(),
        collective: Some(Collective {
            buffers: Some(Buffers {
                results: vec![result],
            }),
        }),
        ..Thunk::default()
    }
}

fn conditional(branches: Vec<Sequence>) -> Thunk {
    Thunk {
        kind: "conditional".into(),
        info: b"\x0a\x01b".to_vec(),
        conditional: Some(Conditional {
            branches,
            branch_index: Some(slice(90, 4)),
        }),
        ..Thunk::default()
    }
}

/// A sequence as XLA writes it, with the thunks at these positions as users of one communicator.
fn sequence(thunks: &[Thunk], users: &[i64]) -> Sequence {
    Sequence {
        thunks: thunks.iter().map(Message::encode_to_vec).collect(),
        resources: vec![ResourceUsers {
            thunks: users.to_vec(),
            resource: Some(Resource { kind: COMMUNICATOR }),
        }],
    }
}

fn field(number: u32, value: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::bytes::encode(number, &value.to_vec(), &mut field);
    field
}

/// The bytes of a program of these thunks, with fields that nobody here knows.
fn program(thunks: &Sequence) -> Vec<u8> {
    let thunks = [thunks.encode_to_vec(), field(77, b"of the sequence")].concat();
    let executable = [field(8, b"code"), field(6, &thunks), field(10, b"layout")].concat();
    [field(1, &executable), field(2, b"options")].concat()
}

#[test]
fn a_nested_thunk_says_what_it_waits_for_and_what_waits_for_it() {
    let branch = conditional(vec![sequence(&[collective(3, 8)], &[0])]);
    let thunks = [collective(1, 256), branch.clone(), collective(2, 256)];
    let restored = restored(&program(&sequence(&thunks, &[0, 1, 2]))).unwrap();

    let byte = |allocation| Slice {
        size: 1,
        element_type: 1,
        ..slice(allocation, 0)
    };
    let read = |allocation| Thunk {
        kind: "conditional".into(),
        conditional: Some(Conditional {
            branches: vec![],
            branch_index: Some(byte(allocation)),
        }),
        ..Thunk::default()
    };
    let never = Thunk {
        kind: "while".into(),
        repeated: Some(While {
            body: Some(Sequence {
                thunks: vec![read(1).encode_to_vec(), read(2).encode_to_vec()],
                resources: vec![],
            }),
            trip_count: Some(super::TripCount {
                value: 0,
                is_known: true,
            }),
            condition: Some(byte(3)),
        }),
        ..Thunk::default()
    };
    let called = Sequence {
        thunks: vec![branch.encode_to_vec(), never.encode_to_vec()],
        resources: vec![],
    };
    let call = Thunk {
        kind: "call".into(),
        info: branch.info,
        call: Some(Call {
            called: Some(called),
        }),
        ..Thunk::default()
    };
    let expected = sequence(&[collective(1, 256), call, collective(2, 256)], &[0, 1, 2]);
    assert_eq!(restored, program(&expected));
}

#[test]
fn what_is_in_order_stays_as_it_is() {
    let alone = conditional(vec![sequence(
        &[collective(1, 8), collective(2, 8)],
        &[0, 1],
    )]);
    let computes = Thunk {
        kind: "kernel".into(),
        ..Thunk::default()
    };
    let kernel = [computes.encode_to_vec(), field(11, b"of any form")].concat();
    let mut flat = sequence(
        &[collective(1, 8), collective(2, 8), collective(0, 0)],
        &[0, 1, 2],
    );
    flat.thunks.push(kernel);
    for thunks in [flat, sequence(&[alone], &[0, 0]), sequence(&[], &[])] {
        let program = program(&thunks);
        assert_eq!(restored(&program).unwrap(), program);
    }
}

#[test]
fn what_cannot_be_ordered_is_refused() {
    let refused = |program: &[u8]| restored(program).unwrap_err().to_string();
    let error = |reason: &str| {
        format!("the program cannot be kept as bytes: {reason}; compile it where it is to run")
    };
    let two = [collective(1, 8), collective(2, 8)];
    let whole = program(&sequence(&two, &[0, 1]));
    assert_eq!(
        refused(&whole[..whole.len() - 1]),
        error("it ends in the middle of a field")
    );
    assert_eq!(refused(b""), error("it has no sequence of thunks"));
    assert!(refused(b"something else").contains("cannot be kept as bytes"));
    assert_eq!(
        refused(&program(&sequence(&two, &[0]))),
        error("its collectives name no common communicator")
    );
    let empty = conditional(vec![sequence(&[collective(1, 0)], &[0])]);
    assert_eq!(
        refused(&program(&sequence(&[two[0].clone(), empty], &[0, 1]))),
        error("a collective that writes nothing cannot be ordered")
    );
    for (field, kind) in [(14, "infeed"), (22, "remapped-call"), (18, "all-reduce")] {
        let thunk = Thunk {
            kind: kind.into(),
            ..Thunk::default()
        };
        let mut thunks = sequence(&[], &[]);
        thunks.thunks = vec![[thunk.encode_to_vec(), self::field(field, b"")].concat()];
        assert_eq!(
            refused(&program(&thunks)),
            error(&format!("thunks of kind `{kind}` ({field}) are not known"))
        );
    }
}

const DEVICES: usize = 8;
const BRANCHES: usize = 12;
const ELEMENTS: usize = 1024;

/// Branches that do not depend on each other, each with a permutation inside, and permutations beside them.
///
/// Loaded without their order, eight devices enter them in different ones and hang within a hundred launches.
fn branches() -> String {
    let array = format!("tensor<{ELEMENTS}xf32>");
    let permute = |result: String, operand: String, by: usize| {
        let pairs: Vec<String> = (0..DEVICES)
            .map(|from| format!("[{from}, {}]", (from + by) % DEVICES))
            .collect();
        format!(
            "{result} = \"stablehlo.collective_permute\"({operand}) {{source_target_pairs = dense<[{}]> : \
             tensor<{DEVICES}x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 0, type = 0>}} : \
             ({array}) -> {array}\n",
            pairs.join(", ")
        )
    };
    let mut body = String::new();
    for i in 0..BRANCHES {
        let branch = |by: usize| {
            let permute = permute("%y".into(), format!("%x{i}"), by);
            format!("{{ {permute} stablehlo.return %y : {array} }}")
        };
        body += &permute(format!("%beside{i}"), format!("%x{i}"), 1 + i % 7);
        body += &format!(
            "%in{i} = \"stablehlo.case\"(%i{i}) ({}, {}) : (tensor<i32>) -> {array}\n",
            branch(1 + i % 7),
            branch(1 + (i + 1) % 7)
        );
    }
    let each = |text: &dyn Fn(usize) -> String| (0..BRANCHES).map(text).collect::<Vec<String>>();
    let arguments = each(&|i| format!("%i{i}: tensor<i32>, %x{i}: {array}"));
    let results = each(&|i| format!("%beside{i}, %in{i}"));
    let types = vec![array.as_str(); 2 * BRANCHES].join(", ");
    format!(
        "module @branches {{\nfunc.func public @main({}) -> ({types}) {{\n{body}return {} : {types}\n}}\n}}",
        arguments.join(", "),
        results.join(", ")
    )
}

fn compile(client: &Client) -> LoadedExecutable {
    let options = CompileOptions {
        num_replicas: DEVICES,
        ..CompileOptions::partitioned(1)
    };
    client.compile(branches().as_bytes(), &options).unwrap()
}

/// Says to a child process of these tests that it is one.
const CHILD: &str = "SHARDAX_TEST_CHILD";
const COMPILED: &str = "== compiled ==";
const LOADED: &str = "== loaded ==";

#[test]
#[ignore = "only a child process of another test"]
fn child() {
    assert!(std::env::var_os(CHILD).is_some());
    let client = client(DEVICES);
    eprintln!("{COMPILED}");
    let compiled = compile(&client);
    eprintln!("{LOADED}");
    let bytes_of_it = compiled.serialize().unwrap();
    let loaded = client.deserialize_and_load(&bytes_of_it).unwrap();

    let buffer = |device: usize, input: usize| -> Buffer {
        if input.is_multiple_of(2) {
            let index = i32::try_from(input / 2 % 2).unwrap().to_le_bytes();
            client.buffer_from_host(&index, ElementType::I32, &[], device)
        } else {
            let data = bytes(&[(100 * input + device) as f32; ELEMENTS]);
            client.buffer_from_host(&data, ElementType::F32, &[ELEMENTS], device)
        }
        .unwrap()
    };
    let device = |device| {
        (0..2 * BRANCHES)
            .map(|input| buffer(device, input))
            .collect()
    };
    let arguments: Vec<Vec<Buffer>> = (0..DEVICES).map(device).collect();
    let run = |program: &LoadedExecutable| -> Vec<Vec<u8>> {
        let argument = |device: usize, input: usize| &arguments[device][input];
        let results = program.execute(2 * BRANCHES, argument, &ExecuteOptions::default());
        let outputs = results.unwrap().outputs;
        outputs.iter().map(|b| b.to_host().unwrap()).collect()
    };
    let expected = run(&compiled);
    for _ in 0..200 {
        assert_eq!(run(&loaded), expected);
    }
}

/// What every thunk of a sequence comes after, in the words of XLA's own runtime.
type Order = HashMap<String, Vec<String>>;

/// The longest sequence that the runtime's log tells of.
fn order(log: &str) -> Order {
    let sequences = log.split("ThunkExecutor: #thunks").skip(1);
    let orders = sequences.map(|sequence| {
        let thunks = sequence.lines().filter(|line| line.contains(" thunk #"));
        let between = |line: &str, start: &str, end: &str| -> String {
            let (_, rest) = line.split_once(start).unwrap();
            rest.split_once(end).unwrap().0.into()
        };
        let order = thunks.map(|line| {
            let after = between(line, "dependencies=[", "]");
            let after = after.split(", ").filter(|name| !name.is_empty());
            (
                between(line, "op_name=", ","),
                after.map(String::from).collect(),
            )
        });
        order.collect::<Order>()
    });
    orders.max_by_key(Order::len).unwrap()
}

fn comes_after(order: &Order, thunk: &str, other: &str) -> bool {
    let after = &order[thunk];
    after
        .iter()
        .any(|name| name == other || comes_after(order, name, other))
}

#[test]
fn xla_keeps_the_order_of_a_loaded_program() {
    let plugin = PluginFile::find_or_fetch(Progress::Stderr).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["order::tests::child", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .env("SHARDAX_PLUGIN", plugin.path())
        .env("TF_CPP_MIN_LOG_LEVEL", "0")
        .env("TF_CPP_VMODULE", "thunk_executor=6")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{log}", output.status);

    let (_, log) = log.split_once(COMPILED).unwrap();
    let (compiled, loaded) = log.split_once(LOADED).unwrap();
    let (compiled, loaded) = (order(compiled), order(loaded));
    assert!(compiled.len() >= 2 * BRANCHES, "{compiled:?}");
    for (thunk, after) in &compiled {
        for other in after {
            assert!(
                comes_after(&loaded, thunk, other),
                "{thunk} no longer comes after {other}"
            );
        }
    }
}
