//! The rows of a check, as a table for people and as JSON.

use std::fmt;

use serde::Serialize;
use serde_json::Value as Json;

use super::compare::{Difference, Quantity};
use super::cost::{AxisTraffic, DeviceBytes};
use crate::report::CollectiveKind;

/// What is known of a step under one layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutRow {
    /// What the caller calls the layout.
    pub name: String,
    /// Its mesh, `data=2 x model=4`.
    pub mesh: String,
    /// Devices of the mesh.
    pub devices: usize,
    /// `shardy` or `gspmd`.
    pub partitioner: String,
    /// Whether the step computes what it computes on one device.
    pub verdict: Verdict,
    /// Why not: the leaves that differ most, or the error.
    pub problems: Vec<String>,
    /// Differences and costs; none if it did not run.
    pub measured: Option<Measured>,
}

/// Whether a step under a layout computes what it computes on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It does.
    Equal,
    /// A difference is beyond its tolerance.
    Differs,
    /// XLA cannot run such a program under this partitioner, and said so before it ran.
    Refused,
    /// It is an error.
    Failed,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Verdict::Equal => "equal",
            Verdict::Differs => "DIFFERS",
            Verdict::Refused => "refused",
            Verdict::Failed => "FAILED",
        }
    }
}

/// Differences and costs of a step that ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The largest difference of each quantity.
    pub differences: Vec<Difference>,
    /// Memory of one device.
    pub bytes: DeviceBytes,
    /// What devices tell each other in a step, by mesh axes.
    pub traffic: Vec<AxisTraffic>,
    /// Time to trace and to compile, or to load from the cache.
    pub compile_seconds: f64,
    /// Time to run all steps and to read what they compute.
    pub run_seconds: f64,
}

/// The rows of a check. Printed, it is a table in groups of one mesh.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayoutTable {
    /// One for each layout, in their order.
    pub rows: Vec<LayoutRow>,
}

impl LayoutTable {
    /// Whether every layout computes what one device does, apart from those that were refused.
    pub fn is_equal(&self) -> bool {
        let fine = |row: &LayoutRow| matches!(row.verdict, Verdict::Equal | Verdict::Refused);
        self.rows.iter().all(fine)
    }

    /// How many rows have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }

    /// The rows as JSON: the fields of [`LayoutRow`]; an infinite difference is null.
    pub fn to_json(&self) -> Json {
        let LayoutTable { rows } = self;
        serde_json::json!({ "equal": self.is_equal(), "rows": rows })
    }
}

/// The row as [`LayoutTable`] prints it, with its problems below it.
impl fmt::Display for LayoutRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, via) = (&self.name, &self.partitioner);
        write!(f, "  {:7} {name:28} {via:6}", self.verdict.name())?;
        if self.measured.is_none() {
            write!(f, " (not run)")?;
        }
        if let Some(measured) = &self.measured {
            write!(f, "{measured}")?;
        }
        for problem in &self.problems {
            let lines = problem.trim_end().replace('\n', "\n            ");
            write!(f, "\n          {lines}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.differences {
            match difference.relative {
                0.0 => write!(f, " {:>6}", "0")?,
                relative => write!(f, " {relative:>6.0e}")?,
            }
        }
        let DeviceBytes {
            parameters,
            optimizer,
            gradients,
            arguments,
            temporary,
        } = self.bytes;
        f.write_str(" |")?;
        let held = match parameters + optimizer + gradients {
            0 => vec![arguments, temporary],
            _ => vec![parameters, optimizer, gradients, temporary],
        };
        for bytes in held {
            write!(f, " {:>5}", short(bytes))?;
        }
        f.write_str(" |")?;
        if self.traffic.is_empty() {
            return f.write_str(" nothing");
        }
        for (i, traffic) in self.traffic.iter().enumerate() {
            let separator = if i == 0 { "" } else { ";" };
            let axes = match &traffic.axes {
                Some(axes) => axes.join("+"),
                None => "other groups".to_owned(),
            };
            write!(f, "{separator} {axes} {}:", short(traffic.bytes_sent))?;
            for total in &traffic.collectives {
                let plus = if total.times_known { "" } else { "+" };
                write!(f, " {}{plus} {}", total.times, letters(total.kind))?;
            }
        }
        Ok(())
    }
}

/// A heading and the rows of each mesh, and what is wrong below each row.
impl fmt::Display for LayoutTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mesh = None;
        for row in &self.rows {
            if mesh != Some(&row.mesh) {
                writeln!(f, "{}", row.heading())?;
                mesh = Some(&row.mesh);
            }
            writeln!(f, "{row}")?;
        }
        write!(f, "{}", self.summary())
    }
}

