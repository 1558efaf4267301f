//! Random numbers from counters.
//!
//! A [`Key`] is a value; drawing from it twice gives the same numbers, and [`Key::split`] makes new
//! ones. Bits come from Threefry-2x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
//! as 1, 2, 3", 2011) of each element's position, so that they depend on neither layout nor number
//! of devices. For the same seed they equal JAX's default generator's.

mod gamma;
mod guard;
mod order;
mod threefry;

use std::f64::consts::SQRT_2;
use std::panic::Location;

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::lax;
use crate::literal::{Literal, Number};
use crate::op::Op;
use crate::tensor::{IntoOperand, Operand, Tensor, concatenate};
use crate::trace::{emit1, fail, method};
use crate::tree::{Leaf, Path, Tree};
use crate::types::TensorType;
pub use guard::only_keys_from_inside;
use threefry::{Counts, threefry2x32, threefry2x32_rolled};

/// A random key: two 32-bit words, a leaf of type `u32[2]`.
///
/// A key is used for one draw: give each draw its own, by [`Key::split`] or [`Key::fold_in`].
///
/// ```
/// use shardax_core::random::Key;
/// use shardax_core::{DType, Tensor, TensorType, trace};
///
/// fn init(key: Key) -> (Tensor, Tensor) {
///     let weight = key.fold_in(0).normal(DType::F32, [64, 8]) * 0.02;
///     let bias = key.fold_in(1).uniform_in(-0.1, 0.1, DType::F32, [8]);
///     (weight, bias)
/// }
/// let program = trace(init, Key(TensorType::new(DType::U32, [2])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[64,8]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Key<L = Tensor>(pub L);

impl<L: Leaf> Tree<L> for Key<L> {
    type With<M: Leaf> = Key<M>;

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Key<M> {
        Key(f(path, &self.0))
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        f(path, &self.0);
    }

    fn same_structure<M: Leaf>(&self, _: &Key<M>) -> bool {
        true
    }
}

/// Keys.
impl Key {
    /// The two words of the key of a seed: the elements of the array to pass as an argument.
    pub const fn seed_words(seed: u64) -> [u32; 2] {
        [(seed >> 32) as u32, seed as u32]
    }

    /// The key of a seed that is written in the program.
    #[track_caller]
    pub fn from_seed(seed: u64) -> Key {
        guard::check(None);
        Key(Tensor::constant(&Key::seed_words(seed), [2]))
    }

    /// `count` keys, independent of each other and of this one.
    #[track_caller]
    pub fn split(self, count: usize) -> Vec<Key> {
        method("split", Location::caller(), || {
            let keys = self.split_array(count).0;
            (0..count).map(|i| Key(keys.index(0, i))).collect()
        })
    }

    /// [`Key::split`] as one array, `u32[count, 2]`, over whose first dimension a
    /// [`vmap`](crate::vmap) or a [`scan`](crate::scan) runs.
    #[track_caller]
    pub fn split_array(self, count: usize) -> Key {
        method("split_array", Location::caller(), || {
            let words = self.derived(Counts::positions(&[count]));
            Key(concatenate(words.map(|word| word.reshape([count, 1])), 1))
        })
    }

    /// The key for `data`, an integer below 2^32: of a layer, a step, a process.
    ///
    /// A negative or wider integer of a tensor counts modulo 2^32.
    #[track_caller]
    pub fn fold_in(self, data: impl IntoOperand) -> Key {
        method("fold_in", Location::caller(), || {
            let counts = Counts {
                high: None,
                low: word(data.into()),
            };
            Key(concatenate(
                self.derived(counts).map(|word| word.reshape([1])),
                0,
            ))
        })
    }

    #[track_caller]
    fn noise(self, counts: Counts) -> [Tensor; 2] {
        guard::tell_of_common(self.0);
        threefry2x32(self.words(), counts)
    }

    /// The words of keys that are made of this one.
    fn derived(self, counts: Counts) -> [Tensor; 2] {
        threefry2x32_rolled(self.words(), counts)
    }

