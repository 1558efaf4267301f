//! `docs/errors.md`: mistakes that users make, and the whole message that each one gets.
//!
//! A mistake is a function here. Its doc comment is the section's title and the remedy, its body the code that the
//! section shows. The document is compared with what the functions say; after a change that is meant,
//! `UPDATE_DOCS=1 cargo test --test errors` writes it again.

mod calls;
mod compiler;
mod control_flow;
mod derivatives;
mod layouts;
mod manual;
mod operations;
mod traces;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use shardax::Array;

/// What a mistake ends with.
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The name of a function, and the function.
type Mistake = (&'static str, fn() -> Outcome);

/// The mistakes of one file.
struct Chapter {
    /// The file, as messages name it.
    file: &'static str,
    text: &'static str,
    mistakes: &'static [Mistake],
}

/// The mistakes of the file that this stands in, in the order of the document.
macro_rules! chapter {
    ($($name:ident),* $(,)?) => {
        pub(super) const CHAPTER: super::Chapter = super::Chapter {
            file: file!(),
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", file!())),
            mistakes: &[$((stringify!($name), $name)),*],
        };
    };
}
use chapter;

const CHAPTERS: [Chapter; 7] = [
    operations::CHAPTER,
    traces::CHAPTER,
    derivatives::CHAPTER,
    control_flow::CHAPTER,
    layouts::CHAPTER,
    manual::CHAPTER,
    calls::CHAPTER,
];

const PREFACE: &str = "\
# Mistakes and their messages

Each message says what is wrong with which argument, names its shape, the axis and the sizes, and points at your own
line. All faults of one call are in one message. Model code has no `?`: a mistake in a traced function ends the
enclosing `jit(...).call(...)` (or `trace`) with `Err`, and the next call works.

Every message here is compared with what the library says by `tests/errors/`, and those of the last chapter with what the
compiler says by `tests/macros/`. The code of a section is taken to be
`src/model.rs`, whose first line is the first one shown; `ones(&[2, 3])` is an array `f32[2,3]` of ones.
";

/// Ones on the host.
fn ones(shape: &[usize]) -> Array {
    Array::from_slice(&vec![1f32; shape.iter().product()], shape).expect("as many as the shape has")
}

/// A mistake as its source shows it.
struct Section {
    title: String,
    remedy: String,
    /// The code, without indentation.
    code: String,
    /// The number of the line in the file above the code.
    above: usize,
}

/// The sections of a file, by the names of their functions.
fn sections(chapter: &Chapter) -> BTreeMap<String, Section> {
    let lines: Vec<&str> = chapter.text.lines().collect();
    let mut found = BTreeMap::new();
    for (above, line) in lines.iter().enumerate() {
        let name = line
            .strip_prefix("fn ")
            .and_then(|l| l.strip_suffix("() -> Outcome {"));
        let Some(name) = name else { continue };
        let docs = lines[..above]
            .iter()
            .rev()
            .map_while(|l| l.strip_prefix("///"));
        let mut docs: Vec<&str> = docs.map(str::trim).collect();
        docs.reverse();
        let (title, remedy) = docs
            .split_first()
            .unwrap_or_else(|| panic!("`{name}` has no title"));
        let body = lines[above + 1..].iter().take_while(|l| **l != "}");
        let body = body
            .map(|l| l.strip_prefix("    ").unwrap_or(l))
            .filter(|l| *l != "Ok(())");
        let section = Section {
            title: title.trim_end_matches('.').to_owned(),
            remedy: remedy.join("\n").trim().to_owned(),
            code: body.collect::<Vec<_>>().join("\n"),
            above: above + 1,
        };
        found.insert(name.to_owned(), section);
    }
    found
}

/// The message of a mistake, whose places are those of the code shown.
fn message(chapter: &Chapter, section: &Section, mistake: fn() -> Outcome) -> String {
    let text = match catch_unwind(AssertUnwindSafe(mistake)) {
        Ok(Ok(())) => panic!("`{}` is no error", section.title),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(_) => panic!("`{}` panics without a text", section.title),
        },
    };
    let mut parts = text.split(chapter.file);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let number = |text: &str| {
            text.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
        };
        let line = number(part.trim_start_matches(':'));
        let column = number(part[line.len() + 1..].trim_start_matches(':'));
        let rest = &part[line.len() + column.len() + 2..];
        let place = |text: &str, less: usize| text.parse::<usize>().ok()?.checked_sub(less);
        let line =
            place(&line, section.above).filter(|l| (1..=section.code.lines().count()).contains(l));
        match (line, place(&column, 4)) {
            (Some(line), Some(column)) => shown += &format!("src/model.rs:{line}:{column}{rest}"),
            _ => panic!("a place outside of `{}`: {text}", section.title),
        }
    }
    shown
}

/// The document, by the titles of its sections.
fn by_title(document: &str) -> BTreeMap<&str, &str> {
    let sections = document.split("\n### ").skip(1);
    let sections = sections.map(|s| s.split("\n## ").next().unwrap_or(s));
    sections
        .map(|s| s.split_once('\n').unwrap_or((s, "")))
        .collect()
}

#[test]
fn the_document_has_the_messages_of_all_mistakes() {
    let mut written = PREFACE.to_owned();
    for chapter in &CHAPTERS {
        let mut sections = sections(chapter);
        let title = chapter.text.lines().next().unwrap_or_default();
        let title = title.trim_start_matches("//! ").trim_end_matches('.');
        written += &format!("\n## {title}\n");
        for (name, mistake) in chapter.mistakes {
            let section = sections
                .remove(*name)
                .unwrap_or_else(|| panic!("`{name}` is not found in {}", chapter.file));
            assert!(!section.remedy.is_empty(), "`{name}` lacks the remedy");
            let message = message(chapter, &section, *mistake);
            let Section {
                title,
                remedy,
                code,
                ..
            } = section;
            written += &format!(
                "\n### {title}\n\n```rust\n{code}\n```\n\n```text\n{message}\n```\n\n{remedy}\n"
            );
        }
        let left: Vec<&String> = sections.keys().collect();
        assert!(left.is_empty(), "not listed in {}: {left:?}", chapter.file);
    }
    written += &compiler::chapter();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &written).expect("the document can be written");
    }
    let document = fs::read_to_string(&path).unwrap_or_default();
    let (wanted, found) = (by_title(&written), by_title(&document));
    let titles = |sections: &BTreeMap<&str, &str>| {
        sections.keys().map(|t| t.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        titles(&found),
        titles(&wanted),
        "sections of docs/errors.md, and mistakes"
    );
    for (title, text) in &wanted {
        assert_eq!(found.get(title), Some(text), "`{title}` in docs/errors.md");
    }
    assert_eq!(document, written);
    assert!(wanted.len() >= 40, "{} mistakes", wanted.len());
}
