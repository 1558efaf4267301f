//! Text of operations, and how types and attributes are spelled.

use std::fmt;

use shardax_core::{DType, TensorType};
use smallvec::{SmallVec, smallvec};

/// A value's name in the module: `%arg0`, `%7`, `%7#1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ssa {
    kind: Kind,
    number: u32,
    index: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Argument,
    Result,
}

impl Ssa {
    /// A name that no operation defines.
    pub(super) const UNDEFINED: Ssa = Ssa {
        kind: Kind::Result,
        number: u32::MAX,
        index: None,
    };

    /// Which argument of the function it is, if it is one.
    pub(super) fn argument_position(self) -> Option<usize> {
        (self.kind == Kind::Argument).then_some(self.number as usize)
    }

    pub(super) fn argument(i: usize) -> Self {
        Ssa {
            kind: Kind::Argument,
            number: i as u32,
            index: None,
        }
    }

    /// Appends the name; a program has so many that the formatting machinery would be felt.
    fn push_to(self, text: &mut String) {
        text.push_str(match self.kind {
            Kind::Argument => "%arg",
            Kind::Result => "%",
        });
        push_number(text, self.number as usize);
        if let Some(index) = self.index {
            text.push('#');
            push_number(text, index as usize);
        }
    }
}

impl fmt::Display for Ssa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.push_to(&mut text);
        f.write_str(&text)
    }
}

/// Appends a number in decimal.
fn push_number(text: &mut String, number: usize) {
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}

/// The names of an operation's results.
pub(super) type Results = SmallVec<[Ssa; 4]>;

/// The text, and the next free name.
#[derive(Debug, Default)]
pub(super) struct Writer {
    text: String,
    next: u32,
}

impl Writer {
    /// A new name.
    pub(super) fn fresh(&mut self) -> Ssa {
        let number = self.next;
        self.next += 1;
        Ssa {
            kind: Kind::Result,
            number,
            index: None,
        }
    }

    /// The names of the results of an operation that has `count`.
    pub(super) fn results(of: Ssa, count: usize) -> Results {
        match count {
            1 => smallvec![of],
            _ => (0..count as u32)
                .map(|i| Ssa {
                    index: Some(i),
                    ..of
                })
                .collect(),
        }
    }

    /// `%7 = text loc`
    pub(super) fn assign(
        &mut self,
        ssa: Ssa,
        loc: &str,
        text: impl FnOnce(&mut String) -> fmt::Result,
    ) {
        ssa.push_to(&mut self.text);
        self.text.push_str(" = ");
        // Writing to a string does not fail.
        let _ = text(&mut self.text);
        self.text.push(' ');
        self.text.push_str(loc);
        self.text.push('\n');
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = fmt::Write::write_fmt(&mut self.text, line);
        self.text.push('\n');
    }

    /// The end of what is written.
    pub(super) fn position(&self) -> usize {
        self.text.len()
    }

    /// Writes what stands after a position in another way.
    pub(super) fn rewrite(&mut self, from: usize, change: impl FnOnce(&str) -> String) {
        let changed = change(&self.text[from..]);
        self.text.truncate(from);
        self.text.push_str(&changed);
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// `tensor<8x64xf32>`
pub(crate) fn tensor_type(ty: &TensorType) -> String {
    let mut text = String::with_capacity(32);
    text.push_str("tensor<");
    for &size in &ty.shape {
        push_number(&mut text, size);
        text.push('x');
    }
    text.push_str(element_type(ty.dtype));
    text.push('>');
    text
}

/// The element type in MLIR's spelling.
pub(super) fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "i1",
        DType::I4 => "i4",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U4 => "ui4",
        DType::U8 => "ui8",
        DType::U16 => "ui16",
        DType::U32 => "ui32",
        DType::U64 => "ui64",
        DType::F8E4M3FN => "f8E4M3FN",
        DType::F8E5M2 => "f8E5M2",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::C64 => "complex<f32>",
    }
}

/// `[0, 2]`
pub(super) struct List<'a>(pub(super) &'a [usize]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, item) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{item}")?;
        }
        f.write_str("]")
    }
}

/// `array<i64: 0, 2>`
pub(super) struct Array<'a>(pub(super) &'a [usize]);

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("array<i64")?;
        for (i, item) in self.0.iter().enumerate() {
            let separator = if i == 0 { ": " } else { ", " };
            write!(f, "{separator}{item}")?;
        }
        f.write_str(">")
    }
}
