//! A record of a run that programs can read.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::meter::StepRecord;

/// A file of JSON lines, one a step.
///
/// `{"step":0,"loss":5.57,"step_ms":12.5,"tokens_per_s":40960.0}`; a loss that is not finite is
/// `null`. Each line is there as soon as it is written, so that the file can be followed.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Log {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    ///
    /// [`Error::Log`] if that is not possible.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match File::create(&path) {
            Ok(file) => Ok(Log {
                path,
                file: BufWriter::new(file),
            }),
            Err(source) => Err(Error::Log { path, source }),
        }
    }

    /// Writes the line of one step.
    ///
    /// # Errors
    ///
    /// [`Error::Log`] if that is not possible, on a full disk for example.
    pub fn write(&mut self, record: &StepRecord) -> Result<()> {
        self.write_line(record).map_err(|source| Error::Log {
            path: self.path.clone(),
            source,
        })
    }

    fn write_line(&mut self, record: &StepRecord) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, record)?;
        self.file.write_all(b"\n")?;
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const RECORD: StepRecord = StepRecord {
        step: 3,
        loss: 2.5,
        step_ms: 12.5,
        tokens_per_s: 4096.0,
    };

    #[test]
    fn a_line_a_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Log::create(&path).unwrap();
        log.write(&RECORD).unwrap();
        let diverged = StepRecord {
            loss: f32::NAN,
            ..RECORD
        };
        log.write(&diverged).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{\"step\":3,\"loss\":2.5,\"step_ms\":12.5,\"tokens_per_s\":4096.0}\n\
             {\"step\":3,\"loss\":null,\"step_ms\":12.5,\"tokens_per_s\":4096.0}\n"
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = Log::create("/nowhere/log.jsonl").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot write the log /nowhere/log.jsonl: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn a_full_disk_is_an_error() {
        if !Path::new("/dev/full").exists() {
            return;
        }
        let error = Log::create("/dev/full")
            .unwrap()
            .write(&RECORD)
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot write the log /dev/full: "),
            "{error}"
        );
    }
}
