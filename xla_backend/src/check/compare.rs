//! How far two results are from each other.

use serde::Serialize;
use shardax_core::{DType, Literal, TensorType};

use crate::array::Array;
use crate::error::{Error, Result};

/// How far results may be from those of one device, relative to what [`Difference::relative`] says.
///
/// Values that are not of a floating-point type must be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Of the loss of every step.
    pub loss: f64,
    /// Of every leaf of the gradients of the first step.
    pub gradients: f64,
    /// Of every leaf of the state that is not an optimizer's, after the last step.
    pub parameters: f64,
    /// Of every leaf of the optimizer's state after the last step.
    pub optimizer: f64,
    /// Of every leaf of the results of a function.
    pub results: f64,
}

impl Tolerance {
    /// For programs that compute in f32: 1e-5 of losses, gradients and results, 1e-4 of the optimizer's
    /// state, 1e-2 of parameters.
    ///
    /// Sums over devices are added in another order, which changes the last bits. An optimizer that
    /// divides by the root of the second moment makes of a gradient that is 0 up to rounding (that of the
    /// bias of keys in attention is) an update of the size of the learning rate and of either sign,
    /// whence the bound of parameters; losses do not depend on such parameters, nor, but for their
    /// rounding, other gradients.
    pub const F32: Self = Tolerance {
        loss: 1e-5,
        gradients: 1e-5,
        parameters: 1e-2,
        optimizer: 1e-4,
        results: 1e-5,
    };

    /// For programs that compute in bf16: 1e-3 of losses, 5e-2 of gradients and results, 1e-1 of the
    /// optimizer's state, 2 of parameters.
    ///
    /// bf16 keeps 8 bits: each rounding is off by up to 2^-9, 2e-3. A layout that splits a contraction
    /// rounds partial sums instead of the sum, so every activation after it is off by a rounding or
    /// two, and gradients collect those of all layers, forward and backward. In the loss, a mean over
    /// all tokens in f32, most of it cancels. Of parameters whose gradient is 0 up to rounding (see
    /// [`Tolerance::F32`]) even the sign of each update is open: in a bias that began with 0 such an
    /// element may be off by twice the largest.
    pub const BF16: Self = Tolerance {
        loss: 1e-3,
        gradients: 5e-2,
        parameters: 2.0,
        optimizer: 1e-1,
        results: 5e-2,
    };

    fn of(&self, quantity: Quantity) -> f64 {
        match quantity {
            Quantity::Loss => self.loss,
            Quantity::Gradients => self.gradients,
            Quantity::Parameters => self.parameters,
            Quantity::Optimizer => self.optimizer,
            Quantity::Results => self.results,
        }
    }
}

/// What of a program is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The losses of all steps.
    Loss,
    /// The gradients of the first step.
    Gradients,
    /// The state after the last step, without that of the optimizer.
    Parameters,
    /// The optimizer's state after the last step.
    Optimizer,
    /// The results of a function.
    Results,
}

impl Quantity {
    /// As a table is headed with it.
    pub const fn name(self) -> &'static str {
        match self {
            Quantity::Loss => "loss",
            Quantity::Gradients => "gradients",
            Quantity::Parameters => "parameters",
            Quantity::Optimizer => "optimizer state",
            Quantity::Results => "results",
        }
    }
}

/// The largest difference in all leaves of one quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// What was compared.
    pub quantity: Quantity,
    /// The difference, divided by the largest magnitude in the leaf on one device, or by a thousandth
    /// of that in all leaves of the quantity if this is larger: a leaf that is 0 up to rounding has
    /// none of its own. Of losses, each is divided by itself. Infinite where one is a NaN and the other
    /// is not; 0 if nothing differs.
    pub relative: f64,
    /// What it may be.
    pub tolerance: f64,
    /// The leaf; empty if nothing differs.
    pub path: String,
    /// The element of the leaf; of losses, the step, from 0.
    pub element: Vec<usize>,
    /// The value there.
    pub found: f64,
    /// The value on one device.
    pub expected: f64,
}

/// The values of an array.
pub(super) struct Leaf {
    pub path: String,
    pub ty: TensorType,
    pub numbers: Vec<f64>,
}

/// The leaves of a quantity.
pub(super) struct Part {
    quantity: Quantity,
    leaves: Vec<Leaf>,
}

/// How many leaves a message names.
const SHOWN: usize = 3;

impl Part {
    pub(super) fn new(quantity: Quantity, leaves: Vec<Leaf>) -> Self {
        Part { quantity, leaves }
    }

    /// The losses of all steps.
    pub(super) fn of_steps(losses: Vec<f64>) -> Self {
        let leaf = Leaf {
            path: "loss".to_owned(),
            ty: TensorType::new(DType::F32, [losses.len()]),
            numbers: losses,
        };
        Part::new(Quantity::Loss, vec![leaf])
    }