impl LayoutRow {
    /// The row that stands above this one in a table, with its mesh.
    pub fn heading(&self) -> String {
        let mut text = format!("{:45}", format!("mesh {}", self.mesh));
        let Some(measured) = &self.measured else {
            return text.trim_end().to_owned();
        };
        for difference in &measured.differences {
            let name = match difference.quantity {
                Quantity::Gradients => "grad",
                Quantity::Results => "result",
                Quantity::Parameters => "param",
                Quantity::Optimizer => "optim",
                other => other.name(),
            };
            text.push_str(&format!(" {name:>6}"));
        }
        let DeviceBytes {
            parameters,
            optimizer,
            gradients,
            ..
        } = measured.bytes;
        let held = match parameters + optimizer + gradients {
            0 => vec!["args", "temp"],
            _ => vec!["param", "optim", "grad", "temp"],
        };
        text.push_str(" |");
        for name in held {
            text.push_str(&format!(" {name:>5}"));
        }
        text.push_str(" | sent over");
        text
    }
}

impl LayoutTable {
    /// The last lines of the printed table: what its columns are, and how many rows came out how.
    pub fn summary(&self) -> String {
        let verdicts = [
            Verdict::Equal,
            Verdict::Differs,
            Verdict::Refused,
            Verdict::Failed,
        ];
        let counts = verdicts.map(|v| (v.name().to_lowercase(), self.count(v)));
        let counts: Vec<String> = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        format!(
            "\ncolumns: the largest difference of any leaf, relative to the leaf | bytes that a device holds | bytes that \
             it sends in a step, and by what\n\
             AR all-reduce, AG all-gather, RS reduce-scatter, A2A all-to-all, CP collective-permute\n\
             {} layouts: {}\n",
            self.rows.len(),
            counts.join(", ")
        )
    }
}

/// A kind of collective, in a column.
fn letters(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::AllReduce => "AR",
        CollectiveKind::AllGather => "AG",
        CollectiveKind::ReduceScatter => "RS",
        CollectiveKind::AllToAll => "A2A",
        CollectiveKind::CollectivePermute => "CP",
        other => other.name(),
    }
}

/// Bytes in at most five characters, units being powers of 1024: `512`, `1.5K`, `80G`.
fn short(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "");
    for next in ["K", "M", "G", "T", "P", "E"] {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    match value < 9.95 && !unit.is_empty() {
        true => format!("{value:.1}{unit}"),
        false => format!("{value:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Total;

    fn row(name: &str, verdict: Verdict) -> LayoutRow {
        LayoutRow {
            name: name.to_owned(),
            mesh: "data=2 x model=4".to_owned(),
            devices: 8,
            partitioner: "shardy".to_owned(),
            verdict,
            problems: Vec::new(),
            measured: None,
        }
    }

    fn measured() -> Measured {
        let difference = |quantity, relative| Difference {
            quantity,
            relative,
            tolerance: 1e-5,
            path: String::new(),
            element: Vec::new(),
            found: 0.0,
            expected: 0.0,
        };
        let total = |kind, times| Total {
            kind,
            axes: Some(vec!["data".to_owned()]),
            times,
            payload_bytes: 0,
            bytes_sent: 0,
            times_known: true,
        };
        Measured {
            differences: vec![
                difference(Quantity::Loss, 0.0),
                difference(Quantity::Gradients, 2.5e-7),
            ],
            bytes: DeviceBytes {
                parameters: 512,
                optimizer: 1024,
                gradients: 1536,
                arguments: 2000,
                temporary: 80 << 30,
            },
            traffic: vec![AxisTraffic {
                axes: Some(vec!["data".to_owned()]),
                bytes_sent: 3 << 20,
                collectives: vec![
                    total(CollectiveKind::AllReduce, 3),
                    total(CollectiveKind::CollectivePermute, 14),
                ],
            }],
            compile_seconds: 1.0,
            run_seconds: 1.0,
        }
    }

    #[test]
    fn rows_stand_under_the_heading_of_their_mesh() {
        let mut equal = row("ddp", Verdict::Equal);
        equal.measured = Some(measured());
        let mut refused = row("context", Verdict::Refused);
        refused
            .problems
            .push("the layout does not fit:\n  - a fault".to_owned());
        let table = LayoutTable {
            rows: vec![equal, refused],
        };
        let text = table.to_string();
        let expected = "\
mesh data=2 x model=4                           loss   grad | param optim  grad  temp | sent over
  equal   ddp                          shardy      0   2e-7 |   512  1.0K  1.5K   80G | data 3.0M: 3 AR 14 CP
  refused context                      shardy (not run)
          the layout does not fit:
              - a fault
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("2 layouts: 1 equal, 1 refused\n"), "{text}");
        assert!(table.is_equal());
    }

    #[test]
    fn what_differs_or_fails_is_not_equal() {
        for verdict in [Verdict::Differs, Verdict::Failed] {
            let rows = vec![row("ddp", Verdict::Equal), row("fsdp", verdict)];
            let table = LayoutTable { rows };
            assert!(!table.is_equal());
            assert_eq!(table.count(verdict), 1);
            assert_eq!(table.to_json()["equal"], false);
        }
    }
}
