//! Threefry-2x32 with 20 rounds: two words of key and two of count give two words of noise.
//!
//! The count of an element is its position in the array, written as iotas: whichever way the array
//! is split, each device computes the bits of its own shard from the same positions.
//!
//! The rounds of a draw are written out. As a loop XLA would store both words to memory between
//! iterations; as straight code it fuses them with whatever uses the bits. Those of keys that are
//! made of keys are a loop.

use crate::dtype::DType;
use crate::lax;
use crate::op::Binary;
use crate::tensor::Tensor;
use crate::transform::scan;
use crate::types::TensorType;

/// Rotations of four successive rounds; the two rows alternate.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// The constant of Skein's key schedule (Ferguson and others, 2010), halved to 32 bits.
const PARITY: u32 = 0x1bd1_1bda;

/// A 64-bit count for every element, in words of 32 bits.
pub(super) struct Counts {
    /// The upper words; `None` where all are 0.
    pub(super) high: Option<Tensor>,
    /// The lower words.
    pub(super) low: Tensor,
}

impl Counts {
    /// The row-major position of every element.
    pub(super) fn positions(shape: &[usize]) -> Self {
        let elements = shape
            .iter()
            .fold(1u64, |n, &size| n.saturating_mul(size as u64));
        if elements <= 1 << 32 {
            let low = row_major(DType::U32, shape);
            return Counts { high: None, low };
        }
        let positions = row_major(DType::U64, shape);
        Counts {
            high: Some((positions >> 32).cast(DType::U32)),
            low: positions.cast(DType::U32),
        }
    }
}

fn row_major(dtype: DType, shape: &[usize]) -> Tensor {
    let ty = TensorType::new(dtype, shape);
    let mut positions: Option<Tensor> = None;
    let mut stride = 1i64;
    for (dimension, &size) in shape.iter().enumerate().rev() {
        // A dimension of size 0 leaves no element to count.
        if size > 1 && !shape.contains(&0) {
            let along = lax::iota(ty.clone(), dimension);
            positions = Some(match positions {
                Some(inner) => along * stride + inner,
                None => along,
            });
            stride = stride.saturating_mul(size as i64);
        }
    }
    positions.unwrap_or_else(|| lax::zeros(&ty))
}

/// The two words of noise for each count; `key` is two scalars.
pub(super) fn threefry2x32(key: [Tensor; 2], counts: Counts) -> [Tensor; 2] {
    let shape = counts.low.shape();
    let parity = lax::binary(Binary::Xor, key[0], key[1]) ^ PARITY;
    let schedule = [key[0], key[1], parity];
    let first = lax::broadcast(key[0], &shape, &[]);
    let mut x = counts.high.map_or(first, |high| lax::add(high, first));
    let mut y = lax::add(counts.low, lax::broadcast(key[1], &shape, &[]));
    for injection in 1..=5 {
        for distance in ROTATIONS[(injection + 1) % 2] {
            x = lax::add(x, y);
            y = lax::binary(Binary::Xor, rotate_left(y, distance), x);
        }
        let second = schedule[(injection + 1) % 3] + injection as u32;
        x = lax::add(x, lax::broadcast(schedule[injection % 3], &shape, &[]));
        y = lax::add(y, lax::broadcast(second, &shape, &[]));
    }
    [x, y]
}

/// [`threefry2x32`] as a loop, for keys that are made of keys.
///
/// Written out one after the other, the rounds of a key and of what is drawn with it are one chain,
/// in which every value is used twice; where two such chains meet, XLA's CPU compiler does not come
/// to an end with its fusions. A loop keeps them apart, and takes no time for the few words of a key.
pub(super) fn threefry2x32_rolled(key: [Tensor; 2], counts: Counts) -> [Tensor; 2] {
    let shape = counts.low.shape();
    let parity = lax::binary(Binary::Xor, key[0], key[1]) ^ PARITY;
    let schedule = [key[0], key[1], parity].map(|word| lax::reshape(word, &[1]));
    let first = lax::broadcast(key[0], &shape, &[]);
    let x = counts.high.map_or(first, |high| lax::add(high, first));
    let y = lax::add(counts.low, lax::broadcast(key[1], &shape, &[]));
    let by_injection = |offset: usize| {
        let words: Vec<Tensor> = (1..=5).map(|i| schedule[(i + offset) % 3]).collect();
        lax::concatenate(&words, 0)
    };
    let numbers = lax::iota(TensorType::new(DType::U32, [5]), 0) + 1u32;
    let distances: Vec<u32> = (0..5).flat_map(|i| ROTATIONS[i % 2]).collect();
    let xs = (
        Tensor::constant(&distances, [5, 4]),
        by_injection(0),
        lax::add(by_injection(1), numbers),
    );
    let rounds = |[x, y]: [Tensor; 2], (distances, first, second): (Tensor, Tensor, Tensor)| {
        let [mut x, mut y] = [x, y];
        for i in 0..4 {
            let up = lax::broadcast(distances.index(0, i), &shape, &[]);
            let down = 32u32 - up;
            x = lax::add(x, y);
            let turned = lax::binary(Binary::Or, y << up, y >> down);
            y = lax::binary(Binary::Xor, turned, x);
        }
        let next = [(x, first), (y, second)];
        let next = next.map(|(word, key)| lax::add(word, lax::broadcast(key, &shape, &[])));
        (next, ())
    };
    scan([x, y], xs, rounds).0
}

/// The bits of each `u32`, moved up by `distance` (1 to 31), those at the top to the bottom.
fn rotate_left(x: Tensor, distance: u32) -> Tensor {
    lax::binary(Binary::Or, x << distance, x >> (32 - distance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace;

    fn equations(shape: &'static [usize]) -> (usize, String) {
        let program = trace(
            |key: Tensor| {
                let key = [key.index(0, 0), key.index(0, 1)];
                threefry2x32(key, Counts::positions(shape))[0]
            },
            TensorType::new(DType::U32, [2]),
        );
        let graph = program.map(|traced| traced.graph).expect("it traces");
        (graph.equations().len(), graph.to_string())
    }

    #[test]
    fn a_draw_is_a_short_program() {
        let (count, text) = equations(&[8, 64]);
        assert!(count < 170, "{count} equations\n{text}");
    }

    #[test]
    fn positions_past_32_bits_take_two_words() {
        assert!(!equations(&[1 << 16, 1 << 16]).1.contains("u64"));
        assert!(
            equations(&[(1 << 16) + 1, 1 << 16])
                .1
                .contains("shift_right")
        );
        assert!(equations(&[(1 << 16) + 1, 1 << 16]).1.contains("u64"));
    }

    #[test]
    fn nothing_and_single_elements_have_counts() {
        for shape in [&[][..], &[1, 1], &[0], &[3, 0, usize::MAX]] {
            assert!(equations(shape).0 > 100);
        }
    }
}
