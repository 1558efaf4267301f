//! Numbers in eight bits, with a scale for each block of them.

use shardax_core::{DType, Tensor, concatenate, mistake};

/// How a number is written in eight bits, after division by the scale of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The integers -127 to 127: equal steps, good where a block's values are of one size.
    Int8,
    /// 8-bit floating point with 3 bits of mantissa: errors in proportion to the value.
    Float8E4M3,
    /// 8-bit floating point with 2 bits of mantissa, for values of very different sizes.
    Float8E5M2,
}

impl Code {
    /// The largest value that is written.
    fn largest(self) -> f64 {
        match self {
            Code::Int8 => 127.0,
            Code::Float8E4M3 => 448.0,
            Code::Float8E5M2 => 57344.0,
        }
    }

    /// By how much a number of this size may be rounded, in a block whose largest has size `largest`.
    ///
    /// `largest / 254` for [`Code::Int8`]; half of the last bit of the mantissa for floating point,
    /// `size / 16` and `size / 8`, and half of the smallest number, a multiple of `largest`, below that.
    /// Beside it there is the rounding of f32 arithmetic.
    pub fn error_bound(self, size: f64, largest: f64) -> f64 {
        let scale = largest / self.largest();
        match self {
            Code::Int8 => scale / 2.0,
            Code::Float8E4M3 => (size / 16.0).max(scale * f64::from(2f32.powi(-10))),
            Code::Float8E5M2 => (size / 8.0).max(scale * f64::from(2f32.powi(-17))),
        }
    }

    /// f32 numbers no larger than [`Code::largest`], NaN among them, as bytes.
    fn write(self, x: Tensor) -> Tensor {
        match self {
            // The integer that is no number's code stands for NaN.
            Code::Int8 => x.is_nan().select(-128.0, x.round()).cast(DType::I8),
            Code::Float8E4M3 => x.cast(DType::F8E4M3FN),
            Code::Float8E5M2 => x.cast(DType::F8E5M2),
        }
        .bitcast(DType::U8)
    }

    /// The numbers of these bytes in f32.
    fn read(self, codes: Tensor) -> Tensor {
        match self {
            Code::Int8 => {
                let x = codes.bitcast(DType::I8).cast(DType::F32);
                x.eq(-128.0).select(f64::NAN, x)
            }
            Code::Float8E4M3 => codes.bitcast(DType::F8E4M3FN).cast(DType::F32),
            Code::Float8E5M2 => codes.bitcast(DType::F8E5M2).cast(DType::F32),
        }
    }
}

/// Eight bits a number, and 32 for the scale of each block of numbers.
///
/// The scale makes the largest number of a block the largest of the code, so that nothing overflows.
/// Zeros are exact. A number that is not finite becomes NaN, alone: it is not hidden, and does not spoil
/// the scale of others. The error of a number is at most [`Code::error_bound`].
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

    /// With blocks no longer than a row.
    pub(super) fn fitted(self, row: usize) -> Self {
        let block = self.block.clamp(1, row.max(1));
        Quantization { block, ..self }
    }

    /// Rows of f32 as rows of bytes, first the codes and then the scales. The block divides the row.
    pub(super) fn encode(self, rows: Tensor) -> Tensor {
        let (count, row) = (rows.size(0), rows.size(1));
        let blocks = rows.reshape([count, row / self.block, self.block]);
        let finite = blocks.is_finite();
        let largest = finite.select(blocks.abs(), 0).max(2);
        let scale = largest / self.code.largest();
        let scale = scale.gt(0).select(scale, 1);
        let scaled = finite.select(blocks / scale.expand_dims(2), f64::NAN);
        let codes = self.code.write(scaled).reshape([count, row]);
        let bits = scale.bitcast(DType::U32).expand_dims(2);
        let places = Tensor::arange(DType::U32, SCALE) * 8;
        let bytes = (bits.shift_right_logical(places) & 255).cast(DType::U8);
        let bytes = bytes.reshape([count, row / self.block * SCALE]);
        concatenate([codes, bytes], 1)
    }

    /// The rows that [`Quantization::encode`] has written.
    pub(super) fn decode(self, rows: Tensor) -> Tensor {
        let (count, width) = (rows.size(0), rows.size(1));
        let blocks = width / (self.block + SCALE);
        let row = blocks * self.block;
        let codes = rows.slice(1, ..row).reshape([count, blocks, self.block]);
        let bytes = rows.slice(1, row..).reshape([count, blocks, SCALE]);
        let places = Tensor::arange(DType::U32, SCALE) * 8;
        let bits = (bytes.cast(DType::U32) << places).sum(2);
        let scale = bits.bitcast(DType::F32).expand_dims(2);
        (self.code.read(codes) * scale).reshape([count, row])
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
