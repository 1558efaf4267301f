//! The process that runs programs, and may abort or hang at any of them.
//!
//! It reads requests and writes answers, a line each, so that whoever watches it knows at which
//! program it ended.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::check::{Outcome, check, features};
use crate::generate::generate;
use crate::program::Program;

/// What is asked of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// To make a program.
    Make(u64),
    /// To make a program and check it, if it has the operation or construct of a name.
    Seed(u64, Option<String>),
    /// To check this one.
    Check(Box<Program>),
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The program, if it was asked for or is wrong.
    pub program: Option<Program>,
    /// What came of it.
    pub outcome: Outcome,
}

/// Answers requests until there are no more.
///
/// # Errors
///
/// When the watching process does not listen.
pub fn work() -> io::Result<()> {
    shardax::silence_advice();
    // A panic is an answer.
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Request::Make(seed) => Answer {
                program: Some(generate(seed)),
                outcome: Outcome::default(),
            },
            Request::Seed(seed, only) => {
                let program = generate(seed);
                let features = features(&program);
                let mut outcome = Outcome::default();
                if only.is_none_or(|only| features.contains(&only)) {
                    outcome = check(&program);
                    outcome.seen.extend(features);
                }
                Answer {
                    program: outcome.failure.is_some().then_some(program),
                    outcome,
                }
            }
            Request::Check(program) => Answer {
                outcome: check(&program),
                program: None,
            },
        };
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    Ok(())
}
