//! What compiled programs tell without being asked, and to whom.
//!
//! The hook is the process's own, so one test sets it, and collects what others of this file cause.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use shardax::prelude::*;
use shardax::xla::report::WarningKind;
use shardax::{Advice, set_advice_hook};

static TOLD: Mutex<Vec<Advice>> = Mutex::new(Vec::new());

fn told_of(name: &str) -> Vec<Advice> {
    let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    told.iter()
        .filter(|advice| advice.program == name)
        .cloned()
        .collect()
}

#[derive(Clone, Module)]
struct Linear<L = Tensor> {
    #[shard(embed, mlp)]
    weight: L,
}

fn ty(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn forward(model: Linear, x: Tensor) -> Tensor {
    x.dot(model.weight).sum(..)
}

#[test]
fn every_compiled_program_tells_its_own_once() {
    set_advice_hook(|advice| {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        told.push(advice.clone());
    });
    let mesh = || Mesh::new([("data", 2), ("model", 4)]).unwrap();
    let types = || {
        (
            Linear {
                weight: ty(&[16, 32]),
            },
            ty(&[8, 16]),
        )
    };

    // A batch that nobody annotated: every device does everything.
    let ddp = Layout::ddp(Mesh::new([("data", 8)]).unwrap()).unwrap();
    let program = jit(forward).name("unsplit").layout(&ddp);
    program.compile(types()).unwrap();
    program.compile(types()).unwrap();
    let told = told_of("unsplit");
    assert_eq!(told.len(), 1);
    assert_eq!(
        told[0].to_string(),
        "`unsplit` on mesh data=8\n  \
         note: argument `1` f32[8,16] is whole on each of 8 devices, for it has no annotation: if it is to be split, name \
         its dimensions with `#[shard(...)]`\n  \
         note: nothing of the program is split: each of 8 devices computes all of it, as the layout has no rule for any \
         dimension that it names"
    );

    // A rule for a name of the user's own that nothing has.
    let layout = Layout::megatron(mesh()).unwrap().shard("rows", "data");
    let annotated = |model: Linear, x: Tensor| {
        forward(model, x.shard(&[Dim::Logical("batch"), Dim::Unsharded]))
    };
    jit(annotated)
        .name("rows")
        .layout(&layout)
        .compile(types())
        .unwrap();
    assert_eq!(
        told_of("rows")[0].remarks,
        ["no dimension of the program is called `rows`, for which the layout has a rule"]
    );

    // Many arguments without annotation are one line.
    let sum = |xs: Vec<Tensor>, model: Linear| {
        xs.into_iter()
            .fold(model.weight.sum(..), |sum, x| sum + x.sum(..))
    };
    let layout = Layout::megatron(mesh()).unwrap();
    let many = (
        (0..5).map(|_| ty(&[32])).collect::<Vec<_>>(),
        Linear {
            weight: ty(&[16, 32]),
        },
    );
    jit(sum).name("many").layout(&layout).compile(many).unwrap();
    assert_eq!(
        told_of("many")[0].remarks,
        [
            "arguments `0.0` f32[32], `0.1` f32[32] and 3 more are whole on each of 8 devices, for they have no annotation: \
          if they are to be split, name their dimensions with `#[shard(...)]`"
        ]
    );

    // Resharding in a loop is a warning, with its line; equal kinds are one.
    let split = |x: Tensor, rows: &'static str, columns: &'static str| {
        x.shard(&[Dim::Logical(rows), Dim::Logical(columns)])
    };
    let looped = |x: Tensor| {
        let layout = |h: Tensor| split(split(h.sin(), "row", "_none").cos(), "_none", "row");
        fori_loop(0, 4, split(x, "_none", "row"), |_, h: Tensor| {
            layout(layout(h))
        })
    };
    let layout = Layout::new(mesh()).shard("row", "data");
    jit(looped)
        .name("looped")
        .layout(&layout)
        .compile(ty(&[64, 64]))
        .unwrap();
    let told = told_of("looped");
    let kinds: Vec<WarningKind> = told[0]
        .warnings
        .iter()
        .map(|warning| warning.kind)
        .collect();
    assert!(kinds.len() > 1, "{kinds:?}");
    assert!(
        kinds
            .iter()
            .all(|kind| *kind == WarningKind::ReshardingInLoop),
        "{kinds:?}"
    );
    let text = told[0].to_string();
    assert_eq!(
        text.matches("warning: resharding_in_loop").count(),
        1,
        "{text}"
    );
    assert!(text.contains("tests/advice.rs:"), "{text}");
    assert!(text.contains("more of this kind"), "{text}");

    // Nothing to tell, and nobody to tell it to.
    jit(annotated)
        .name("fine")
        .layout(&Layout::megatron(mesh()).unwrap())
        .compile(types())
        .unwrap();
    jit(forward).name("one device").compile(types()).unwrap();
    jit(forward)
        .name("quiet")
        .layout(&ddp)
        .quiet()
        .compile(types())
        .unwrap();
    for name in ["fine", "one device", "quiet"] {
        assert!(told_of(name).is_empty(), "{name}");
    }
}

/// The child of the test below.
#[test]
#[ignore = "a child process of another test"]
fn tells() {
    let ddp = Layout::ddp(Mesh::new([("data", 8)]).unwrap()).unwrap();
    let types = || {
        (
            Linear {
                weight: ty(&[16, 32]),
            },
            ty(&[8, 16]),
        )
    };
    let compile = || {
        jit(forward)
            .name("told")
            .layout(&ddp)
            .compile(types())
            .unwrap()
    };
    compile();
    compile();
    shardax::silence_advice();
    jit(forward)
        .name("silent")
        .layout(&ddp)
        .compile(types())
        .unwrap();
}

#[test]
fn without_a_hook_it_is_on_standard_error_unless_turned_off() {
    for (value, times) in [("on", 1), ("off", 0)] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["tells", "--exact", "--ignored", "--nocapture"])
            .env("SHARDAX_ADVICE", value)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            text.matches("shardax: `told` on mesh data=8").count(),
            times,
            "{text}"
        );
        assert!(!text.contains("`silent`"), "{text}");
    }
}
