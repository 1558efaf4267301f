//! Regions where something is empty, alone, not used, or not a float.

use shardax::prelude::*;
use shardax::random::Key;
use shardax::xla::Error;
use shardax::{all_gather_invariant, broadcast_from, pmin};

use crate::{close, counted, layout, layouts};

fn split() -> PartitionSpec {
    PartitionSpec::new(("data",))
}

fn whole() -> PartitionSpec {
    PartitionSpec::whole()
}

fn array<T: shardax::Element>(values: &[T]) -> Array {
    Array::from_slice(values, [values.len()]).unwrap()
}

#[test]
fn nothing_in_and_nothing_out() {
    for layout in layouts("data=8") {
        let own = || {
            let position = |()| (axis_index("data") * 2).reshape([1]);
            manual("data", (), split(), position)(())
        };
        let found = jit(own).layout(&layout).call(()).unwrap();
        assert_eq!(found.to_vec::<i32>().unwrap(), [0, 2, 4, 6, 8, 10, 12, 14]);
        let nothing = |x: Tensor| {
            manual("data", split(), (), |x: Tensor| {
                psum(x, "data");
            })(x);
            x
        };
        let found = jit(nothing).layout(&layout).call(counted(&[8])).unwrap();
        close(
            &found.to_vec().unwrap(),
            &counted(&[8]).to_vec::<f32>().unwrap(),
        );
        let constant = || manual("data", (), whole(), |()| Tensor::scalar(3, DType::I32))(());
        let found = jit(constant).layout(&layout).call(()).unwrap();
        assert_eq!(found.item::<i32>().unwrap(), 3);
    }
}

#[test]
fn dimensions_of_size_0() {
    let f = |x: Tensor| {
        let region = |x: Tensor| {
            let all = all_gather_invariant(x, "data", 0);
            let next = ppermute(x, "data", (0..8).map(|i| (i, (i + 1) % 8)));
            let back = reduce_scatter(all_gather(next, "data", 0), "data", 0);
            let there = all_to_all(x.reshape([8, 0, 3]), "data", 0, 0);
            (psum(x.sum(..), "data"), pmax(x, "data"), all, back, there)
        };
        let out = (whole(), whole(), whole(), split(), split());
        let loss = |x: Tensor| manual("data", split(), out.clone(), region)(x).0;
        (
            manual("data", split(), out.clone(), region)(x),
            grad(loss)(x),
        )
    };
    for layout in layouts("data=8") {
        let empty = Array::from_slice::<f32>(&[], [0, 3]).unwrap();
        let (found, gradient) = jit(f).layout(&layout).call(empty).unwrap();
        assert_eq!(found.0.item::<f32>().unwrap(), 0.0);
        let shapes = [&found.1, &found.2, &found.3, &found.4, &gradient];
        let shapes: Vec<Vec<usize>> = shapes.map(|x| x.ty().shape.to_vec()).to_vec();
        assert_eq!(
            shapes,
            [
                vec![0, 3],
                vec![0, 3],
                vec![0, 3],
                vec![64, 0, 3],
                vec![0, 3]
            ]
        );
    }
}

