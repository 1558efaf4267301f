//! Looks for faults of Shardax by random programs.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use shardax_fuzz::check::Failure;
use shardax_fuzz::dice::seed_of;
use shardax_fuzz::program::Program;
use shardax_fuzz::report::{Finding, Report};
use shardax_fuzz::shrink::shrink;
use shardax_fuzz::watch::Worker;
use shardax_fuzz::worker::{Answer, work};

/// Makes random programs, runs them under random layouts, and checks what comes out.
///
/// Exits with 0 if nothing is wrong, with 1 if something is; then the report has for each failure a small program, as
/// Rust, and the seed that replays it.
#[derive(Parser)]
#[command(name = "shardax-fuzz", version)]
struct Options {
    /// Which programs are made.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long to go on; without this and a number of programs, 10.
    #[arg(long)]
    minutes: Option<f64>,
    /// How many programs to check.
    #[arg(long)]
    programs: Option<u64>,
    /// Checks only programs with this operation or construct, as the report names it.
    #[arg(long)]
    only: Option<String>,
    /// How many processes run programs.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Seconds until a program counts as hanging.
    #[arg(long, default_value_t = 90)]
    limit: u64,
    /// Seconds to look for a smaller program that fails in the same way.
    #[arg(long, default_value_t = 120)]
    shrink: u64,
    /// Checks this program of a report alone.
    #[arg(long)]
    replay: Option<u64>,
    /// Tells what is found as it is found.
    #[arg(long)]
    verbose: bool,
    /// Runs programs for another process.
    #[arg(long, hide = true)]
    worker: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.worker {
        return match work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    match run(&options) {
        Ok(report) => {
            for finding in &report.findings {
                println!("{finding}");
            }
            print!("{report}");
            match report.findings.is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("shardax-fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> io::Result<Report> {
    let started = Instant::now();
    let minutes = match (options.minutes, options.programs) {
        (None, None) => Some(10.0),
        (minutes, _) => minutes,
    };
    let time = minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let ends = |number: u64| {
        let most = options.replay.map(|_| 1).or(options.programs);
        most.is_some_and(|most| number >= most) || time.is_some_and(|time| started.elapsed() > time)
    };
    let (next, report) = (AtomicU64::new(0), Mutex::new(Report::default()));
    let work = || -> io::Result<()> {
        let mut worker = Worker::new(Duration::from_secs(options.limit))?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if ends(number) {
                return Ok(());
            }
            let seed = options
                .replay
                .unwrap_or_else(|| seed_of(options.seed, number));
            let answer = worker.seed(seed, options.only.as_deref())?;
            let finding = found(&mut worker, options, seed, answer.clone());
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.count(&answer.outcome);
            if let Some(finding) = finding {
                if options.verbose {
                    println!("{finding}");
                }
                report.findings.push(finding);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.workers.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("a watching thread panicked")))
        })
    })?;
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.time = started.elapsed();
    Ok(report)
}

/// The failure of an answer with the smallest program that was found for it.
fn found(worker: &mut Worker, options: &Options, seed: u64, answer: Answer) -> Option<Finding> {
    let failure = answer.outcome.failure?;
    let Some(program) = answer.program else {
        let program = None;
        return Some(Finding {
            seed,
            program,
            failure,
        });
    };
    let time = Duration::from_secs(options.shrink);
    let check = |program: &Program| -> Option<Failure> {
        worker
            .check(program)
            .ok()
            .and_then(|outcome| outcome.failure)
    };
    let (program, failure) = shrink(&program, &failure, time, check);
    let program = Some(program);
    Some(Finding {
        seed,
        program,
        failure,
    })
}
