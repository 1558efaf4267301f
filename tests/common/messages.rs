//! What the tests of messages share.

use std::fs;
use std::panic::Location;
use std::path::Path;

use shardax::{Array, xla};

/// Ones on the host.
pub(crate) fn ones(shape: &[usize]) -> Array {
    Array::from_slice(&vec![1f32; shape.iter().product()], shape).unwrap()
}

/// The text of the error, without the line of a call, which is one of the test's.
#[track_caller]
pub(crate) fn message<T>(outcome: xla::Result<T>) -> String {
    let Err(error) = outcome else {
        panic!("this is no error")
    };
    let text = error.to_string();
    match error {
        xla::Error::Call { .. } => {
            let (told, place) = text.rsplit_once("\n  --> ").unwrap();
            assert!(place.starts_with("tests/"), "{text}");
            told.to_owned()
        }
        _ => text,
    }
}

/// `FILE:LINE:COLUMN` of the first such piece of text in the caller's file, from this line on.
#[track_caller]
pub(crate) fn place(line: u32, piece: &str) -> String {
    let file = Location::caller().file();
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let mut lines = text.lines().zip(1..).skip(line as usize - 1);
    let (column, line) = lines
        .find_map(|(text, line)| Some((text.find(piece)? + 1, line)))
        .unwrap();
    format!("{file}:{line}:{column}")
}
