//! An optimized module as text, for reading.
//!
//! The form is that of HLO text, with what a reader needs: shapes on one device, operands, the
//! computations that are called, and where in the user's program an instruction comes from. It leaves
//! out layouts and most attributes, so XLA does not read it back.

use std::fmt::{self, Write};

use super::module::{Computation, HloModule, Instruction};
use super::shape::Shape;

impl HloModule {
    /// The module as text; `origin` tells where an instruction comes from, and may be empty.
    pub fn text(&self, origin: impl Fn(&Instruction) -> String) -> String {
        let mut text = format!("HloModule {}\n", self.name());
        for (position, computation) in self.computations().iter().enumerate() {
            let entry = if position == self.entry() {
                "ENTRY "
            } else {
                ""
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "\n{entry}%{} {{", computation.name());
            for (i, instruction) in computation.instructions().iter().enumerate() {
                let root = if i == computation.root() { "ROOT " } else { "" };
                let _ = write!(text, "  {root}");
                let _ = self.instruction(&mut text, computation, instruction);
                match origin(instruction) {
                    origin if origin.is_empty() => text.push('\n'),
                    origin => {
                        let _ = writeln!(text, "  // {origin}");
                    }
                }
            }
            text.push_str("}\n");
        }
        text
    }

    /// `%add.1 = f32[8] add(%x, %y), calls=%region`
    fn instruction(
        &self,
        text: &mut String,
        computation: &Computation,
        instruction: &Instruction,
    ) -> fmt::Result {
        write!(
            text,
            "%{} = {} {}(",
            instruction.name(),
            instruction.shape(),
            instruction.opcode()
        )?;
        match (instruction.opcode(), instruction.constant) {
            ("parameter", _) => write!(text, "{}", instruction.parameter)?,
            (_, Some(value)) => write!(text, "{value}")?,
            _ => {
                for (i, &operand) in instruction.operands().iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    let name = computation.instructions()[operand].name();
                    write!(text, "{comma}%{name}")?;
                }
            }
        }
        text.push(')');
        if instruction.opcode() == "get-tuple-element" {
            write!(text, ", index={}", instruction.tuple_index)?;
        }
        if !instruction.comparison.is_empty() {
            write!(text, ", direction={}", instruction.comparison)?;
        }
        for (i, &called) in instruction.called().iter().enumerate() {
            let separator = if i == 0 { ", calls=" } else { ", " };
            write!(text, "{separator}%{}", self.computations()[called].name())?;
        }
        Ok(())
    }
}

/// As [`HloModule::text`], with the names and lines that the module itself has.
impl fmt::Display for HloModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|instruction| {
            let source = instruction.source().map(|source| format!(" {source}"));
            format!("{}{}", instruction.op_name(), source.unwrap_or_default())
        }))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Array(array) => write!(f, "{array}"),
            Shape::Tuple(parts) => {
                f.write_str("(")?;
                for (i, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
            Shape::Opaque => f.write_str("opaque"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::DDP;
    use super::*;

    #[test]
    fn a_module_reads_like_hlo() {
        let module = HloModule::decode(DDP).unwrap();
        let text = module.to_string();
        let entry = &module.computations()[module.entry()];
        assert!(text.starts_with(&format!("HloModule {}\n", module.name())));
        assert!(text.contains(&format!("\nENTRY %{} {{\n", entry.name())));
        assert_eq!(
            text.matches("  ROOT %").count(),
            module.computations().len()
        );
        let lines = text.lines().filter(|line| line.contains(" = ")).count();
        let instructions = module.computations().iter().map(|c| c.instructions().len());
        assert_eq!(lines, instructions.sum::<usize>());
        assert!(text.contains(" all-reduce("), "{text}");
        assert!(text.contains(" = f32["));
        assert!(text.contains(", calls=%"));
        let bare = module.text(|_| String::new());
        assert!(!bare.contains("//"));
    }
}
