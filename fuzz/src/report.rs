//! What a run has seen, and what it has found.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::check::{Failure, Outcome};
use crate::print::print;
use crate::program::Program;

/// A failure, and the program that shows it.
#[derive(Debug)]
pub struct Finding {
    /// The seed of the program that failed first.
    pub seed: u64,
    /// The smallest program found, if any could be made.
    pub program: Option<Program>,
    /// What is wrong with it.
    pub failure: Failure,
}

/// The whole of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// How often everything was seen.
    counts: BTreeMap<String, usize>,
    /// The others.
    pub findings: Vec<Finding>,
    /// How many programs were checked.
    pub programs: usize,
    /// How long it took.
    pub time: Duration,
}

impl Report {
    /// Counts a program.
    pub fn count(&mut self, outcome: &Outcome) {
        self.programs += 1;
        for seen in &outcome.seen {
            *self.counts.entry(seen.clone()).or_default() += 1;
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "---- --replay {}", self.seed)?;
        writeln!(f, "{:?}: {}", self.failure.kind, self.failure.message)?;
        match &self.program {
            Some(program) => f.write_str(&print(program)),
            None => writeln!(f, "making the program fails already"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = String::new();
        for (what, count) in &self.counts {
            let entry = format!("{count} {what}; ");
            if line.len() + entry.len() > 100 {
                writeln!(f, "{}", line.trim_end())?;
                line.clear();
            }
            line.push_str(&entry);
        }
        writeln!(f, "{}", line.trim_end())?;
        let (programs, seconds) = (self.programs, self.time.as_secs());
        writeln!(
            f,
            "{programs} programs in {seconds} s, {} failures",
            self.findings.len()
        )
    }
}
