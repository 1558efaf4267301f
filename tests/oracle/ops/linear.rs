//! Products, convolutions, factorizations and Fourier transforms.

use shardax::prelude::*;
use shardax::{ConvOptions, Padding, TriangularSolve};

use crate::golden::Params;

pub(super) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let result = match op {
        "einsum" => einsum(params.text("subscripts"), x),
        "matmul" if x[0].rank() < 2 || x[1].rank() < 2 => x[0].dot(x[1]),
        "matmul" => x[0].matmul(x[1]),
        "dot_as" => x[0].dot_as(x[1], params.dtype("to")),
        "dot_general" => einsum(&subscripts(params, x), x),
        "conv" => convolution(params, x),
        "conv_same_last" => convolution_same_last(x),
        "cholesky" => positive(x[0]).cholesky(),
        "cholesky_batch" => positive(x[0]).cholesky(),
        "triangular_solve" => solve(params, x),
        "solve" => (x[0] + 3.0 * identity(x[0])).solve(x[1]),
        "inv" => (x[0] + 3.0 * identity(x[0])).inv(),
        "det" => x[0].det(),
        "trace" => x[0].trace(),
        "outer" => x[0].outer(x[1]),
        "kron" => x[0].kron(x[1]),
        "fft" => x[0].fft(),
        "ifft" => x[0].ifft(),
        "ifft2" => x[0].ifft2(),
        _ => return parts(op, params, x),
    };
    Some(vec![result])
}

fn parts(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    Some(match op {
        "fft_parts" => split(x[0].complex(x[1]).fft()),
        "ifft_parts" => split(x[0].complex(x[1]).ifft()),
        "fft2_parts" => split(x[0].complex(x[1]).fft2()),
        "rfft_parts" => split(x[0].rfft()),
        "rfft2_parts" => split(x[0].rfft2()),
        "irfft_parts" => vec![inverse_real(x[0], x[1], params.size("n"))],
        "irfft2_rfft2" => vec![(x[0].rfft2() * 0.5).irfft2(x[0].size(-1))],
        "fft3_parts" => split(x[0].rfft3()),
        "slogdet" => pair(x[0].slogdet()),
        "qr" => orthogonal(x[0]),
        _ => return None,
    })
}

fn convolution(params: &Params, x: &[Tensor]) -> Tensor {
    let options = ConvOptions::new()
        .strides(params.sizes("strides"))
        .padding(params.pairs("padding"))
        .lhs_dilation(params.sizes("lhs_dilation"))
        .rhs_dilation(params.sizes("rhs_dilation"))
        .feature_groups(params.size("groups"))
        .batch_groups(params.size("batch_groups"));
    x[0].conv(x[1], &options)
}

fn convolution_same_last(x: &[Tensor]) -> Tensor {
    let [operand, kernel] = match x[0].rank() {
        3 => ["NWC", "WIO"],
        _ => ["NHWC", "HWIO"],
    };
    let options = ConvOptions::new()
        .layouts(operand, kernel, operand)
        .padding(Padding::Same);
    x[0].conv(x[1], &options)
}

fn pair((a, b): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![a, b]
}

fn split(z: Tensor) -> Vec<Tensor> {
    vec![z.real(), z.imag()]
}

/// The subscripts of a product with these dimensions: batch, free ones of the left operand, free
/// ones of the right one.
fn subscripts(params: &Params, x: &[Tensor]) -> String {
    let [lhs_batch, rhs_batch, lhs_contract, rhs_contract] =
        ["lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"].map(|name| params.sizes(name));
    let mut letters = 'a'..='z';
    let mut fresh = |rank: usize| -> Vec<char> { letters.by_ref().take(rank).collect() };
    let lhs = fresh(x[0].rank());
    let mut rhs = fresh(x[1].rank());
    for (l, r) in lhs_batch.iter().zip(&rhs_batch) {
        rhs[*r] = lhs[*l];
    }
    for (l, r) in lhs_contract.iter().zip(&rhs_contract) {
        rhs[*r] = lhs[*l];
    }
    let batch = lhs_batch.iter().map(|&d| lhs[d]);
    let free = |own: &[char], bound: [&[usize]; 2]| -> Vec<char> {
        let is_free = |d: &usize| !bound.iter().any(|dims| dims.contains(d));
        (0..own.len()).filter(is_free).map(|d| own[d]).collect()
    };
    let free_lhs = free(&lhs, [&lhs_batch, &lhs_contract]);
    let free_rhs = free(&rhs, [&rhs_batch, &rhs_contract]);
    let result: String = batch.chain(free_lhs).chain(free_rhs).collect();
    let [lhs, rhs] = [lhs, rhs].map(String::from_iter);
    format!("{lhs},{rhs}->{result}")
}

/// A symmetric positive definite matrix.
fn positive(x: Tensor) -> Tensor {
    x.matmul(x.swap_axes(-1, -2)) + 2.0 * identity(x)
}

fn identity(like: Tensor) -> Tensor {
    let size = like.size(-1);
    let count = |axis| Tensor::iota(DType::I32, [size, size], axis);
    count(0).eq(count(1)).cast(like.dtype())
}

fn solve(params: &Params, x: &[Tensor]) -> Tensor {
    let [left, lower, transpose, unit_diagonal] =
        ["left", "lower", "transpose", "unit_diagonal"].map(|name| params.flag(name));
    let a = x[0] + 3.0 * identity(x[0]);
    let solve = TriangularSolve {
        left,
        lower,
        transpose,
        unit_diagonal,
    };
    a.triangular_solve(x[1], solve)
}

/// The product of the factors, and |r|: the signs of columns are a choice.
fn orthogonal(x: Tensor) -> Vec<Tensor> {
    let (q, r) = x.qr();
    vec![q.matmul(r), r.abs()]
}

/// The imaginary part of what has no partner is not read.
fn inverse_real(re: Tensor, im: Tensor, n: usize) -> Tensor {
    let has_partner: Vec<bool> = (0..n / 2 + 1).map(|k| k > 0 && 2 * k != n).collect();
    let keep = Tensor::constant(&has_partner, [n / 2 + 1]);
    re.complex(keep.select(im, 0.0)).irfft(n)
}
