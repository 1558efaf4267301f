//! Reading and writing by index, and what changes shapes.

use shardax_core::{
    Combine, DType, INFER, Tensor, TensorType, concatenate, grad, ir::GatherDims, s, stack, trace,
};

use crate::interpreter::Array;
use crate::support::{check, check_first, check_vmap, eval, floats, ints, noise};

/// 0, 1, 2, ...
fn counted(shape: &[usize]) -> Array {
    Array::f64(shape, (0..shape.iter().product()).map(|i| i as f64))
}

fn vector(values: &[f64]) -> Array {
    Array::f64(&[values.len()], values.iter().copied())
}

fn indices(values: &[i32]) -> Array {
    Array::i32(&[values.len()], values.iter().copied())
}

#[test]
fn slices_are_read_as_written() {
    let x = || [counted(&[3, 4])];
    let rows = |f: fn(Tensor) -> Tensor| floats(&x(), |[x]| f(x));
    assert_eq!(rows(|x| x.get(s![1])), [4., 5., 6., 7.]);
    assert_eq!(rows(|x| x.get(s![-1, 1..3])), [9., 10.]);
    assert_eq!(rows(|x| x.get(s![.., -1])), [3., 7., 11.]);
    assert_eq!(rows(|x| x.get(s![..., 0])), [0., 4., 8.]);
    assert_eq!(rows(|x| x.get(s![0, ..;2])), [0., 2.]);
    assert_eq!(rows(|x| x.get(s![0, 1..;2])), [1., 3.]);
    assert_eq!(rows(|x| x.get(s![0, ..;-1])), [3., 2., 1., 0.]);
    assert_eq!(rows(|x| x.get(s![0, ..;-2])), [3., 1.]);
    assert_eq!(rows(|x| x.get(s![0, 0..3;-2])), [2., 0.]);
    assert_eq!(rows(|x| x.get(s![0, -3..-1])), [1., 2.]);
    assert_eq!(rows(|x| x.get(s![1..=2, ..=-3])), [4., 5., 8., 9.]);
    assert_eq!(rows(|x| x.get(s![0..0])), [0.0; 0]);
    let shapes = |[x]: [Tensor; 1]| {
        (
            x.get(s![NewAxis, 1, .., NewAxis]),
            x.get(s![..., NewAxis, 1..2]),
            x.get(s![]),
        )
    };
    let shapes: Vec<Vec<usize>> = eval(&x(), shapes)
        .iter()
        .map(|a| a.ty.shape.to_vec())
        .collect();
    assert_eq!(shapes, [vec![1, 4, 1], vec![3, 1, 1], vec![3, 4]]);
}

#[test]
fn tensors_index_together() {
    let x = || {
        [
            counted(&[2, 3, 4]),
            indices(&[1, 0, 1]),
            indices(&[2, 2, 0]),
        ]
    };
    let shape = |f: fn([Tensor; 3]) -> Tensor| eval(&x(), f)[0].ty.shape.to_vec();
    assert_eq!(
        floats(&x(), |[x, i, j]| x.get(s![i, j, -1])),
        [23., 11., 15.]
    );
    assert_eq!(floats(&x(), |[x, i, _]| x.get(s![0, 0, i])), [1., 0., 1.]);
    assert_eq!(shape(|[x, i, _]| x.get(s![.., i, ..])), [2, 3, 4]);
    assert_eq!(
        shape(|[x, i, j]| x.get(s![.., i.expand_dims(1), j])),
        [2, 3, 3]
    );
    // As numpy has it: in front, where something stands between.
    assert_eq!(shape(|[x, i, j]| x.get(s![i, 1..3, j])), [3, 2]);
    assert_eq!(shape(|[x, i, _]| x.get(s![0, .., i])), [3, 3]);
    assert_eq!(shape(|[x, i, _]| x.get(s![.., NewAxis, i])), [2, 1, 3, 4]);
    assert_eq!(shape(|[x, i, _]| x.get(s![.., i, NewAxis])), [2, 3, 1, 4]);
    let outside = floats(&[vector(&[1., 2.]), indices(&[0, 2, -1])], |[x, i]| {
        x.get(s![i])
    });
    assert_eq!(outside[0], 1.0);
    assert!(outside[1].is_nan() && outside[2].is_nan(), "{outside:?}");
}

