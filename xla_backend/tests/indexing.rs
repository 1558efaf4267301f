//! Reading, writing and ordering by XLA: on one device, and along split dimensions by either
//! partitioner, where indices outside are what it gets wrong by itself.

use shardax_core::{Combine, DType, Dim, Tensor, Tree, grad, s, sort_by_key, vmap};
use shardax_sharding::{Layout, Mesh, Partitioner};
use shardax_xla::{Array, Result, jit};

/// The results of a function on one device, and of the argument's split along its first dimension.
fn everywhere(f: fn(Tensor) -> Vec<Tensor>, x: &Array) -> Result<Vec<Vec<Vec<f32>>>> {
    let split = Layout::new(Mesh::new([("data", 8)])?).shard("rows", "data");
    let layouts = [
        Layout::single(),
        split.clone(),
        split.partitioner(Partitioner::Gspmd),
    ];
    let run = |layout: &Layout| -> Result<Vec<Vec<f32>>> {
        let split = move |x: Tensor| {
            let mut dims = vec![Dim::Logical("rows")];
            dims.resize(x.rank(), Dim::Unsharded);
            f(x.shard(&dims))
        };
        let results = jit(split).layout(layout).call(x.clone())?;
        results.iter().map(Array::to_vec::<f32>).collect()
    };
    layouts.iter().map(run).collect()
}

fn counted(shape: &[usize]) -> Result<Array> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| i as f32).collect();
    Array::from_slice(&values, shape)
}

fn all_equal(results: &[Vec<Vec<f32>>], wanted: &[Vec<f32>]) {
    for (layout, results) in results.iter().enumerate() {
        for (i, (found, wanted)) in results.iter().zip(wanted).enumerate() {
            let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
            assert!(
                found.len() == wanted.len() && found.iter().zip(wanted).all(same),
                "result {i} of layout {layout}\n{found:?}\n{wanted:?}"
            );
        }
    }
}

const NAN: f32 = f32::NAN;

fn indices(values: &[i32]) -> Tensor {
    Tensor::constant(values, [values.len()])
}

#[test]
fn what_is_outside_is_never_another_element() -> Result<()> {
    let f = |x: Tensor| {
        let outside = || indices(&[3, 8, -1, 15, i32::MAX, i32::MIN]);
        let start = |at: i32| Tensor::scalar(at, DType::I32);
        let nines = Tensor::full(99.0, DType::F32, [2]);
        vec![
            x.take(outside(), 0),
            x.scatter(outside(), 99.0, 0),
            x.scatter_add(outside(), 1.0, 0),
            x.scatter_mul(outside(), 2.0, 0),
            x.scatter_max(outside(), 5.0, 0),
            x.scatter_min(outside(), 5.0, 0),
            x.dynamic_slice(0, start(14), 4),
            x.dynamic_slice(0, start(-3), 4),
            x.dynamic_update(0, start(15), nines),
            x.dynamic_update(0, start(-7), nines),
            x.put_along(outside(), 99.0, 0),
        ]
    };
    let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let with = |at: &[(usize, f32)]| {
        let mut x = x.clone();
        at.iter().for_each(|&(i, v)| x[i] = v);
        x
    };
    let set = with(&[(3, 99.), (8, 99.), (15, 99.)]);
    let wanted = [
        vec![3., 8., NAN, 15., NAN, NAN],
        set.clone(),
        with(&[(3, 4.), (8, 9.), (15, 16.)]),
        with(&[(3, 6.), (8, 16.), (15, 30.)]),
        with(&[(3, 5.)]),
        with(&[(8, 5.), (15, 5.)]),
        vec![12., 13., 14., 15.],
        vec![0., 1., 2., 3.],
        with(&[(14, 99.), (15, 99.)]),
        with(&[(0, 99.), (1, 99.)]),
        set,
    ];
    all_equal(&everywhere(f, &counted(&[16])?)?, &wanted);
    Ok(())
}

#[test]
fn gradients_of_reads_and_writes() -> Result<()> {
    let f = |x: Tensor| {
        let at = || indices(&[3, 8, 3, -1, 0]);
        let gradient = |f: fn(Tensor, Tensor, Tensor) -> Tensor| {
            let updates = Tensor::constant(&[2f32, 3., 4., 5., 0.], [5]);
            let scalar = |(x, u): (Tensor, Tensor)| {
                let weights = Tensor::arange(DType::F32, 16) + 1.0;
                (f(x, at(), u) * weights).sum(..)
            };
            let (x, u) = grad(scalar)((x + 1.0, updates));
            [x, u]
        };
        let rows = |x: Tensor, i: Tensor, u: Tensor| {
            let read = x.take(i.maximum(0), 0) * u;
            read.pad(0, 0, 11, 0.0)
        };
        [
            gradient(|x, i, u| x.scatter_mul(i, u, 0)),
            gradient(|x, i, u| x.scatter(i, u, 0)),
            gradient(rows),
        ]
        .concat()
    };
    let ones = vec![0f32; 16];
    let with = |mut x: Vec<f32>, at: &[(usize, f32)]| {
        at.iter().for_each(|&(i, v)| x[i] = v);
        x
    };
    let weights: Vec<f32> = (1..17).map(|i| i as f32).collect();
    let wanted = [
        with(weights.clone(), &[(3, 4. * 8.), (8, 9. * 3.), (0, 0.)]),
        vec![4. * 4. * 4., 9. * 9., 4. * 4. * 2., 0., 1.],
        with(weights, &[(3, 0.), (8, 0.), (0, 0.)]),
        vec![0., 9., 4., 0., 1.],
        with(ones, &[(3, 2. + 12.), (8, 6.), (0, 20.)]),
        vec![4., 18., 12., 4., 5.],
    ];
    all_equal(&everywhere(f, &counted(&[16])?)?, &wanted);
    Ok(())
}

