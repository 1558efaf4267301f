//! Text to train on, as bytes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::hash::mix;

/// Text, read whole. A token is a byte, so the vocabulary is always 256.
///
/// The last tenth is kept for validation. Windows are drawn at random places that depend on the seed
/// and the step alone: another layout, or a run that is resumed, sees the same ones.
#[derive(Clone, Debug)]
pub struct Text {
    bytes: Vec<u8>,
    files: usize,
    /// Where the validation part begins.
    split: usize,
}

impl Text {
    /// The number of different tokens.
    pub const VOCAB: usize = 256;

    /// Reads a file, or all text files in a folder and the folders in it, in order of their paths.
    ///
    /// Hidden files and folders, links, folders called `target` and files that are no text are left
    /// out of a folder. `window` is the number of tokens of the windows that will be drawn.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`], [`Error::NotText`] if `path` itself is a file that is no text,
    /// [`Error::TooShort`].
    pub fn read(path: impl AsRef<Path>, window: usize) -> Result<Self> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        let mut files = 0;
        if fs::metadata(path).map_err(unreadable(path))?.is_dir() {
            for file in files_in(path)? {
                let content = fs::read(&file).map_err(unreadable(&file))?;
                if is_text(&content) {
                    bytes.extend(content);
                    files += 1;
                }
            }
        } else {
            bytes = fs::read(path).map_err(unreadable(path))?;
            if !is_text(&bytes) {
                return Err(Error::NotText { path: path.into() });
            }
            files = 1;
        }
        // The tenth for validation has to hold a window of its own.
        let needed = window.max(1) * 10;
        if bytes.len() < needed {
            return Err(Error::TooShort {
                path: path.into(),
                found: bytes.len(),
                needed,
                window,
            });
        }
        let split = bytes.len() - bytes.len() / 10;
        Ok(Text {
            bytes,
            files,
            split,
        })
    }

    /// Bytes of text.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no text; never so for text that was read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The number of files that the text came from.
    pub fn files(&self) -> usize {
        self.files
    }

    /// `rows` windows of `window` tokens each for one training step, row after row.
    pub fn batch(&self, seed: u64, step: usize, rows: usize, window: usize) -> Vec<i32> {
        windows(&self.bytes[..self.split], seed, step, rows, window)
    }

    /// Windows like those of [`Text::batch`], of the part that is not trained on.
    pub fn validation_batch(&self, seed: u64, step: usize, rows: usize, window: usize) -> Vec<i32> {
        windows(&self.bytes[self.split..], seed, step, rows, window)
    }

    /// The text that tokens stand for; what is no UTF-8 becomes replacement characters.
    pub fn decode(tokens: &[i32]) -> String {
        let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The loss, in nats a token, of the best model that knows how frequent each token is and nothing
    /// of their order: what a trained model must be well below.
    pub fn unigram_entropy(&self) -> f64 {
        let mut counts = [0_usize; Self::VOCAB];
        for &byte in &self.bytes {
            counts[usize::from(byte)] += 1;
        }
        let total = self.bytes.len() as f64;
        let probabilities = counts.iter().filter(|&&n| n > 0).map(|&n| n as f64 / total);
        -probabilities.map(|p| p * p.ln()).sum::<f64>()
    }
}