#[test]
fn parts_are_updated() {
    let x = || [counted(&[2, 3])];
    let updated = |f: fn(Tensor) -> Tensor| floats(&x(), |[x]| f(x));
    assert_eq!(
        updated(|x| x.at(s![0, 1..]).set(9.0)),
        [0., 9., 9., 3., 4., 5.]
    );
    assert_eq!(
        updated(|x| x.at(s![.., -1]).add(1.0)),
        [0., 1., 3., 3., 4., 6.]
    );
    assert_eq!(
        updated(|x| x.at(s![.., ..;2]).mul(2.0)),
        [0., 1., 4., 6., 4., 10.]
    );
    assert_eq!(updated(|x| x.at(s![1]).min(4.0)), [0., 1., 2., 3., 4., 4.]);
    assert_eq!(updated(|x| x.at(s![..]).max(3.0)), [3., 3., 3., 3., 4., 5.]);
    assert_eq!(
        updated(|x| x.at(s![1, ..;-1]).set(x.get(s![0]))),
        [0., 1., 2., 2., 1., 0.]
    );
    assert_eq!(updated(|x| x.at(s![1..1]).set(7.0)), updated(|x| x));
    assert_eq!(
        updated(|x| x.at(s![NewAxis, 0]).set(x.get(s![1..2]))),
        [3., 4., 5., 3., 4., 5.]
    );
    let by = |f: fn([Tensor; 2]) -> Tensor| floats(&[counted(&[2, 3]), indices(&[2, 0, 2, 7])], f);
    assert_eq!(
        by(|[x, i]| x.at(s![.., i]).add(1.0)),
        [1., 1., 4., 4., 4., 7.]
    );
    assert_eq!(
        by(|[x, i]| x.at(s![0, i]).set(-1.0)),
        [-1., 1., -1., 3., 4., 5.]
    );
    assert_eq!(
        by(|[x, i]| x.at(s![1, i]).mul(2.0)),
        [0., 1., 2., 6., 4., 20.]
    );
    assert_eq!(
        by(|[x, i]| x.at(s![1, i]).min(1.0)),
        [0., 1., 2., 1., 4., 1.]
    );
    assert_eq!(
        by(|[x, i]| x.at(s![..;-1, i]).max(2.0)),
        [2., 1., 2., 3., 4., 5.]
    );
}

#[test]
fn derivatives_of_parts() {
    let x = || [noise(1, &[3, 4]), noise(2, &[2, 2])];
    check(x(), |[x, v]| x.get(s![1.., ..;3]) * v);
    check(x(), |[x, v]| x.at(s![..2, 1..3]).set(v * v));
    check(x(), |[x, v]| x.at(s![..;2, ..;-3]).set(v * v));
    check(x(), |[x, v]| x.at(s![..;2, ..;-3]).add(v * v));
    check(x(), |[x, v]| x.at(s![1.., ..2]).mul(v));
    check(x(), |[x, v]| {
        (x.at(s![1.., ..2]).max(v), x.at(s![1.., ..2]).min(v))
    });
    let by = || [noise(1, &[3, 4]), noise(2, &[3]), indices(&[1, 3, 1])];
    let part = |[x, v, i]: [Tensor; 3]| (x.get(s![1, i]) * v, x.at(s![.., i]).add(v * v));
    for_indices(by(), part);
    for_indices(by(), |[x, v, i]| x.at(s![2, i]).mul(v * v));
}

/// [`check`] of a function of two float arrays and one of indices.
fn for_indices<R: shardax_core::Tree<Tensor>>([x, v, i]: [Array; 3], f: impl Fn([Tensor; 3]) -> R) {
    let shape = i.ty.shape.to_vec();
    let values: Vec<i32> = i.ints().into_iter().map(|i| i as i32).collect();
    check([x, v], |[x, v]| {
        f([x, v, Tensor::constant(&values, &shape)])
    });
}