#[test]
fn running_reductions_and_sorts() -> Result<()> {
    let f = |x: Tensor| {
        let x = (x * 7.0) % 16.0;
        let pairs = sort_by_key([(x * 0.25).floor(), -x], 2, 0);
        vec![
            x.cumsum(0),
            x.cumsum_reverse(0),
            x.cummax(0),
            x.cummin_reverse(0),
            (x * 0.125).cumprod(0),
            x.sort(0),
            x.sort_descending(0),
            x.argsort(0).cast(DType::F32),
            x.top_k(3).0,
            pairs[1],
            x.sort(0).searchsorted(3.5).cast(DType::F32).reshape([1]),
            x.roll(3, 0),
            x.flip(0),
            x.prod(..).reshape([1]),
            grad(|x: Tensor| (x.sort(0) * Tensor::arange(DType::F32, 16)).sum(..))(x),
            grad(|x: Tensor| x.cumprod(0).sum(..))(x * 0.125),
            grad(|x: Tensor| x.cummax(0).sum(..))(x),
        ]
    };
    let results = everywhere(f, &counted(&[16])?)?;
    let x: Vec<f32> = (0..16).map(|i| ((i * 7) % 16) as f32).collect();
    let mut sum = 0.0;
    let sums: Vec<f32> = x
        .iter()
        .map(|x| {
            sum += x;
            sum
        })
        .collect();
    let sorted: Vec<f32> = (0..16).map(|i| i as f32).collect();
    for results in &results {
        assert_eq!(results[0], sums);
        assert_eq!(results[5], sorted);
        assert_eq!(results[8], [15., 14., 13.]);
        assert_eq!(results[10], [4.]);
        assert_eq!(results[14], x);
    }
    all_equal(&results, &results[0]);
    Ok(())
}

#[test]
fn nan_is_sorted_last_and_ties_stay() -> Result<()> {
    let x = Array::from_slice(&[3f32, NAN, -0.0, 0.0, -1.0, f32::INFINITY], [6])?;
    let (up, down, order) =
        jit(|x: Tensor| (x.sort(0), x.sort_descending(0), x.argsort(0))).call(x)?;
    let (up, down) = (up.to_vec::<f32>()?, down.to_vec::<f32>()?);
    assert_eq!(up[..5], [-1., 0., 0., 3., f32::INFINITY]);
    assert!(up[5].is_nan() && down[0].is_nan());
    assert_eq!(down[1..], [f32::INFINITY, 3., 0., 0., -1.]);
    assert_eq!(order.to_vec::<i32>()?, [4, 2, 3, 0, 5, 1]);
    Ok(())
}

#[test]
fn batches() -> Result<()> {
    let f = |x: Tensor| {
        let i = Tensor::constant(&[0, 3, 2, 1, 1, 1], [2, 3]).tile([4, 1]);
        let both = |f: fn((Tensor, Tensor)) -> Tensor| vmap(f)((x, i));
        let vectors = Tensor::constant(&[0, 1, 7, 3], [2, 2]);
        vec![
            both(|(x, i)| x.take(i, 0)),
            both(|(x, i)| x.at(s![i]).add(1.0)),
            both(|(x, i)| x.at(s![i]).mul(2.0)),
            x.take_along(i, 1),
            x.gather_nd(vectors),
            x.scatter_nd(vectors, 9.0, Combine::Max),
            x.get(s![1..;3, ..;-1]),
            x.at(s![1..;3, ..;-2]).set(0.0),
            x.diagonal(1),
            vmap(|x: Tensor| x.sort_descending(0))(x),
        ]
    };
    let results = everywhere(f, &counted(&[8, 4])?)?;
    assert_eq!(results[0][4], [1., 31.]);
    assert_eq!(
        results[0][6],
        [7., 6., 5., 4., 19., 18., 17., 16., 31., 30., 29., 28.]
    );
    assert_eq!(results[0][8], [1., 6., 11.]);
    all_equal(&results, &results[0]);
    Ok(())
}

/// Every element type that can be ordered and looked up runs.
#[test]
fn element_types() -> Result<()> {
    let dtypes = [
        DType::Bool,
        DType::I4,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U4,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F8E4M3FN,
        DType::F8E5M2,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    let f = move |x: Tensor| -> Vec<Tensor> {
        dtypes
            .iter()
            .flat_map(|&dtype| {
                let x = x.cast(dtype);
                let i = Tensor::constant(&[1, 0, 1], [3]);
                [
                    x.sort(0),
                    x.take(i, 0),
                    x.cummax(0),
                    x.scatter(i, x, 0),
                    x.scatter_max(i, x, 0),
                ]
            })
            .map(|x| x.cast(DType::F32))
            .collect()
    };
    let results = jit(f).call(Array::from_slice(&[1f32, 0., 1.], [3])?)?;
    for results in results.leaves().chunks(5) {
        let values: Vec<Vec<f32>> = results.iter().map(Array::to_vec).collect::<Result<_>>()?;
        assert_eq!(
            values,
            [
                [0., 1., 1.],
                [0., 1., 0.],
                [1., 1., 1.],
                [0., 1., 1.],
                [1., 1., 1.]
            ]
        );
    }
    Ok(())
}
