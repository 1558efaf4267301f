//! What is warned of, and what is not.

use WarningKind::{
    FullRematerialization, ParameterGathered, ReductionPerIteration, ReplicatedTensor,
    ReshardingInLoop,
};
use shardax::prelude::*;
use shardax::scan;
use shardax::train::accumulate;
use shardax::xla::Error;
use shardax::xla::report::{Report, ReportOptions, Warning, WarningKind};

use super::*;

/// The warnings of one kind, which are all that there are.
#[track_caller]
fn only(report: &Report, kind: WarningKind) -> &[Warning] {
    assert!(!report.warnings.is_empty(), "{report}");
    assert!(report.warnings.iter().all(|w| w.kind == kind), "{report}");
    &report.warnings
}

#[track_caller]
fn check_line(warning: &Warning, text: &str) {
    let source = warning.source.as_ref().unwrap();
    assert!(source.file.ends_with("warnings.rs"), "{source}");
    assert_eq!(
        source.line,
        line_of(include_str!("warnings.rs"), text),
        "{warning}"
    );
}

#[test]
fn strategies_as_they_are_meant_have_no_warnings() {
    for layout in [
        Layout::ddp(data8()).unwrap(),
        Layout::zero1(data8()).unwrap(),
        Layout::zero2(data8()).unwrap(),
        Layout::fsdp(data8()).unwrap(),
        Layout::hsdp(Mesh::new([("replica", 2), ("data", 4)]).unwrap()).unwrap(),
        Layout::megatron(grid()).unwrap(),
        Layout::megatron_fsdp(grid()).unwrap(),
    ] {
        for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
            let report = compiled(layout.clone().partitioner(partitioner))
                .report()
                .unwrap();
            assert_eq!(report.warnings, [], "{report}");
        }
    }
}

#[test]
fn a_whole_stack_that_is_gathered_is_a_warning() {
    let layout = Layout::fsdp(data8()).unwrap();
    let returned = |m: Model, x: Tensor| (m.loss(x), m.blocks.0.up.reshape([-1]));
    let report = report_of(returned, &layout, (model(), f32s([64, WIDTH])));
    let [warning] = only(&report, ParameterGathered) else {
        panic!("{report}");
    };
    assert_eq!(warning.tensors, ["0.blocks.up"]);
    assert_eq!(warning.bytes, 4 * (LAYERS * WIDTH * HIDDEN) as u64);
    for part in [
        "all 3 layers",
        "`0.blocks.up` f32[3,16,32]",
        "over data",
        "6.0 KiB",
    ] {
        assert!(warning.message.contains(part), "{warning}");
    }
    // No operation of the program reads it whole: a result does.
    assert_eq!(warning.source, None);
    assert!(
        warning.help.contains("a result is the whole stack"),
        "{warning}"
    );
}

#[test]
fn a_parameter_that_is_gathered_against_its_layout_is_a_warning() {
    let layout = Layout::megatron(grid()).unwrap();
    let gathered = |m: Model, x: Tensor| {
        value_and_grad(|m: Model| {
            let whole = m.embedding.shard(&[WHOLE, WHOLE]);
            let logits = x.shard(&[SPLIT, WHOLE]).dot(whole.transpose([1, 0]));
            logits.square().mean(..)
        })(m)
        .0
    };
    let report = report_of(gathered, &layout, (model(), f32s([64, WIDTH])));
    let [warning] = only(&report, ParameterGathered) else {
        panic!("{report}");
    };
    assert_eq!(warning.tensors, ["0.embedding"]);
    assert!(
        warning
            .message
            .contains("splits it over model where it is used"),
        "{warning}"
    );
}