#[test]
fn scatters_combine_updates() {
    let args = || {
        [
            vector(&[1., 2., 3.]),
            indices(&[2, 0, 2, 3, -1]),
            vector(&[5., 0.5, 4., 9., 9.]),
        ]
    };
    let scattered = |f: fn([Tensor; 3]) -> Tensor| floats(&args(), f);
    assert_eq!(scattered(|[x, i, u]| x.scatter(i, u, 0)), [0.5, 2., 4.]);
    assert_eq!(
        scattered(|[x, i, u]| x.scatter_add(i, u, 0)),
        [1.5, 2., 12.]
    );
    assert_eq!(
        scattered(|[x, i, u]| x.scatter_mul(i, u, 0)),
        [0.5, 2., 60.]
    );
    assert_eq!(scattered(|[x, i, u]| x.scatter_min(i, u, 0)), [0.5, 2., 3.]);
    assert_eq!(scattered(|[x, i, u]| x.scatter_max(i, u, -1)), [1., 2., 5.]);
    assert_eq!(
        scattered(|[x, i, _]| x.scatter_add(i, 1.0, 0)),
        [2., 2., 5.]
    );
    let along = |f: fn([Tensor; 3]) -> Tensor| {
        let at = Array::i32(&[2, 1], [2, 5]);
        floats(&[counted(&[2, 3]), at, noise(1, &[2, 1])], f)
    };
    assert_eq!(
        along(|[x, i, _]| x.put_along(i, 9.0, 1)),
        [0., 1., 9., 3., 4., 5.]
    );
    let read = along(|[x, i, _]| x.take_along(i, 1));
    assert!(read[0] == 2.0 && read[1].is_nan(), "{read:?}");
    let vectors = || Array::i32(&[3, 2], [0, 1, 1, 2, 2, 0]);
    let read = floats(&[counted(&[2, 3]), vectors()], |[x, i]| x.gather_nd(i));
    assert!(read[..2] == [1., 5.] && read[2].is_nan(), "{read:?}");
    let written = floats(&[counted(&[2, 3]), vectors()], |[x, i]| {
        x.scatter_nd(i, 10.0, Combine::Add)
    });
    assert_eq!(written, [0., 11., 2., 3., 4., 15.]);
    let rows = floats(&[counted(&[2, 3]), Array::i32(&[1, 1], [1])], |[x, i]| {
        x.gather_nd(i)
    });
    assert_eq!(rows, [3., 4., 5.]);
}

#[test]
fn a_window_outside_is_moved_so_that_it_fits() {
    let windows = |vectors: bool| {
        let dims = GatherDims {
            offset: [1].into_iter().collect(),
            collapsed: [0].into_iter().collect(),
            operand_batch: Default::default(),
            indices_batch: Default::default(),
            start_map: if vectors {
                [0, 1].into_iter().collect()
            } else {
                [1].into_iter().collect()
            },
            vectors,
        };
        let i = match vectors {
            true => Array::i32(&[3, 2], [0, 0, 1, 2, 9, -4]),
            false => Array::i32(&[3], [0, 9, -4]),
        };
        floats(&[counted(&[2, 3]), i], |[x, i]| x.gather(i, &dims, [1, 2]))
    };
    assert_eq!(windows(true), [0., 1., 4., 5., 3., 4.]);
    assert_eq!(windows(false), [0., 1., 1., 2., 0., 1.]);
}

#[test]
fn derivatives_of_scatters() {
    let shapes = [
        ([4, 2], vec![1, 3, 1, 9, 0], vec![5, 2], 0),
        ([2, 4], vec![3, 3, 3, -1], vec![2, 4], 1),
    ];
    for (shape, at, updates, axis) in shapes {
        let args = || [noise(1, &shape), noise(2, &updates)];
        let i = || Tensor::constant(&at, [at.len()]);
        check(args(), |[x, u]| x.scatter(i(), u * u, axis));
        check(args(), |[x, u]| x.scatter_add(i(), u * u, axis));
        check(args(), |[x, u]| x.scatter_mul(i(), u * u, axis));
        check(args(), |[x, u]| x.scatter_min(i(), u * u, axis));
        check(args(), |[x, u]| x.scatter_max(i(), u * u, axis));
    }
    let along = || Tensor::constant(&[2, 0, 2, 1, 1, 7], [2, 3]);
    let args = || [noise(1, &[2, 4]), noise(2, &[2, 3])];
    check(args(), |[x, u]| x.put_along(along(), u, 1));
    check(args(), |[x, u]| x.take_along(along().minimum(3), 1) * u);
    let vectors = || Tensor::constant(&[0, 1, 1, 2, 0, 1], [3, 2]);
    let args = || [noise(1, &[2, 3, 2]), noise(2, &[3, 2])];
    check(args(), |[x, u]| x.gather_nd(vectors()) * u);
    for combine in [Combine::Set, Combine::Add, Combine::Mul, Combine::Max] {
        check(args(), |[x, u]| x.scatter_nd(vectors(), u, combine));
    }
}

