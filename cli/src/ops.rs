//! `shardax ops`: what each primitive can do, from the code itself.

use std::error::Error;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use shardax::xla::lower::{self, Argument};
use shardax::{
    Layout, Mesh,
    ir::{OpInfo, Rule, catalogue},
};

use crate::out;

/// What to print.
#[derive(Args)]
pub(crate) struct Options {
    /// As JSON.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// As the table of the documentation.
    #[arg(long)]
    markdown: bool,
}

/// A primitive, as it is printed.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    family: &'static str,
    /// What the derivative is written with.
    forward: String,
    /// What its transpose is written with.
    reverse: String,
    /// What a batch is written with.
    batched: String,
    /// The StableHLO or CHLO operations that it becomes.
    lowering: String,
}

/// Prints the table.
pub(crate) fn run(options: &Options) -> ExitCode {
    match print(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out::failed(&*error),
    }
}

fn print(options: &Options) -> Result<(), Box<dyn Error>> {
    let rows: Result<Vec<Row>, String> = catalogue().iter().map(row).collect();
    let rows = rows?;
    if options.json {
        out::line(serde_json::to_string_pretty(&rows)?)?;
    } else if options.markdown {
        out::text(markdown(&rows))?;
    } else {
        out::text(aligned(&rows))?;
    }
    Ok(())
}

fn row(info: &OpInfo) -> Result<Row, String> {
    Ok(Row {
        name: info.name,
        family: info.family,
        forward: described(&info.forward, "the tangent"),
        reverse: described(&info.reverse, "the cotangent"),
        batched: described(&info.batched, "the batch"),
        lowering: lowering(info)?,
    })
}

/// A rule in words; one that writes nothing hands `same` through.
fn described(rule: &Rule, same: &str) -> String {
    match rule {
        Rule::NoOperand => "no operand to ask for".to_owned(),
        Rule::Refuses(message) => format!("error: {message}"),
        Rule::Writes(names) if names.is_empty() => same.to_owned(),
        Rule::Writes(names) if is_zero(names) => "zero".to_owned(),
        Rule::Writes(names) => names.join(" "),
    }
}

/// Whether all that is written is a constant: nothing depends on an operand.
fn is_zero(names: &[&str]) -> bool {
    names.contains(&"constant") && names.iter().all(|n| ["constant", "broadcast"].contains(n))
}

/// The operations that the example is lowered to.
fn lowering(info: &OpInfo) -> Result<String, String> {
    let text = |error: &dyn std::fmt::Display| format!("{}: {error}", info.name);
    let mesh = Mesh::new([("data", 2)]).map_err(|e| text(&e))?;
    let layout = Layout::new(mesh).shard("batch", "data");
    let graph = &info.example;
    let arguments = vec![Argument::default(); graph.inputs().len()];
    let results = vec![None; graph.outputs().len()];
    let module = lower::lower(&lower::Program {
        name: info.name,
        graph,
        layout: &layout,
        arguments: &arguments,
        results: &results,
        on_host: true,
    });
    let module = module.map_err(|faults| text(&shardax::xla::Error::from(faults)))?;
    let mut names: Vec<&str> = Vec::new();
    for word in module
        .identity()
        .split(|c: char| !(c.is_alphanumeric() || "._".contains(c)))
    {
        let dialect = word.split('.').next().unwrap_or_default();
        let is_operation = ["stablehlo", "chlo", "sdy"].contains(&dialect) && word.contains('.');
        let is_syntax = ["stablehlo.return", "sdy.mesh", "sdy.sharding"].contains(&word)
            || word.starts_with("stablehlo.gather") && word != "stablehlo.gather";
        if is_operation && !is_syntax && !names.contains(&word) {
            names.push(word);
        }
    }
    match names.is_empty() {
        true => Ok("its operand".to_owned()),
        false => Ok(names.join(" ")),
    }
}

const HEADINGS: [&str; 5] = ["operation", "derivative", "transpose", "batch", "lowering"];

const TITLE: &str = "\
# Operations

Every primitive, and what its rules write for a small example of it: the equations of its derivative, of the
transpose of that, and of a batch; and what it is lowered to. `mul_or_zero` and `div_or_zero` are products and
quotients in which a cotangent of 0 stays 0. An operation without a floating-point operand has none to
differentiate by, and one without any operand nothing to batch. `scan`, `cond` and their kin stand with a sine
inside. The table is printed by `shardax ops --markdown`.

";

fn cells(row: &Row) -> [&str; 5] {
    [
        row.name,
        &row.forward,
        &row.reverse,
        &row.batched,
        &row.lowering,
    ]
}

fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(TITLE);
    text.push_str(&format!(
        "| {} |\n|{}\n",
        HEADINGS.join(" | "),
        "---|".repeat(5)
    ));
    for row in rows {
        let cells = cells(row).map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        text.push_str(&format!(
            "| `{}` | {} |\n",
            cells[0],
            cells[1..].join(" | ")
        ));
    }
    text
}

fn aligned(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut family = "";
    for row in rows {
        if row.family != family {
            family = row.family;
            text.push_str(&format!("\n{family}\n"));
        }
        text.push_str(&format!("  {}\n", row.name));
        for (heading, cell) in HEADINGS.iter().zip(cells(row)).skip(1) {
            text.push_str(&format!("    {heading:<10}  {cell}\n"));
        }
    }
    text
}
