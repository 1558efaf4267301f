//! A [`Report`] as text for a terminal of 100 columns.

use std::fmt;

use shardax_hlo::words::{axes_text, short_line, short_name, times_text};
use shardax_hlo::{Collective, Pass, SMALL, human_bytes};

use super::summary::{ExplainedCollective, Report, Sum, largest};
use super::why::Why;

/// Columns of a terminal.
const WIDTH: usize = 100;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` on mesh {}", self.module, self.shape)?;
        let devices = self.devices as u64;
        writeln!(f, ", {devices} device{}", plural(devices))?;
        self.write_collectives(f)?;
        self.write_totals(f)?;
        self.write_memory(f)?;
        self.write_remarks(f)?;
        self.write_warnings(f)
    }
}

impl Report {
    fn write_collectives(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.collectives.is_empty() {
            return f.write_str("\nno collectives: no device talks to another\n");
        }
        writeln!(f, "\ncollectives of one launch, as one device sees them")?;
        let small = |e: &&ExplainedCollective| e.collective.payload_bytes <= SMALL;
        let (small, large): (Vec<_>, Vec<_>) = self.collectives.iter().partition(small);
        let mut rows = vec![HEADER.map(str::to_owned)];
        let merged = merged(&large);
        rows.extend(merged.iter().map(|entry| entry.cells()));
        let mut lines = aligned(&rows).into_iter();
        if !large.is_empty() {
            writeln!(f, "{}", lines.next().unwrap_or_default())?;
        }
        for (line, entry) in lines.zip(&merged) {
            writeln!(f, "{line}")?;
            for text in [&entry.why, &entry.place] {
                if !text.is_empty() {
                    writeln!(f, "{}", wrapped(text, 6))?;
                }
            }
        }
        if !small.is_empty() {
            let collectives: Vec<&Collective> = small.iter().map(|e| &e.collective).collect();
            writeln!(f, "  {}", shardax_hlo::small_line(&collectives))?;
        }
        Ok(())
    }

    fn write_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.collectives.is_empty() {
            return Ok(());
        }
        writeln!(f, "\ntotals of one launch")?;
        let mut rows = vec![TOTALS.map(str::to_owned)];
        let row = |name: String, sum: &Sum| {
            [
                name,
                times_text(sum.times, sum.times_known),
                sum.async_times.to_string(),
                human_bytes(sum.payload_bytes),
                human_bytes(sum.bytes_sent),
                sum.ring_steps.to_string(),
            ]
        };
        rows.extend(self.by_axes.iter().map(|total| {
            row(
                format!("over {}", axes_text(total.axes.as_deref(), &[])),
                &total.sum,
            )
        }));
        rows.extend(
            self.by_kind
                .iter()
                .map(|total| row(total.kind.to_string(), &total.sum)),
        );
        for line in aligned(&rows) {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }

    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(memory) = &self.memory {
            writeln!(f, "\n{memory}")?;
        }
        if self.argument_bytes.is_empty() {
            return Ok(());
        }
        let heading = match self.memory {
            Some(_) => "  of the arguments",
            None => "\narguments of one device",
        };
        writeln!(f, "{heading}")?;
        for role in &self.argument_bytes {
            let name = role.role.plural();
            let of = match role.bytes == role.device_bytes {
                true => "whole".to_owned(),
                false => format!("of {}", human_bytes(role.bytes)),
            };
            let bytes = human_bytes(role.device_bytes);
            writeln!(
                f,
                "    {name:<10} {bytes:>9}  {of}, {} array{}",
                role.count,
                plural(role.count as u64)
            )?;
        }
        Ok(())
    }

    fn write_remarks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.remarks.is_empty() {
            return Ok(());
        }
        let count = self.remarks.len();
        write!(f, "\n{count} remark{} on the layout", plural(count as u64))?;
        for remark in &self.remarks {
            write!(f, "\n{}", wrapped(remark, 2))?;
        }
        writeln!(f)
    }

    fn write_warnings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.warnings.is_empty() {
            return f.write_str("\nno warnings");
        }
        let count = self.warnings.len();
        write!(f, "\n{count} warning{}", plural(count as u64))?;
        for warning in &self.warnings {
            let text = format!("{}: {}", warning.kind, warning.message);
            write!(f, "\n{}", wrapped(&text, 2))?;
            if let Some(source) = &warning.source {
                write!(f, "\n    --> {source}")?;
            }
            write!(f, "\n{}", wrapped(&format!("help: {}", warning.help), 4))?;
        }
        Ok(())
    }
}

const HEADER: [&str; 8] = [
    "kind",
    "axes",
    "times",
    "largest array",
    "bytes each",
    "in all",
    "sent",
    "steps",
];
const TOTALS: [&str; 6] = ["", "times", "async", "bytes", "sent", "ring steps"];

/// A collective, or several that would print alike.
struct Entry<'a> {
    collective: &'a Collective,
    times: u64,
    why: String,
    place: String,
}

impl Entry<'_> {
    fn cells(&self) -> [String; 8] {
        let c = self.collective;
        let array = largest(c).map_or(String::new(), ToString::to_string);
        [
            c.kind.to_string(),
            axes_text(c.axes.as_deref(), &c.groups),
            times_text(self.times, c.times_known),
            match c.arrays.len() {
                0 | 1 => array,
                several => format!("{array} of {several}"),
            },
            human_bytes(c.payload_bytes),
            human_bytes(c.payload_bytes.saturating_mul(self.times)),
            human_bytes(c.bytes_sent.saturating_mul(self.times)),
            c.ring_steps.to_string(),
        ]
    }

    fn is_same(&self, other: &Entry) -> bool {
        let key = |c: &Collective| (c.kind, c.axes.clone(), c.payload_bytes, c.times_known);
        key(self.collective) == key(other.collective)
            && self.why == other.why
            && self.place == other.place
    }
}

fn merged<'a>(collectives: &[&'a ExplainedCollective]) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry> = vec![];
    for ExplainedCollective { collective, why } in collectives {
        let entry = Entry {
            collective,
            times: collective.times,
            why: why.summary(),
            place: place(collective, why),
        };
        match entries.iter_mut().find(|known| known.is_same(&entry)) {
            Some(known) => known.times = known.times.saturating_add(entry.times),
            None => entries.push(entry),
        }
    }
    entries
}

/// The user's line, the operation, and what is special about the collective.
pub(super) fn place(collective: &Collective, why: &Why) -> String {
    let mut words = vec![];
    match why.written(collective.source.as_ref()) {
        Some(written) => words.push(written),
        None => {
            words.extend(
                collective
                    .source
                    .as_ref()
                    .map(|line| format!("at {}", short_line(line))),
            );
            let of_argument = |name: &String| why.tensors.iter().any(|t| t.path == *name);
            words.extend(short_name(&collective.op_name).filter(|name| !of_argument(name)));
        }
    }
    let mut remarks: Vec<&str> = vec![];
    remarks.extend(collective.pass.map(|pass| match pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
    }));
    remarks.extend((!collective.loops.is_empty()).then_some("in a loop"));
    remarks.extend(collective.is_async.then_some("async"));
    remarks.extend((!collective.counted).then_some("in a cheaper branch, not in the totals"));
    if !remarks.is_empty() {
        words.push(format!("({})", remarks.join(", ")));
    }
    words.join(" ")
}

/// Columns flush left, but for numbers, which are all after the first two.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let is_text = |column: usize| column == 0 || N > 6 && (column == 1 || column == 3);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let line = |row: &[String; N]| {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = width(column).unwrap_or(0);
            line += &match is_text(column) {
                true => format!(" {cell:<width$} "),
                false => format!(" {cell:>width$} "),
            };
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Text in lines of the terminal's width, each indented, those after the first a little more.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines: Vec<String> = vec![];
    let mut line = " ".repeat(indent);
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent + 2)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines.join("\n")
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