#[test]
fn a_product_with_duplicates_and_zeros_has_its_derivative() {
    let i = || Tensor::constant(&[0, 0, 1, 0, 1], [5]);
    let product = |[x, u]: [Tensor; 2]| x.scatter_mul(i(), u, 0);
    let gradient = |updates: &[f64]| {
        floats(&[vector(&[2., 3.]), vector(updates)], |[x, u]| {
            grad(|u: Tensor| product([x, u]).sum(..))(u)
        })
    };
    assert_eq!(gradient(&[2., 0., 5., 7., 0.]), [0., 28., 0., 0., 15.]);
    assert_eq!(gradient(&[0., 0., 1., 7., 4.]), [0., 0., 12., 0., 3.]);
    check([vector(&[2., 0.]), vector(&[2., 0., 5., 7., 0.])], product);
    check([vector(&[2., 1.]), vector(&[0., 0., 0., 7., 0.])], product);
}

#[test]
fn equal_extrema_share_the_gradient_of_a_scatter() {
    let i = || Tensor::constant(&[0, 0, 1], [3]);
    let gradients = |f: fn(Tensor, Tensor, Tensor) -> Tensor| {
        let both = |[x, u]: [Tensor; 2]| {
            let gradient = grad(|(x, u): (Tensor, Tensor)| f(x, i(), u).sum(..))((x, u));
            concatenate([gradient.0, gradient.1], 0)
        };
        floats(&[vector(&[3., 1.]), vector(&[3., 3., 2.])], both)
    };
    let third = 1.0 / 3.0;
    assert_eq!(
        gradients(|x, i, u| x.scatter_max(i, u, 0)),
        [third, 0., third, third, 1.]
    );
    assert_eq!(
        gradients(|x, i, u| x.scatter_min(i, u, 0)),
        [third, 1., third, third, 0.]
    );
}

#[test]
fn of_two_that_set_an_element_the_winner_has_the_gradient() {
    let i = || Tensor::constant(&[1, 0, 1], [3]);
    let values = [vector(&[3., 1.]), vector(&[4., 5., 6.])];
    assert_eq!(floats(&values, |[x, u]| x.scatter(i(), u, 0)), [5., 6.]);
    let gradient = floats(&values, |[x, u]| {
        let gradient = grad(|(x, u): (Tensor, Tensor)| x.scatter(i(), u, 0).sum(..))((x, u));
        concatenate([gradient.0, gradient.1], 0)
    });
    assert_eq!(gradient, [0., 0., 0., 1., 1.]);
}

#[test]
fn batches_of_reads_and_writes() {
    let i = |values: &[i32], shape: &[usize]| Array::i32(shape, values.iter().copied());
    check_vmap([noise(1, &[4, 4]), i(&[2, 1], &[2])], |[x, i]| {
        (x.take(i, 0), x.take(i, 1))
    });
    check_vmap([noise(1, &[4]), i(&[1], &[])], |[x, i]| {
        (x.take(i, 0), x.get(s![i]))
    });
    check_vmap(
        [noise(1, &[4, 3]), i(&[2, 1, 1, 1, 2, 1], &[2, 3])],
        |[x, i]| (x.take_along(i, 0), x.put_along(i, 2.0, 0)),
    );
    check_vmap(
        [noise(1, &[4, 4, 4]), i(&[2, 1, 1, 1], &[2, 2])],
        |[x, i]| (x.gather_nd(i), x.get(s![i, .., i]), x.get(s![1, .., 0])),
    );
    let args = || [noise(1, &[4, 2]), i(&[1, 2, 1], &[3]), noise(2, &[3, 2])];
    check_vmap(args(), |[x, i, u]| {
        (x.scatter(i, u, 0), x.scatter_add(i, u, 0))
    });
    check_vmap(args(), |[x, i, u]| {
        (x.scatter_mul(i, u, 0), x.scatter_max(i, u, 0))
    });
    check_vmap([noise(1, &[4, 4]), i(&[2, 1, 1, 1], &[2, 2])], |[x, i]| {
        x.scatter_nd(i, 2.0, Combine::Min)
    });
    // Derivatives of batches, and batches of derivatives.
    check_vmap(
        [noise(1, &[4, 2]), i(&[1, 2, 1], &[3]), noise(2, &[3, 2])],
        |[x, i, u]| {
            let read = |x: Tensor| (x.take(i, 0) * u).sum(..);
            let written = |u: Tensor| x.scatter_mul(i, u, 0).square().sum(..);
            let set = |u: Tensor| x.scatter(i, u, 0).square().sum(..);
            (grad(read)(x), grad(written)(u), grad(set)(u))
        },
    );
    check([noise(1, &[3, 4]), noise(2, &[3, 2])], |[x, u]| {
        let i = Tensor::constant(&[1, 1, 0, 3, 2, 0], [3, 2]);
        shardax_core::vmap(|(x, u, i): (Tensor, Tensor, Tensor)| {
            x.scatter(i, u, 0).sin() + x.take(i, 0).sum(..) + x.scatter_mul(i, u, 0)
        })((x, u, i))
    });
}

