//! Gradients through regions are those of the one number, however its sums are written.

use shardax::prelude::*;
use shardax::{all_gather_invariant, assume_invariant, custom_vjp};

use crate::{close, counted, layouts};

fn split() -> PartitionSpec {
    PartitionSpec::new(("data",))
}

fn whole() -> PartitionSpec {
    PartitionSpec::whole()
}

/// The loss of a linear model with a nonlinearity, as for one device.
fn reference(w: Tensor, x: Tensor) -> Tensor {
    x.dot(w).tanh().square().sum(..)
}

/// A region over `data` that takes weights whole and rows split, and returns one number.
fn total(f: impl Fn((Tensor, Tensor)) -> Tensor) -> impl Fn((Tensor, Tensor)) -> Tensor {
    manual("data", (whole(), split()), whole(), f)
}

fn reference_gradients() -> (Vec<f32>, Vec<f32>) {
    let both = jit(|w: Tensor, x: Tensor| grad(|(w, x): (Tensor, Tensor)| reference(w, x))((w, x)));
    let (w, x) = both.call((counted(&[3, 2]), counted(&[16, 3]))).unwrap();
    (w.to_vec().unwrap(), x.to_vec().unwrap())
}

fn check(f: impl Fn(Tensor, Tensor) -> (Tensor, Tensor) + Copy) {
    let (w, x) = reference_gradients();
    for layout in layouts("data=8") {
        let (gw, gx) = jit(f)
            .layout(&layout)
            .call((counted(&[3, 2]), counted(&[16, 3])))
            .unwrap();
        close(&gw.to_vec().unwrap(), &w);
        close(&gx.to_vec().unwrap(), &x);
    }
}

#[test]
fn the_sum_inside_of_the_region() {
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| total(|(w, x)| psum(reference(w, x), "data"))((w, x));
        grad(loss)((w, x))
    });
}

#[test]
fn the_sum_outside_of_the_region() {
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| {
            let parts = manual("data", (whole(), split()), split(), |(w, x)| {
                reference(w, x).reshape([1])
            })((w, x));
            parts.sum(..)
        };
        grad(loss)((w, x))
    });
}

#[test]
fn the_gradient_inside_of_the_region() {
    check(|w, x| {
        // A gradient by a common value is summed already.
        let both =
            |(w, x): (Tensor, Tensor)| grad(|(w, x): (Tensor, Tensor)| reference(w, x))((w, x));
        manual("data", (whole(), split()), (whole(), split()), both)((w, x))
    });
    check(|w, x| {
        let both = |(w, x): (Tensor, Tensor)| {
            grad(|(w, x): (Tensor, Tensor)| psum(reference(w, x), "data"))((w, x))
        };
        manual("data", (whole(), split()), (whole(), split()), both)((w, x))
    });
}

/// Weights at rest in blocks, gathered for use: the gradient is scattered back.
#[test]
fn gathered_weights() {
    let padded = |w: Tensor| w.reshape([6]).pad(0, 0, 2, 0.0);
    for invariant in [false, true] {
        check(move |w, x| {
            let loss = |(w, x): (Tensor, Tensor)| {
                manual(
                    "data",
                    (split(), split()),
                    whole(),
                    |(w, x): (Tensor, Tensor)| {
                        let w = match invariant {
                            true => all_gather_invariant(w, "data", 0),
                            false => all_gather(w, "data", 0),
                        };
                        psum(reference(w.slice(0, ..6).reshape([3, 2]), x), "data")
                    },
                )((padded(w), x))
            };
            grad(loss)((w, x))
        });
    }
}

/// A ring of partial sums, an exchange there and back, and a scattered sum.
#[test]
fn permutes_exchanges_and_scatters() {
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| {
            total(|(w, x): (Tensor, Tensor)| {
                let count = axis_size("data");
                let next = ppermute(x, "data", (0..count).map(|i| (i, (i + 3) % count)));
                let rows = all_to_all(next.reshape([2, 3]).repeat(4, 0), "data", 0, 0);
                let rows = all_to_all(rows, "data", 0, 0)
                    .reshape([2, 4, 3])
                    .index(1, 0);
                let own = reference(w, rows);
                let spread = own.broadcast_to([8]) / 8.0;
                psum(reduce_scatter(spread, "data", 0).sum(..), "data")
            })((w, x))
        };
        grad(loss)((w, x))
    });
}

#[test]
fn through_scan_remat_custom_rules_and_vmap() {
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| {
            total(|(w, x): (Tensor, Tensor)| {
                // Rows one by one; the carry starts in common and becomes each device's own.
                let zero = Tensor::scalar(0.0, DType::F32);
                let (sum, _) = scan(zero, x, |sum: Tensor, x: Tensor| {
                    let own = remat(|(w, x): (Tensor, Tensor)| x.dot(w).tanh())((w, x));
                    let same = custom_vjp(|x: Tensor| x, |x: Tensor| (x, ()), |(), ct: Tensor| ct);
                    (sum + same(own).square().sum(..), ())
                });
                psum(sum, "data")
            })((w, x))
        };
        grad(loss)((w, x))
    });
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| {
            total(|(w, x): (Tensor, Tensor)| {
                let each = vmap(|x: Tensor| psum(x.dot(w).tanh().square().sum(..), "data"));
                each(x).sum(..)
            })((w, x))
        };
        grad(loss)((w, x))
    });
}

