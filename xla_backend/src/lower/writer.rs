//! Text of operations, and how types and attributes are spelled.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use shardax_core::{DType, TensorType};
use smallvec::{SmallVec, smallvec};

/// What the text is made of.
pub(super) trait Piece {
    /// Appends it.
    fn push_to(&self, text: &mut String);
}

/// Appends pieces to the text, one after the other, as in `push!(text, "stablehlo.negate " x " : " ty)`;
/// one that is more than a name stands in parentheses. A program has so many that the formatting
/// machinery would be felt.
macro_rules! push {
    ($text:expr, $($piece:tt)+) => {{
        let text: &mut String = $text;
        $($crate::lower::writer::Piece::push_to(&$piece, text);)+
    }};
}
pub(super) use push;

impl<P: Piece + ?Sized> Piece for &P {
    fn push_to(&self, text: &mut String) {
        (**self).push_to(text);
    }
}

impl Piece for str {
    fn push_to(&self, text: &mut String) {
        text.push_str(self);
    }
}

impl Piece for Rc<str> {
    fn push_to(&self, text: &mut String) {
        text.push_str(self);
    }
}

impl Piece for String {
    fn push_to(&self, text: &mut String) {
        text.push_str(self);
    }
}

impl Piece for usize {
    fn push_to(&self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(*self));
    }
}

impl Piece for u32 {
    fn push_to(&self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(*self));
    }
}

/// Pieces can be formatted too, where that is not felt.
macro_rules! display {
    ($($piece:ty),+) => {$(
        impl fmt::Display for $piece {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut text = String::new();
                self.push_to(&mut text);
                f.write_str(&text)
            }
        }
    )+};
}

display!(Ssa, Loc, List<'_>, Array<'_>, Joined<'_>);

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
}

impl Piece for Ssa {
    fn push_to(&self, text: &mut String) {
        text.push_str(match self.kind {
            Kind::Argument => "%arg",
            Kind::Result => "%",
        });
        self.number.push_to(text);
        if let Some(index) = self.index {
            push!(text, "#" index);
        }
    }
}

/// A reference to a location, `loc(#loc7)`, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loc(pub(super) usize);

impl Piece for Loc {
    fn push_to(&self, text: &mut String) {
        push!(text, "loc(#loc" (self.0) ")");
    }
}

/// The names of an operation's results.
pub(super) type Results = SmallVec<[Ssa; 4]>;

/// What an equation of a transformer takes, about.
const BYTES_OF_EQUATION: usize = 110;

/// The text, and the next free name.
#[derive(Debug)]
pub(super) struct Writer {
    text: String,
    next: u32,
}

impl Writer {
    /// An empty text with room for about as many equations.
    pub(super) fn for_equations(count: usize) -> Self {
        Writer {
            text: String::with_capacity(count * BYTES_OF_EQUATION),
            next: 0,
        }
    }

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
    pub(super) fn assign(&mut self, loc: Loc, text: impl FnOnce(&mut String)) -> Ssa {
        let ssa = self.fresh();
        push!(&mut self.text, ssa " = ");
        text(&mut self.text);
        push!(&mut self.text, " " loc "\n");
        ssa
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

impl Piece for TensorType {
    fn push_to(&self, text: &mut String) {
        text.push_str("tensor<");
        for size in &self.shape {
            push!(text, size "x");
        }
        push!(text, (element_type(self.dtype)) ">");
    }
}

/// How types are spelled. A program has few, and writes each of them often.
#[derive(Default)]
pub(super) struct Types(RefCell<FxHashMap<TensorType, Rc<str>>>);

impl Types {
    pub(super) fn spelled(&self, ty: &TensorType) -> Rc<str> {
        let mut known = self.0.borrow_mut();
        if let Some(text) = known.get(ty) {
            return Rc::clone(text);
        }
        let text: Rc<str> = tensor_type(ty).into();
        known.insert(ty.clone(), Rc::clone(&text));
        text
    }
}

/// `tensor<8x64xf32>`
pub(crate) fn tensor_type(ty: &TensorType) -> String {
    let mut text = String::with_capacity(32);
    ty.push_to(&mut text);
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

/// `0, 2`
fn push_list<P: Piece>(text: &mut String, items: &[P]) {
    for (i, item) in items.iter().enumerate() {
        push!(text, (if i == 0 { "" } else { ", " }) item);
    }
}

/// `[0, 2]`
pub(super) struct List<'a>(pub(super) &'a [usize]);

impl Piece for List<'_> {
    fn push_to(&self, text: &mut String) {
        text.push('[');
        push_list(text, self.0);
        text.push(']');
    }
}

/// `array<i64: 0, 2>`
pub(super) struct Array<'a>(pub(super) &'a [usize]);

impl Piece for Array<'_> {
    fn push_to(&self, text: &mut String) {
        let colon = if self.0.is_empty() { "" } else { ": " };
        push!(text, "array<i64" colon);
        push_list(text, self.0);
        text.push('>');
    }
}

/// `%1, %2`
pub(super) struct Joined<'a>(pub(super) &'a [Ssa]);

impl Piece for Joined<'_> {
    fn push_to(&self, text: &mut String) {
        push_list(text, self.0);
    }
}
