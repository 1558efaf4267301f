//! Mistakes: the whole text of each message, and the user's line.

use std::cell::RefCell;
use std::panic::Location;

use shardax_core::{
    DType, Dim, Tensor, TensorType, Tree, concatenate, einsum, grad, jvp, scan, trace, vjp,
};

fn f32<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn i32<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::I32, shape)
}

/// The message that tracing `f` ends with. It names a line of the call of `mistake`.
#[track_caller]
fn mistake<const N: usize, R: Tree<Tensor>>(
    types: [TensorType; N],
    f: impl Fn([Tensor; N]) -> R,
) -> String {
    let call = Location::caller();
    let Err(error) = trace::<fn([Tensor; N]) -> R, _>(f, types) else {
        panic!("no mistake was found");
    };
    let (file, line) = (error.source_line.file(), error.source_line.line());
    assert_eq!(file, call.file(), "{error}");
    assert!(
        (call.line()..call.line() + 9).contains(&line),
        "{error} for {call}"
    );
    let place = format!("{file}:{line}:{}", error.source_line.column());
    error.to_string().replace(&place, "here")
}

#[test]
fn the_place_is_that_of_the_operator() {
    let error = trace(
        |x: Tensor| {
            let y = x.reshape([6]);
            y * 2 + x
        },
        f32([2, 3]),
    );
    let text = error.err().map(|e| e.to_string()).unwrap_or_default();
    let place = format!("{}:{}:13", file!(), line!() - 5);
    assert!(text.contains(&place), "{text}");
}

