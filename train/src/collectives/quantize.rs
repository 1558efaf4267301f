//! Numbers in eight bits or one, with a scale for each block of them.

use shardax_core::{DType, Tensor, concatenate, mistake};

/// How a number is written in few bits, after division by the scale of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The integers -127 to 127: equal steps, good where a block's values are of one size.
    Int8,
    /// 8-bit floating point with 3 bits of mantissa: errors in proportion to the value.
    Float8E4M3,
    /// 8-bit floating point with 2 bits of mantissa, for values of very different sizes.
    Float8E5M2,
    /// The sign alone, in one bit: each number of a block becomes the mean of their sizes, or its
    /// negative. Of use with [`ErrorFeedback`](super::ErrorFeedback) only.
    Sign,
}

impl Code {
    /// The largest value that is written.
    const fn largest(self) -> f64 {
        match self {
            Code::Int8 => 127.0,
            Code::Float8E4M3 => 448.0,
            Code::Float8E5M2 => 57344.0,
            Code::Sign => 1.0,
        }
    }

    /// By how much a number of this size may be rounded, in a block whose largest has size `largest`.
    ///
    /// `largest / 254` for [`Code::Int8`]; half of the last bit of the mantissa for floating point,
    /// `size / 16` and `size / 8`, and half of the smallest number, a multiple of `largest`, below that;
    /// `largest` for [`Code::Sign`]. Beside it there is the rounding of f32 arithmetic.
    pub fn error_bound(self, size: f64, largest: f64) -> f64 {
        let scale = largest / self.largest();
        match self {
            Code::Int8 => scale / 2.0,
            Code::Float8E4M3 => (size / 16.0).max(scale * f64::from(2f32.powi(-10))),
            Code::Float8E5M2 => (size / 8.0).max(scale * f64::from(2f32.powi(-17))),
            Code::Sign => largest,
        }
    }

    /// The scale of blocks of f32 numbers, the last dimension, which disappears.
    fn scale(self, blocks: Tensor) -> Tensor {
        let finite = blocks.is_finite();
        let sizes = finite.select(blocks.abs(), 0);
        match self {
            // There is no code for NaN, so the scale is.
            Code::Sign => finite.all(-1).select(sizes.mean(-1), f64::NAN),
            Code::Int8 | Code::Float8E4M3 | Code::Float8E5M2 => {
                let scale = sizes.max(-1) / self.largest();
                scale.gt(0).select(scale, 1)
            }
        }
    }

    /// Blocks of f32 numbers, the last dimension, as bytes.
    fn write(self, blocks: Tensor, scale: Tensor) -> Tensor {
        let scaled = blocks / scale.expand_dims(-1);
        let scaled = blocks.is_finite().select(scaled, f64::NAN);
        match self {
            // The integer that is no number's code stands for NaN.
            Code::Int8 => {
                let whole = scaled.is_nan().select(-128.0, scaled.round());
                whole.cast(DType::I8).bitcast(DType::U8)
            }
            Code::Float8E4M3 => scaled.cast(DType::F8E4M3FN).bitcast(DType::U8),
            Code::Float8E5M2 => scaled.cast(DType::F8E5M2).bitcast(DType::U8),
            Code::Sign => {
                let mut shape = blocks.shape();
                if let Some(last) = shape.last_mut() {
                    *last /= 8;
                }
                shape.push(8);
                let bits = blocks.ge(0).cast(DType::U32).reshape(&shape);
                (bits << Tensor::arange(DType::U32, 8))
                    .sum(-1)
                    .cast(DType::U8)
            }
        }
    }

    /// The blocks of f32 numbers that [`Code::write`] has written.
    fn read(self, codes: Tensor, scale: Tensor) -> Tensor {
        let x = match self {
            Code::Int8 => {
                let x = codes.bitcast(DType::I8).cast(DType::F32);
                x.eq(-128.0).select(f64::NAN, x)
            }
            Code::Float8E4M3 => codes.bitcast(DType::F8E4M3FN).cast(DType::F32),
            Code::Float8E5M2 => codes.bitcast(DType::F8E5M2).cast(DType::F32),
            Code::Sign => {
                let mut shape = codes.shape();
                if let Some(last) = shape.last_mut() {
                    *last *= 8;
                }
                let bytes = codes.cast(DType::U32).expand_dims(-1);
                let bits = bytes.shift_right_logical(Tensor::arange(DType::U32, 8)) & 1;
                (bits.cast(DType::F32) * 2.0 - 1.0).reshape(&shape)
            }
        };
        x * scale.expand_dims(-1)
    }
}

/// Eight bits a number, or one, and 32 for the scale of each block of numbers.
///
/// The scale makes the largest number of a block the largest of the code, so that nothing overflows.
/// Zeros are exact. A number that is not finite becomes NaN, alone: it is not hidden, and does not spoil
/// the scale of others. The error of a number is at most [`Code::error_bound`]. Of [`Code::Sign`], zeros
/// among others are not exact, the block of a number that is not finite is all NaN, and blocks are
/// rounded up to a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantization {
    /// How each number is written.
    pub code: Code,
    /// How many numbers have one scale. 0 counts as 1.
    pub block: usize,
}