/// Numbers by which devices count, of every kind of element.
#[test]
fn element_types_of_every_collective() {
    type Kind = (DType, fn(Tensor) -> Tensor);
    const KINDS: [Kind; 6] = [
        (DType::F32, |x| x),
        (DType::BF16, |x| x),
        (DType::I8, |x| x),
        (DType::U32, |x| x),
        (DType::I64, |x| x),
        (DType::C64, |x| x.real() * 2.0 + x.imag()),
    ];
    let f = |x: Tensor| {
        let results = KINDS.iter().map(|(dtype, number)| {
            let complex = *dtype == DType::C64;
            let x = match complex {
                true => x.cast(DType::F32).complex(x.cast(DType::F32) * -1.0),
                false => x.cast(*dtype),
            };
            let region = |x: Tensor| {
                let ring = ppermute(x, "data", (0..8).map(|i| (i, (i + 3) % 8)));
                let exchanged = all_to_all(all_gather(x, "data", 0), "data", 0, 0);
                let scattered = reduce_scatter(all_gather(x, "data", 0), "data", 0);
                let common = (
                    psum(x, "data"),
                    broadcast_from(x, "data", 5),
                    all_gather_invariant(x, "data", 0),
                );
                (common, (ring, exchanged, scattered))
            };
            let out = ((whole(), whole(), whole()), (split(), split(), split()));
            let ((a, b, c), (d, e, f)) = manual("data", split(), out, region)(x);
            let number = |x: Tensor| number(x).cast(DType::F32).flatten();
            let mut all = vec![a, b, c, d, e, f];
            if !complex {
                let region = |x: Tensor| (pmax(x, "data"), pmin(x, "data"));
                let (most, least) = manual("data", split(), (whole(), whole()), region)(x);
                all.extend([most, least]);
            }
            all.into_iter().map(number).collect::<Vec<_>>()
        });
        results.collect::<Vec<_>>()
    };
    let x: Vec<i32> = vec![3, 1, 4, 1, 5, 9, 2, 6];
    let rolled = [9, 2, 6, 3, 1, 4, 1, 5];
    let floats = |x: &[i32]| x.iter().map(|x| *x as f32).collect::<Vec<f32>>();
    let wanted = [
        vec![31.0],
        vec![9.0],
        floats(&x),
        floats(&rolled),
        x.iter().map(|_| floats(&x)).collect::<Vec<_>>().concat(),
        floats(&x).iter().map(|x| x * 8.0).collect(),
        vec![9.0],
        vec![1.0],
    ];
    for layout in layouts("data=8") {
        let found = jit(f).layout(&layout).call(array(&x)).unwrap();
        for ((dtype, _), found) in KINDS.iter().zip(found) {
            for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let found = found.to_vec::<f32>().unwrap();
                // Device i has element i of everybody's copy.
                let wanted = match i {
                    4 => (0..8).flat_map(|i| vec![wanted[i]; 8]).collect(),
                    _ => wanted.clone(),
                };
                assert_eq!(found, wanted, "{dtype}, result {i}");
            }
        }
    }
}

#[test]
fn booleans() {
    let f = |x: Tensor| {
        let region = |x: Tensor| {
            let ring = ppermute(x, "data", [(0, 1), (1, 2)]);
            let all = all_gather_invariant(x, "data", 0);
            (
                (
                    pmax(x, "data"),
                    pmin(x, "data"),
                    broadcast_from(x, "data", 2),
                    all,
                ),
                ring,
            )
        };
        let out = ((whole(), whole(), whole(), whole()), split());
        manual("data", split(), out, region)(x.gt(2))
    };
    for layout in layouts("data=8") {
        let x = array(&[3i32, 1, 4, 1, 5, 9, 2, 6]);
        let ((most, least, of_2, all), ring) = jit(f).layout(&layout).call(x).unwrap();
        let read = |x: &Array| x.to_vec::<bool>().unwrap();
        assert_eq!(
            [read(&most), read(&least), read(&of_2)],
            [[true], [false], [true]]
        );
        let x = [true, false, true, false, true, true, false, true];
        assert_eq!(read(&all), x);
        assert_eq!(
            read(&ring),
            [false, true, false, false, false, false, false, false]
        );
    }
}

/// On one device, and along an axis of one, every collective is what it is for one device.
#[test]
fn alone() {
    let f = |x: Tensor| {
        let region = |x: Tensor| {
            let nobody = ppermute(x, "data", []);
            let own = ppermute(x, "data", [(0, 0)]);
            let truth = ppermute(x.gt(0.0), "data", []);
            (nobody, own, truth, psum(x, "data"))
        };
        let out = (split(), split(), split(), whole());
        manual("data", split(), out, region)(x)
    };
    let values = [f32::NAN, f32::INFINITY, 1.0];
    let mut all = layouts("data=1,model=2");
    all.push(Layout::single());
    for layout in all {
        let (nobody, own, truth, sum) = jit(f).layout(&layout).call(array(&values)).unwrap();
        assert_eq!(nobody.to_vec::<f32>().unwrap(), [0.0; 3], "{layout}");
        assert_eq!(truth.to_vec::<bool>().unwrap(), [false; 3]);
        for found in [own, sum] {
            let found = found.to_vec::<f32>().unwrap();
            assert!(found[0].is_nan() && found[1..] == values[1..], "{found:?}");
        }
    }
}

