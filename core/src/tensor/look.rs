//! Looking at values while the compiled program runs.

use std::fmt::Write;
use std::panic::Location;

use super::Tensor;
use crate::literal::{Literal, Number};
use crate::trace::at;
use crate::transform::host_effect;

impl Tensor {
    /// Prints the value on standard output each time the program comes to this place, in the order
    /// of the program; returns the tensor.
    ///
    /// Under a layout the whole value is printed, once, whichever devices have parts of it: it is
    /// gathered for that. Large arrays are shortened.
    ///
    /// ```
    /// # use shardax_core::{DType, Tensor, TensorType, trace};
    /// let halved = |x: Tensor| (x * 0.5).print("half");
    /// let program = trace(halved, TensorType::new(DType::F32, [2]))?;
    /// assert!(program.graph.to_string().contains("foreign"));
    /// # Ok::<(), shardax_core::Error>(())
    /// ```
    #[track_caller]
    pub fn print(self, label: &str) -> Tensor {
        let label = label.to_owned();
        self.inspect("print", move |value| {
            println!("{label}: {}", shown(value));
        })
    }

    /// Calls `look` with the value each time the program comes to this place, in the order of the
    /// program; returns the tensor. `name` is what the call is named in messages.
    ///
    /// See [`Tensor::print`] for what holds under a layout.
    #[track_caller]
    pub fn inspect(self, name: &str, look: impl Fn(&Literal) + Send + Sync + 'static) -> Tensor {
        at(Location::caller(), || {
            host_effect(name, [self], move |values| {
                values.iter().for_each(&look);
                Ok(())
            });
            self
        })
    }
}

/// Elements of a dimension that are shown at each end.
const ENDS: usize = 3;
/// Dimensions up to this size are shown whole.
const WHOLE: usize = 8;

/// Type and elements: `f32[2] [0.5, 1.0]`.
fn shown(value: &Literal) -> String {
    let shape = &value.ty().shape;
    let mut text = format!("{} ", value.ty());
    let mut numbers = value.numbers();
    if value.is_splat() {
        let count = value.ty().element_count();
        numbers = numbers.first().map_or(Vec::new(), |&n| vec![n; count]);
    }
    let narrow = value.ty().dtype.is_float() && value.ty().dtype.bits() <= 32;
    write_part(&mut text, &numbers, shape, narrow);
    text
}

fn write_part(text: &mut String, numbers: &[Number], shape: &[usize], narrow: bool) {
    let Some((&size, rest)) = shape.split_first() else {
        // Writing to a string does not fail.
        let _ = match numbers.first() {
            Some(Number::Float(v)) if narrow => write!(text, "{:?}", *v as f32),
            Some(number) => write!(text, "{number}"),
            None => Ok(()),
        };
        return;
    };
    let stride: usize = rest.iter().product();
    text.push('[');
    let mut first = true;
    for i in 0..size {
        if size > WHOLE && (ENDS..size - ENDS).contains(&i) {
            if i == ENDS {
                text.push_str(", ...");
            }
            continue;
        }
        if !std::mem::replace(&mut first, false) {
            text.push_str(", ");
        }
        write_part(text, &numbers[i * stride..(i + 1) * stride], rest, narrow);
    }
    text.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_by_rows_and_shortened() {
        let of = |count: usize, shape: &[usize]| {
            let values: Vec<f32> = (0..count).map(|i| i as f32 / 2.0).collect();
            Literal::from_slice(&values, shape).map(|l| shown(&l))
        };
        assert_eq!(of(1, &[]).as_deref(), Some("f32[] 0.0"));
        let rows = of(4, &[2, 2]);
        assert_eq!(rows.as_deref(), Some("f32[2,2] [[0.0, 0.5], [1.0, 1.5]]"));
        let long = of(10, &[10]);
        assert_eq!(
            long.as_deref(),
            Some("f32[10] [0.0, 0.5, 1.0, ..., 3.5, 4.0, 4.5]")
        );
        assert_eq!(of(0, &[0, 3]).as_deref(), Some("f32[0,3] []"));
    }
}