/// Bytes of a scale.
const SCALE: usize = 4;

impl Quantization {
    /// Blocks of 256: the scales add a 64th to the bytes of the numbers.
    pub const fn new(code: Code) -> Self {
        Quantization { code, block: 256 }
    }

    /// The same value after it was written and read, in f32. Blocks go along the last dimension; the
    /// last block of a row may be shorter.
    ///
    /// ```
    /// use shardax_core::{DType, Tensor, TensorType, trace};
    /// use shardax_train::collectives::{Code, Quantization};
    ///
    /// let eight_bits = Quantization::new(Code::Float8E4M3);
    /// let program = trace(|x: Tensor| eight_bits.rounded(x), TensorType::new(DType::BF16, [3, 700]))?;
    /// assert_eq!(program.output_types()[0].to_string(), "f32[3,700]");
    /// # Ok::<(), shardax_core::Error>(())
    /// ```
    #[track_caller]
    pub fn rounded(self, x: Tensor) -> Tensor {
        check_float("Quantization::rounded", x);
        let ty = x.ty();
        let length = ty.shape.last().copied().unwrap_or(1);
        if ty.element_count() == 0 {
            return x.cast(DType::F32);
        }
        let rows = x
            .cast(DType::F32)
            .reshape([ty.element_count() / length, length]);
        let own = self.fitted(length);
        let missing = length.next_multiple_of(own.block) - length;
        let bytes = own.encode(rows.pad(1, 0, missing as isize, 0));
        own.decode(bytes).slice(1, ..length).reshape(&ty.shape)
    }

    /// With blocks no longer than a row, of whole bytes.
    pub(super) fn fitted(self, row: usize) -> Self {
        let block = self.block.clamp(1, row.max(1));
        let block = match self.code {
            Code::Sign => block.next_multiple_of(8),
            Code::Int8 | Code::Float8E4M3 | Code::Float8E5M2 => block,
        };
        Quantization { block, ..self }
    }

    /// The bytes of a block without its scale.
    const fn bytes(self) -> usize {
        match self.code {
            Code::Sign => self.block / 8,
            Code::Int8 | Code::Float8E4M3 | Code::Float8E5M2 => self.block,
        }
    }

    /// Rows of f32 as rows of bytes, first the codes and then the scales. The block divides the row.
    pub(super) fn encode(self, rows: Tensor) -> Tensor {
        let (count, blocks) = (rows.size(0), rows.size(1) / self.block);
        let numbers = rows.reshape([count, blocks, self.block]);
        let scale = self.code.scale(numbers);
        let codes = self.code.write(numbers, scale);
        let places = Tensor::arange(DType::U32, SCALE) * 8;
        let bits = scale.bitcast(DType::U32).expand_dims(2);
        let bytes = (bits.shift_right_logical(places) & 255).cast(DType::U8);
        let codes = codes.reshape([count, blocks * self.bytes()]);
        concatenate([codes, bytes.reshape([count, blocks * SCALE])], 1)
    }

    /// The rows that [`Quantization::encode`] has written.
    pub(super) fn decode(self, rows: Tensor) -> Tensor {
        let (count, own) = (rows.size(0), self.bytes());
        let blocks = rows.size(1) / (own + SCALE);
        let codes = rows.slice(1, ..blocks * own);
        let bytes = rows
            .slice(1, blocks * own..)
            .reshape([count, blocks, SCALE]);
        let places = Tensor::arange(DType::U32, SCALE) * 8;
        let scale = (bytes.cast(DType::U32) << places)
            .sum(2)
            .bitcast(DType::F32);
        let numbers = self.code.read(codes.reshape([count, blocks, own]), scale);
        numbers.reshape([count, blocks * self.block])
    }
}

/// Ends the trace if these are no floating-point numbers.
#[track_caller]
pub(super) fn check_float(op: &'static str, x: Tensor) {
    if !x.dtype().is_float() {
        let problem = format!("{} is not a floating-point tensor", x.ty());
        let help = "sum integers by `psum`, which is exact".to_owned();
        mistake(op, problem, Some(help))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_half_of_the_last_bit() {
        assert_eq!(Code::Int8.error_bound(0.0, 127.0), 0.5);
        assert_eq!(Code::Float8E4M3.error_bound(448.0, 448.0), 28.0);
        assert_eq!(Code::Float8E4M3.error_bound(0.0, 448.0), 1.0 / 1024.0);
        assert_eq!(Code::Float8E5M2.error_bound(8.0, 57344.0), 1.0);
        assert_eq!(Code::Float8E5M2.error_bound(0.0, 57344.0), 1.0 / 131_072.0);
    }

    #[test]
    fn blocks_are_no_longer_than_rows() {
        let of = |block, row| {
            Quantization {
                code: Code::Int8,
                block,
            }
            .fitted(row)
            .block
        };
        assert_eq!(
            [of(256, 10), of(256, 1000), of(0, 10), of(8, 0)],
            [10, 256, 1, 1]
        );
    }
}
