//! A [`CollectiveReport`] as a table for the terminal.

use std::fmt;

use super::collectives::{Collective, CollectiveReport, Pass, Total};
use super::words::{axes_text, human_bytes, short_line, short_name, times_text};

/// Collectives up to this size are losses, norms and flags: one line for all of them.
pub const SMALL: u64 = 64;
const HEADER: [&str; 7] = [
    "kind",
    "axes",
    "type",
    "times",
    "bytes each",
    "bytes a step",
    "where",
];
/// Which columns are numbers, flush right.
const NUMBER: [bool; 7] = [false, false, false, true, true, true, false];

impl fmt::Display for CollectiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "collectives in one step of `{}` on mesh {}",
            self.module, self.mesh
        )?;
        if self.collectives.is_empty() {
            return write!(f, ": none");
        }
        let (small, large): (Vec<_>, Vec<_>) = self
            .collectives
            .iter()
            .partition(|collective| collective.payload_bytes <= SMALL);
        if !large.is_empty() {
            let mut rows = vec![HEADER.map(str::to_owned)];
            rows.extend(
                merged(&large)
                    .into_iter()
                    .map(|(row, times)| row.cells(times)),
            );
            write_aligned(f, &rows)?;
        }
        if !small.is_empty() {
            write!(f, "\n  {}", small_line(&small))?;
        }
        self.totals()
            .iter()
            .try_for_each(|total| write!(f, "\n  {}", total_line(total)))
    }
}

/// A line of the table, without the number of executions.
#[derive(PartialEq)]
struct Row {
    kind: &'static str,
    axes: String,
    elements: String,
    times_known: bool,
    bytes_each: u64,
    place: String,
}

impl Row {
    fn new(collective: &Collective) -> Self {
        Row {
            kind: collective.kind.name(),
            axes: axes_text(collective.axes.as_deref(), &collective.groups),
            elements: elements(collective),
            times_known: collective.times_known,
            bytes_each: collective.payload_bytes,
            place: place(collective),
        }
    }

    fn cells(self, times: u64) -> [String; 7] {
        [
            self.kind.to_owned(),
            self.axes,
            self.elements,
            times_text(times, self.times_known),
            human_bytes(self.bytes_each),
            human_bytes(self.bytes_each.saturating_mul(times)),
            self.place,
        ]
    }
}

/// Lines that would print alike become one, such as those of unrolled layers.
fn merged(collectives: &[&Collective]) -> Vec<(Row, u64)> {
    let mut rows: Vec<(Row, u64)> = vec![];
    for collective in collectives {
        let row = Row::new(collective);
        match rows.iter_mut().find(|(other, _)| *other == row) {
            Some((_, times)) => *times = times.saturating_add(collective.times),
            None => rows.push((row, collective.times)),
        }
    }
    rows
}

fn write_aligned(f: &mut fmt::Formatter<'_>, rows: &[[String; 7]]) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEADER.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for row in rows {
        let mut line = String::from(" ");
        for ((cell, &width), number) in row.iter().zip(&widths).zip(NUMBER) {
            line += &if number {
                format!(" {cell:>width$} ")
            } else {
                format!(" {cell:<width$} ")
            };
        }
        write!(f, "\n{}", line.trim_end())?;
    }
    Ok(())
}

/// One line for collectives of at most [`SMALL`] bytes.
pub fn small_line(small: &[&Collective]) -> String {
    let counted = || small.iter().filter(|collective| collective.counted);
    let times = counted()
        .map(|collective| collective.times)
        .fold(0, u64::saturating_add);
    let bytes = counted()
        .map(|collective| collective.payload_bytes.saturating_mul(collective.times))
        .fold(0, u64::saturating_add);
    let known = counted().all(|collective| collective.times_known);
    let mut kinds: Vec<_> = small.iter().map(|collective| collective.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kinds: Vec<&str> = kinds.into_iter().map(|kind| kind.name()).collect();
    format!(
        "{} of at most {SMALL} B each: {}, {}",
        kinds.join(", "),
        executions(times, known),
        human_bytes(bytes)
    )
}

fn total_line(total: &Total) -> String {
    format!(
        "total {} over {}: {}, {}; a device sends {}",
        total.kind,
        axes_text(total.axes.as_deref(), &[]),
        executions(total.times, total.times_known),
        human_bytes(total.payload_bytes),
        human_bytes(total.bytes_sent)
    )
}

fn executions(times: u64, known: bool) -> String {
    let word = if times == 1 && known { "time" } else { "times" };
    format!("{} {word}", times_text(times, known))
}

/// The element types of what is communicated, which are the types that it is reduced in.
fn elements(collective: &Collective) -> String {
    let mut types: Vec<String> = Vec::new();
    for array in &collective.arrays {
        let element = array.element.to_string();
        if !types.contains(&element) {
            types.push(element);
        }
    }
    types.join("+")
}

/// The user's line, the operation, and what is special about it.
fn place(collective: &Collective) -> String {
    let mut words = vec![];
    words.extend(collective.source.as_ref().map(short_line));
    words.extend(short_name(&collective.op_name));
    let mut remarks = vec![];
    remarks.extend(collective.pass.map(|pass| match pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
    }));
    remarks.extend(collective.is_async.then_some("async"));
    remarks.extend((!collective.counted).then_some("in a cheaper branch, not in the totals"));
    if !remarks.is_empty() {
        words.push(format!("({})", remarks.join(", ")));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HloModule;
    use crate::tests::{KINDS, MEGATRON};

    fn report(bytes: &[u8]) -> CollectiveReport {
        let mesh = "data=2,model=4".parse().unwrap();
        CollectiveReport::new(&HloModule::decode(bytes).unwrap(), &mesh).unwrap()
    }

    #[test]
    fn a_training_step_prints_as_a_table() {
        assert_eq!(
            report(MEGATRON).to_string(),
            "\
collectives in one step of `jit_step` on mesh data=2 x model=4
  kind        axes   type  times  bytes each  bytes a step  where
  all-reduce  model  f32       3     2.0 KiB       6.0 KiB  generate.py:108 dot_general (forward)
  all-reduce  model  f32       3     2.0 KiB       6.0 KiB  generate.py:108 dot_general (backward)
  all-reduce  data   f32       3     1.0 KiB       3.0 KiB  generate.py:108 dot_general (backward)
  all-reduce of at most 64 B each: 1 time, 4 B
  total all-reduce over model: 6 times, 12.0 KiB; a device sends 18.0 KiB
  total all-reduce over data: 4 times, 3.0 KiB; a device sends 3.0 KiB"
        );
    }

    #[test]
    fn what_is_not_counted_or_not_known_is_said() {
        let text = report(KINDS).to_string();
        let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap();
        assert!(line("pmax").contains(" 1 x ? "), "{text}");
        assert!(
            line("branch_1_fun").ends_with("(in a cheaper branch, not in the totals)"),
            "{text}"
        );
        assert!(
            text.contains("total all-reduce over data+model: 1 x ? times, 512 B;"),
            "{text}"
        );
    }

    #[test]
    fn equal_lines_are_merged() {
        let mut twice = report(MEGATRON);
        let lines = twice.to_string().lines().count();
        twice.collectives.extend(twice.collectives.clone());
        assert_eq!(twice.to_string().lines().count(), lines);
        assert!(
            twice
                .to_string()
                .contains("total all-reduce over model: 12 times")
        );
        twice.collectives.clear();
        assert!(
            twice
                .to_string()
                .ends_with("on mesh data=2 x model=4: none")
        );
    }
}
