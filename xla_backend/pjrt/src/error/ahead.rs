//! What can go wrong while a program is compiled without its devices, in a process of its own.

use std::fmt;
use std::time::Duration;

/// Why a compilation without devices has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AheadFault {
    /// The compiler refused the program.
    Refused {
        /// Its own words.
        message: String,
    },
    /// The compiler's process ended before it had a result.
    Ended {
        /// How it ended.
        how: String,
        /// What it said last, each line on a line of its own.
        log: String,
    },
    /// The compiler took too long, and was stopped.
    TimeLimit {
        /// How long it was given.
        limit: Duration,
        /// What it said last, each line on a line of its own.
        log: String,
    },
    /// The compiler's process could not be started, or what it needs could not be handed to it.
    NotStarted {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for AheadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |log: &str| match log {
            "" => "it said nothing".to_owned(),
            log => format!("it said last:{log}"),
        };
        match self {
            Self::Refused { message } => f.write_str(message),
            Self::Ended { how, log } => write!(
                f,
                "the compiler {how}, in a process of its own (yours is not harmed); {}",
                said(log)
            ),
            Self::TimeLimit { limit, log } => write!(
                f,
                "the compiler did not end within {} s and was stopped; give it more time, or a smaller program; {}",
                limit.as_secs_f64(),
                said(log)
            ),
            Self::NotStarted { reason } => {
                write!(f, "the compiler's process cannot be started: {reason}")
            }
        }
    }
}