#[test]
fn axes_that_are_not_used_and_arguments_that_are_not_read() {
    let f = |x: Tensor, y: Tensor| {
        let region = |(x, _): (Tensor, Tensor)| (psum(x, "model"), Tensor::scalar(1.0, DType::F32));
        let specs = (PartitionSpec::new(((), "model")), split());
        let loss = |x: Tensor, y: Tensor| {
            let (sum, one) = manual((), specs.clone(), (whole(), whole()), region)((x, y));
            (sum.sum(..) * one, sum)
        };
        let (_, sum) = loss(x, y);
        (sum, grad(|(x, y): (Tensor, Tensor)| loss(x, y).0)((x, y)))
    };
    for layout in layouts("data=2,model=4") {
        let args = (counted(&[3, 4]), counted(&[2]));
        let (sum, (gx, gy)) = jit(f).layout(&layout).call(args).unwrap();
        let rows: Vec<f32> = counted(&[3, 4]).to_vec().unwrap();
        let sums: Vec<f32> = rows.chunks(4).map(|row| row.iter().sum()).collect();
        close(&sum.to_vec().unwrap(), &sums);
        assert_eq!(gx.to_vec::<f32>().unwrap(), [1.0; 12]);
        assert_eq!(gy.to_vec::<f32>().unwrap(), [0.0; 2]);
    }
}

/// Of a maximum that several devices have, each has its share.
#[test]
fn extrema_with_ties_and_infinities() {
    let f = |x: Tensor| {
        let most = |x: Tensor| manual("data", split(), whole(), |x: Tensor| pmax(x, "data"))(x);
        let least = |x: Tensor| manual("data", split(), whole(), |x: Tensor| pmin(x, "data"))(x);
        let both = |x: Tensor| (most(x) - least(x)).sum(..);
        (most(x), least(x), grad(both)(x))
    };
    for layout in layouts("data=8") {
        let program = jit(f).layout(&layout);
        let ties = [2.0, 7.0, -1.0, 7.0, -1.0, 0.0, 7.0, 7.0f32];
        let (most, least, gradient) = program.call(array(&ties)).unwrap();
        assert_eq!(most.item::<f32>().unwrap(), 7.0);
        assert_eq!(least.item::<f32>().unwrap(), -1.0);
        assert_eq!(
            gradient.to_vec::<f32>().unwrap(),
            [0.0, 0.25, -0.5, 0.25, -0.5, 0.0, 0.25, 0.25]
        );
        let (most, ..) = program.call(array(&[f32::NEG_INFINITY; 8])).unwrap();
        assert_eq!(most.item::<f32>().unwrap(), f32::NEG_INFINITY);
    }
}

#[test]
fn donated_arguments() {
    let f = |x: Tensor, y: Tensor| {
        let region = |(x, y): (Tensor, Tensor)| x + psum(y, "data");
        manual("data", (split(), split()), split(), region)((x, y)).shard(&[Dim::Mesh(&["data"])])
    };
    for layout in layouts("data=8") {
        let annotated = |x: Tensor, y: Tensor| f(x.shard(&[Dim::Mesh(&["data"])]), y);
        let program = jit(annotated).layout(&layout).donate(&[0]);
        let mut x = array(&[1f32; 8]);
        for _ in 0..3 {
            x = program.call((x, array(&[0.5f32; 8]))).unwrap();
        }
        assert_eq!(x.to_vec::<f32>().unwrap(), [13.0; 8]);
    }
}