    fn words(self) -> [Tensor; 2] {
        guard::check(Some(self.0));
        let ty = self.0.ty();
        if !ty.is_like(&TensorType::new(DType::U32, [2])) {
            let problem = format!("the key is {ty}, not u32[2]");
            refuse(
                problem,
                Some("make the array of a key from `Key::seed_words(seed)`"),
            )
        }
        [self.0.index(0, 0), self.0.index(0, 1)]
    }
}

/// The scalar `u32` of an operand of [`Key::fold_in`].
fn word(data: Operand) -> Tensor {
    match data {
        Operand::Number(number) => match Literal::scalar(number, DType::U32) {
            Some(literal) => lax::constant(literal),
            None => refuse(
                format!("{number} is not an integer from 0 to 2^32 - 1"),
                None,
            ),
        },
        Operand::Tensor(tensor) => {
            let ty = tensor.ty();
            if ty.rank() > 0 || !ty.dtype.is_integer() {
                refuse(format!("the data is {ty}, not an integer scalar"), None)
            }
            tensor.cast(DType::U32)
        }
    }
}

/// Draws.
impl Key {
    /// 32 random bits an element, as `u32`. For fewer bits, cast: the lower ones stay.
    #[track_caller]
    pub fn bits(self, shape: impl AsRef<[usize]>) -> Tensor {
        method("bits", Location::caller(), || {
            let [first, second] = self.noise(Counts::positions(shape.as_ref()));
            first ^ second
        })
    }

    /// Floats in `0..1`, of `f16`, `bf16`, `f32` or `f64`: all multiples of 2^-10, 2^-7, 2^-23 or
    /// 2^-52 with equal probability.
    #[track_caller]
    pub fn uniform(self, dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("uniform", Location::caller(), || {
            self.fraction(dtype, shape.as_ref())
        })
    }

    /// Floats in `low..high`; rounding may give `high` itself where its size exceeds the range's by
    /// far. Element types as in [`Key::uniform`].
    #[track_caller]
    pub fn uniform_in(
        self,
        low: f64,
        high: f64,
        dtype: DType,
        shape: impl AsRef<[usize]>,
    ) -> Tensor {
        method("uniform_in", Location::caller(), || {
            let is_range = low < high && low.is_finite() && high.is_finite();
            if !is_range {
                refuse(
                    format!("the range {low}..{high} is empty or infinite"),
                    None,
                )
            }
            let fraction = self.fraction(dtype, shape.as_ref());
            stretch(
                fraction,
                Tensor::scalar(low, dtype),
                Tensor::scalar(high, dtype),
            )
        })
    }

    /// Floats of mean 0 and variance 1.
    ///
    /// Narrower types than `f32` are drawn in `f32` and rounded: a bell of 2^7 different numbers
    /// would have no tails.
    #[track_caller]
    pub fn normal(self, dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("normal", Location::caller(), || {
            let drawn = drawn_in(dtype);
            // Not -1, which has no finite image.
            let low = match drawn {
                DType::F64 => (-1f64).next_up(),
                _ => f64::from((-1f32).next_up()),
            };
            let fraction = self.fraction(drawn, shape.as_ref());
            let u = stretch(
                fraction,
                Tensor::scalar(low, drawn),
                Tensor::scalar(1, drawn),
            );
            (u.erf_inv() * SQRT_2).cast(dtype)
        })
    }

    /// Normal floats, on condition that they lie between `low` and `high`; either may be infinite.
    /// Narrower types than `f32` are drawn in `f32` and rounded.
    #[track_caller]
    pub fn truncated_normal(
        self,
        low: f64,
        high: f64,
        dtype: DType,
        shape: impl AsRef<[usize]>,
    ) -> Tensor {
        method("truncated_normal", Location::caller(), || {
            let is_range = low < high;
            if !is_range {
                refuse(format!("the range {low}..{high} is empty"), None)
            }
            let drawn = drawn_in(dtype);
            let quantile = |x: f64| (Tensor::scalar(x, drawn) / SQRT_2).erf();
            let u = stretch(
                self.fraction(drawn, shape.as_ref()),
                quantile(low),
                quantile(high),
            );
            // Rounding must not lead out of the interval.
            let (low, high) = match drawn {
                DType::F64 => (low.next_up(), high.next_down()),
                _ => (
                    (low as f32).next_up().into(),
                    (high as f32).next_down().into(),
                ),
            };
            (u.erf_inv() * SQRT_2).clamp(low, high).cast(dtype)
        })
    }

