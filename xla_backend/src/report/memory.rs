//! The memory of a compiled program on one device, in words.

use std::fmt;

use serde::Serialize;
use shardax_core::ir::{Graph, Op};
use shardax_hlo::human_bytes;
use shardax_pjrt::CompiledMemoryStats;

/// What XLA's buffer assignment says of one device's memory, in bytes.
///
/// A device needs `argument + output + temp + generated_code + constants - alias` at most, and `peak` at any one
/// time, where the backend states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct MemoryReport {
    /// All arguments.
    pub argument: u64,
    /// All results.
    pub output: u64,
    /// The part of the results that reuses the memory of donated arguments.
    pub alias: u64,
    /// Everything in between: activations, gradients, communication buffers.
    pub temp: u64,
    /// Machine code.
    pub generated_code: u64,
    /// Arrays that are written into the program, as `Tensor::constant` does: whole on every device, and in no other number
    /// but `peak`.
    pub constants: u64,
    /// The most that is live at one time, arguments included; 0 if the backend does not say.
    pub peak: u64,
    /// Memory of the host, for arrays that are placed there.
    pub host: HostMemory,
}

/// The part of a [`MemoryReport`] that lies in the host's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct HostMemory {
    /// Arguments that are placed on the host.
    pub argument: u64,
    /// Results that are placed on the host.
    pub output: u64,
    /// The part of these results that reuses the memory of donated arguments.
    pub alias: u64,
    /// Temporary memory on the host.
    pub temp: u64,
}

impl From<CompiledMemoryStats> for MemoryReport {
    fn from(stats: CompiledMemoryStats) -> Self {
        MemoryReport {
            argument: stats.argument,
            output: stats.output,
            alias: stats.alias,
            temp: stats.temp,
            generated_code: stats.generated_code,
            constants: 0,
            // XLA's CPU backend states less than the temporary memory that it allocates.
            peak: if stats.peak < stats.temp {
                0
            } else {
                stats.peak
            },
            host: HostMemory {
                argument: stats.host_argument,
                output: stats.host_output,
                alias: stats.host_alias,
                temp: stats.host_temp,
            },
        }
    }
}

impl MemoryReport {
    /// The account of a program of which this is the graph.
    pub(crate) fn of(stats: CompiledMemoryStats, graph: &Graph) -> Self {
        MemoryReport {
            constants: constant_bytes(graph),
            ..stats.into()
        }
    }
}

/// The bytes of arrays that are written out in a graph. A compiler fills in by itself what is one number everywhere.
fn constant_bytes(graph: &Graph) -> u64 {
    let own = graph.equations().iter().map(|equation| {
        let literal = match &equation.op {
            Op::Constant(literal) if !literal.is_splat() => literal.bytes().len() as u64,
            _ => 0,
        };
        let regions = equation.op.regions().into_iter();
        literal
            + regions
                .map(|(_, region)| constant_bytes(region))
                .sum::<u64>()
    });
    own.sum()
}

impl fmt::Display for MemoryReport {
    /// A line for each number, those of the host only if there is any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryReport {
            argument,
            output,
            alias,
            temp,
            generated_code,
            constants,
            peak,
            host,
        } = *self;
        writeln!(f, "memory of one device")?;
        write!(f, "  arguments {:>12}", human_bytes(argument))?;
        write!(f, "\n  results   {:>12}", human_bytes(output))?;
        if alias > 0 {
            write!(
                f,
                ", of which {} in memory of donated arguments",
                human_bytes(alias)
            )?;
        }
        write!(f, "\n  temporary {:>12}", human_bytes(temp))?;
        write!(f, "\n  code      {:>12}", human_bytes(generated_code))?;
        // A few numbers are in every program.
        if constants >= 1 << 10 {
            write!(f, "\n  constants {:>12}", human_bytes(constants))?;
        }
        if peak > 0 {
            write!(f, "\n  peak      {:>12}", human_bytes(peak))?;
        }
        if host != HostMemory::default() {
            let HostMemory {
                argument,
                output,
                alias,
                temp,
            } = host;
            let parts = [
                ("arguments", argument),
                ("results", output),
                ("donated", alias),
                ("temporary", temp),
            ];
            let there = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
            let text: Vec<String> = there
                .map(|(name, bytes)| format!("{name} {}", human_bytes(bytes)))
                .collect();
            write!(f, "\n  on the host: {}", text.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_shows_the_host_only_if_it_is_used() {
        let mut report = MemoryReport {
            argument: 3 << 20,
            output: 3 << 20,
            alias: 2 << 20,
            temp: 5000,
            generated_code: 12,
            constants: 0,
            peak: 4 << 20,
            host: HostMemory::default(),
        };
        assert_eq!(
            report.to_string(),
            "memory of one device\n  \
             arguments      3.0 MiB\n  \
             results        3.0 MiB, of which 2.0 MiB in memory of donated arguments\n  \
             temporary      4.9 KiB\n  \
             code              12 B\n  \
             peak           4.0 MiB"
        );
        report.constants = 2 << 20;
        assert!(report.to_string().contains("\n  constants      2.0 MiB\n"));
        report.host.argument = 1 << 30;
        assert!(
            report
                .to_string()
                .ends_with("\n  on the host: arguments 1.0 GiB")
        );
    }
}