    /// The largest difference from `wanted`; leaves beyond the tolerance are told in `problems`.
    pub(super) fn compare(
        &self,
        wanted: &Part,
        tolerance: &Tolerance,
        problems: &mut Vec<String>,
    ) -> Difference {
        let largest = largest(wanted.leaves.iter().flat_map(|leaf| &leaf.numbers));
        let mut worst = Difference {
            quantity: self.quantity,
            relative: 0.0,
            tolerance: tolerance.of(self.quantity),
            path: String::new(),
            element: Vec::new(),
            found: 0.0,
            expected: 0.0,
        };
        let mut beyond = Vec::new();
        if self.leaves.len() != wanted.leaves.len() {
            let (found, wanted) = (self.leaves.len(), wanted.leaves.len());
            let name = self.quantity.name();
            problems.push(format!(
                "{name}: {found} leaves, and {wanted} on one device"
            ));
        }
        for (found, wanted) in self.leaves.iter().zip(&wanted.leaves) {
            if found.ty != wanted.ty {
                let (path, name) = (&found.path, self.quantity.name());
                let (found, wanted) = (&found.ty, &wanted.ty);
                problems.push(format!(
                    "{name} `{path}` is {found}, and {wanted} on one device"
                ));
                continue;
            }
            let own = self.difference(found, wanted, largest, worst.tolerance);
            if own.relative > own.tolerance {
                beyond.push(own.clone());
            }
            if own.relative > worst.relative {
                worst = own;
            }
        }
        beyond.sort_by(|a, b| b.relative.total_cmp(&a.relative));
        problems.extend(beyond.iter().take(SHOWN).map(Difference::to_string));
        if beyond.len() > SHOWN {
            let more = beyond.len() - SHOWN;
            problems.push(format!(
                "and {more} more leaves of the {}",
                self.quantity.name()
            ));
        }
        worst
    }

    fn difference(&self, found: &Leaf, wanted: &Leaf, all: f64, tolerance: f64) -> Difference {
        let own = largest(&wanted.numbers).max(all * 1e-3);
        let is_float = wanted.ty.dtype.is_float() || wanted.ty.dtype == DType::C64;
        let relative = |(&a, &b): (&f64, &f64)| {
            let scale = match self.quantity {
                Quantity::Loss => b.abs(),
                _ => own,
            };
            match (a - b).abs() {
                _ if a == b || a.is_nan() && b.is_nan() => 0.0,
                _ if !is_float => f64::INFINITY,
                off if off.is_finite() && scale > 0.0 => off / scale,
                _ => f64::INFINITY,
            }
        };
        let numbers = found.numbers.iter().zip(&wanted.numbers);
        let worst = numbers
            .map(relative)
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let (position, relative) = worst.unwrap_or((0, 0.0));
        let at = |leaf: &Leaf| leaf.numbers.get(position).copied().unwrap_or(0.0);
        Difference {
            quantity: self.quantity,
            relative,
            tolerance,
            path: found.path.clone(),
            element: element(&wanted.ty, position),
            found: at(found),
            expected: at(wanted),
        }
    }
}

/// The largest finite magnitude.
fn largest<'a>(numbers: impl IntoIterator<Item = &'a f64>) -> f64 {
    let magnitudes = numbers.into_iter().map(|v| v.abs());
    magnitudes.filter(|v| v.is_finite()).fold(0.0, f64::max)
}

/// The indices of the element at a position in row-major order.
fn element(ty: &TensorType, mut position: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = Vec::new();
    for &size in ty.shape.iter().rev() {
        indices.push(position % size.max(1));
        position /= size.max(1);
    }
    indices.reverse();
    indices
}

/// The values of an array; of a complex one, real parts and imaginary ones by turns.
pub(super) fn read(array: &Array) -> Result<Vec<f64>> {
    let bytes = array.to_bytes()?;
    let literal = Literal::from_bytes(array.ty().clone(), bytes);
    let literal = literal.ok_or_else(|| Error::ElementCount {
        array: array.ty().to_string(),
        expected: array.ty().element_count(),
        actual: 0,
    })?;
    Ok(literal.numbers().iter().map(|n| n.as_f64()).collect())
}