    /// `true` with probability `p`, a number or a tensor of floats that broadcasts to `shape`.
    ///
    /// There is no derivative by `p`; to ask for one is an error.
    #[track_caller]
    pub fn bernoulli(self, p: impl IntoOperand, shape: impl AsRef<[usize]>) -> Tensor {
        method("bernoulli", Location::caller(), || {
            let p = match p.into() {
                Operand::Number(number) => {
                    let in_range = match number {
                        Number::Float(p) => (0.0..=1.0).contains(&p),
                        Number::Int(p) => (0..=1).contains(&p),
                        Number::Bool(_) => true,
                    };
                    if !in_range {
                        refuse(format!("the probability {number} is not in 0..=1"), None)
                    }
                    Tensor::scalar(number, DType::F32)
                }
                Operand::Tensor(p) => constant("bernoulli", p.cast(drawn_in(p.dtype()))),
            };
            let p = p.broadcast_to(shape.as_ref());
            self.fraction(p.dtype(), shape.as_ref()).lt(p)
        })
    }

    /// Floats of the standard Gumbel distribution, `-log(-log(u))` of uniform `u`. Narrower types
    /// than `f32` are drawn in `f32` and rounded.
    #[track_caller]
    pub fn gumbel(self, dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("gumbel", Location::caller(), || {
            let drawn = drawn_in(dtype);
            let least = match drawn {
                DType::F64 => f64::MIN_POSITIVE,
                _ => f64::from(f32::MIN_POSITIVE),
            };
            let fraction = self.fraction(drawn, shape.as_ref());
            let u = stretch(
                fraction,
                Tensor::scalar(least, drawn),
                Tensor::scalar(1, drawn),
            );
            (-(-u.log()).log()).cast(dtype)
        })
    }

    /// Floats of the exponential distribution with mean 1. Narrower types than `f32` are drawn in `f32`
    /// and rounded.
    #[track_caller]
    pub fn exponential(self, dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("exponential", Location::caller(), || {
            let fraction = self.fraction(drawn_in(dtype), shape.as_ref());
            (-(-fraction).log1p()).cast(dtype)
        })
    }

    /// Floats of the Laplace distribution of mean 0 and scale 1. Narrower types than `f32` are drawn in
    /// `f32` and rounded.
    #[track_caller]
    pub fn laplace(self, dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("laplace", Location::caller(), || {
            let drawn = drawn_in(dtype);
            // Not -1, which has no finite image.
            let low = match drawn {
                DType::F64 => (-1f64).next_up(),
                _ => f64::from((-1f32).next_up()),
            };
            let u = stretch(
                self.fraction(drawn, shape.as_ref()),
                Tensor::scalar(low, drawn),
                Tensor::scalar(1, drawn),
            );
            (u.sign() * (-u.abs()).log1p()).cast(dtype)
        })
    }

    /// Indices along `axis`, which disappears, with probabilities `logits.softmax(axis)`; `i32`.
    /// (The index of the largest sum of logit and Gumbel noise has that distribution.)
    ///
    /// There is no derivative by `logits`; to ask for one is an error.
    #[track_caller]
    pub fn categorical(self, logits: Tensor, axis: isize) -> Tensor {
        method("categorical", Location::caller(), || {
            let ty = logits.ty();
            let drawn = drawn_in(ty.dtype);
            let logits = constant("categorical", logits.cast(drawn));
            (self.gumbel(drawn, ty.shape) + logits).argmax(axis)
        })
    }

    /// `i32` integers in `low..high`.
    #[track_caller]
    pub fn randint(self, low: i32, high: i32, shape: impl AsRef<[usize]>) -> Tensor {
        method("randint", Location::caller(), || {
            self.integers(DType::I32, low.into(), high.into(), shape.as_ref())
        })
    }