#[test]
fn a_value_that_is_gathered_to_be_split_in_another_way_is_a_warning() {
    let between = |first: [Dim; 2], second: [Dim; 2]| {
        let f = move |x: Tensor| {
            let y = x.shard(&first).sin(); // Split first.
            y.shard(&second).cos().sum(..)
        };
        report_of(f, &Layout::new(grid()), f32s([16, 32]))
    };
    let model: Dim = Dim::Mesh(&["model"]);
    let report = between([SPLIT, WHOLE], [WHOLE, model]);
    let [warning] = only(&report, FullRematerialization) else {
        panic!("{report}");
    };
    assert!(
        warning.message.contains(r#"lay as P("data", _)"#),
        "{warning}"
    );
    assert!(
        warning
            .message
            .contains("over data, 2.0 KiB on each device"),
        "{warning}"
    );
    check_line(warning, "Split first.");
    // An all-to-all does it.
    let report = between([SPLIT, WHOLE], [WHOLE, SPLIT]);
    assert_eq!(report.warnings, [], "{report}");
}

#[test]
fn a_value_that_moves_in_each_iteration_is_a_warning() {
    let looped = |back: [Dim; 2]| {
        let f = move |x: Tensor| {
            let (h, _) = scan(
                x,
                Tensor::zeros(DType::F32, [5]),
                |h: Tensor, zero: Tensor| {
                    let a = h.shard(&[SPLIT, WHOLE]).tanh();
                    let b = a.shard(&back).tanh();
                    (b.shard(&[SPLIT, WHOLE]), zero)
                },
            );
            h.sum(..)
        };
        report_of(f, &Layout::new(data8()), f32s([16, 32]))
    };
    let report = looped([WHOLE, SPLIT]);
    let warnings = only(&report, ReshardingInLoop);
    assert_eq!(warnings.len(), 2, "{report}");
    let message = &warnings[0].message;
    for part in [
        "all-to-all over data",
        "in each of 5 iterations",
        r#"P("data", _) -> P(_, "data")"#,
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(warnings[0].bytes, 5 * 4 * 16 * 32 / 8);
    let report = looped([SPLIT, WHOLE]);
    assert_eq!(report.warnings, [], "{report}");
}

fn zeros(m: &Model) -> Model {
    let zero = |t: Tensor| Tensor::zeros(DType::F32, t.ty().shape);
    Model {
        embedding: zero(m.embedding),
        blocks: Stack(Block {
            up: zero(m.blocks.0.up),
            down: zero(m.blocks.0.down),
        }),
    }
}

fn sum(a: Model, b: Model) -> Model {
    Model {
        embedding: a.embedding + b.embedding,
        blocks: Stack(Block {
            up: a.blocks.0.up + b.blocks.0.up,
            down: a.blocks.0.down + b.blocks.0.down,
        }),
    }
}

#[test]
fn gradients_that_are_reduced_for_each_micro_batch_are_a_warning() {
    let accumulate = |m: Model, batches: Tensor| {
        let (gradient, _) = scan(zeros(&m), batches, |so_far: Model, x: Tensor| {
            let (loss, gradient) = value_and_grad(|m: Model| m.loss(x))(m.clone());
            (sum(so_far, gradient), loss)
        });
        gradient
    };
    for layout in [Layout::ddp(data8()), Layout::zero1(data8())] {
        let types = (model(), f32s([4, 64, WIDTH]));
        let report = report_of(accumulate, &layout.unwrap(), types);
        let warnings = only(&report, ReductionPerIteration);
        let mut tensors: Vec<&str> = warnings
            .iter()
            .flat_map(|w| &w.tensors)
            .map(String::as_str)
            .collect();
        tensors.sort_unstable();
        assert_eq!(
            tensors,
            ["blocks.down", "blocks.up", "embedding"],
            "{report}"
        );
        for warning in warnings {
            assert!(
                warning.message.contains("in every one of 4 iterations"),
                "{warning}"
            );
        }
        // Each micro-batch has all gradients, in the loop over layers and outside.
        let gradients = 4 * (VOCAB * WIDTH + 2 * LAYERS * WIDTH * HIDDEN) as u64;
        assert_eq!(warnings.iter().map(|w| w.bytes).sum::<u64>(), 4 * gradients);
    }
}

#[test]
fn accumulation_that_reduces_once_or_into_shards_has_no_warning() {
    let step = |m: Model, x: Tensor| {
        let (_, gradient) = accumulate(4, |m: Model, x: Tensor| m.loss(x))(m, x);
        gradient
    };
    for layout in [
        Layout::ddp(data8()).unwrap(),
        Layout::zero1(data8()).unwrap(),
        Layout::zero2(data8()).unwrap(),
        Layout::fsdp(data8()).unwrap(),
    ] {
        let report = report_of(step, &layout, (model(), f32s([64, WIDTH])));
        assert_eq!(report.warnings, [], "{report}");
    }
}

#[test]
fn large_tensors_on_every_device_are_a_warning() {
    let program = compiled(Layout::ddp(data8()).unwrap());
    let options = ReportOptions {
        replicated_bytes: 5000,
    };
    let report = program.report_with(options).unwrap();
    let [warning] = only(&report, ReplicatedTensor) else {
        panic!("{report}");
    };
    let mut tensors = warning.tensors.clone();
    tensors.sort_unstable();
    assert_eq!(tensors, ["0.blocks.down", "0.blocks.up"]);
    assert_eq!(warning.bytes, 2 * 4 * (LAYERS * WIDTH * HIDDEN) as u64);
    assert!(
        warning.message.contains("whole on each of 8 devices"),
        "{warning}"
    );
    let options = ReportOptions {
        replicated_bytes: 1 << 20,
    };
    assert_eq!(program.report_with(options).unwrap().warnings, []);
    let split = compiled(Layout::fsdp(data8()).unwrap());
    let options = ReportOptions {
        replicated_bytes: 5000,
    };
    assert_eq!(split.report_with(options).unwrap().warnings, []);
}

#[test]
fn strict_makes_chosen_warnings_errors() {
    let wasteful = |x: Tensor| {
        let (h, _) = scan(
            x,
            Tensor::zeros(DType::F32, [5]),
            |h: Tensor, zero: Tensor| {
                let a = h.shard(&[SPLIT, WHOLE]).tanh();
                (a.shard(&[WHOLE, SPLIT]).tanh().shard(&[SPLIT, WHOLE]), zero)
            },
        );
        h.sum(..)
    };
    let layout = Layout::new(data8());
    let compile = |kinds: &[WarningKind]| {
        let step = jit(wasteful).name("wasteful").layout(&layout);
        let step = step.report_options(ReportOptions {
            replicated_bytes: 1024,
        });
        step.strict(kinds.iter().copied()).compile(f32s([16, 32]))
    };
    assert!(compile(&[]).is_ok());
    assert!(compile(&[ParameterGathered, FullRematerialization]).is_ok());
    let error = compile(&[ReshardingInLoop]).err().unwrap();
    let Error::Strict { program, warnings } = &error else {
        panic!("{error}");
    };
    assert_eq!((program.as_str(), warnings.len()), ("wasteful", 2));
    // All that were found, of all kinds that were asked for.
    let error = compile(&WarningKind::ALL).err().unwrap().to_string();
    for part in [
        "`wasteful` is compiled strictly, and has warnings:",
        "resharding_in_loop: ",
        "replicated_tensor: the argument f32[16,32]",
        "tests/report/warnings.rs:",
        "help: ",
    ] {
        assert!(error.contains(part), "{part}\n{error}");
    }
}
