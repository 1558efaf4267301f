//! Programs are made, sent, cut down and printed as they should be; no device is needed for that.

use std::process::Command;
use std::time::Duration;

use shardax_fuzz::check::{Kind, inputs, traced};
use shardax_fuzz::generate::generate;
use shardax_fuzz::oracle::{Oracle, Verdict};
use shardax_fuzz::print::print;
use shardax_fuzz::program::Program;
use shardax_fuzz::watch::Worker;

#[test]
fn a_seed_is_one_program_that_can_be_sent() -> serde_json::Result<()> {
    for seed in 0..40 {
        let program = generate(seed);
        let text = serde_json::to_string(&program)?;
        assert_eq!(serde_json::to_string(&generate(seed))?, text, "seed {seed}");
        let sent: Program = serde_json::from_str(&text)?;
        // NaN is not equal to itself.
        assert_eq!(serde_json::to_string(&sent)?, text, "seed {seed}");
    }
    Ok(())
}

#[test]
fn the_oracle_knows_a_wrong_number_from_a_rounded_one() {
    let mut judged = 0;
    for seed in 0..60 {
        let program = generate(seed);
        let Ok(Ok(graph)) = traced(&program) else {
            continue;
        };
        let Some(oracle) = Oracle::new(&graph, &inputs(&program), 4) else {
            continue;
        };
        for (r, exact) in oracle.exact().iter().enumerate() {
            let exact = exact.floats();
            assert!(
                !matches!(oracle.judge(r, &exact), Verdict::Wrong(..)),
                "seed {seed}"
            );
            let off: Vec<f64> = exact.iter().map(|v| v + 1e3 + v.abs()).collect();
            let is_wrong = matches!(oracle.judge(r, &off), Verdict::Wrong(0, ..));
            judged += usize::from(is_wrong);
        }
    }
    assert!(judged > 60, "{judged}");
}

#[test]
fn a_program_prints_as_rust() {
    for seed in 0..200 {
        let text = print(&generate(seed));
        // Whatever the table's Rust speaks of is filled in.
        assert!(
            !text.contains("p.axis") && !text.contains("p.over"),
            "{text}"
        );
        let depth = text.chars().fold(0i32, |depth, c| match c {
            '(' | '[' | '{' => depth + 1,
            ')' | ']' | '}' => depth - 1,
            _ => depth,
        });
        assert_eq!(depth, 0, "{text}");
    }
}

#[test]
fn a_process_that_ends_or_hangs_is_a_failure() -> std::io::Result<()> {
    let shell = |text: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    };
    let kind = |worker: &mut Worker| -> std::io::Result<Option<Kind>> {
        let outcome = worker.check(&generate(1))?;
        Ok(outcome.failure.map(|failure| failure.kind))
    };
    let long = Duration::from_secs(600);
    let mut ends = Worker::of(move || shell("read line; echo why >&2; exit 3"), long);
    assert_eq!(kind(&mut ends)?, Some(Kind::Abort));
    // It is started again.
    assert_eq!(kind(&mut ends)?, Some(Kind::Abort));
    let mut hangs = Worker::of(
        move || shell("read line; exec sleep 600"),
        Duration::from_millis(100),
    );
    assert_eq!(kind(&mut hangs)?, Some(Kind::Hang));
    let fine =
        r#"read line; echo '{"program":null,"outcome":{"failure":null,"seen":[]}}'; read line"#;
    assert_eq!(kind(&mut Worker::of(move || shell(fine), long))?, None);
    Ok(())
}
