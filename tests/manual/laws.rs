//! Regions obey the laws of any other function: transforms inside of them, around them, and both.
//!
//! Every case is written a second time for one device, with the blocks as a dimension.

use shardax::prelude::*;
use shardax::{custom_jvp, custom_vjp, hessian, jacfwd, jacrev};

use crate::{Case, check, layouts};

/// Rows over all devices.
fn rows() -> PartitionSpec {
    PartitionSpec::new([("data", "model")])
}

fn whole() -> PartitionSpec {
    PartitionSpec::whole()
}

const ALL: (&str, &str) = ("data", "model");

/// `f` on blocks of `x` and the whole of `w`, for results that are blocks.
fn by_rows(f: impl Fn(Tensor, Tensor) -> Tensor, x: Tensor, w: Tensor) -> Tensor {
    let f = |(x, w): (Tensor, Tensor)| f(x, w);
    manual((), (rows(), whole()), rows(), f)((x, w))
}

/// `f` on blocks of `x` and the whole of `w`, for results in common.
fn in_common(f: impl Fn(Tensor, Tensor) -> Tensor, x: Tensor, w: Tensor) -> Tensor {
    let f = |(x, w): (Tensor, Tensor)| f(x, w);
    manual((), (rows(), whole()), whole(), f)((x, w))
}

/// The 8 blocks of 2 rows.
fn blocks(x: Tensor) -> Tensor {
    x.reshape([8, 2, 4])
}

fn layer(x: Tensor, w: Tensor) -> Tensor {
    x.dot(w).tanh()
}

/// Forward by its formula, backward by a rule.
fn ruled(x: Tensor) -> Tensor {
    let forward = |x: Tensor| (x.sin(), x);
    custom_vjp(
        |x: Tensor| x.sin(),
        forward,
        |x: Tensor, ct: Tensor| ct * x.cos(),
    )(x)
}

fn ruled_forward(x: Tensor) -> Tensor {
    custom_jvp(
        |x: Tensor| x.sin(),
        |x: Tensor, t: Tensor| (x.sin(), t * x.cos()),
    )(x)
}

/// A sum over devices of what a loop over turns adds up, with a collective in every turn.
fn turns(x: Tensor, w: Tensor) -> Tensor {
    let start = (x, Tensor::zeros(DType::F64, [2, 4]));
    let (_, sum) = fori_loop(0, 3, start, |_, (x, sum): (Tensor, Tensor)| {
        let mean = pmean(x, ALL);
        let x = layer(x, w) + mean * 0.5;
        (x, sum + x)
    });
    sum
}

fn turns_of_blocks(x: Tensor, w: Tensor) -> Tensor {
    let (mut x, mut sum) = (blocks(x), Tensor::zeros(DType::F64, [8, 2, 4]));
    for _ in 0..3 {
        x = x.dot(w).tanh() + x.mean(0) * 0.5;
        sum += x;
    }
    sum.reshape([16, 4])
}

/// Sequences in time: a recurrence whose state goes from device to device.
fn recurrence(x: Tensor, w: Tensor) -> Tensor {
    let (_, states) = scan(x.slice(0, ..1) * 0.0, x, |h: Tensor, x: Tensor| {
        let h = (h.dot(w) + x).tanh() + psum(h, ALL) * 0.01;
        (h, h.index(0, 0))
    });
    states
}

fn recurrence_of_blocks(x: Tensor, w: Tensor) -> Tensor {
    let x = blocks(x);
    let mut h = x.slice(1, ..1) * 0.0;
    let mut states = Vec::new();
    for i in 0..2 {
        h = (h.dot(w) + x.slice(1, i..i + 1)).tanh() + h.sum(0) * 0.01;
        states.push(h.index(1, 0));
    }
    shardax::stack(states, 1).reshape([16, 4])
}

fn next(x: Tensor) -> Tensor {
    ppermute(x, ALL, (0..8).map(|i| (i, (i + 1) % 8)))
}