/// Windows at places drawn from a hash of seed, step and row. One that is longer than the text
/// goes on at its beginning.
fn windows(text: &[u8], seed: u64, step: usize, rows: usize, window: usize) -> Vec<i32> {
    let places = (text.len().saturating_sub(window) + 1) as u64;
    let row = |row: usize| {
        let start = (mix(mix(mix(seed) ^ step as u64) ^ row as u64) % places) as usize;
        text.iter().cycle().skip(start).take(window)
    };
    (0..rows)
        .flat_map(row)
        .map(|&byte| i32::from(byte))
        .collect()
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(unreadable(&folder))? {
            let entry = entry.map_err(unreadable(&folder))?;
            let (name, path) = (entry.file_name(), entry.path());
            let kind = entry.file_type().map_err(unreadable(&path))?;
            if name.to_string_lossy().starts_with('.') {
                continue;
            }
            if kind.is_dir() && name != "target" {
                folders.push(path);
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Unreadable { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_is_read_in_order_and_only_its_text() {
        let folder = folder(&[
            ("b.txt", b"bbbbbbbbbb"),
            ("a/deep.rs", b"aaaaaaaaaa"),
            ("picture.png", b"\x89PNG\x00\x01"),
            ("latin", b"\xe4\xf6\xfc"),
            (".git/config", b"hidden"),
            ("target/out.txt", b"built"),
        ]);
        let text = Text::read(folder.path(), 2).unwrap();
        assert_eq!(text.bytes, b"aaaaaaaaaabbbbbbbbbb");
        assert_eq!((text.len(), text.files()), (20, 2));
    }

    #[test]
    fn windows_depend_on_seed_and_step_alone() {
        let content: Vec<u8> = (0..200).map(|i| 32 + i % 90).collect();
        let folder = folder(&[("t", &content)]);
        let text = Text::read(folder.path().join("t"), 9).unwrap();
        let batch = text.batch(7, 3, 4, 9);
        assert_eq!(batch.len(), 4 * 9);
        assert_eq!(batch, text.batch(7, 3, 4, 9));
        assert_ne!(batch, text.batch(7, 4, 4, 9));
        assert_ne!(batch, text.batch(8, 3, 4, 9));
        for row in batch.chunks(9) {
            let row: Vec<u8> = row.iter().map(|&t| t as u8).collect();
            let training = &content[..180];
            assert!(training.windows(9).any(|window| window == row), "{row:?}");
        }
        for row in text.validation_batch(7, 3, 4, 9).chunks(9) {
            let row: Vec<u8> = row.iter().map(|&t| t as u8).collect();
            assert!(
                content[180..].windows(9).any(|window| window == row),
                "{row:?}"
            );
        }
    }

    #[test]
    fn every_place_is_drawn() {
        let content: Vec<u8> = (0..100).map(|i| 20 + i).collect();
        let folder = folder(&[("t", &content)]);
        let text = Text::read(folder.path(), 5).unwrap();
        let starts: std::collections::BTreeSet<i32> =
            (0..2000).map(|step| text.batch(0, step, 1, 5)[0]).collect();
        assert_eq!(starts.len(), 90 - 5 + 1);
    }

    #[test]
    fn tokens_are_bytes() {
        let tokens: Vec<i32> = "nàïve\n".bytes().map(i32::from).collect();
        assert_eq!(Text::decode(&tokens), "nàïve\n");
        assert_eq!(Text::decode(&[97, 0xff, 98]), "a\u{fffd}b");
    }

    #[test]
    fn entropy_of_equal_frequencies_is_the_logarithm_of_their_number() {
        let folder = folder(&[("t", b"abcdabcdabcdabcd")]);
        let text = Text::read(folder.path(), 1).unwrap();
        assert!((text.unigram_entropy() - 4f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = Text::read("/nowhere/book.txt", 8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the text at /nowhere/book.txt: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn a_file_that_is_no_text_is_refused() {
        let folder = folder(&[("a.bin", b"\x00\x01")]);
        let path = folder.path().join("a.bin");
        let error = Text::read(&path, 8).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{} is no text: it is not valid UTF-8, or contains a zero byte; give a text file, \
                 or a folder, of which other files are left out",
                path.display()
            )
        );
    }

    #[test]
    fn too_little_text_says_how_much_is_needed() {
        let folder = folder(&[("t", b"short")]);
        let error = Text::read(folder.path(), 65).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the text at {} is too short: it has 5 bytes and at least 650 are needed for windows \
                 of 65 tokens; give more text or a shorter context",
                folder.path().display()
            )
        );
    }
}