#[test]
fn what_is_not_finite_inside_is_found() {
    let f = |x: Tensor| {
        manual("data", split(), whole(), |x: Tensor| {
            let (_, logs) = scan(x.index(0, 0) * 0.0, x, |c: Tensor, x: Tensor| (c, x.log()));
            psum(logs, "data")
        })(x)
    };
    for layout in layouts("data=8") {
        let program = jit(f).layout(&layout).debug_nans();
        let fine = program.call(array(&[1f32; 16])).unwrap();
        assert_eq!(fine.to_vec::<f32>().unwrap(), [0.0; 2]);
        let mut values = [1f32; 16];
        values[9] = -1.0;
        let error: Error = program.call(array(&values)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("log") && text.contains("edges.rs"), "{text}");
    }
}

/// A key in common gives every device the same numbers; with its position, its own.
#[test]
fn random_numbers() {
    let f = || {
        let key = Key::from_seed(7);
        let own = |()| {
            let common = key.normal(DType::F32, [2]);
            let own = key.fold_in(axis_index("data")).normal(DType::F32, [2]);
            (common, own)
        };
        let found = manual("data", (), (whole(), split()), own)(());
        let own = (0..8).map(|i| key.fold_in(i).normal(DType::F32, [2]));
        let wanted = concatenate(own.collect::<Vec<_>>(), 0);
        (found, (key.normal(DType::F32, [2]), wanted))
    };
    let line = line!() - 9;
    for layout in layouts("data=8") {
        let program = jit(f).layout(&layout).compile(()).unwrap();
        let remarks = program.remarks();
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        assert!(remarks[0].starts_with("every device of the region draws the same numbers"));
        assert!(
            remarks[0].contains(&format!("edges.rs:{line}:")),
            "{remarks:?}"
        );
        let (found, wanted) = jit(f).layout(&layout).call(()).unwrap();
        let read = |x: &Array| x.to_vec::<f32>().unwrap();
        assert_eq!(read(&found.0), read(&wanted.0), "{layout}");
        assert_eq!(read(&found.1), read(&wanted.1), "{layout}");
    }
}

#[test]
fn prints_around() {
    let f = |x: Tensor| {
        x.sum(..).print("before");
        let sum = manual("data", split(), whole(), |x: Tensor| psum(x, "data"))(x);
        sum.print("after");
        sum
    };
    for layout in layouts("data=8") {
        let found = jit(f).layout(&layout).call(array(&[1f32; 8])).unwrap();
        assert_eq!(found.item::<f32>().unwrap(), 8.0);
    }
}

/// Sorting, choosing the largest, looking up, writing and drawing are a device's own work.
#[test]
fn whole_operations_on_blocks() {
    let f = |x: Tensor| {
        let region = |x: Tensor| {
            let order = x.argsort(0);
            let (most, _) = x.top_k(2);
            let found = x.take(order, 0) + x.sort(0) + x.cumsum(0) + x.reverse([0]);
            let written = found.scatter_add(order.slice(0, ..2), most, 0);
            written.dynamic_update(0, order.index(0, 0), most * 2.0)
                + x.roll(1, 0).pad(0, 1, -1, 0.5)
        };
        manual("data", split(), split(), region)(x)
    };
    let each = |x: Tensor| {
        let region = |x: Tensor| {
            let order = x.argsort(0);
            let (most, _) = x.top_k(2);
            let found = x.take(order, 0) + x.sort(0) + x.cumsum(0) + x.reverse([0]);
            let written = found.scatter_add(order.slice(0, ..2), most, 0);
            written.dynamic_update(0, order.index(0, 0), most * 2.0)
                + x.roll(1, 0).pad(0, 1, -1, 0.5)
        };
        let blocks = (0..8).map(|i| region(x.slice(0, i * 4..i * 4 + 4)));
        concatenate(blocks.collect::<Vec<_>>(), 0)
    };
    let both = |f: fn(Tensor) -> Tensor| {
        move |x: Tensor| {
            let loss = |x: Tensor| (f(x) * (Tensor::arange(DType::F32, 32) * 0.3).sin()).sum(..);
            (f(x), grad(loss)(x))
        }
    };
    let wanted = jit(both(each)).call(counted(&[32])).unwrap();
    for layout in layouts("data=8") {
        let found = jit(both(f)).layout(&layout).call(counted(&[32])).unwrap();
        close(
            &found.0.to_vec().unwrap(),
            &wanted.0.to_vec::<f32>().unwrap(),
        );
        close(
            &found.1.to_vec().unwrap(),
            &wanted.1.to_vec::<f32>().unwrap(),
        );
    }
}