#[test]
fn products() {
    let error = mistake([f32([2, 3]), f32([4, 5])], |[a, b]| a.dot(b));
    insta::assert_snapshot!(error, @"
    `dot`: dimension 1 of the left operand f32[2,3] (3) is contracted with dimension 0 of the right operand f32[4,5] (4)
      --> here
      help: contracted dimensions must have the same size
    ");
    let error = mistake([f32([]), f32([4, 5])], |[a, b]| a.dot(b));
    insta::assert_snapshot!(error, @"
    `dot`: takes tensors of one dimension or more, not f32[] and f32[4,5]
      --> here
      help: multiply by a scalar with `*`
    ");
    let error = mistake([f32([7, 2, 3]), f32([7, 4, 5])], |[a, b]| a.matmul(b));
    insta::assert_snapshot!(error, @"
    `matmul`: dimension 2 of the left operand f32[7,2,3] (3) is contracted with dimension 1 of the right operand f32[7,4,5] (4)
      --> here
      help: contracted dimensions must have the same size
    ");
    let error = mistake([f32([7, 2, 3]), f32([6, 3, 5])], |[a, b]| a.matmul(b));
    insta::assert_snapshot!(error, @"
    `matmul`: shapes f32[7] and f32[6] do not broadcast together: 7 against 6 in dimension 0
      --> here
      help: shapes are aligned at the last dimension; sizes there must be equal or 1
    ");
    let error = mistake([f32([3]), f32([3])], |[a, b]| a.matmul(b));
    insta::assert_snapshot!(error, @"
    `matmul`: takes tensors of two dimensions or more, not f32[3] and f32[3]
      --> here
      help: use `dot` for vectors
    ");
}

#[test]
fn einsum_reports_everything_at_once() {
    let error = mistake([f32([2, 3]), f32([4, 5])], |x| einsum("ab,bc,cd->aae", x));
    insta::assert_snapshot!(error, @r#"
    `einsum`: "ab,bc,cd->aae": the subscripts name 3 operands, 2 are given; `b` is 3 in operand 0 and 4 in operand 1; `a` stands twice in the result; `e` in the result is in no operand
      --> here
    "#);
    let error = mistake([f32([2, 3]), f32([3])], |x| einsum("abc,b->a", x));
    insta::assert_snapshot!(error, @r#"
    `einsum`: "abc,b->a": operand 0 is f32[2,3], with 2 dimensions, and its subscripts `abc` have 3
      --> here
    "#);
    let error = mistake([f32([2, 3])], |x| einsum("...b->b", x));
    insta::assert_snapshot!(error, @r#"
    `einsum`: "...b->b": `...` stands in an operand and not in the result
      --> here
    "#);
}

#[test]
fn elementwise_operations() {
    let error = mistake([f32([2, 3]), f32([2, 4])], |[a, b]| a + b);
    insta::assert_snapshot!(error, @"
    `add`: shapes f32[2,3] and f32[2,4] do not broadcast together: 3 against 4 in dimension 1
      --> here
      help: shapes are aligned at the last dimension; sizes there must be equal or 1
    ");
    let error = mistake([f32([2, 3]), f32([4, 4])], |[a, b]| a.maximum(b));
    insta::assert_snapshot!(error, @"
    `maximum`: shapes f32[2,3] and f32[4,4] do not broadcast together: 3 against 4 in dimension 1, 2 against 4 in dimension 0
      --> here
      help: shapes are aligned at the last dimension; sizes there must be equal or 1
    ");
    let error = mistake([f32([2])], |[a]| !a);
    insta::assert_snapshot!(error, @"
    `not`: takes a boolean or integer tensor, not f32[2]
      --> here
      help: convert it with `.cast(...)`
    ");
    let error = mistake([i32([2])], |[a]| a * 2.5);
    insta::assert_snapshot!(error, @"
    `mul`: the number 2.5 is not a value of i32
      --> here
      help: the tensor is i32[2]: convert it with `.cast(...)` first
    ");
    let error = mistake([i32([2])], |[a]| a.sigmoid());
    insta::assert_snapshot!(error, @"
    `sigmoid`: takes a floating-point tensor, not i32[2]
      --> here
      help: convert it with `.cast(...)`
    ");
    let error = mistake([i32([2])], |[a]| a.gelu());
    insta::assert_snapshot!(error, @"
    `gelu`: takes a real floating-point tensor, not i32[2]
      --> here
      help: convert it with `.cast(...)`
    ");
    let error = mistake([f32([2]), f32([2])], |[a, b]| a & b);
    insta::assert_snapshot!(error, @"
    `and`: takes boolean or integer tensors, not f32[2]
      --> here
      help: convert them with `.cast(...)`
    ");
    let error = mistake([TensorType::new(DType::U64, [2]), i32([2])], |[a, b]| a - b);
    insta::assert_snapshot!(error, @"
    `sub`: no element type holds both u64[2] and i32[2]
      --> here
      help: convert one of them with `.cast(...)`
    ");
    let error = mistake([f32([2]), f32([2])], |[a, b]| a.select(a, b));
    insta::assert_snapshot!(error, @"
    `select`: the predicate is f32[2], not boolean
      --> here
      help: compare it, for example `.ne(0)`
    ");
    let error = mistake([f32([2]), f32([3])], |[a, b]| a.gt(0).select(b, 0));
    insta::assert_snapshot!(error, @"
    `select`: shapes bool[2] and f32[3] do not broadcast together: 2 against 3 in dimension 0
      --> here
      help: shapes are aligned at the last dimension; sizes there must be equal or 1
    ");
    let error = mistake([f32([2])], |[a]| a.bitcast(DType::U8));
    insta::assert_snapshot!(error, @"
    `bitcast`: f32[2] has 32-bit elements, and u8 8-bit ones
      --> here
    ");
    let error = mistake([f32([2])], |[a]| a.gt(0).bitcast(DType::U8));
    insta::assert_snapshot!(error, @"
    `bitcast`: bool[2] has 1-bit elements, and u8 8-bit ones
      --> here
    ");
    let error = mistake([f32([2])], |[a]| a.cast(DType::F64).bitcast(DType::C64));
    insta::assert_snapshot!(error, @"
    `bitcast`: elements of f64[2] are not read as c64: one is complex, one is not
      --> here
    ");
    let error = mistake([], |[]: [Tensor; 0]| Tensor::full(2.5, DType::I32, [2]));
    insta::assert_snapshot!(error, @"
    `full`: the number 2.5 is not a value of i32
      --> here
      help: take an element type that holds 2.5
    ");
    let error = mistake([], |[]: [Tensor; 0]| Tensor::constant(&[1f32, 2.0], [3]));
    insta::assert_snapshot!(error, @"
    `constant`: 2 values for f32[3]
      --> here
    ");
}

/// Wherever a number of the program meets a type, it has to be one of its numbers.
#[test]
fn numbers_that_a_type_does_not_hold() {
    type Written = fn(Tensor) -> Tensor;
    let half = |shape: &[usize]| TensorType::new(DType::F16, shape);
    let written: [(&str, Written); 17] = [
        ("mul", |x| x * 1e5),
        ("sub", |x| 1e5 - x),
        ("add", |x| x + 100_000),
        ("lt", |x| x.lt(1e5)),
        ("maximum", |x| x.clamp(-1e5, 1.0)),
        ("minimum", |x| x.clamp(-1.0, 1e5)),
        ("select", |x| x.gt(0).select(x, -1e5)),
        ("pow", |x| x.pow(1e5)),
        ("hypot", |x| x.hypot(1e5)),
        ("pad", |x| x.pad(0, 1, 0, 1e5)),
        ("dilate", |x| x.dilate(0, 1, -1e5)),
        ("scalar", |x| Tensor::scalar(1e5, x.dtype())),
        ("full", |x| Tensor::full(1e5, x.dtype(), [2])),
        ("linspace", |x| Tensor::linspace(x.dtype(), 0.0, 1e5, 3)),
        ("scatter_add", |x| {
            x.scatter_add(Tensor::arange(DType::I32, 2), 1e5, 0)
        }),
        ("logsumexp_weighted", |x| x.logsumexp_weighted(1e5, 0)),
        ("unique", |x| x.unique(3, 1e5).values),
    ];
    for (name, f) in written {
        let error = trace(f, half(&[2])).err().map(|e| e.to_string());
        let error = error.unwrap_or_default();
        let number = error.strip_prefix(&format!("`{name}`: the number "));
        assert!(
            number.is_some_and(|n| n.contains("100000")),
            "{name}: {error}"
        );
        assert!(error.contains("is not a value of f16"), "{error}");
        assert!(error.contains("core/tests/suite/errors.rs"), "{error}");
    }
    let infinite: [Written; 4] = [
        |x| x.clamp(f64::NEG_INFINITY, f64::INFINITY),
        |x| x.gt(0).select(x, f64::NEG_INFINITY),
        |x| Tensor::full(f64::NAN, x.dtype(), [2]),
        |x| x * 65504.0 + 1e-300,
    ];
    for f in infinite {
        assert_eq!(trace(f, half(&[2])).err(), None);
    }
    let error = mistake([TensorType::new(DType::F8E4M3FN, [2])], |[x]| {
        x.gt(0).select(x, f64::NEG_INFINITY)
    });
    insta::assert_snapshot!(error, @"
    `select`: the number -inf is not a value of f8e4m3fn
      --> here
      help: the tensor is f8e4m3fn[2]: convert it with `.cast(...)` first
    ");
    let error = mistake([], |[]: [Tensor; 0]| Tensor::arange(DType::I8, 300));
    insta::assert_snapshot!(error, @"
    `arange`: counts to 299, which is not a value of i8
      --> here
      help: count in `DType::I32` or another type that holds it
    ");
    let error = mistake([], |[]: [Tensor; 0]| {
        Tensor::iota(DType::F16, [2, 70_000], 1)
    });
    insta::assert_snapshot!(error, @"
    `iota`: counts to 69999, which is not a value of f16
      --> here
      help: count in `DType::I32` or another type that holds it
    ");
    let full = |x: Tensor| x + Tensor::arange(DType::I8, 128).sum(0);
    assert_eq!(trace(full, f32([])).err(), None);
}

#[test]
fn shapes() {
    let error = mistake([f32([2, 3])], |[x]| x.reshape([4, 2]));
    insta::assert_snapshot!(error, @"
    `reshape`: f32[2,3] has 6 elements, f32[4,2] has 8
      --> here
      help: the sizes must multiply to as many; -1 for one of them finds it
    ");
    let error = mistake([f32([2, 3])], |[x]| x.reshape([usize::MAX, 2]));
    insta::assert_snapshot!(error, @"
    `reshape`: f32[2,3] has 6 elements, f32[18446744073709551615,2] has 18446744073709551615
      --> here
      help: the sizes must multiply to as many; -1 for one of them finds it
    ");
    let error = mistake([f32([2, 3])], |[x]| x.broadcast_to([2, 4]));
    insta::assert_snapshot!(error, @"
    `broadcast_to`: f32[2,3] does not broadcast to f32[2,4]
      --> here
      help: shapes are aligned at the last dimension; sizes there must be equal or 1
    ");
    let error = mistake([f32([2, 3])], |[x]| x.broadcast_to([3]));
    insta::assert_snapshot!(error, @"
    `broadcast_to`: f32[2,3] does not broadcast to f32[3]
      --> here
      help: shapes are aligned at the last dimension; sizes there must be equal or 1
    ");
    let error = mistake([f32([2, 3])], |[x]| x.transpose([0]));
    insta::assert_snapshot!(error, @"
    `transpose`: the permutation [0] has 1 entries, f32[2,3] has 2 dimensions
      --> here
      help: name each of the 2 dimensions once
    ");
    let error = mistake([f32([2, 3])], |[x]| x.transpose([0, 0]));
    insta::assert_snapshot!(error, @"
    `transpose`: dimension 0 is named twice
      --> here
    ");
    let error = mistake([f32([2, 3])], |[x]| x.swap_axes(0, 2));
    insta::assert_snapshot!(error, @"
    `swap_axes`: f32[2,3] has no axis 2
      --> here
      help: its axes are 0 to 1, or -2 to -1 from the last
    ");
    let error = mistake([f32([2, 3])], |[x]| x.expand_dims(4));
    insta::assert_snapshot!(error, @"
    `expand_dims`: the result, of 3 dimensions, has no axis 4
      --> here
    ");
    let error = mistake([f32([2, 3])], |[x]| x.squeeze(1));
    insta::assert_snapshot!(error, @"
    `squeeze`: dimension 1 of f32[2,3] is not of size 1
      --> here
    ");
    let error = mistake([f32([2, 3]), f32([3, 2])], |x| concatenate(x, 0));
    insta::assert_snapshot!(error, @"
    `concatenate`: operand 1 is f32[3,2], operand 0 is f32[2,3]: they may differ in dimension 0 alone
      --> here
      help: `stack` joins along a new dimension
    ");
    let error = mistake([f32([2, 3]), i32([2, 3])], |x| concatenate(x, 0));
    insta::assert_snapshot!(error, @"
    `concatenate`: operand 1 is i32[2,3], operand 0 is f32[2,3]
      --> here
      help: convert one of them with `.cast(...)`
    ");
    let error = mistake([], |[]: [Tensor; 0]| concatenate([], 0));
    insta::assert_snapshot!(error, @"
    `concatenate`: there is nothing to join
      --> here
    ");
    let error = mistake([f32([2, 3])], |[x]| x.shard(&[Dim::Logical("batch")]));
    insta::assert_snapshot!(error, @"
    `shard`: the annotation (batch) has 1 name, the tensor f32[2,3] has 2 dimensions
      --> here
      help: write one name for each dimension, `_` for one that is never split; where the first dimension is a batch of what the function is written for, run it by `vmap`, and where it is one of layers, hold them in a `Stack`: each names that dimension itself
    ");
    let error = mistake([f32([2, 0])], |[x]| x.rfft());
    insta::assert_snapshot!(error, @"
    `rfft`: the last dimension of f32[2,0] is empty, and the transform of no elements has no frequencies
      --> here
      help: give it one element or more: `.pad(..)` adds zeros
    ");
}

#[test]
fn reductions() {
    let error = mistake([f32([2, 3])], |[x]| x.sum(2));
    insta::assert_snapshot!(error, @"
    `sum`: f32[2,3] has no axis 2
      --> here
      help: its axes are 0 to 1, or -2 to -1 from the last
    ");
    let error = mistake([f32([])], |[x]| x.max(-1));
    insta::assert_snapshot!(error, @"
    `max`: f32[] has no axis -1
      --> here
      help: a scalar has no axes
    ");
    let error = mistake([f32([2, 3])], |[x]| x.mean([0, -2]));
    insta::assert_snapshot!(error, @"
    `mean`: axis -2 of f32[2,3] is named twice
      --> here
    ");
    let error = mistake([f32([2, 3])], |[x]| x.softmax(5));
    insta::assert_snapshot!(error, @"
    `softmax`: f32[2,3] has no axis 5
      --> here
      help: its axes are 0 to 1, or -2 to -1 from the last
    ");
    let error = mistake([f32([2, 3])], |[x]| x.all(..));
    insta::assert_snapshot!(error, @"
    `all`: takes a boolean or integer tensor, not f32[2,3]
      --> here
    ");
    let error = mistake([i32([2, 3])], |[x]| x.var(..));
    insta::assert_snapshot!(error, @"
    `var`: takes a floating-point tensor, not i32[2,3]
      --> here
      help: convert it with `.cast(...)`
    ");
    let error = mistake([f32([2, 3])], |[x]| x.gt(0).sum(..));
    insta::assert_snapshot!(error, @"
    `sum`: takes a numeric tensor, not bool[2,3]
      --> here
      help: count with `.cast(DType::I32).sum(..)`, or use `any`
    ");
}

#[test]
fn reading_by_index() {
    let error = mistake([f32([2, 3]), f32([2])], |[x, i]| x.take(i, 0));
    insta::assert_snapshot!(error, @"
    `take`: the indices are f32[2], not integers
      --> here
      help: convert them with `.cast(DType::I32)`
    ");
    let error = mistake([f32([2, 3]), i32([2])], |[x, i]| x.take(i, 2));
    insta::assert_snapshot!(error, @"
    `take`: f32[2,3] has no axis 2
      --> here
      help: its axes are 0 to 1, or -2 to -1 from the last
    ");
    let error = mistake([f32([2, 3]), i32([3, 1])], |[x, i]| x.take_along(i, 1));
    insta::assert_snapshot!(error, @"
    `take_along`: indices i32[3,1] along dimension 1 of f32[2,3]
      --> here
      help: they may differ in dimension 1 alone
    ");
    let error = mistake([f32([0, 3]), i32([1])], |[x, i]| x.take(i, 0));
    insta::assert_snapshot!(error, @"
    `take`: dimension 0 of f32[0,3] has no element that an index could mean
      --> here
      help: it needs at least one
    ");
    let error = mistake([f32([2, 3]), i32([2]), f32([2])], |[x, i, u]| {
        x.scatter_add(i, u, 0)
    });
    insta::assert_snapshot!(error, @"
    `scatter_add`: the updates are f32[2], and go where f32[2,3] is
      --> here
      help: they may have fewer dimensions, or some of size 1; `.cast(...)` converts them
    ");
    let error = mistake([f32([2, 3])], |[x]| x.slice(1, 2..5));
    insta::assert_snapshot!(error, @"
    `slice`: dimension 1 of f32[2,3] has no range 2..5
      --> here
      help: it has 3 elements, and a range does not end before it begins
    ");
    let error = mistake([f32([2, 3])], |[x]| x.slice(1, ..=usize::MAX));
    insta::assert_snapshot!(error, @"
    `slice`: dimension 1 of f32[2,3] has no range 0..18446744073709551615
      --> here
      help: it has 3 elements, and a range does not end before it begins
    ");
    let error = mistake([f32([2, 3])], |[x]| x.index(1, 3));
    insta::assert_snapshot!(error, @"
    `index`: dimension 1 of f32[2,3] has no element 3
      --> here
    ");
    let error = mistake([f32([2, 3]), f32([])], |[x, i]| x.dynamic_slice(1, i, 2));
    insta::assert_snapshot!(error, @"
    `dynamic_slice`: the start is f32[], not an integer scalar
      --> here
    ");
    let error = mistake([f32([2, 3]), i32([])], |[x, i]| x.dynamic_slice(1, i, 4));
    insta::assert_snapshot!(error, @"
    `dynamic_slice`: a window of 4 does not fit into dimension 1 of f32[2,3]
      --> here
    ");
    let error = mistake([f32([2, 3]), i32([])], |[x, i]| x.dynamic_update(1, i, i));
    insta::assert_snapshot!(error, @"
    `dynamic_update`: the update i32[] does not fit into f32[2,3]
      --> here
    ");
}

#[test]
fn loops() {
    let error = mistake([f32([4, 2]), f32([2])], |[xs, h]| {
        scan((h, h), xs, |(h, g): (Tensor, Tensor), x: Tensor| {
            ((h.gt(x), g.sum(..)), ())
        })
    });
    insta::assert_snapshot!(error, @"
    `scan`: the carry changes its type: carry `0` goes in as f32[2] and comes out as bool[2]; carry `1` goes in as f32[2] and comes out as f32[]
      --> here
      help: start with a carry of the shape and type that the body returns; what each turn adds to the results is the body's second value
    ");
    let error = mistake([f32([4, 2]), f32([3, 2])], |xs| {
        scan((), xs, |(), [x, y]: [Tensor; 2]| ((), x + y))
    });
    insta::assert_snapshot!(error, @"
    `scan`: the leaves of xs have no common leading size: xs `0` is f32[4,2], xs `1` is f32[3,2]
      --> here
      help: every leaf of xs needs the same size in dimension 0
    ");
    let error = mistake([f32([])], |[xs]| scan((), xs, |(), x: Tensor| ((), x)));
    insta::assert_snapshot!(error, @"
    `scan`: the leaves of xs have no common leading size: the xs is f32[]
      --> here
      help: every leaf of xs needs the same size in dimension 0
    ");
    let error = mistake([f32([2])], |[x]| scan(x, (), |x: Tensor, ()| (x, ())));
    insta::assert_snapshot!(error, @"
    `scan`: there is nothing to scan over: xs has no leaves
      --> here
      help: to count iterations, scan over `Tensor::arange(DType::I32, count)`
    ");
    let error = mistake([f32([2])], |[x]| {
        scan(vec![x], x, |xs: Vec<Tensor>, x: Tensor| {
            ([xs, vec![x]].concat(), ())
        })
    });
    insta::assert_snapshot!(error, @"
    `scan`: the carry changes its type: it goes in with 1 leaves and comes out with 2
      --> here
      help: start with a carry of the shape and type that the body returns; what each turn adds to the results is the body's second value
    ");
}

#[test]
fn derivatives() {
    let error = mistake([f32([2])], |[x]| grad(|x: Tensor| x * 2)(x));
    insta::assert_snapshot!(error, @"
    `grad`: the loss is f32[2], not a floating-point scalar
      --> here
      help: reduce it, for example with `.mean(..)`
    ");
    let error = mistake([f32([2]), i32([3])], |x| {
        grad(|[x, _]: [Tensor; 2]| x.sum(..))(x)
    });
    insta::assert_snapshot!(error, @"
    `grad`: no derivative exists by values that are not real: argument `1` is i32[3]
      --> here
      help: let the function capture them instead of taking them as its argument
    ");
    let error = mistake([i32([3])], |[x]| jvp(|x: Tensor| x, x, x));
    insta::assert_snapshot!(error, @"
    `jvp`: no derivative exists by values that are not real: the argument is i32[3]
      --> here
      help: let the function capture them instead of taking them as its argument
    ");
    let error = mistake([f32([2])], |[x]| {
        grad(|x: Tensor| x.bitcast(DType::I32).bitcast(DType::F32).sum(..))(x)
    });
    insta::assert_snapshot!(error, @"
    `bitcast`: the bits of a number have no derivative
      --> here
      help: put `.stop_gradient()` on the operand if it is meant to be a constant
    ");
    let error = mistake([f32([2])], |[x]| jvp(|x: Tensor| x, x, x.sum(..)));
    insta::assert_snapshot!(error, @"
    `jvp`: the tangent is not like the argument: the tangent is f32[], the argument is f32[2]
      --> here
      help: give a tangent of the argument's own types, a number for each element
    ");
    let error = mistake([f32([2])], |[x]| jvp(|x: Vec<Tensor>| x, vec![x], vec![]));
    insta::assert_snapshot!(error, @"
    `jvp`: the tangent is not like the argument: it has 0 leaves, the argument has 1
      --> here
      help: give a tangent of the argument's own types, a number for each element
    ");
    let error = mistake([f32([2])], |[x]| vjp(|x: Tensor| x.sum(..), x).1(x));
    insta::assert_snapshot!(error, @"
    `vjp`: the cotangent is not like the result: the cotangent is f32[2], the result is f32[]
      --> here
      help: give a cotangent of the result's own types, a number for each element
    ");
}

#[test]
fn tensors_that_outlive_their_trace() {
    let leak = RefCell::new(None);
    let traced = trace(
        |x: Tensor| {
            leak.replace(Some(x));
            x
        },
        f32([2]),
    );
    assert!(traced.is_ok());
    let old = || leak.borrow().unwrap_or_else(|| panic!("nothing leaked"));
    let error = mistake([f32([2])], |[x]| x + old());
    insta::assert_snapshot!(error, @"
    `add`: a tensor of another trace is used, one that has ended or is around this one
      --> here
      help: tensors live while `jit` or `trace` runs the function that made them; return a value from that function to keep it
    ");
    let error = mistake([], |[]: [Tensor; 0]| old().sin());
    insta::assert_snapshot!(error, @"
    `sin`: a tensor of another trace is used, one that has ended or is around this one
      --> here
      help: tensors live while `jit` or `trace` runs the function that made them; return a value from that function to keep it
    ");
    let error = mistake([], |[]: [Tensor; 0]| old().softmax(0));
    insta::assert_snapshot!(error, @"
    `softmax`: a tensor of another trace is used, one that has ended or is around this one
      --> here
      help: tensors live while `jit` or `trace` runs the function that made them; return a value from that function to keep it
    ");
    let error = mistake([], |[]: [Tensor; 0]| {
        Tensor::zeros(DType::F32, old().shape())
    });
    insta::assert_snapshot!(error, @"
    `ty`: a tensor of another trace is used, one that has ended or is around this one
      --> here
      help: tensors live while `jit` or `trace` runs the function that made them; return a value from that function to keep it
    ");
    let error = mistake([], |[]: [Tensor; 0]| old());
    insta::assert_snapshot!(error, @"
    `return`: a tensor of another trace is used, one that has ended or is around this one
      --> here
      help: tensors live while `jit` or `trace` runs the function that made them; return a value from that function to keep it
    ");
    let error = mistake([], |[]: [Tensor; 0]| grad(|x: Tensor| x.sum(..))(old()));
    insta::assert_snapshot!(error, @"
    `grad`: a tensor of another trace is used, one that has ended or is around this one
      --> here
      help: tensors live while `jit` or `trace` runs the function that made them; return a value from that function to keep it
    ");
    // One of the trace around this one.
    let error = mistake([f32([2])], |[x]| {
        let inner = trace(|y: Tensor| y + x, f32([2]));
        let text = inner.err().map(|error| error.to_string());
        assert!(text.is_some_and(|text| text.starts_with("`add`: a tensor of another trace")));
        x.sum(1)
    });
    insta::assert_snapshot!(error, @"
    `sum`: f32[2] has no axis 1
      --> here
      help: its one axis is 0, or -1 from the last
    ");
    // One that leaves the body of a loop while the trace around it goes on.
    let error = mistake([f32([3])], |[xs]| {
        let inner = RefCell::new(None);
        scan((), xs, |(), x: Tensor| {
            inner.replace(Some(x));
            ((), x)
        });
        xs + inner.borrow().unwrap_or(xs)
    });
    insta::assert_snapshot!(error, @"
    `add`: a tensor of another trace is used, one that has ended or is around this one
      --> here
      help: tensors live while `jit` or `trace` runs the function that made them; return a value from that function to keep it
    ");
}

#[test]
fn operations_outside_of_any_trace() {
    let panic = std::panic::catch_unwind(|| Tensor::zeros(DType::F32, [2]));
    let text = panic
        .err()
        .and_then(|p| p.downcast::<String>().ok())
        .unwrap_or_default();
    let place = format!("{}:{}:", file!(), line!() - 5);
    assert!(text.contains(&place), "{text}");
    let first = text.lines().next().unwrap_or("");
    assert_eq!(
        first,
        "`zeros`: there is no program to add to outside of a traced function"
    );
    let panic = std::panic::catch_unwind(|| scan((), (), |(), ()| ((), ())));
    assert!(panic.is_err());
}

#[test]
fn a_panic_of_the_user_goes_on_and_leaves_nothing_behind() {
    let panic = std::panic::catch_unwind(|| {
        trace(
            |x: Tensor| scan((), x, |(), _: Tensor| -> ((), Tensor) { panic!("mine") }),
            f32([2]),
        )
    });
    assert_eq!(
        panic.err().and_then(|p| p.downcast_ref::<&str>().copied()),
        Some("mine")
    );
    let again = trace(|x: Tensor| x + 1, f32([2]));
    assert!(again.is_ok());
}
