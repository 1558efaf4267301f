//! Arrays as numpy prints them.
//!
//! A large array is shown by its corners, and one that is too large to be fetched for a line of text by its type.

use std::fmt;

use shardax_core::{DType, Literal, Number, TensorType};
use shardax_hlo::human_bytes;

use super::Array;

/// With more elements than this, dimensions are shown by their ends.
const WHOLE: usize = 1000;

/// How many elements are shown at each end of a dimension.
const END: usize = 3;

/// Above this an array is not fetched.
const FETCHED: usize = 256 << 20;

/// The elements in nested brackets, waited for and fetched; of more than a thousand those at the ends of each dimension. What an
/// array has no elements for, because it was donated or its program failed, is said in their place, and an array of more than
/// 256 MiB is not fetched. [`Debug`](fmt::Debug) prints type and sharding, and waits for nothing.
///
/// ```
/// use shardax_xla::Array;
///
/// let x = Array::from_slice(&[1f32, 2.5, -3.0, 4.0], [2, 2])?;
/// assert_eq!(x.to_string(), "[[ 1.0,  2.5],\n [-3.0,  4.0]]");
/// # Ok::<(), shardax_xla::Error>(())
/// ```
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ty = self.ty();
        if ty.host_bytes() > FETCHED {
            let bytes = human_bytes(ty.host_bytes() as u64);
            return write!(f, "<{ty}, {bytes}>");
        }
        let bytes = match self.to_bytes() {
            Ok(bytes) => bytes,
            Err(error) => return write!(f, "<{error}>"),
        };
        let shown = Shown {
            shape: &ty.shape,
            elided: ty.element_count() > WHOLE,
        };
        let places = shown.places();
        // Of a large array few elements are read as numbers.
        let size = bytes.len() / ty.element_count().max(1);
        let elements = places.iter().flat_map(|&at| &bytes[at * size..][..size]);
        let literal = Literal::from_bytes(
            TensorType::new(ty.dtype, [places.len()]),
            elements.copied().collect(),
        );
        let numbers = literal.map(|literal| literal.numbers()).unwrap_or_default();
        let parts = if ty.dtype.is_complex() { 2 } else { 1 };
        let words = numbers.chunks(parts).map(|parts| match parts {
            [number] => word(*number, ty.dtype),
            parts => complex(parts),
        });
        let words: Vec<String> = words.collect();
        let width = words
            .iter()
            .map(|word| word.chars().count())
            .max()
            .unwrap_or(0);
        let mut words = words.iter().map(|word| format!("{word:>width$}"));
        shown.write(f, 0, &mut words)
    }
}

/// What of an array is printed.
struct Shown<'a> {
    shape: &'a [usize],
    elided: bool,
}

impl Shown<'_> {
    /// Which elements of a dimension are printed: the number at its beginning, and at its end.
    fn ends(&self, dim: usize) -> [usize; 2] {
        match self.shape[dim] {
            size if self.elided && size > 2 * END => [END, END],
            size => [size, 0],
        }
    }

    /// The positions of the elements printed, in order.
    fn places(&self) -> Vec<usize> {
        let mut places = vec![0];
        for (dim, &size) in self.shape.iter().enumerate() {
            let [first, last] = self.ends(dim);
            let along = move || (0..first).chain(size - last..size);
            places = places
                .into_iter()
                .flat_map(|place| along().map(move |i| place * size + i))
                .collect();
        }
        places
    }

    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        dim: usize,
        words: &mut dyn Iterator<Item = String>,
    ) -> fmt::Result {
        if dim == self.shape.len() {
            return f.write_str(&words.next().unwrap_or_default());
        }
        // Rows are on lines, and matrices have a line between them.
        let rest = self.shape.len() - dim - 1;
        let between = match rest {
            0 => ", ".to_owned(),
            _ => format!(",{}{}", "\n".repeat(rest), " ".repeat(dim + 1)),
        };
        let [first, last] = self.ends(dim);
        f.write_str("[")?;
        for i in 0..first + last {
            if i > 0 {
                f.write_str(&between)?;
            }
            if i == first {
                write!(f, "...{between}")?;
            }
            self.write(f, dim + 1, words)?;
        }
        f.write_str("]")
    }
}

/// A number with as many digits as its type tells apart.
fn word(number: Number, dtype: DType) -> String {
    let Number::Float(v) = number else {
        return number.to_string();
    };
    let digits = match dtype {
        DType::F64 => return format!("{v:?}"),
        DType::F32 | DType::C64 => return format!("{:?}", v as f32),
        DType::F16 => 5,
        _ => 4,
    };
    let rounded: f64 = format!("{v:.*e}", digits - 1).parse().unwrap_or(v);
    format!("{rounded:?}")
}

fn complex(parts: &[Number]) -> String {
    let [re, im] = [0, 1].map(|i| parts.get(i).map_or(0.0, |part| part.as_f64()) as f32);
    let sign = if im.is_sign_negative() { '-' } else { '+' };
    format!("{re:?}{sign}{:?}i", im.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: shardax_core::Element>(values: &[T], shape: &[usize]) -> String {
        Array::from_slice(values, shape).unwrap().to_string()
    }

    #[test]
    fn every_rank_prints_in_brackets() {
        assert_eq!(text(&[2.5f32], &[]), "2.5");
        assert_eq!(text(&[1i32, -20, 3], &[3]), "[  1, -20,   3]");
        assert_eq!(text(&[true, false], &[2, 1]), "[[ true],\n [false]]");
        assert_eq!(
            text(&[0.1f32, 1e30, f32::NAN, -0.0], &[2, 1, 2]),
            "[[[ 0.1, 1e30]],\n\n [[ NaN, -0.0]]]"
        );
        assert_eq!(text::<f64>(&[], &[0]), "[]");
        assert_eq!(text::<f64>(&[], &[2, 0]), "[[],\n []]");
        assert_eq!(text(&[half::bf16::from_f32(0.1)], &[1]), "[0.1001]");
    }

    #[test]
    fn large_ones_print_their_ends() {
        let values: Vec<i32> = (0..1200).collect();
        assert_eq!(
            text(&values, &[1200]),
            "[   0,    1,    2, ..., 1197, 1198, 1199]"
        );
        let text = text(&values, &[300, 4]);
        assert_eq!(text.lines().count(), 7);
        assert!(
            text.starts_with("[[   0,    1,    2,    3],\n [   4,"),
            "{text}"
        );
        assert!(text.contains("],\n ...,\n [1188,"), "{text}");
    }
}