const CASES: &[Case] = &[
    ("loop", |x, w| by_rows(turns, x, w), turns_of_blocks),
    (
        "scan",
        |x, w| by_rows(recurrence, x, w),
        recurrence_of_blocks,
    ),
    (
        "remat of a scan",
        |x, w| {
            let f = |x, w| remat(|(x, w): (Tensor, Tensor)| recurrence(x, w))((x, w));
            by_rows(f, x, w)
        },
        recurrence_of_blocks,
    ),
    (
        "remat around",
        |x, w| remat(|(x, w): (Tensor, Tensor)| by_rows(turns, x, w))((x, w)),
        turns_of_blocks,
    ),
    (
        "choice by a common value",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let sum = psum(x.sum(..), ALL);
                let yes = |x: Tensor| layer(x, w) + psum(x, ALL);
                cond(sum.gt(-1e9), x, yes, |x: Tensor| x * 2.0)
            };
            by_rows(f, x, w)
        },
        |x, w| {
            let x = blocks(x);
            (x.dot(w).tanh() + x.sum(0)).reshape([16, 4])
        },
    ),
    (
        "choice of each device",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let own = axis_index(ALL);
                let scale = |by: f64| move |x: Tensor| layer(x, w) * by;
                cond(own.gt(3), x, scale(2.0), scale(-3.0)) + psum(x, ALL) * 0.1
            };
            by_rows(f, x, w)
        },
        |x, w| {
            let x = blocks(x);
            let by = Tensor::arange(DType::F64, 8).gt(3.5).select(
                Tensor::full(2.0, DType::F64, [8]),
                Tensor::full(-3.0, DType::F64, [8]),
            );
            (x.dot(w).tanh() * by.reshape([8, 1, 1]) + x.sum(0) * 0.1).reshape([16, 4])
        },
    ),
    (
        "rules",
        |x, w| {
            by_rows(
                |x, w| psum(ruled(layer(x, w)), ALL) * ruled_forward(x),
                x,
                w,
            )
        },
        |x, w| {
            let x = blocks(x);
            (x.dot(w).tanh().sin().sum(0) * x.sin()).reshape([16, 4])
        },
    ),
    (
        "rule around",
        |x, w| {
            let ones = Tensor::ones(DType::F64, [4, 4]);
            let f = move |x: Tensor| by_rows(|x, w| x.sin() * pmean(w.sum(..), ALL), x, ones);
            let forward = move |x: Tensor| (f(x), x);
            custom_vjp(f, forward, |x: Tensor, ct: Tensor| ct * x.cos() * 16.0)(x).dot(w)
        },
        |x, w| (x.sin() * 16.0).dot(w),
    ),
    (
        "batch inside",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                vmap(|x: Tensor| layer(x, w) + psum(x, "model") * pmean(x.sum(..), "data"))(x)
            };
            by_rows(f, x, w)
        },
        |x, w| {
            let blocks = x.reshape([2, 4, 2, 4]);
            let sums = blocks.sum(1).expand_dims(1);
            let means = blocks.sum(3).mean(0).expand_dims(0).expand_dims(3);
            (blocks.dot(w).tanh() + sums * means).reshape([16, 4])
        },
    ),
    (
        "batch around, of weights",
        |x, w| {
            let each = |w: Tensor| in_common(|x, w| psum(layer(x, w).sum(0), ALL), x, w.outer(w));
            vmap(each)(w)
        },
        |x, w| vmap(|w: Tensor| x.dot(w.outer(w)).tanh().sum(0))(w),
    ),
    (
        "gradient inside",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let loss = |(x, w): (Tensor, Tensor)| psum(layer(x, w).square().sum(..), ALL);
                let (gx, gw) = grad(loss)((x, w));
                gx.dot(gw)
            };
            by_rows(f, x, w)
        },
        |x, w| {
            let (gx, gw) = grad(|(x, w): (Tensor, Tensor)| layer(x, w).square().sum(..))((x, w));
            gx.dot(gw)
        },
    ),
    (
        "gradient of a gradient, around and inside",
        |x, w| {
            let loss = |(x, w): (Tensor, Tensor)| {
                let f = |x, w| {
                    let loss = |w: Tensor| layer(x, w).square().sum(..);
                    psum(grad(loss)(w).square().sum(..), ALL)
                };
                in_common(f, x, w)
            };
            grad(loss)((x, w)).1
        },
        |x, w| {
            // The gradient by the common `w` is summed already; each device adds the same square.
            let loss = |w: Tensor| {
                let inner = |w: Tensor| layer(x, w).square().sum(..);
                grad(inner)(w).square().sum(..) * 8.0
            };
            grad(loss)(w)
        },
    ),
    (
        "hessian around",
        |x, w| {
            let loss = |v: Tensor| {
                let f = |x: Tensor, v: Tensor| psum(x.dot(v).tanh().square().sum(..), ALL);
                in_common(f, x, v)
            };
            hessian(loss)(w.index(0, 1))
        },
        |x, w| hessian(|v: Tensor| x.dot(v).tanh().square().sum(..))(w.index(0, 1)),
    ),
    (
        "hessian inside",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let loss = |v: Tensor| x.dot(v).tanh().square().sum(..);
                let own = hessian(loss)(w.index(0, 1));
                psum(own, ALL) * 0.125
            };
            in_common(f, x, w)
        },
        |x, w| hessian(|v: Tensor| x.dot(v).tanh().square().sum(..))(w.index(0, 1)),
    ),
    (
        "jacobians",
        |x, w| {
            let f = |v: Tensor| {
                let f = |x: Tensor, v: Tensor| psum(x.dot(v).tanh().outer(v).sum(0), ALL);
                in_common(f, x, v)
            };
            jacfwd(f)(w.index(0, 2)) + jacrev(f)(w.index(0, 2)) * 2.0
        },
        |x, w| {
            let f = |v: Tensor| x.dot(v).tanh().outer(v).sum(0);
            jacrev(f)(w.index(0, 2)) * 3.0
        },
    ),
    (
        "regions one after the other",
        |x, w| {
            let y = by_rows(|x, w| layer(next(x), w), x, w);
            let z = in_common(|y, w| psum(y.sum(0), ALL).dot(w), y, w);
            by_rows(|y, z| y * z, y, z)
        },
        |x, w| {
            let y = layer(x.roll(2, 0), w);
            y * y.sum(0).dot(w)
        },
    ),
    (
        "regions in a loop, with a loop inside",
        |x, w| {
            let (y, _) = scan(x, w, |x: Tensor, v: Tensor| {
                let f = |x: Tensor, v: Tensor| {
                    fori_loop(0, 2, x, |_, x: Tensor| next(x).sin() * (v + 1.0))
                };
                (by_rows(f, x, v), ())
            });
            y
        },
        |x, w| {
            let mut x = x;
            for i in 0..4 {
                for _ in 0..2 {
                    x = x.roll(2, 0).sin() * (w.index(0, i) + 1.0);
                }
            }
            x
        },
    ),
    (
        "what is captured",
        |x, w| {
            let scale = w.sum(..);
            let table = Tensor::constant(&[1.0, 2.0, 3.0, 4.0], [4]);
            let f = |x: Tensor| layer(x, w) * scale * table;
            manual((), rows(), rows(), f)(x)
        },
        |x, w| layer(x, w) * w.sum(..) * Tensor::constant(&[1.0, 2.0, 3.0, 4.0], [4]),
    ),
    (
        "gathers and scatters in a loop",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                fori_loop(0, 2, x, |_, x: Tensor| {
                    let all = all_gather(x, ALL, 0);
                    reduce_scatter(layer(all, w), ALL, 0) * 0.125 + x.sin()
                })
            };
            by_rows(f, x, w)
        },
        |x, w| {
            let mut x = x;
            for _ in 0..2 {
                x = layer(x, w) + x.sin();
            }
            x
        },
    ),
    (
        "an exchange",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let columns = all_to_all(x, "model", 1, 0);
                let back = all_to_all(columns.tanh(), "model", 0, 1);
                back.dot(w)
            };
            by_rows(f, x, w)
        },
        layer_of_tanh,
    ),
    (
        "a permutation with holes",
        |x, w| {
            by_rows(
                |x, w| ppermute(layer(x, w), ALL, [(0, 3), (5, 0), (7, 7)]),
                x,
                w,
            )
        },
        |x, w| {
            let y = blocks(x).dot(w).tanh();
            let zero = y.index(0, 0) * 0.0;
            let of = |i: usize| y.index(0, i);
            let parts = [of(5), zero, zero, of(0), zero, zero, zero, of(7)];
            shardax::stack(parts, 0).reshape([16, 4])
        },
    ),
];

