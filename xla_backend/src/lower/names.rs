//! Names of symbols and of source locations.

use std::fmt::Write;

use rustc_hash::FxHashMap;
use shardax_core::{Source, ir::Scope};

use super::writer::{Loc, push};

/// What an operation of a module is called, and where it is written.
#[derive(Clone, Debug)]
pub struct Location {
    /// Scopes and operation, `block/dot_general`, or the path of the argument that the operation takes an
    /// element of.
    pub name: String,
    /// The user's line.
    pub source: Source,
}

/// Locations of a module: each a name with a number, and a line of the user's.
///
/// The name goes into the module's body; the line only into the table, so that moving a line does
/// not make another program. A report finds the line again by the number.
///
/// The number comes after `#` and not after `@`, where XLA cuts a name off.
#[derive(Debug, Default)]
pub(super) struct Locations {
    /// By the address of the source and of the scope's name, which are cheap to hash; a scope that
    /// was entered twice has two entries, which does no harm.
    known: FxHashMap<(usize, usize, &'static str), usize>,
    labeled: FxHashMap<(usize, String), usize>,
    entries: Vec<(String, Source)>,
}

impl Locations {
    /// The reference to a location.
    pub(super) fn reference(&mut self, source: Source, scope: &Scope, op: &'static str) -> Loc {
        let next = self.entries.len();
        let scope_address = scope.as_ref().map_or(0, |name| name.as_ptr().addr());
        let key = (std::ptr::from_ref(source).addr(), scope_address, op);
        let number = *self.known.entry(key).or_insert(next);
        if number == next {
            let name = match scope {
                Some(scope) => format!("{scope}/{op}#{number}"),
                None => format!("{op}#{number}"),
            };
            self.entries.push((name, source));
        }
        Loc(number)
    }

    /// The reference to a location that is called after an argument rather than an operation.
    pub(super) fn labeled(&mut self, source: Source, label: &str) -> Loc {
        let next = self.entries.len();
        let key = (std::ptr::from_ref(source).addr(), label.to_owned());
        let number = *self.labeled.entry(key).or_insert(next);
        if number == next {
            self.entries.push((format!("{label}#{number}"), source));
        }
        Loc(number)
    }

    /// Appends the table; returns the name and source of each number.
    pub(super) fn finish(self, text: &mut String) -> Vec<Location> {
        for (number, (name, source)) in self.entries.iter().enumerate() {
            let (name, file) = (quoted(name), quoted(source.file()));
            let (line, column) = (source.line(), source.column());
            push!(text, "#loc" number " = loc(" name "(" file ":" line ":" column "))\n");
        }
        let locations = self.entries.into_iter().map(|(name, source)| {
            let name = name.rsplit_once('#').map_or(&*name, |(name, _)| name);
            Location {
                name: name.to_owned(),
                source,
            }
        });
        locations.collect()
    }
}

/// An instruction's `op_name` without the numbers in it, and the number of its operation: XLA puts the
/// names of what an operation is in before its own, and joins with `:` the names of what it combines, of
/// which the first is taken.
pub(super) fn split_number(op_name: &str) -> Option<(String, usize)> {
    let mut parts = op_name.split('#');
    let mut name = parts.next()?.to_owned();
    let (mut number, mut is_first) = (None, !name.contains(':'));
    for part in parts {
        let digits = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        if is_first || number.is_none() {
            number = part[..digits].parse().ok().or(number);
        }
        is_first &= !part.contains(':');
        name.push_str(&part[digits..]);
    }
    Some((name, number?))
}

/// A name that MLIR takes as a symbol.
pub(super) fn symbol(name: &str) -> String {
    let symbol: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    match symbol.chars().next() {
        Some(first) if first.is_ascii_alphabetic() || first == '_' => symbol,
        _ => format!("_{symbol}"),
    }
}

/// The symbol of this name, whatever characters it has.
pub(super) fn quoted_symbol(name: &str) -> String {
    match symbol(name) {
        same if same == name => same,
        _ => quoted(name),
    }
}

/// A string literal of MLIR.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                let _ = write!(quoted, "\\{byte:02X}");
            }
            _ => quoted.push(char::from(byte)),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_in_what_xla_makes_of_a_name() {
        let split = |op_name: &str| split_number(op_name).unwrap_or_default();
        assert_eq!(
            split("block/dot_general#17"),
            ("block/dot_general".to_owned(), 17)
        );
        assert_eq!(
            split("while/body/add#3/reduce"),
            ("while/body/add/reduce".to_owned(), 3)
        );
        assert_eq!(split("manual#0/psum#9"), ("manual/psum".to_owned(), 9));
        assert_eq!(
            split("a/(scan#1/add#3:manual#2/psum#4)"),
            ("a/(scan/add:manual/psum)".to_owned(), 3)
        );
        assert_eq!(split("a:b/add#3").1, 3);
        assert_eq!(split_number("add"), None);
    }

    #[test]
    fn strings_are_escaped_for_mlir() {
        assert_eq!(quoted("a \"b\" \\ é"), "\"a \\22b\\22 \\5C \\C3\\A9\"");
        assert_eq!(symbol("train step"), "train_step");
        assert_eq!(symbol("1st"), "_1st");
        assert_eq!(quoted_symbol("my_op"), "my_op");
        assert_eq!(quoted_symbol("my.op\""), "\"my.op\\22\"");
    }
}
