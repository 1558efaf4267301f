//! Products, convolutions, decompositions and Fourier transforms.

use shardax::{ConvOptions, DType, Padding, Tensor, TriangularSolve, einsum};

use super::Class::{Complex, Float, Number, Wide};
use super::Want::{Any, Made, Same};
use super::{Operation, operations, size};
use crate::dice::Dice;
use crate::program::{Parameters, Type};

/// What the first operand's last dimension is multiplied by.
fn right(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let inner = *types[0].shape.last()?;
    let shape = match dice.roll(4) {
        0 => vec![inner],
        1 => vec![inner, size(dice), 2],
        _ => vec![inner, size(dice)],
    };
    Some(Type::new(types[0].dtype, shape))
}

/// What a batch of matrices is multiplied by.
fn matrix(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let mut ty = types[0].clone();
    let rank = ty.rank();
    ty.shape[rank - 2] = ty.shape[rank - 1];
    ty.shape[rank - 1] = size(dice);
    Some(ty)
}

/// A signal of channels, `[batch, channels, space]`.
fn signal(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    let dtype = *dice.one_of(&[DType::F32, DType::F64, DType::BF16, DType::I32]);
    let channels = *dice.one_of(&[1, 2, 4]);
    Some(Type::new(
        dtype,
        [1 + dice.roll(4), channels, 1 + dice.roll(8)],
    ))
}

/// A kernel for the signal, `[features, channels, space]`.
fn kernel(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let shape = [1 + dice.roll(3), types[0].shape[1], 1 + dice.roll(3)];
    Some(Type::new(types[0].dtype, shape))
}

/// A kernel of one channel for each group of the signal.
fn deep_kernel(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let shape = [types[0].shape[1] * (1 + dice.roll(2)), 1, 1 + dice.roll(3)];
    Some(Type::new(types[0].dtype, shape))
}

fn image(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    let dtype = *dice.one_of(&[DType::F32, DType::F64]);
    let mut side = || 2 + dice.roll(5);
    let sides = [side(), side()];
    Some(Type::new(dtype, [2, sides[0], sides[1], 2]))
}

fn image_kernel(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    Some(Type::new(types[0].dtype, [2, 1 + dice.roll(3), 2, 3]))
}

/// A batch of square matrices.
fn square(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    let n = 1 + dice.roll(4);
    let shape = match dice.roll(3) {
        0 => vec![1 + dice.roll(4), n, n],
        _ => vec![n, n],
    };
    Some(Type::new(*dice.one_of(&[DType::F32, DType::F64]), shape))
}

/// Right sides for it.
fn sides(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let mut ty = types[0].clone();
    *ty.shape.last_mut()? = 1 + dice.roll(3);
    Some(ty)
}

/// A matrix far from singular.
fn regular(x: Tensor) -> Tensor {
    let n = x.size(-1);
    x.tanh() * 0.3 + Tensor::eye(x.dtype(), n) * (n as f64 + 1.0)
}

/// A positive definite one.
fn positive(x: Tensor) -> Tensor {
    let x = regular(x);
    x.matmul(x.swap_axes(-1, -2))
}

const LOWER: TriangularSolve = TriangularSolve {
    left: true,
    lower: true,
    transpose: false,
    unit_diagonal: false,
};

/// The functions of this module that printed programs call.
pub(crate) const HELPERS: &str = r#"
fn regular(x: Tensor) -> Tensor {
    let n = x.size(-1);
    x.tanh() * 0.3 + Tensor::eye(x.dtype(), n) * (n as f64 + 1.0)
}

fn positive(x: Tensor) -> Tensor {
    let x = regular(x);
    x.matmul(x.swap_axes(-1, -2))
}

const LOWER: shardax::TriangularSolve = shardax::TriangularSolve {
    left: true,
    lower: true,
    transpose: false,
    unit_diagonal: false,
};
"#;

operations! { with x, p;
    "dot" [Any(Number, 1), Made(right)] x[0].dot(x[1]);
    "matmul" [Any(Number, 2), Made(matrix)] x[0].matmul(x[1]);
    "dot_as" [Any(Float, 1), Made(right)] x[0].dot_as(x[1], DType::F32);
    "gram" [Any(Number, 2)] einsum("...ij,...kj->...ik", [x[0], x[0]]);
    "einsum of three" [Any(Float, 2), Same(0), Same(0)] einsum("...ij,...kj,...kl->...il", [x[0], x[1], x[2]]);
    "einsum to a sum" [Any(Float, 2), Same(0)] einsum("...ij,...ij->i", [x[0], x[1]]);
    "outer" [Any(Number, 1), Any(Number, 1)] x[0].flatten().outer(x[1].flatten().cast(x[0].dtype()));
    "trace" [Any(Number, 2)] x[0].trace();
    "conv" [Made(signal), Made(kernel)] x[0].conv(x[1], &ConvOptions::new().padding(Padding::Same));
    "conv with steps" [Made(signal), Made(kernel)]
        x[0].conv(x[1], &ConvOptions::new().strides([p.step]).padding([(2, 1)]));
    "conv with holes" [Made(signal), Made(kernel)]
        x[0].conv(x[1], &ConvOptions::new().rhs_dilation([p.step]).padding([(4, 2)]));
    "conv of a stretched one" [Made(signal), Made(kernel)]
        x[0].conv(x[1], &ConvOptions::new().lhs_dilation([p.step]).padding([(1, 2)]));
    "conv of each channel" [Made(signal), Made(deep_kernel)]
        x[0].conv(x[1], &ConvOptions::new().feature_groups(x[0].size(1)).padding(Padding::Same));
    "conv of an image" [Made(image), Made(image_kernel)]
        x[0].conv(x[1], &ConvOptions::new().layouts("NHWC", "HWIO", "NHWC").padding(Padding::Same));
    "conv_transpose" [Made(signal), Made(kernel)]
        x[0].conv_transpose(x[1], &ConvOptions::new().strides([p.step]));
    "cholesky" [Made(square)] positive(x[0]).cholesky();
    "triangular_solve" [Made(square), Made(sides)] regular(x[0]).tril(0).triangular_solve(x[1], LOWER);
    "triangular_solve from the right" [Made(square)]
        regular(x[0]).triangular_solve(x[0], TriangularSolve { left: false, lower: p.flag, transpose: true, ..LOWER });
    "solve" [Made(square), Made(sides)] regular(x[0]).solve(x[1]);
    "inv" [Made(square)] regular(x[0]).inv();
    "det" [Made(square)] regular(x[0]).det();
    "slogdet" [Made(square)] regular(x[0]).slogdet().1;
    "qr" [Made(square)] regular(x[0]).qr().1;
    "orthogonalize" [Made(square)] x[0].orthogonalize(2);
    "rfft" [Any(Wide, 1)] x[0].cast(DType::F32).rfft();
    "fft" [Any(Complex, 1)] x[0].fft();
    "ifft" [Any(Complex, 1)] x[0].ifft();
    "irfft" [Any(Complex, 1)] x[0].irfft(2 * (x[0].size(-1) - 1));
    "circular convolution" [Any(Wide, 1)]
        (x[0].cast(DType::F32).rfft() * x[0].cast(DType::F32).rfft()).irfft(x[0].size(-1));
}