fn layer_of_tanh(x: Tensor, w: Tensor) -> Tensor {
    x.tanh().dot(w)
}

#[test]
fn over_all_axes() {
    check(CASES, &layouts("data=2,model=4"));
}

/// Loops whose number of turns depends on values; forward mode only.
#[test]
fn loops_with_a_condition() {
    let f = |x: Tensor, w: Tensor| {
        by_rows(
            |x, w| {
                let step = |(x, i): (Tensor, Tensor)| (layer(x, w) + psum(x, ALL) * 0.1, i + 1);
                let more =
                    |(x, i): (Tensor, Tensor)| psum(x.square().sum(..), ALL).gt(0.5) & i.lt(5);
                let start = (x, Tensor::scalar(0, DType::I32));
                while_loop(start, more, step).0
            },
            x,
            w,
        )
    };
    let reference = |x: Tensor, w: Tensor| {
        let step = |(x, i): (Tensor, Tensor)| (x.dot(w).tanh() + x.sum(0) * 0.1, i + 1);
        let more = |(x, i): (Tensor, Tensor)| x.square().sum(..).gt(0.5) & i.lt(5);
        let start = (blocks(x), Tensor::scalar(0, DType::I32));
        while_loop(start, more, step).0.reshape([16, 4])
    };
    let both = |f: fn(Tensor, Tensor) -> Tensor| {
        move |x: Tensor, w: Tensor| {
            jvp(
                |(x, w): (Tensor, Tensor)| f(x, w),
                (x, w),
                (x.cos(), w.sin()),
            )
        }
    };
    let args = || (crate::numbers([16, 4], 0.37), crate::numbers([4, 4], 0.73));
    let wanted = jit(both(reference)).call(args()).unwrap();
    for layout in layouts("data=2,model=4") {
        let found = jit(both(f)).layout(&layout).call(args()).unwrap();
        for (found, wanted) in [(found.0, &wanted.0), (found.1, &wanted.1)] {
            let [found, wanted] = [&found, wanted].map(|x| x.to_vec::<f64>().unwrap());
            for (f, w) in found.iter().zip(&wanted) {
                assert!((f - w).abs() < 1e-10, "{found:?}\n{wanted:?}");
            }
        }
    }
}

