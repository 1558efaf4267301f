//! Constructs to put inside of each other.

use shardax_core::{
    DType, Tensor, cond, custom_jvp, custom_vjp, fori_loop, remat, scan, stack, switch, vmap,
    while_loop,
};

/// The function inside.
pub(crate) type Inner<'a> = &'a dyn Fn(Tensor) -> Tensor;

/// A construct around a function of a vector.
pub(crate) type Construct = fn(Tensor, Inner) -> Tensor;

fn ones() -> Tensor {
    Tensor::ones(DType::F64, [2])
}

/// What can be transformed in every way.
pub(crate) const CONSTRUCTS: [(&str, Construct); 8] = [
    ("cond", |x, f| {
        let positive = x.sum(..).gt(0.0);
        cond(
            positive,
            x,
            |x: Tensor| f(x) * x,
            |x: Tensor| x.stop_gradient(),
        )
    }),
    ("switch", |x, f| {
        let branches: [Inner; 3] = [&|x| x.sin(), &|x| f(x) * x, &|x| x.stop_gradient()];
        switch(x.sum(..).cast(DType::I32), x, branches)
    }),
    ("scan", |x, f| {
        // One carry gets its tangent, and its batch, from the other.
        let start = (x, Tensor::zeros(DType::F64, [3]));
        let step = |(x, y): (Tensor, Tensor), one: Tensor| ((f(x) * one, y + x), ());
        let (x, y) = scan(start, ones(), step).0;
        x + y
    }),
    ("fori_loop", |x, f| {
        fori_loop(0, 2, x, |i, x: Tensor| f(x) * i)
    }),
    ("remat", |x, f| remat(|x: Tensor| f(x) * x)(x)),
    ("custom_jvp", |x, f| {
        let rule = |x: Tensor, t: Tensor| (f(x) * 2.0, f(x) * t);
        custom_jvp(|x: Tensor| f(x) * 2.0, rule)(x)
    }),
    ("vmap", |x, f| {
        vmap(|x: Tensor| f(x) * x)(stack([x, x * 2.0], 0)).sum(0)
    }),
    ("vmap of one", |x, f| {
        vmap(|x: Tensor| f(x) * x)(x.expand_dims(0)).squeeze(0)
    }),
];

/// What has no reverse mode, or no forward one.
pub(crate) const WHILE: (&str, Construct) = ("while_loop", |x, f| {
    let start = (x, Tensor::zeros(DType::F64, [3]));
    let more = |(x, _): (Tensor, Tensor)| x.sum(..).lt(9.0);
    let (x, y) = while_loop(start, more, |(x, y): (Tensor, Tensor)| (f(x) + 1.0, y + x));
    x + y
});
pub(crate) const BACKWARD: (&str, Construct) = ("custom_vjp", |x, f| {
    let forward = |x: Tensor| (f(x) * 2.0, x);
    custom_vjp(
        |x: Tensor| f(x) * 2.0,
        forward,
        |x: Tensor, ct: Tensor| f(x) * ct,
    )(x)
});

/// Two constructs in turn, so many levels deep.
pub(crate) fn nest(x: Tensor, pair: [Construct; 2], levels: usize) -> Tensor {
    match levels {
        0 => x.sin() * x,
        _ => pair[levels % 2](x, &|x| nest(x, pair, levels - 1)),
    }
}

/// How many times as much five times the depth may be. What is recomputed is so by each level around it, and a batch is made of
/// what the levels inside have made of theirs; else it is as much.
pub(crate) fn most(constructs: [&str; 2]) -> usize {
    let is_square = |name: &str| name == "remat" || name.starts_with("vmap");
    match constructs.into_iter().any(is_square) {
        true => 25,
        false => 7,
    }
}
