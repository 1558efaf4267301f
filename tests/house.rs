//! Imports run one way, between the crates and between the rooms of `xla_backend`; errors print their message.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shardax::{Layout, Mesh};

/// The crates, each of which may use those before it.
const CRATES: [&str; 13] = [
    "shardax-sharding",
    "shardax-core",
    "shardax-interpreter",
    "shardax-pjrt",
    "shardax-hlo",
    "shardax-xla",
    "shardax-macros",
    "shardax-nn",
    "shardax-train",
    "shardax-run",
    "shardax",
    "shardax-cli",
    "shardax-fuzz",
];

/// The rooms of `xla_backend`, each of which may use those before it.
const ROOMS: [&str; 10] = [
    "lower", "report", "error", "cache", "runtime", "array", "compiled", "ahead", "jit", "check",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What each crate of the workspace depends on, of the workspace itself.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    packages
        .iter()
        .map(|package| {
            let all = package["dependencies"].as_array().expect("a list");
            // Tests may use what they test with.
            let ours = all
                .iter()
                .filter(|d| d["kind"].as_str() != Some("dev") && !d["path"].is_null());
            (name(package), ours.map(name).collect())
        })
        .collect()
}

#[test]
fn crates_use_those_below_them() {
    let dependencies = dependencies();
    assert!(dependencies.len() >= 10, "{dependencies:?}");
    for (package, uses) in &dependencies {
        let rank = |name: &str| CRATES.iter().position(|known| *known == name);
        let own = rank(package);
        assert!(own.is_some(), "{package} has no place in the order");
        for used in uses {
            assert!(rank(used) < own, "{package} uses {used}");
        }
    }
    // They know nothing of ours, or of nothing but meshes.
    assert!(dependencies["shardax-pjrt"].is_empty());
    assert!(dependencies["shardax-sharding"].is_empty());
    assert_eq!(dependencies["shardax-hlo"], ["shardax-sharding"]);
    // What is computed needs no device.
    for package in ["shardax-nn", "shardax-train"] {
        assert!(!dependencies[package].contains(&"shardax-xla".to_owned()));
    }
}

/// All source files below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

/// The first segment of each path that begins with `crate::`, with tests left out.
fn used_rooms(text: &str) -> impl Iterator<Item = &str> {
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
}

#[test]
fn rooms_of_the_backend_use_those_below_them() {
    let folder = root().join("xla_backend/src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let mut arrows = 0;
    for file in files {
        let inside = file.strip_prefix(&folder).expect("inside");
        let room = inside.iter().next().and_then(|first| first.to_str());
        let room = room.expect("a name").trim_end_matches(".rs");
        if room == "lib" || inside.ends_with("tests.rs") {
            continue;
        }
        let rank = |name: &str| ROOMS.iter().position(|known| *known == name);
        let own = rank(room).unwrap_or_else(|| panic!("{room} has no place in the order"));
        let text = fs::read_to_string(&file).expect("text");
        for used in used_rooms(&text) {
            let used_rank = rank(used);
            let used_rank = used_rank
                .unwrap_or_else(|| panic!("{}: `crate::{used}` is no room", file.display()));
            assert!(used_rank <= own, "{} uses `{used}`", file.display());
            arrows += usize::from(used_rank < own);
        }
    }
    assert!(arrows > 40, "{arrows} arrows were found");
}

/// A `main` that returns an error prints its `Debug` form. So no error derives it, and each prints its message.
#[test]
fn no_error_prints_its_fields() {
    let mut files = Vec::new();
    for folder in [
        "src",
        "core",
        "sharding",
        "xla_backend",
        "nn",
        "train",
        "run",
        "cli",
        "macros",
        "fuzz",
    ] {
        sources(&root().join(folder), &mut files);
    }
    let mut errors = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("text");
        for derived in text.split("#[derive(").skip(1) {
            let derived = derived.split(")]").next().unwrap_or_default();
            if derived.contains("thiserror::Error") {
                errors += 1;
                assert!(!derived.contains("Debug"), "{}: {derived}", file.display());
            }
        }
    }
    assert!(errors >= 12, "{errors} errors were found");

    let mesh: Mesh = "data=8".parse().expect("a mesh");
    let error: Box<dyn std::error::Error> =
        Layout::megatron(mesh).expect_err("no such axis").into();
    assert_eq!(
        format!("{error:?}"),
        "layout `megatron` needs a mesh axis `model`, and mesh data=8 has none of that name: rename an axis, add \
         `model=1`, or write your own rules with `Layout::new(mesh).shard(..)`"
    );
}
