//! Looks for faults of Shardax by random programs.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use shardax_fuzz::dice::seed_of;
use shardax_fuzz::print::print;
use shardax_fuzz::watch::Worker;
use shardax_fuzz::worker::work;

/// Makes random programs, runs them under random layouts, and checks what comes out.
#[derive(Parser)]
struct Options {
    /// Programs that are made are a function of it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long to go on.
    #[arg(long)]
    minutes: Option<f64>,
    /// How many programs to check.
    #[arg(long)]
    programs: Option<u64>,
    /// Processes that run programs.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Checks the program of this seed alone, and prints it.
    #[arg(long)]
    replay: Option<u64>,
    /// Runs programs for another process.
    #[arg(long, hide = true)]
    worker: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options {
        Options { worker: true, .. } => work().map(|()| true),
        _ => run(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> std::io::Result<bool> {
    let started = Instant::now();
    let number = AtomicU64::new(0);
    let counts = Mutex::new(std::collections::BTreeMap::<String, usize>::new());
    let minutes = options.minutes.map(|m| Duration::from_secs_f64(m * 60.0));
    let failures = Mutex::new(0);
    if let Some(seed) = options.replay {
        let answer = Worker::new(Duration::from_secs(120)).seed(seed)?;
        println!("{:#?}", answer.outcome);
        println!("{}", print(&shardax_fuzz::generate::generate(seed)));
        return Ok(answer.outcome.failure.is_none());
    }
    std::thread::scope(|scope| {
        let work = || {
            let mut worker = Worker::new(Duration::from_secs(60));
            loop {
                let own = number.fetch_add(1, Ordering::Relaxed);
                if options.programs.is_some_and(|most| own >= most)
                    || minutes.is_some_and(|most| started.elapsed() > most)
                {
                    return;
                }
                let seed = seed_of(options.seed, own);
                let Ok(answer) = worker.seed(seed) else {
                    return;
                };
                let mut counts = counts.lock().unwrap();
                for seen in answer.outcome.seen {
                    *counts.entry(seen).or_default() += 1;
                }
                *counts.entry("programs".into()).or_default() += 1;
                if let Some(failure) = answer.outcome.failure {
                    *failures.lock().unwrap() += 1;
                    println!("---- {seed} {:?}: {}", failure.kind, failure.message);
                    if let Some(program) = answer.program {
                        println!("{}", print(&program));
                    }
                }
            }
        };
        for _ in 0..options.workers {
            scope.spawn(work);
        }
    });
    for (what, count) in counts.lock().unwrap().iter() {
        println!("{count:6} {what}");
    }
    println!("{:.1} s", started.elapsed().as_secs_f64());
    Ok(*failures.lock().unwrap() == 0)
}
