//! Running programs, and checking their derivatives.

use shardax_core::{
    DType, Number, Path, Tensor, TensorType, Tree, ir::Graph, jvp, trace, value_and_grad, vjp,
    vmap_axes,
};

use crate::interpreter::{Array, interpret};

/// A function of `N` tensors that tests trace.
pub(crate) trait Program<const N: usize, R>: Fn([Tensor; N]) -> R {}
impl<const N: usize, R, F: Fn([Tensor; N]) -> R> Program<N, R> for F {}

/// The graph of `f` on arguments like `args`.
pub(crate) fn graph<const N: usize, R: Tree<Tensor>>(
    types: [TensorType; N],
    f: impl Program<N, R>,
) -> Graph {
    match trace::<fn([Tensor; N]) -> R, _>(f, types) {
        Ok(traced) => traced.graph,
        Err(error) => panic!("{error}"),
    }
}

/// The leaves of `f(args)`.
pub(crate) fn eval<const N: usize, R: Tree<Tensor>>(
    args: &[Array; N],
    f: impl Program<N, R>,
) -> Vec<Array> {
    let types = args.each_ref().map(|a| a.ty.clone());
    interpret(&graph(types, f), args)
}

/// The one float result of `f(args)`.
pub(crate) fn floats<const N: usize>(args: &[Array; N], f: impl Program<N, Tensor>) -> Vec<f64> {
    eval(args, f)[0].floats()
}

/// The one integer or boolean result of `f(args)`.
pub(crate) fn ints<const N: usize>(args: &[Array; N], f: impl Program<N, Tensor>) -> Vec<i64> {
    eval(args, f)[0].ints()
}