    /// Integers in `low..high` of an integer type; `high` may be one more than the largest number of
    /// the type. Narrower types than 32 bits are drawn as `i32`.
    #[track_caller]
    pub fn randint_as(
        self,
        dtype: DType,
        low: i64,
        high: i64,
        shape: impl AsRef<[usize]>,
    ) -> Tensor {
        method("randint_as", Location::caller(), || {
            if !dtype.is_integer() {
                refuse(format!("{dtype} is no integer type"), None)
            }
            let fits = |number: i64| Literal::scalar(Number::Int(number), dtype).is_some();
            if low < high && !(fits(low) && fits(high - 1)) {
                refuse(
                    format!("the range {low}..{high} is not within {dtype}"),
                    None,
                )
            }
            let drawn = match dtype.bits() {
                32 | 64 => dtype,
                _ => DType::I32,
            };
            self.integers(drawn, low, high, shape.as_ref()).cast(dtype)
        })
    }

    /// Random bits of twice the type's, modulo the range; of the upper half only what a product in the
    /// type itself leaves, as JAX has it.
    fn integers(self, dtype: DType, low: i64, high: i64, shape: &[usize]) -> Tensor {
        if low >= high {
            refuse(format!("the range {low}..{high} is empty"), None)
        }
        let unsigned = match dtype.bits() {
            64 => DType::U64,
            _ => DType::U32,
        };
        let of = |value: u64| match i64::try_from(value) {
            Ok(value) => Tensor::scalar(value, unsigned),
            Err(_) => Tensor::constant(&[value], []),
        };
        let bits = |key: Key| match unsigned {
            DType::U64 => key.double_words(shape),
            _ => key.bits(shape),
        };
        let keys = self.split(2);
        let range = (i128::from(high) - i128::from(low)) as u128;
        let (upper, lower) = (bits(keys[0]), bits(keys[1]));
        let whole = 1u128 << dtype.bits();
        let offset = if range == whole {
            // Every number: the lower bits are one.
            lower
        } else {
            let half = (1u128 << (dtype.bits() / 2)) % range;
            let word = half * half % whole % range;
            let range = of(range as u64);
            (upper % range * of(word as u64) + lower % range) % range
        };
        offset.bitcast(dtype) + Tensor::scalar(low, dtype)
    }

    /// 64 random bits an element.
    fn double_words(self, shape: &[usize]) -> Tensor {
        let [upper, lower] = self
            .noise(Counts::positions(shape))
            .map(|word| word.cast(DType::U64));
        upper << 32 | lower
    }

    /// Floats in `0..1`: random bits become the mantissa of a number in `1..2`.
    fn fraction(self, dtype: DType, shape: &[usize]) -> Tensor {
        let mantissa = match dtype {
            DType::F64 => self.double_words(shape) >> 12 | 0x3ff0_0000_0000_0000i64,
            DType::F32 => self.bits(shape) >> 9 | 0x3f80_0000,
            DType::F16 => self.bits(shape).cast(DType::U16) >> 6 | 0x3c00,
            DType::BF16 => self.bits(shape).cast(DType::U8).cast(DType::U16) >> 1 | 0x3f80,
            _ => not_a_float(dtype),
        };
        mantissa.bitcast(dtype) - 1.0
    }
}

/// A parameter by which what is drawn has no derivative: the numbers are chosen, not computed. A gradient of 0 would be
/// wrong, for their distribution depends on it, and would go unseen.
#[track_caller]
fn constant(draw: &'static str, parameter: Tensor) -> Tensor {
    emit1(
        Op::StopGradient(Some(draw)),
        &[parameter],
        Location::caller(),
    )
}

/// From `0..1` to `low..high`, two scalars.
fn stretch(fraction: Tensor, low: Tensor, high: Tensor) -> Tensor {
    (fraction * (high - low) + low).maximum(low)
}

/// The type in which numbers of type `dtype` are drawn before they are rounded.
fn drawn_in(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        dtype if dtype.is_float() => DType::F32,
        _ => not_a_float(dtype),
    }
}

fn not_a_float(dtype: DType) -> ! {
    let problem = format!("cannot be of element type {dtype}");
    let help =
        "take `DType::F32`, or another floating-point type, and convert it with `.cast(...)`";
    fail(
        ErrorKind::DType {
            op: "random",
            problem,
        },
        Some(help.into()),
    )
}

/// Ends the trace; the message gets the name of the method that the user called.
fn refuse(problem: String, help: Option<&str>) -> ! {
    fail(
        ErrorKind::Argument {
            op: "random",
            problem,
        },
        help.map(str::to_owned),
    )
}
