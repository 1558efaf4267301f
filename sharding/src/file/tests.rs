//! What is written is read, and what is wrong is told.

use proptest::prelude::*;

use super::ROLES;
use crate::axes::Axes;
use crate::error::Error;
use crate::layout::{Layout, Partitioner};
use crate::mesh::Mesh;
use crate::reduction::ReductionType;
use crate::spec::PartitionSpec;

/// Axes of the mesh below, each at most once, some of them parts, some open.
fn axes() -> impl Strategy<Value = Axes> {
    let names = ["data", "model", "context:(1)2", "context:(2)4"];
    let chosen = proptest::sample::subsequence(names.to_vec(), 0..=4);
    (chosen.prop_shuffle(), any::<bool>()).prop_map(|(names, open)| {
        let axes = Axes::from_iter(names);
        if open { axes.open() } else { axes }
    })
}

fn spec() -> impl Strategy<Value = PartitionSpec> {
    let entry = (0usize..4, any::<bool>());
    proptest::collection::vec(entry, 0..4).prop_map(|entries| {
        let mut left = vec!["data", "model", "context"];
        let entries = entries.into_iter().map(|(count, open)| {
            let count = count.min(left.len());
            let axes = Axes::from_iter(left.drain(..count));
            if open { axes.open() } else { axes }
        });
        PartitionSpec::from_iter(entries.collect::<Vec<_>>())
    })
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_]{1,8}", "\\PC{1,4}", "[\"\\\\ .\n\t\u{7f}]{1,3}"]
}

const REDUCTIONS: [ReductionType; 2] = [ReductionType::Own, ReductionType::F32];

fn layouts() -> impl Strategy<Value = Layout> {
    let rule = (0usize..11, names(), axes(), spec(), 0u32..3);
    (proptest::collection::vec(rule, 0..12), any::<bool>()).prop_map(|(rules, gspmd)| {
        let mesh = Mesh::new([("data", 2), ("model", 4), ("context", 8)]).unwrap();
        let mut layout = Layout::new(mesh);
        if gspmd {
            layout = layout.partitioner(Partitioner::Gspmd);
        }
        for (kind, name, axes, spec, number) in rules {
            layout = match kind {
                0 => layout.shard(name, axes),
                1 => layout.shard_where_free(name, axes),
                2 => layout.shard_parameters(name, axes),
                3 => match number {
                    0 => layout.shard_every_parameter(axes.closed()),
                    1 => layout.shard_every_gradient(axes.closed()),
                    _ => layout.shard_every_state(axes.closed()),
                },
                4 if !gspmd => layout.priority(name, number),
                5 => layout.override_spec(name, spec),
                6 => layout.override_as(name, ROLES[number as usize].1, spec),
                7 => layout.constrain(name, spec),
                10 if !layout.names().any(|known| known == name) => {
                    layout.shard_where_divides(name, axes)
                }
                8 => layout.reduce_gradients_in(REDUCTIONS[number as usize % 2]),
                _ => layout.reduce_activations_in(REDUCTIONS[number as usize % 2]),
            };
        }
        layout
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(layout in layouts()) {
        prop_assume!(layout.validate().is_ok());
        let text = layout.to_toml();
        let read = Layout::from_toml(&text);
        prop_assert_eq!(read.as_ref(), Ok(&layout), "{}", text);
        prop_assert_eq!(read.unwrap().to_toml(), text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
        let _ = Layout::from_toml(&text);
    }
}

#[test]
fn one_device_is_written_too() {
    let layout = Layout::single();
    assert_eq!(Layout::from_toml(&layout.to_toml()), Ok(layout));
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let error = Layout::from_toml(text).unwrap_err().to_string();
    let lines: Vec<&str> = error
        .lines()
        .map(|line| line.trim_start_matches("  - "))
        .collect();
    assert_eq!(lines, expected);
}

#[test]
fn everything_wrong_is_told_with_line_and_key() {
    check(
        r#"
mesh = { data = 2, model = 4 }
partitoner = "shardy"
partitioner = "shardly"

[shard]
batch = "dta"
mlp = ["model", "model"]
seq = 3
embed = ["data", 1]

[every]
states = "data"

[priority]
batch = "first"

[[override]]
path = "wte"
role = "stat"

[[override]]
spec = "data"
paths = "wte"

[constrain]
scores = ["data", "pipe"]

[reduce]
gradient = "own"
activations = "bf16"
"#,
        &[
            "cannot read the layout:",
            "line 3, `partitoner`: there is no such key: did you mean `partitioner`?",
            "line 4, `partitioner`: unknown partitioner `shardly`: did you mean `shardy`? There \
             are shardy, gspmd",
            "line 7, `shard.batch`: the mesh has no axis `dta`: did you mean `data`? There are \
             data, model",
            "line 8, `shard.mlp`: mesh axis `model` is wanted twice, by the same rule: an axis \
             splits one dimension of an array, once",
            "line 9, `shard.seq`: axes are a name or a list of names: `\"data\"`, `[\"data\", \
             \"model\"]`",
            "line 10, `shard.embed`: this is a text: write it in quotes",
            "line 13, `every.states`: there is no such key: did you mean `state`?",
            "line 16, `priority.batch`: a priority is a whole number from 0 to 4294967295",
            "line 18, `override 0`: it has no `spec`",
            "line 20, `override 0.role`: there is no role `stat`: did you mean `state`?",
            "line 24, `override 1.paths`: there is no such key: did you mean `path`?",
            "line 22, `override 1`: it has no `path`",
            "line 23, `override 1.spec`: a spec is a list with an entry for each dimension: \
             `[\"data\", \"_\"]`",
            "line 27, `constrain.scores`: the mesh has no axis `pipe`: there are data, model",
            "line 30, `reduce.gradient`: there is no such key: did you mean `gradients`?",
            "line 31, `reduce.activations`: unknown type of reductions `bf16`: there are own, f32",
        ],
    );
}

#[test]
fn one_name_is_split_by_one_kind_of_rule() {
    check(
        "mesh = { data = 2 }\n\n[shard]\nheads = \"data\"\n\n[shard_where_divides]\nseq = \"data\"\nheads = \"data\"\n",
        &[
            "cannot read the layout: line 8, `shard_where_divides.heads`: `shard` has a rule for \
             this name too: one of them holds",
        ],
    );
}

#[test]
fn a_mesh_is_needed_and_checked() {
    check(
        "[shard]\nbatch = 1\n",
        &[
            "cannot read the layout:",
            "line 1, `mesh`: it is missing: write `mesh = { data = 8 }`",
            "line 2, `shard.batch`: axes are a name or a list of names: `\"data\"`, `[\"data\", \
             \"model\"]`",
        ],
    );
    check(
        "mesh = { data = 0, model = -4 }",
        &[
            "cannot read the layout:",
            "line 1, `mesh.model`: a size is a whole number from 1",
            "line 1, `mesh`: axis `data` has size 0: an axis has at least one device",
        ],
    );
    let error = Layout::from_toml("mesh = {\n data = ")
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn a_long_file_with_many_faults_is_read_at_once() {
    let rules: String = (0..5000).map(|i| format!("n{i} = \"dta\"\n")).collect();
    let Err(Error::File { faults }) =
        Layout::from_toml(&format!("mesh = {{ data = 2 }}\n[shard]\n{rules}"))
    else {
        panic!("it is read");
    };
    assert_eq!((faults.len(), faults[4999].line), (5000, 5002));

    let Err(Error::File { faults }) = Layout::from_toml(&format!("mesh = {}", "[".repeat(9000)))
    else {
        panic!("it is read");
    };
    assert_eq!(faults.len(), 20);
}