/// Numbers in -1..1 that look random, the same for the same seed.
pub(crate) fn noise(seed: u64, shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    let at = |i: usize| {
        let mut z = seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(i as u64 + 1);
        z = z.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^= z >> 31;
        z = z.wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 29;
        (z >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    Array::f64(shape, (0..count).map(at))
}

/// [`noise`] in `low..high`.
pub(crate) fn between(low: f64, high: f64, seed: u64, shape: &[usize]) -> Array {
    let unit = noise(seed, shape).floats();
    Array::f64(
        shape,
        unit.into_iter()
            .map(|v| low + (v + 1.0) / 2.0 * (high - low)),
    )
}

/// Whether two arrays are equal up to `tolerance`, absolute below 1 and relative above.
pub(crate) fn close(a: &Array, b: &Array, tolerance: f64) -> bool {
    let near =
        |(a, b): (f64, f64)| a == b || (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0);
    a.ty == b.ty && a.floats().into_iter().zip(b.floats()).all(near)
}

#[track_caller]
pub(crate) fn assert_close(what: &str, a: &[Array], b: &[Array], tolerance: f64) {
    assert_eq!(a.len(), b.len(), "{what}: numbers of results");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(close(a, b, tolerance), "{what}: result {i}\n{a:?}\n{b:?}");
    }
}

/// The leaves of a tree.
pub(crate) fn leaves<T: Tree<Tensor>>(tree: &T) -> Vec<Tensor> {
    let mut leaves = Vec::new();
    tree.visit_leaves(&mut Path::root(), &mut |_, t| leaves.push(*t));
    leaves
}

/// A scalar that depends on every element of a result, each in another way.
pub(crate) fn mixed<R: Tree<Tensor>>(result: &R) -> Tensor {
    let mut sum = Tensor::scalar(0, DType::F64);
    for (i, t) in leaves(result)
        .into_iter()
        .enumerate()
        .filter(|(_, t)| t.dtype().is_float())
    {
        let ty = t.ty();
        let weights = noise(77 + i as u64, &ty.shape).floats();
        let weights = Tensor::constant(&weights, ty.shape);
        sum += (weights * t + 0.25 * weights * t * t).sum(..);
    }
    sum
}

/// Checks first and second derivatives of `f` at `args`, all f64: forward against finite
/// differences, reverse against forward.
#[track_caller]
pub(crate) fn check<const N: usize, R: Tree<Tensor>>(args: [Array; N], f: impl Program<N, R>) {
    check_first(&args, &f);
    let gradient = |x: [Tensor; N]| value_and_grad(|x: [Tensor; N]| mixed(&f(x)))(x);
    check_first(&args, gradient);
}

/// [`check`] of the first derivative alone.
#[track_caller]
pub(crate) fn check_first<const N: usize, R: Tree<Tensor>>(
    args: &[Array; N],
    f: impl Program<N, R>,
) {
    let direction: Vec<Array> = args
        .iter()
        .enumerate()
        .map(|(i, a)| noise(i as u64 + 7, &a.ty.shape))
        .collect();
    let types: Vec<TensorType> = args.iter().map(|a| a.ty.clone()).collect();
    let list = |x: &[Tensor]| -> [Tensor; N] { std::array::from_fn(|i| x[i]) };

    let values = eval(args, &f);
    let both = trace(
        |x: Vec<Tensor>, t: Vec<Tensor>| {
            let (y, t) = jvp(&f, list(&x), list(&t));
            (leaves(&y), leaves(&t))
        },
        (types.clone(), types.clone()),
    );
    let both = both.unwrap_or_else(|error| panic!("{error}")).graph;
    let inputs = [args.to_vec(), direction.clone()].concat();
    let mut primals = interpret(&both, &inputs);
    let tangents = primals.split_off(values.len());
    assert_close("values of jvp", &primals, &values, 1e-12);

    let step = 1e-5;
    let moved = |by: f64| {
        let moved: [Array; N] = std::array::from_fn(|i| {
            let (a, d) = (args[i].floats(), direction[i].floats());
            Array::f64(&args[i].ty.shape, a.iter().zip(d).map(|(a, d)| a + by * d))
        });
        eval(&moved, &f)
    };
    for (i, (up, down)) in moved(step).iter().zip(moved(-step)).enumerate() {
        if up.is_float() {
            let slope = up
                .floats()
                .into_iter()
                .zip(down.floats())
                .map(|(u, d)| (u - d) / (2.0 * step));
            let slope = Array::f64(&up.ty.shape, slope);
            let jvp = &tangents[i];
            assert!(
                close(&slope, jvp, 2e-6),
                "finite differences of result {i}\n{slope:?}\n{jvp:?}"
            );
        }
    }

    let weights: Vec<Array> = values
        .iter()
        .enumerate()
        .map(|(i, y)| noise(i as u64 + 50, &y.ty.shape))
        .collect();
    let pull = trace(
        |x: Vec<Tensor>, cts: Vec<Tensor>| {
            let (y, pullback) = vjp(|x: [Tensor; N]| leaves(&f(x)), list(&x));
            let cts = y
                .iter()
                .zip(cts)
                .map(|(y, ct)| ct.cast(y.dtype()))
                .collect();
            leaves(&pullback(cts))
        },
        (
            types,
            weights.iter().map(|w| w.ty.clone()).collect::<Vec<_>>(),
        ),
    );
    let pull = pull.unwrap_or_else(|error| panic!("{error}")).graph;
    let inputs = [args.to_vec(), weights.clone()].concat();
    let cotangents = interpret(&pull, &inputs);
    let inner = |a: &[Array], b: &[Array]| -> f64 {
        let pairs = a.iter().zip(b).filter(|(a, _)| a.is_float());
        pairs
            .flat_map(|(a, b)| a.floats().into_iter().zip(b.floats()))
            .map(|(a, b)| a * b)
            .sum()
    };
    let (forward, reverse) = (inner(&tangents, &weights), inner(&cotangents, &direction));
    let scale = forward.abs().max(1.0);
    assert!(
        (forward - reverse).abs() < 1e-10 * scale,
        "jvp {forward} is not vjp {reverse}"
    );
}

/// Checks that `f` on a batch is `f` on each of its elements, with the batch on several axes, and
/// with arguments that serve the whole batch. Integers count up along the batch.
#[track_caller]
pub(crate) fn check_vmap<const N: usize, R: Tree<Tensor>>(args: [Array; N], f: impl Program<N, R>) {
    const BATCH: usize = 3;
    let element = |a: &Array, i: usize| -> Array {
        let moved = |v: Number| match v {
            Number::Float(v) => Number::Float((v * (1.0 + 0.7 * i as f64) + 0.3 * i as f64).sin()),
            Number::Int(v) => Number::Int(v + i as i64 - 1),
            Number::Bool(v) => Number::Bool(v ^ (i == 1)),
        };
        let data = a.data.iter().map(|&v| moved(v));
        Array::new(a.ty.dtype, &a.ty.shape, data)
    };
    for mapped in 1..1u32 << N {
        for axis in [0isize, -1] {
            let is_mapped = |a: usize| mapped >> a & 1 == 1;
            let axes: Vec<Option<isize>> = (0..N).map(|a| is_mapped(a).then_some(axis)).collect();
            let inputs: [Array; N] = std::array::from_fn(|a| match is_mapped(a) {
                true => {
                    let elements: Vec<Array> = (0..BATCH).map(|i| element(&args[a], i)).collect();
                    stacked(&elements, axis == -1)
                }
                false => args[a].clone(),
            });
            let found = eval(&inputs, |x: [Tensor; N]| {
                vmap_axes(|x: [Tensor; N]| f(x), &axes, 0)(x)
            });
            let each: Vec<Vec<Array>> = (0..BATCH)
                .map(|i| {
                    let own: [Array; N] = std::array::from_fn(|a| match is_mapped(a) {
                        true => element(&args[a], i),
                        false => args[a].clone(),
                    });
                    eval(&own, &f)
                })
                .collect();
            for (r, found) in found.iter().enumerate() {
                let results: Vec<Array> = each.iter().map(|e| e[r].clone()).collect();
                let wanted = stacked(&results, false);
                assert!(
                    close(found, &wanted, 1e-12),
                    "result {r} of a batch along {axes:?}\n{found:?}\n{wanted:?}"
                );
            }
        }
    }
}

/// Elements along a new first or last dimension.
fn stacked(elements: &[Array], last: bool) -> Array {
    let ty = &elements[0].ty;
    let mut shape = ty.shape.to_vec();
    let at = if last { shape.len() } else { 0 };
    shape.insert(at, elements.len());
    Array::from_fn(TensorType::new(ty.dtype, &shape), |index| {
        let mut index = index.to_vec();
        let element = index.remove(at);
        elements[element].at(&index)
    })
}