#[test]
fn rows_stay_rows_in_a_batch() {
    let print = |axes: [Option<isize>; 2]| {
        let ty = |dtype: DType, shape: &[usize]| TensorType::new(dtype, shape);
        let x = if axes[0].is_some() {
            ty(DType::F32, &[5, 4, 3])
        } else {
            ty(DType::F32, &[4, 3])
        };
        let i = if axes[1].is_some() {
            ty(DType::I32, &[5, 2])
        } else {
            ty(DType::I32, &[2])
        };
        let program = move |x: Tensor, i: Tensor| {
            shardax_core::vmap_axes(|(x, i): (Tensor, Tensor)| x.take(i, 0), axes, 0)((x, i))
        };
        let text = trace(program, (x, i)).map(|traced| traced.graph.to_string());
        let text = text.unwrap_or_else(|error| error.to_string());
        let gather = text.lines().find(|line| line.contains("gather"));
        let (_, gather) = gather
            .and_then(|line| line.split_once(" = "))
            .unwrap_or_default();
        gather.to_owned()
    };
    assert_eq!(print([None, Some(0)]), "gather a h axis=0 : f32[5,2,3]");
    assert_eq!(print([Some(0), None]), "gather a h axis=1 : f32[5,2,3]");
}

#[test]
fn shapes_change() {
    let x = || [counted(&[2, 3])];
    let shape = |f: fn(Tensor) -> Tensor| eval(&x(), |[x]| f(x))[0].ty.shape.to_vec();
    let values = |f: fn(Tensor) -> Tensor| floats(&x(), |[x]| f(x));
    assert_eq!(shape(|x| x.reshape([3, -1])), [3, 2]);
    assert_eq!(shape(|x| x.reshape([x.size(1), INFER, 1])), [3, 2, 1]);
    assert_eq!(shape(|x| x.flatten()), [6]);
    assert_eq!(shape(|x| x.ravel().reshape([2, 3])), [2, 3]);
    assert_eq!(shape(|x| x.expand_dims(0).merge_dims(0, 1)), [2, 3]);
    assert_eq!(shape(|x| x.expand_dims(0).moveaxis(-1, 0)), [3, 1, 2]);
    assert_eq!(
        shape(|x| x.expand_dims(0).moveaxis([0, 1], [2, 0])),
        [2, 3, 1]
    );
    assert_eq!(shape(|x| x.reshape([1, 2, 1, 3]).squeeze([0, -2])), [2, 3]);
    assert_eq!(values(|x| x.flip(1)), [2., 1., 0., 5., 4., 3.]);
    assert_eq!(values(|x| x.roll(1, 1)), [2., 0., 1., 5., 3., 4.]);
    assert_eq!(values(|x| x.roll(-1, 0)), [3., 4., 5., 0., 1., 2.]);
    assert_eq!(values(|x| x.get(s![0]).tile([2])), [0., 1., 2., 0., 1., 2.]);
    assert_eq!(shape(|x| x.tile([2, 1, 2])), [2, 2, 6]);
    assert_eq!(
        values(|x| x.tile([2, 1])),
        [0., 1., 2., 3., 4., 5., 0., 1., 2., 3., 4., 5.]
    );
    assert_eq!(
        values(|x| x.repeat(2, 1)),
        [0., 0., 1., 1., 2., 2., 3., 3., 4., 4., 5., 5.]
    );
    assert_eq!(
        values(|x| stack([x.get(s![0]), x.get(s![1])], -1)),
        [0., 3., 1., 4., 2., 5.]
    );
    assert_eq!(values(|x| x.split([1, 2], 1)[1]), [1., 2., 4., 5.]);
    assert_eq!(values(|x| x.split_at([1, 1, 2], 1)[2]), [1., 4.]);
    assert_eq!(values(|x| x.chunks(3, 1)[2]), [2., 5.]);
    assert_eq!(values(|x| x.pad(1, -1, 1, 9.0)), [1., 2., 9., 4., 5., 9.]);
    assert_eq!(values(|x| x.pad(0, -2, 1, 9.0)), [9., 9., 9.]);
    assert_eq!(values(|x| x.pad(0, 0, -1, x.sum(..))), [0., 1., 2.]);
    assert_eq!(values(|x| x.dilate(0, 1, -1.0).get(s![1])), [-1., -1., -1.]);
    check(x(), |[x]| {
        (x.roll(1, 0), x.tile([2, 2]), x.repeat(3, 0), x.flip(..) * x)
    });
    check(x(), |[x]| {
        (x.pad(1, -1, 2, x.sum(..)), stack([x, x * x], 1))
    });
    check_vmap(x(), |[x]| {
        (x.roll(1, 0), x.tile([2, 2]), x.repeat(3, 0), x.flip(..))
    });
}