/// Where it is, both values, and what is allowed: ``gradients `w` at [1, 0]: 1.1e0, and 1e0 on ..``.
impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference {
            relative,
            tolerance,
            ref path,
            ref element,
            found,
            expected,
            ..
        } = *self;
        match self.quantity {
            Quantity::Loss => write!(f, "loss of step {}", element.first().unwrap_or(&0))?,
            quantity => {
                write!(f, "{}", quantity.name())?;
                if !path.is_empty() {
                    write!(f, " `{path}`")?;
                }
                if !element.is_empty() {
                    write!(f, " at {element:?}")?;
                }
            }
        }
        write!(f, ": {found:e}, and {expected:e} on one device")?;
        if relative.is_finite() {
            write!(
                f,
                "; relatively {relative:.1e}, and {tolerance:.0e} is allowed"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(path: &str, dtype: DType, shape: &[usize], numbers: &[f64]) -> Leaf {
        Leaf {
            path: path.to_owned(),
            ty: TensorType::new(dtype, shape),
            numbers: numbers.to_vec(),
        }
    }

    fn gradients(leaves: Vec<Leaf>) -> Part {
        Part::new(Quantity::Gradients, leaves)
    }

    #[test]
    fn a_difference_is_relative_to_the_leaf_and_names_the_element() {
        let wanted = gradients(vec![leaf("w", DType::F32, &[2, 2], &[4.0, 0.0, 1.0, -2.0])]);
        let found = gradients(vec![leaf("w", DType::F32, &[2, 2], &[4.0, 0.0, 1.1, -2.0])]);
        let mut problems = Vec::new();
        let worst = found.compare(&wanted, &Tolerance::F32, &mut problems);
        assert!((worst.relative - 0.025).abs() < 1e-9);
        assert_eq!(
            (worst.path.as_str(), &worst.element[..]),
            ("w", &[1, 0][..])
        );
        let expected = "gradients `w` at [1, 0]: 1.1e0, and 1e0 on one device; relatively 2.5e-2, and \
                        1e-5 is allowed";
        assert_eq!(problems, [expected]);
    }

    #[test]
    fn a_leaf_that_is_rounding_has_the_scale_of_the_others() {
        let of = |noise: f64| {
            let leaves = [("b", noise), ("w", 1.0)];
            gradients(
                leaves
                    .map(|(path, x)| leaf(path, DType::F32, &[1], &[x]))
                    .into(),
            )
        };
        let mut problems = Vec::new();
        let worst = of(1e-9).compare(&of(-1e-9), &Tolerance::F32, &mut problems);
        assert!(worst.relative <= 2.1e-6 && problems.is_empty(), "{worst:?}");
        let worst = of(1e-6).compare(&of(-1e-6), &Tolerance::F32, &mut problems);
        assert!(worst.relative > 1e-3 && problems.len() == 1, "{worst:?}");
    }

    #[test]
    fn losses_are_relative_to_themselves() {
        let wanted = Part::of_steps(vec![100.0, 0.01]);
        let found = Part::of_steps(vec![100.0, 0.01001]);
        let mut problems = Vec::new();
        let worst = found.compare(&wanted, &Tolerance::F32, &mut problems);
        assert!((worst.relative - 1e-3).abs() < 1e-9);
        assert!(problems[0].starts_with("loss of step 1: "), "{problems:?}");
    }

    #[test]
    fn what_is_not_finite_must_be_the_same() {
        let (nan, infinite) = (f64::NAN, f64::INFINITY);
        let part = |numbers: &[f64]| gradients(vec![leaf("", DType::F32, &[3], numbers)]);
        let relative = |found: &[f64], wanted: &[f64]| {
            let mut problems = Vec::new();
            part(found)
                .compare(&part(wanted), &Tolerance::F32, &mut problems)
                .relative
        };
        assert_eq!(relative(&[nan, infinite, 0.0], &[nan, infinite, 0.0]), 0.0);
        assert_eq!(relative(&[nan, 1.0, 0.0], &[2.0, 1.0, 0.0]), infinite);
        assert_eq!(relative(&[2.0, 1.0, 0.0], &[nan, 1.0, 0.0]), infinite);
        assert_eq!(
            relative(&[-infinite, 1.0, 0.0], &[infinite, 1.0, 0.0]),
            infinite
        );
        assert_eq!(relative(&[0.0, 0.0, 1e-30], &[0.0, 0.0, 0.0]), infinite);
    }

    #[test]
    fn integers_must_be_equal_and_types_the_same() {
        let part = |dtype, x: f64| gradients(vec![leaf("n", dtype, &[1], &[x])]);
        let mut problems = Vec::new();
        let (found, wanted) = (part(DType::I32, 1e6 + 1.0), part(DType::I32, 1e6));
        let worst = found.compare(&wanted, &Tolerance::BF16, &mut problems);
        assert_eq!((worst.relative, problems.len()), (f64::INFINITY, 1));
        assert!(problems[0].ends_with("1e6 on one device"), "{problems:?}");
        problems.clear();
        part(DType::F32, 1.0).compare(&wanted, &Tolerance::F32, &mut problems);
        assert_eq!(
            problems,
            ["gradients `n` is f32[1], and i32[1] on one device"]
        );
        problems.clear();
        gradients(vec![]).compare(&wanted, &Tolerance::F32, &mut problems);
        assert_eq!(problems, ["gradients: 0 leaves, and 1 on one device"]);
    }

    #[test]
    fn after_some_leaves_only_their_number_is_told() {
        let of = |x: f64| {
            let leaves = ["a", "b", "c", "d", "e"];
            gradients(leaves.map(|path| leaf(path, DType::F32, &[1], &[x])).into())
        };
        let mut problems = Vec::new();
        of(1.0).compare(&of(2.0), &Tolerance::F32, &mut problems);
        assert_eq!(problems.len(), 4);
        assert_eq!(problems[3], "and 2 more leaves of the gradients");
    }
}
