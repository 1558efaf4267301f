//! Programs are made, sent, cut down and printed as they should be; no device is needed for that.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use shardax_fuzz::check::{Failure, Kind, inputs, traced};
use shardax_fuzz::generate::generate;
use shardax_fuzz::operations::{all, collectives};
use shardax_fuzz::oracle::{Oracle, Verdict};
use shardax_fuzz::print::print;
use shardax_fuzz::program::{Program, visit};
use shardax_fuzz::shrink::shrink;
use shardax_fuzz::watch::Worker;

/// The operations and constructs of a program.
fn names(program: &Program) -> Vec<String> {
    let mut names = Vec::new();
    visit(&program.body, &mut |statement| {
        names.push(statement.action.name())
    });
    names
}

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
fn every_operation_and_construct_is_used() {
    let mut wanted: BTreeSet<String> = all()
        .chain(collectives())
        .map(|o| o.name.to_owned())
        .collect();
    assert!(wanted.len() > 250, "{}", wanted.len());
    let constructs = [
        "Remat", "Scan", "Repeat", "While", "Branch", "Switch", "Batch", "Backward", "Forward",
        "Gradient", "Region",
    ];
    wanted.extend(constructs.map(|name| format!("[{name}]")));
    wanted.insert("annotate".to_owned());
    for seed in 0..1500 {
        if wanted.is_empty() {
            break;
        }
        for name in names(&generate(seed)) {
            wanted.remove(&name);
        }
    }
    assert_eq!(wanted, BTreeSet::new(), "these are in no program");
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
fn what_fails_becomes_small() {
    let has = |program: &Program| names(program).contains(&"[Remat]".to_owned());
    let seed = (0..).find(|&seed| has(&generate(seed)) && names(&generate(seed)).len() > 6);
    let program = generate(seed.expect("there is one"));
    let failure = Failure {
        kind: Kind::Layout,
        message: "it has a remat".to_owned(),
    };
    let mut asked = 0;
    let check = |program: &Program| {
        asked += 1;
        let fits = traced(program).is_ok_and(|traced| traced.is_ok());
        (fits && has(program)).then(|| failure.clone())
    };
    let (small, _) = shrink(&program, &failure, Duration::from_secs(3600), check);
    assert!(
        names(&small).len() <= 2 && small.inputs.len() <= 1,
        "{}",
        print(&small)
    );
    assert!(
        small.inputs.iter().all(|input| input.split.is_none()),
        "{}",
        print(&small)
    );
    assert!(asked > 5, "{asked}");
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