/// A region over one axis under GSPMD is refused only where the mesh has other axes of more than one.
#[test]
fn axes_of_size_one_do_not_count() {
    let f = |x: Tensor| manual("data", split(), whole(), |x: Tensor| psum(x, "data"))(x);
    for layout in layouts("data=8,model=1") {
        let found = jit(f).layout(&layout).call(array(&[1f32; 8])).unwrap();
        assert_eq!(found.item::<f32>().unwrap(), 8.0);
    }
    let partly = layout("data=4,model=2").partitioner(Partitioner::Gspmd);
    assert!(jit(f).layout(&partly).call(array(&[1f32; 8])).is_err());
}

/// An annotation that names an axis of the region is about the others: the same function is used inside and outside.
#[test]
fn annotations_leave_out_the_axes_of_the_region() {
    let annotated = |x: Tensor| x.shard(&[Dim::Mesh(&["data", "model"]), Dim::Unsharded]) * 2.0;
    let rows = || PartitionSpec::new(("data", ()));
    let f = |x: Tensor| manual("data", rows(), rows(), annotated)(annotated(x));
    let all = |x: Tensor| {
        let axes = ["data", "model"];
        let rows = || PartitionSpec::new((("data", "model"), ()));
        manual(axes, rows(), rows(), annotated)(annotated(x))
    };
    let x = counted(&[16, 3]);
    let plain: Vec<f32> = x.to_vec::<f32>().unwrap().iter().map(|x| x * 4.0).collect();
    let found = jit(f)
        .layout(&layout("data=2,model=4"))
        .call(x.clone())
        .unwrap();
    close(&found.to_vec::<f32>().unwrap(), &plain);
    for layout in layouts("data=2,model=4") {
        let found = jit(all).layout(&layout).call(x.clone()).unwrap();
        close(&found.to_vec::<f32>().unwrap(), &plain);
    }
}

/// XLA ended the process over these under GSPMD: constants of a function that it expands are equal to others outside.
#[test]
fn special_functions_in_regions() {
    let weighed = |y: Tensor| {
        let weights = (Tensor::arange(DType::F64, 1) * 0.7).sin() + 1.2;
        (y.cast(DType::F64) * weights).sum(..)
    };
    let f = |x: Tensor| {
        let body = |x: Tensor| {
            let root = x.sqrt();
            let region = |_: Tensor| {
                let more = root.lgamma() + root.digamma() + root.erf_inv() + root.acosh();
                root.gelu_exact() + more * 0.0
            };
            manual("data", whole(), whole(), region)(x)
        };
        let loss = |x: Tensor| weighed(body(x));
        grad(|x: Tensor| weighed(grad(loss)(x)))(x)
    };
    let one = jit(f).call(array(&[0.5f32])).unwrap();
    for layout in layouts("data=2") {
        let found = jit(f).layout(&layout).call(array(&[0.5f32])).unwrap();
        let found: Vec<f32> = found.to_vec().unwrap();
        assert!(found[0].is_nan() == one.to_vec::<f32>().unwrap()[0].is_nan());
    }
    let plain = |x: Tensor| {
        let body = |x: Tensor| {
            let root = x.sqrt();
            manual("data", whole(), whole(), |_: Tensor| root.gelu_exact())(x)
        };
        let loss = |x: Tensor| weighed(body(x));
        grad(|x: Tensor| weighed(grad(loss)(x)))(x)
    };
    let one = jit(plain).call(array(&[0.5f32])).unwrap();
    for layout in layouts("data=2") {
        let found = jit(plain).layout(&layout).call(array(&[0.5f32])).unwrap();
        close(&found.to_vec().unwrap(), &one.to_vec::<f32>().unwrap());
    }
}
