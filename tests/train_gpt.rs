//! Mistakes in how the `train_gpt` example is called, and on what machine: what its user sees.

#[path = "common/examples.rs"]
mod examples;
#[path = "common/processes.rs"]
mod processes;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use examples::example;
use processes::{plugin, scratch};

/// The example, built as the tests are.
fn train_gpt() -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    Command::new(BUILT.get_or_init(|| example("train_gpt")))
}

/// Runs it; returns what it wrote to standard error, and whether all went well.
fn run(command: &mut Command) -> (bool, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(matches!(status.code(), Some(0..=2)), "{status}");
    (status.success(), String::from_utf8(stderr).unwrap())
}

#[track_caller]
fn refused(args: &[&str], words: &str) {
    let (ok, text) = run(train_gpt().args(args));
    assert!(!ok);
    assert!(text.contains(words), "{text}");
}

#[test]
fn no_plugin_and_nothing_to_fetch_it_with() {
    let empty = scratch("no_plugin");
    let child = || {
        let mut child = train_gpt();
        child.env_clear().args(["--reference", "tiny"]);
        child
    };
    let by_hand = "To bring it by hand, run\n  python3 -m pip install --no-deps lammps-jax-pjrt-cpu==0.11.2\n\
                   or, for a machine without a network, run where there is one\n  \
                   python3 -m pip download --no-deps --only-binary :all: lammps-jax-pjrt-cpu==0.11.2\n\
                   copy the .whl file here, unzip it, and set SHARDAX_PLUGIN to the path of the .so file in it\n";
    let (ok, text) = run(child()
        .env("PATH", &empty)
        .env("HOME", &empty)
        .env("SHARDAX_CACHE", &empty));
    assert!(!ok);
    assert_eq!(
        text,
        format!(
            "error: lammps-jax-pjrt-cpu==0.11.2 must be fetched with pip, but there is no python3 on PATH \
             or in VIRTUAL_ENV; install Python 3 with pip and try again\n{by_hand}"
        )
    );
    assert_eq!(
        run(&mut child()),
        (
            false,
            "error: lammps-jax-pjrt-cpu==0.11.2 must be fetched, but there is no folder to keep it in, \
             since none of SHARDAX_CACHE, XDG_CACHE_HOME and HOME is set; set SHARDAX_CACHE to a folder\n"
                .to_owned()
        )
    );
    let no_library = empty.join("plugin.so");
    fs::write(&no_library, "this is no library").unwrap();
    let (ok, text) = run(child().env("SHARDAX_PLUGIN", &no_library));
    let start = format!(
        "error: cannot load {} as a PJRT plugin: ",
        no_library.display()
    );
    assert!(!ok && text.starts_with(&start), "{text}");
    assert!(
        !text.contains("dlopen failed"),
        "the loader's reason is missing: {text}"
    );
    assert!(
        run(child().env("SHARDAX_PLUGIN", empty.join("absent.so")))
            .1
            .contains("absent.so")
    );
}

#[test]
fn text_that_is_missing_or_too_short() {
    let folder = scratch("text");
    let missing = folder.join("missing.txt");
    let (ok, text) = run(train_gpt().arg("--data").arg(&missing));
    assert!(!ok);
    assert_eq!(
        text,
        format!(
            "error: cannot read the text at {}: No such file or directory (os error 2)\n",
            missing.display()
        )
    );
    let short = folder.join("short.txt");
    fs::write(&short, "hello").unwrap();
    let (ok, text) = run(train_gpt().arg("--data").arg(&short));
    assert!(!ok);
    assert_eq!(
        text,
        format!(
            "error: the text at {} is too short: it has 5 bytes and at least 650 are needed for windows of \
             65 tokens; give more text or a shorter context\n",
            short.display()
        )
    );
    let binary = folder.join("binary");
    fs::write(&binary, [0u8, 255, 1]).unwrap();
    let (ok, text) = run(train_gpt().arg("--data").arg(&binary));
    assert!(
        !ok && text.contains("is no text: it is not valid UTF-8"),
        "{text}"
    );
}

#[test]
fn options_that_do_not_fit() {
    refused(
        &["--mesh", "data=2,model=4", "--devices", "6"],
        "mesh data=2 x model=4 needs 8 devices, 6 are there",
    );
    refused(
        &["--mesh", "data=2,data=4"],
        "axis `data` is there more than once",
    );
    refused(
        &["--mesh", "data=0"],
        "axis `data` has size 0: an axis has at least one device",
    );
    refused(
        &["--layout", "megatrn"],
        "unknown layout `megatrn`: did you mean `megatron`?",
    );
    refused(
        &["--layout", "fsdp", "--mesh", "model=8"],
        "layout `fsdp` needs a mesh axis `data`",
    );
    refused(
        &["--partitioner", "shard"],
        "unknown partitioner `shard`: did you mean `shardy`?",
    );
}

#[test]
fn heads_that_the_model_axis_does_not_divide() {
    let (ok, text) = run(train_gpt().args(["--reference", "tiny", "--mesh", "model=16"]));
    assert!(!ok);
    assert_eq!(
        text,
        "error: the layout does not fit the program:\
         \n  result `model.blocks.wqkv` f32[2,64,3,4,16]: dimension 3 (`heads`) of size 4 is not divisible by \
         model=16: make the size a multiple of 16, choose mesh sizes that divide 4, or remove the rule for \
         `heads`\
         \n    and result `model.blocks.bqkv` f32[2,3,4,16]\
         \n    and result `model.blocks.wo` f32[2,4,16,64]\
         \n    and result `moments.first.blocks.wqkv` f32[2,64,3,4,16]\
         \n    and result `moments.first.blocks.bqkv` f32[2,3,4,16]\
         \n    and result `moments.first.blocks.wo` f32[2,4,16,64]\
         \n    and result `moments.second.blocks.wqkv` f32[2,64,3,4,16]\
         \n    and 2 more\n"
    );
    // Three devices divide neither heads nor features nor the vocabulary.
    let (ok, text) = run(train_gpt().args(["--reference", "tiny", "--mesh", "model=3"]));
    assert!(!ok);
    for name in [
        "`vocab`) of size 256",
        "`heads`) of size 4",
        "`mlp`) of size 256",
    ] {
        assert!(
            text.contains(&format!("{name} is not divisible by model=3")),
            "{name}: {text}"
        );
    }
    assert_eq!(
        text.matches("not divisible").count(),
        3,
        "each cause once: {text}"
    );
}

#[test]
fn a_cache_that_cannot_be_written_is_a_warning() {
    let folder = scratch("unwritable");
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let mut child = train_gpt();
    child.args(["--reference", "tiny", "--steps", "2", "--devices", "1"]);
    let (ok, text) = run(child
        .env("SHARDAX_CACHE", file.join("cache"))
        .env("SHARDAX_PLUGIN", plugin()));
    assert!(ok, "{text}");
    let warning = format!(
        "shardax: warning: compiled programs cannot be kept in {} and will be compiled again by the next \
         run: Not a directory (os error 20); free some room there, or set SHARDAX_CACHE to another folder \
         (SHARDAX_CACHE_LIMIT=0 keeps none)\n",
        file.join("cache").join("compiled").display()
    );
    assert!(text.starts_with(&warning), "{text}");
    assert_eq!(text.matches("warning").count(), 1, "{text}");
    assert!(text.contains("step 2/2"), "{text}");
}
