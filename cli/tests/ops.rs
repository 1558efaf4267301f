//! `shardax ops` from outside: the table of primitives, and that the documentation has it.

use std::fs;
use std::path::Path;
use std::process::Command;

fn ops(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_shardax"))
        .arg("ops")
        .args(arguments)
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn rows() -> Vec<serde_json::Map<String, serde_json::Value>> {
    serde_json::from_str(&ops(&["--json"])).expect("rows in JSON")
}

#[test]
fn no_cell_is_blank() {
    let rows = rows();
    assert!(rows.len() > 100, "{} operations", rows.len());
    for row in &rows {
        for column in [
            "name", "family", "forward", "reverse", "batched", "lowering",
        ] {
            let cell = row.get(column).and_then(|cell| cell.as_str());
            assert!(
                cell.is_some_and(|cell| !cell.trim().is_empty()),
                "{column} of {row:?}"
            );
        }
    }
}

#[test]
fn each_operation_stands_once() {
    let rows = rows();
    let mut names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None);
}

/// After a change that is meant, `UPDATE_DOCS=1 cargo test -p shardax-cli --test ops` writes it again.
#[test]
fn the_documentation_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ops.md");
    let printed = ops(&["--markdown"]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &printed).expect("the document can be written");
    }
    let document = fs::read_to_string(path).expect("the document");
    let mut pairs = document.lines().zip(printed.lines());
    let first_difference = pairs.find(|(document, printed)| document != printed);
    assert_eq!(first_difference, None, "docs/ops.md, and what is printed");
    assert_eq!(document, printed);
}
