//! What `docs/guide/layouts.md` says its commands print is what they print.

#[path = "common/examples.rs"]
mod examples;

use std::process::Command;

use examples::example;

/// Arguments of the example, and what it is said to print.
type Told = (Vec<String>, Vec<String>);

/// The commands of the chapter that run the example, each with the block behind it.
fn told(chapter: &str) -> Vec<Told> {
    let mut told = Vec::new();
    let mut blocks = chapter.split("```").skip(1).step_by(2).peekable();
    while let Some(block) = blocks.next() {
        let Some((_, arguments)) = block.split_once("--example new_layout -- ") else {
            continue;
        };
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        let output = blocks.peek().and_then(|block| block.strip_prefix("text\n"));
        let output = output.expect("what the command prints stands behind it");
        told.push((arguments, output.lines().map(str::to_owned).collect()));
    }
    told
}

/// A line without numbers that rounding decides: those of the form `9e-8`, and differences of 0.
fn without_rounding(line: &str) -> Vec<&str> {
    let rounded = |word: &str| match word.split_once("e-") {
        Some((digit, power)) => {
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            is_number(digit) && is_number(power)
        }
        None => word == "0",
    };
    line.split_whitespace()
        .map(|w| if rounded(w) { "*" } else { w })
        .collect()
}

#[test]
fn the_chapter_on_layouts() {
    let root = env!("CARGO_MANIFEST_DIR");
    let chapter = std::fs::read_to_string(format!("{root}/docs/guide/layouts.md")).unwrap();
    let told = told(&chapter);
    assert_eq!(told.len(), 6);
    let program = example("new_layout");
    for (arguments, wanted) in told {
        let output = Command::new(&program)
            .args(&arguments)
            .current_dir(root)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines();
        for line in wanted.iter().filter(|line| *line != "...") {
            let found = lines.any(|other| without_rounding(other) == without_rounding(line));
            assert!(
                found,
                "{arguments:?} does not print, or not there:\n{line}\nbut\n{text}"
            );
        }
    }
}
