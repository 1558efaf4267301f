//! `shardax layouts` from outside: what it prints and how it exits.

use std::process::{Command, Output};

fn layouts(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shardax"))
        .arg("layouts")
        .args(["--steps", "2"])
        .args(arguments)
        .output()
        .expect("it runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn strategies_are_equal_to_one_device() {
    let arguments = [
        "--mesh",
        "data=2,model=4",
        "--strategy",
        "zero1+megatron",
        "--strategy",
        "ddp+accumulate+remat",
    ];
    let output = layouts(&arguments);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let first: Vec<&str> = text.lines().take(5).collect();
    assert!(first[0].starts_with("mesh data=2 x model=4  "), "{text}");
    for (line, start) in first[1..].iter().zip([
        "  equal   zero1+megatron               shardy ",
        "  equal   zero1+megatron               gspmd ",
        "  equal   ddp+accumulate+remat         shardy ",
        "  equal   ddp+accumulate+remat         gspmd ",
    ]) {
        assert!(line.starts_with(start), "{text}");
    }
    assert!(text.ends_with("4 layouts: 4 equal\n"), "{text}");
}

#[test]
fn json_has_the_numbers() {
    let arguments = [
        "--json",
        "--dtype",
        "bf16",
        "--devices",
        "4",
        "--mesh",
        "data=4",
        "--strategy",
        "fsdp",
        "--partitioner",
        "shardy",
    ];
    let output = layouts(&arguments);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(output.status.success(), "{json:#}");
    assert_eq!(json["equal"], true);
    let rows = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "{json:#}");
    let row = &rows[0];
    assert_eq!(row["mesh"], "data=4");
    assert_eq!(row["devices"], 4);
    let measured = &row["measured"];
    // Two moments of each parameter; the number of the step is with the parameters.
    let bytes = &measured["bytes"];
    let parameters = bytes["parameters"].as_u64().map(|bytes| bytes - 4);
    assert_eq!(
        bytes["optimizer"].as_u64(),
        parameters.map(|bytes| 2 * bytes)
    );
    assert_eq!(bytes["gradients"].as_u64(), parameters);
    let quantities: Vec<&str> = measured["differences"]
        .as_array()
        .expect("differences")
        .iter()
        .filter_map(|d| d["quantity"].as_str())
        .collect();
    assert_eq!(quantities, ["loss", "gradients", "parameters", "optimizer"]);
    let traffic = &measured["traffic"][0];
    assert_eq!(traffic["axes"], serde_json::json!(["data"]));
    assert!(traffic["bytes_sent"].as_u64() > Some(0), "{json:#}");
}

#[test]
fn a_layout_that_does_not_fit_fails_and_says_why() {
    let output = layouts(&["--mesh", "model=8", "--strategy", "megatron"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAILED  megatron"), "{text}");
    assert!(
        text.contains("`heads`) of size 4 is not divisible by model=8"),
        "{text}"
    );
    assert!(text.ends_with("2 layouts: 2 failed\n"), "{text}");
}

#[test]
fn strategies_and_meshes_that_are_not_there_are_errors() {
    let errors = |arguments: &[&str]| {
        let output = layouts(arguments);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = errors(&["--strategy", "zero4+remat"]);
    assert!(text.contains("unknown layout `zero4`"), "{text}");
    let text = errors(&["--strategy", "hsdp", "--mesh", "data=8"]);
    assert!(text.contains("needs a mesh axis `replica`"), "{text}");
    let text = errors(&["--strategy", "ddp", "--mesh", "data=16"]);
    assert!(text.contains("16") && text.contains('8'), "{text}");
    let text = errors(&["--strategy", "remat"]);
    assert!(text.contains("names no layout"), "{text}");
}