#[test]
fn triangles_and_diagonals() {
    let x = || [counted(&[2, 3])];
    let values = |f: fn(Tensor) -> Tensor| floats(&x(), |[x]| f(x));
    assert_eq!(values(|x| x.tril(0)), [0., 0., 0., 3., 4., 0.]);
    assert_eq!(values(|x| x.triu(1)), [0., 1., 2., 0., 0., 5.]);
    assert_eq!(values(|x| x.triu(i64::MIN)), values(|x| x));
    assert_eq!(values(|x| x.tril(i64::MIN)), [0.; 6]);
    assert_eq!(values(|x| x.diagonal(0)), [0., 4.]);
    assert_eq!(values(|x| x.diagonal(1)), [1., 5.]);
    assert_eq!(values(|x| x.diagonal(-1)), [3.]);
    assert_eq!(values(|x| x.diagonal(5)), [0.0; 0]);
    assert_eq!(values(|x| x.get(s![0, 1..]).diag(0)), [1., 0., 0., 2.]);
    assert_eq!(
        values(|x| x.get(s![0, 1..]).diag(-1)),
        [0., 0., 0., 1., 0., 0., 0., 2., 0.]
    );
    assert_eq!(values(|x| x.get(s![0, 1..]).diag(1).diagonal(1)), [1., 2.]);
    assert_eq!(values(|_| Tensor::eye(DType::F64, 2)), [1., 0., 0., 1.]);
    assert_eq!(
        values(|_| Tensor::tri(DType::F64, 2, 3, 0)),
        [1., 0., 0., 1., 1., 0.]
    );
    assert_eq!(
        values(|_| Tensor::linspace(DType::F64, 1.0, 2.0, 3)),
        [1., 1.5, 2.]
    );
    assert_eq!(values(|_| Tensor::linspace(DType::F64, 1.0, 2.0, 1)), [1.]);
    check(x(), |[x]| {
        (x.triu(0), x.tril(-1), x.diagonal(1) * 2.0, x.diag(-1))
    });
    check_vmap(x(), |[x]| {
        (x.triu(0), x.tril(-1), x.diagonal(1), x.diag(-1))
    });
}

#[test]
fn one_hot_of_what_is_outside_is_zero() {
    let hot = |i: &[i32]| floats(&[indices(i)], |[i]| i.one_hot(3, DType::F64));
    assert_eq!(hot(&[1, -1, 3]), [0., 1., 0., 0., 0., 0., 0., 0., 0.]);
    let narrow = Array::new(DType::I8, &[2], [127, -127]);
    assert_eq!(
        ints(&[narrow], |[i]| i.one_hot(300, DType::I32).sum(1)),
        [1, 0]
    );
}