/// Rows over `data`; along `model` the compiler splits `x` and the product.
fn partly(f: impl Fn(Tensor, Tensor) -> Tensor, x: Tensor, w: Tensor) -> Tensor {
    let rows = PartitionSpec::new(("data",));
    let f = |(x, w): (Tensor, Tensor)| {
        let w = w.shard(&[Dim::Unsharded, Dim::Mesh(&["model"])]);
        f(x, w).shard(&[Dim::Open, Dim::Mesh(&["model"])])
    };
    manual("data", (rows.clone(), whole()), rows, f)((x, w))
}

const PARTLY: &[Case] = &[
    ("layer", |x, w| partly(layer, x, w), layer),
    (
        "scan",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let start = psum(x.sum(0), "data") * 0.1;
                let (_, states) = scan(start, x, |h: Tensor, x: Tensor| {
                    let h = (h.dot(w) + x).tanh() + pmean(x, "data");
                    (h, h)
                });
                states
            };
            partly(f, x, w)
        },
        |x, w| {
            let x = x.reshape([2, 8, 4]);
            let mut h = x.sum(0).sum(0).broadcast_to([2, 4]) * 0.1;
            let mut states = Vec::new();
            for i in 0..8 {
                let x = x.index(1, i);
                h = (h.dot(w) + x).tanh() + x.mean(0);
                states.push(h);
            }
            shardax::stack(states, 1).reshape([16, 4])
        },
    ),
    (
        "remat, a rule and a batch",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let inner = remat(|(x, w): (Tensor, Tensor)| ruled(layer(x, w)));
                vmap(|x: Tensor| psum(inner((x, w)), "data"))(x) * x
            };
            partly(f, x, w)
        },
        |x, w| {
            let y = x.reshape([2, 8, 4]).dot(w).tanh().sin().sum(0);
            (y * x.reshape([2, 8, 4])).reshape([16, 4])
        },
    ),
    (
        "gathered",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                reduce_scatter(layer(all_gather(x, "data", 0), w), "data", 0) * 0.5
            };
            partly(f, x, w)
        },
        layer,
    ),
    (
        "exchanged",
        |x, w| {
            let f = |x: Tensor, w: Tensor| {
                let there = all_to_all(x.reshape([2, 4, 4]), "data", 0, 0);
                let back = all_to_all(there.tanh(), "data", 0, 0);
                back.reshape([8, 4]).dot(w)
            };
            partly(f, x, w)
        },
        layer_of_tanh,
    ),
    (
        "nested",
        |x, w| {
            let rows = PartitionSpec::new(("model",));
            let f = |x: Tensor, w: Tensor| {
                let inner = |(x, w): (Tensor, Tensor)| layer(x, w) + psum(x.sum(0), ALL);
                manual("model", (rows.clone(), whole()), rows.clone(), inner)((x, w))
            };
            let rows = PartitionSpec::new(("data",));
            let f = |(x, w): (Tensor, Tensor)| f(x, w);
            manual("data", (rows.clone(), whole()), rows, f)((x, w))
        },
        |x, w| layer(x, w) + x.sum(0),
    ),
    (
        "nested, in a loop inside",
        |x, w| {
            let rows = PartitionSpec::new(("model",));
            let f = |(x, w): (Tensor, Tensor)| {
                fori_loop(0, 2, x, |_, x: Tensor| {
                    let inner = |(x, w): (Tensor, Tensor)| {
                        layer(x, w) + pmean(x.sum(0), "model") + psum(x.sum(0), "data") * 0.1
                    };
                    manual("model", (rows.clone(), whole()), rows.clone(), inner)((x, w))
                })
            };
            let rows = PartitionSpec::new(("data",));
            manual("data", (rows.clone(), whole()), rows, f)((x, w))
        },
        |x, w| {
            let mut x = x.reshape([2, 4, 2, 4]);
            for _ in 0..2 {
                let by_model = x.sum(2).mean(1).reshape([2, 1, 1, 4]);
                let by_data = x.sum(2).sum(0).reshape([1, 4, 1, 4]) * 0.1;
                x = x.dot(w).tanh() + by_model + by_data;
            }
            x.reshape([16, 4])
        },
    ),
];

#[test]
fn over_some_axes() {
    let mut layouts = layouts("data=2,model=4");
    layouts.truncate(1);
    check(PARTLY, &layouts);
}