/// A region in a loop outside of it, and for a batch.
#[test]
fn regions_inside_of_scan_and_vmap() {
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| {
            let one = |w: Tensor, x: Tensor| total(|(w, x)| psum(reference(w, x), "data"))((w, x));
            let halves = x.reshape([8, 2, 3]).transpose([1, 0, 2]);
            let zero = Tensor::scalar(0.0, DType::F32);
            let (first, _) = scan(zero, halves, |sum: Tensor, x: Tensor| {
                (sum + one(w, x) * 0.25, ())
            });
            let second = vmap(|x: Tensor| one(w, x))(halves).sum(..) * 0.75;
            first + second
        };
        grad(loss)((w, x))
    });
}

/// A sum of messages that the program says is common: its cotangent goes the way back once.
fn sum_around(x: Tensor) -> Tensor {
    let count = axis_size("data");
    let (mut sum, mut passed) = (x, x);
    for _ in 1..count {
        passed = ppermute(passed, "data", (0..count).map(|i| (i, (i + 1) % count)));
        sum += passed;
    }
    assume_invariant(sum, "data")
}

#[test]
fn values_that_the_program_says_are_common() {
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| total(|(w, x)| sum_around(reference(w, x)))((w, x));
        grad(loss)((w, x))
    });
    // Of a value that is common already nothing is written, also for a batch.
    check(|w, x| {
        let loss = |(w, x): (Tensor, Tensor)| {
            total(|(w, x): (Tensor, Tensor)| {
                let w = assume_invariant(w, "data");
                let each = vmap(|x: Tensor| sum_around(reference(w, x.expand_dims(0))));
                assume_invariant(each(x).sum(..), "data")
            })((w, x))
        };
        grad(loss)((w, x))
    });
    let f = |x: Tensor| manual("data", split(), whole(), |x: Tensor| sum_around(x.square()))(x);
    for layout in layouts("data=8") {
        let slope = jit(move |x: Tensor| jvp(f, x, x.cos()).1).layout(&layout);
        let found: Vec<f32> = slope.call(counted(&[8])).unwrap().to_vec().unwrap();
        let x: Vec<f32> = counted(&[8]).to_vec().unwrap();
        close(&found, &[x.iter().map(|x| 2.0 * x * x.cos()).sum()]);
    }
}

#[test]
fn forward_mode_agrees() {
    let f = |(w, x): (Tensor, Tensor)| total(|(w, x)| psum(reference(w, x), "data"))((w, x));
    let slope = move |w: Tensor, x: Tensor| {
        let along = (w.cos(), x.sin());
        let (_, forward) = jvp(f, (w, x), along);
        let (gw, gx) = grad(f)((w, x));
        let backward = (gw * along.0).sum(..) + (gx * along.1).sum(..);
        (forward, backward)
    };
    for layout in layouts("data=8") {
        let program = jit(slope).layout(&layout);
        let (forward, backward) = program.call((counted(&[3, 2]), counted(&[16, 3]))).unwrap();
        close(&[forward.item().unwrap()], &[backward.item().unwrap()]);
    }
}

/// Devices that hold the largest value share its derivative.
#[test]
fn extrema() {
    let f = |x: Tensor| {
        let loss = |x: Tensor| {
            manual("data", split(), whole(), |x: Tensor| {
                pmax(x.max(..), "data")
            })(x)
        };
        grad(loss)(x)
    };
    let x = Array::from_slice(&[1f32, 5.0, 2.0, 5.0, 0.0, 1.0, 1.0, 1.0], [8]).unwrap();
    for layout in layouts("data=8") {
        let found = jit(f).layout(&layout).call(x.clone()).unwrap();
        close(
            &found.to_vec().unwrap(),
            &[0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0],
        );
    }
}

/// Loops with a condition, and choices, whose values come to differ between devices.
#[test]
fn choices_and_conditions() {
    let f = |x: Tensor| {
        manual("data", split(), split(), |x: Tensor| {
            let own = axis_index("data");
            let one = Tensor::scalar(1.0, DType::F32);
            let chosen = cond(own.gt(3), one, |one| one * 2.0, |one| one * 3.0);
            let (count, _) = while_loop(
                (Tensor::scalar(0, DType::I32), one),
                |(i, _): (Tensor, Tensor)| i.lt(own),
                |(i, one): (Tensor, Tensor)| (i + 1, one),
            );
            x * chosen + count.cast(DType::F32)
        })(x)
    };
    for layout in layouts("data=8") {
        let found = jit(f).layout(&layout).call(counted(&[8])).unwrap();
        let x: Vec<f32> = counted(&[8]).to_vec().unwrap();
        let wanted: Vec<f32> = (0..8)
            .map(|i| x[i] * if i > 3 { 2.0 } else { 3.0 } + i as f32)
            .collect();
        close(&found.to_vec().unwrap(), &wanted);
    }
}