#[test]
fn windows_at_computed_starts_move_inside() {
    let at = |start: i32| {
        floats(&[counted(&[5]), Array::i32(&[], [start])], |[x, i]| {
            concatenate(
                [
                    x.dynamic_slice(0, i, 2),
                    x.dynamic_update(0, i, x.get(s![..2])),
                ],
                0,
            )
        })
    };
    assert_eq!(at(9), [3., 4., 0., 1., 2., 0., 1.]);
    assert_eq!(at(-9), [0., 1., 0., 1., 2., 3., 4.]);
    check_first(&[noise(1, &[5])], |[x]| {
        x.dynamic_update(
            0,
            Tensor::scalar(9, DType::I32),
            x.get(s![..2]) * x.get(s![1..3]),
        )
    });
}

#[test]
fn nothing_is_read_and_written() {
    let none = || [Array::f64(&[0, 2], []), Array::i32(&[0], [])];
    assert_eq!(floats(&none(), |[x, i]| x.take(i, 0)), [0.0; 0]);
    assert_eq!(floats(&none(), |[x, i]| x.take(i, 1)), [0.0; 0]);
    assert_eq!(floats(&none(), |[x, i]| x.scatter(i, 1.0, 0)), [0.0; 0]);
    let some = || [counted(&[2, 2]), Array::f64(&[0, 2], [])];
    let i = || Tensor::constant::<i32>(&[], [0]);
    check_first(&some(), |[x, u]| {
        (x.scatter(i(), u, 0), x.scatter_mul(i(), u, 0))
    });
    check_first(&some(), |[x, u]| {
        (x.scatter_max(i(), u, 0), x.take(i(), 1), u.take(i(), 0))
    });
}

#[test]
fn mistakes_in_an_index() {
    let message = |f: fn(Tensor) -> Tensor| {
        let outcome = trace(f, TensorType::new(DType::F32, [2, 3]));
        let error = outcome.map(|_| ()).expect_err("a mistake");
        format!("{}; {}", error.kind, error.help.unwrap_or_default())
    };
    assert_eq!(
        message(|x| x.get(s![2])),
        "`get`: dimension 0 of f32[2,3] has no element 2; it has 0 to 1, or -2 to -1 from the last"
    );
    assert_eq!(
        message(|x| x.get(s![.., 1..-3])),
        "`get`: dimension 1 of f32[2,3] has no range 1..-3; it has 3 elements, and a range does not \
         end before it begins; negative bounds count from the end"
    );
    assert_eq!(
        message(|x| x.at(s![0, 0, 0]).set(0)),
        "`at`: 3 entries and 0 ellipses for f32[2,3]; write at most 2 and one `...`; a `NewAxis` is \
         for no dimension"
    );
    assert_eq!(
        message(|x| x.get(s![..;0])),
        "`s!`: a step of 0 of a range; steps are of ranges, and not 0"
    );
    assert_eq!(
        message(|x| x.at(s![0]).add(x)),
        "`at.add`: the updates are f32[2,3], and go where f32[3] is; they may have fewer dimensions, \
         or some of size 1; `.cast(...)` converts them"
    );
    assert_eq!(
        message(|x| x.get(s![x])),
        "`get`: the indices are f32[2,3], not integers; convert them with `.cast(DType::I32)`"
    );
    assert_eq!(
        message(|x| x.reshape([-1, 4])),
        "`reshape`: the 6 elements of f32[2,3] do not divide into rows of 4; "
    );
    assert_eq!(
        message(|x| x.reshape([-1, -1])),
        "`reshape`: 2 sizes of f32[2,3] are left open; leave out one at most"
    );
    assert_eq!(
        message(|x| x.split([1, 1], 1)[0]),
        "`split`: parts of [1, 1] are 2 elements; dimension 1 of f32[2,3] has 3; "
    );
    assert_eq!(
        message(|x| x.top_k(4).0),
        "`top_k`: `k` is 4, the last dimension of f32[2,3] has 3 elements; give at most 3; `swap_axes` \
         brings another dimension last"
    );
}
