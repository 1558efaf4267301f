//! `shardax doctor` from outside: what it prints and how it exits.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// The doctor on a machine that has nothing but an empty home.
fn doctor(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardax"));
    command.arg("doctor").env_clear().env("HOME", home);
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The lines from the one that begins with `start`, with the runs of blanks in them made one.
fn from_line(text: &str, start: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.starts_with(start));
    let lines: Vec<String> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    lines.join("\n")
}

/// The path of a plugin that works, fetched where it is needed: the tests run with the user's own cache folder.
fn working_plugin() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_shardax"))
        .args(["doctor", "--fetch", "--json"])
        .env_remove("XLA_FLAGS")
        .output()
        .expect("it runs");
    let findings: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("findings in JSON");
    assert!(output.status.success(), "{findings:#}");
    findings["plugin"].as_str().expect("a path").to_owned()
}

#[test]
fn bare_machine() {
    let home = tempfile::tempdir().expect("a folder");
    let output = doctor(home.path()).output().expect("it runs");
    let expected = format!(
        "Shardax {} on linux x86_64

Plugin
  cache folder              {home}/.cache/shardax/plugins/lammps-jax-pjrt-cpu-0.11.2/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so
                            no such file
  used                      none

Cache
  folder                    {home}/.cache/shardax (0 B)
  compiled                  0 programs, 0 B of at most 4.0 GiB

Python
  none                      no python3 on PATH

Environment
  none                      no variable of Shardax or XLA is set

Training cannot run.
  problem                   there is no plugin, and no python3 with pip to fetch it
                            -> install Python 3 with pip, then run `shardax doctor --fetch`; or set SHARDAX_PLUGIN
",
        env!("CARGO_PKG_VERSION"),
        home = home.path().display()
    );
    assert_eq!(text(&output), expected);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn fetch_without_python() {
    let home = tempfile::tempdir().expect("a folder");
    let output = doctor(home.path())
        .arg("--fetch")
        .output()
        .expect("it runs");
    let verdict = from_line(&text(&output), "Training");
    assert!(
        verdict.starts_with(
            "Training cannot run.\nproblem lammps-jax-pjrt-cpu==0.11.2 must be fetched with pip, but there is no \
             python3 on PATH or in VIRTUAL_ENV"
        ),
        "{verdict}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn plugin_that_works() {
    let home = tempfile::tempdir().expect("a folder");
    let plugin = working_plugin();
    let output = doctor(home.path())
        .env("SHARDAX_PLUGIN", &plugin)
        .output()
        .expect("it runs");
    let text = text(&output);
    for (section, start) in [
        (
            "Plugin",
            format!("Plugin\nSHARDAX_PLUGIN {plugin}\nusable\n"),
        ),
        ("  PJRT API", "PJRT API 0.".to_owned()),
        ("  xla version", "xla version ".to_owned()),
        (
            "Devices",
            "Devices\nplatform cpu\n0 to 7 cpu, memories: device, ".to_owned(),
        ),
        (
            "  program",
            "program a sum over 8 devices is right (".to_owned(),
        ),
        (
            "Environment",
            format!("Environment\nSHARDAX_PLUGIN {plugin}\n\nTraining can run."),
        ),
    ] {
        let found = from_line(&text, section);
        assert!(
            found.starts_with(&start),
            "{section} is not {start}:\n{text}"
        );
    }
    assert!(text.ends_with("\nTraining can run.\n"), "{text}");
    assert!(output.status.success());
}

#[test]
fn unknown_xla_flag_is_reported_and_not_suffered() {
    let home = tempfile::tempdir().expect("a folder");
    let output = doctor(home.path())
        .env("SHARDAX_PLUGIN", working_plugin())
        .env("XLA_FLAGS", "--xla_no_such_flag=1")
        .output()
        .expect("it runs");
    let verdict = from_line(&text(&output), "Training");
    assert!(
        verdict.starts_with("Training cannot run.\nproblem the plugin /"),
        "{verdict}"
    );
    assert!(
        verdict.contains("does not work: XLA ended the process with "),
        "{verdict}"
    );
    assert!(
        verdict.contains("Unknown flag in XLA_FLAGS: --xla_no_such_flag=1"),
        "{verdict}"
    );
    assert!(
        verdict.contains("-> unset XLA_FLAGS and look again"),
        "{verdict}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn file_that_is_no_plugin() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("plugin.so");
    fs::write(&file, "no library").expect("written");
    let output = doctor(home.path())
        .env("SHARDAX_PLUGIN", &file)
        .output()
        .expect("it runs");
    let verdict = from_line(&text(&output), "Training");
    let start = format!(
        "Training cannot run.\nproblem the plugin {} does not work: cannot load ",
        file.display()
    );
    assert!(verdict.starts_with(&start), "{verdict}");
    assert!(
        verdict.ends_with("\n-> unset SHARDAX_PLUGIN to use the pinned plugin"),
        "{verdict}"
    );

    let output = doctor(home.path())
        .env("SHARDAX_PLUGIN", home.path().join("missing.so"))
        .output()
        .expect("it runs");
    let verdict = from_line(&text(&output), "Training");
    assert!(
        verdict.contains("missing.so, which cannot be used: no such file"),
        "{verdict}"
    );
}

#[test]
fn folders_and_variables_that_are_wrong() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("file");
    fs::write(&file, "").expect("written");
    let output = doctor(home.path())
        .env("SHARDAX_CACHE", file.join("cache"))
        .env("SHARDAX_CACHE_LIMIT", "much")
        .env("SHARDAX_PLUGN", "/plugin.so")
        .output()
        .expect("it runs");
    let verdict = from_line(&text(&output), "Training");
    for part in [
        "note compiled programs cannot be kept, so every run compiles anew: cannot write to ",
        "-> free some room or make the folder writable, or set SHARDAX_CACHE to another folder",
        "note SHARDAX_CACHE_LIMIT is \"much\", which is no size",
        "note SHARDAX_PLUGN is set, and Shardax has no such variable\n\
         -> it reads SHARDAX_CACHE, SHARDAX_CACHE_LIMIT, SHARDAX_CUDA_PLUGIN, SHARDAX_LOG, SHARDAX_PLUGIN, SHARDAX_PTXAS",
    ] {
        assert!(verdict.contains(part), "{part} is not in:\n{verdict}");
    }
}

#[test]
fn damaged_plugin_in_the_cache() {
    let home = tempfile::tempdir().expect("a folder");
    let library = home.path().join(
        ".cache/shardax/plugins/lammps-jax-pjrt-cpu-0.11.2/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
    );
    fs::create_dir_all(library.parent().expect("a folder")).expect("created");
    fs::write(&library, "half").expect("written");
    let output = doctor(home.path()).arg("--json").output().expect("it runs");
    let findings: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("findings in JSON");
    assert_eq!(findings["plugins"][0]["usable"], false);
    assert_eq!(findings["probe"], serde_json::Value::Null);
    let problems = findings["problems"].as_array().expect("a list");
    let what = format!("{} is not the pinned library", library.display());
    assert!(
        problems.iter().any(|problem| problem["what"] == what),
        "{findings:#}"
    );
    assert_eq!(output.status.code(), Some(1));
}
