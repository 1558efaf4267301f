//! What is refused, and how it is said.

use shardax::prelude::*;
use shardax::{Function, On};

use crate::layout;

/// The error of tracing under `data=2, model=4`, without the place in this file, which the errors' own
/// tests look at.
fn message<S, F: Function<S>>(f: F, args: On<F::Args, TensorType>) -> String {
    let layout = layout("data=2,model=4");
    let compiled = jit(f).layout(&layout).compile(args);
    let text = compiled.map(|_| ()).unwrap_err().to_string();
    let lines = text.lines().filter(|line| !line.contains("-->"));
    lines.collect::<Vec<_>>().join("\n")
}

fn matrix(shape: [usize; 2]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn rows() -> PartitionSpec {
    PartitionSpec::new(("data",))
}

fn whole() -> PartitionSpec {
    PartitionSpec::whole()
}

#[test]
fn specs_that_do_not_fit() {
    let f = |x: Tensor, y: Tensor| {
        let bad = (
            PartitionSpec::new(("data", "data")),
            PartitionSpec::new(("dat", (), "model")),
        );
        let region = |(x, y): (Tensor, Tensor)| (x.sum(..), y);
        manual("data", bad, whole(), region)((x, y))
    };
    let message = message(f, (matrix([3, 4]), matrix([3, 4])));
    for part in [
        "names `data` twice",
        "cuts dimension 0 of size 3 into 2 blocks",
        "has 3 entries for 2 dimensions",
        "names `dat`, which is not an axis of the region: those are data",
    ] {
        assert!(message.contains(part), "{part}\n{message}");
    }
}

#[test]
fn axes_that_are_not_there_or_manual_already() {
    let unknown = |x: Tensor| manual("dat", whole(), whole(), |x: Tensor| x)(x);
    assert_eq!(
        message(unknown, matrix([4, 4])),
        "`manual`: the mesh has no axis `dat`: did you mean `data`? there are data, model"
    );
    let nested = |x: Tensor| {
        let inner = |x: Tensor| manual("data", rows(), rows(), |x: Tensor| x)(x);
        manual("data", rows(), rows(), inner)(x)
    };
    assert_eq!(
        message(nested, matrix([4, 4])),
        "`manual`: axis `data` is manual already, in a region around this one: leave it out here"
    );
    let outside = |x: Tensor| psum(x, "data");
    assert_eq!(
        message(outside, matrix([4, 4])),
        "`psum`: axis `data` is not manual here\n  help: call it inside of a function that is given to \
         `manual` with this axis"
    );
    let other = |x: Tensor| manual("data", rows(), rows(), |x: Tensor| psum(x, "dta"))(x);
    assert_eq!(
        message(other, matrix([4, 4])),
        "`psum`: axis `dta` is not manual here: did you mean `data`?\n  help: the regions around this \
         call have data"
    );
}

#[test]
fn a_result_that_differs_where_its_spec_says_that_it_does_not() {
    let f = |x: Tensor| {
        let region = |x: Tensor| (x.sum(..), psum(x.sum(..), "data"), x);
        manual("data", rows(), (whole(), whole(), rows()), region)(x)
    };
    let message = message(f, matrix([4, 4]));
    assert!(
        message.contains(
            "result `0` f32[]{data} differs between devices along `data`, and its spec P() says that it \
             does not: sum it (`psum`)"
        ),
        "{message}"
    );
    assert!(!message.contains("result `1`"), "{message}");
}

#[test]
fn devices_that_would_wait_for_ever() {
    let choice = |x: Tensor| {
        let region = |x: Tensor| {
            let own = axis_index("data").eq(0);
            cond(own, x, |x| psum(x, "data"), |x| x * 1.0)
        };
        manual("data", rows(), rows(), region)(x)
    };
    let message_of_choice = message(choice, matrix([4, 4]));
    assert!(
        message_of_choice
            .contains("which branch is taken differs between devices along `data`, and `psum`"),
        "{message_of_choice}"
    );
    let looped = |x: Tensor| {
        let region = |x: Tensor| {
            while_loop(
                x,
                |x: Tensor| x.sum(..).lt(10.0),
                |x: Tensor| x + psum(x, "data"),
            )
        };
        manual("data", rows(), rows(), region)(x)
    };
    let message_of_loop = message(looped, matrix([4, 4]));
    assert!(
        message_of_loop.contains("its condition differs between devices along `data`, and `psum`"),
        "{message_of_loop}"
    );
}

#[test]
fn arguments_of_collectives() {
    let within = |f: fn(Tensor) -> Tensor| move |x: Tensor| manual("data", rows(), rows(), f)(x);
    let twice = within(|x| ppermute(x, "data", [(0, 1), (1, 1), (0, 5)]));
    let text = message(twice, matrix([4, 4]));
    for part in [
        "device 1 is sent to twice",
        "(0, 5) names a device beyond the last, 1 of 2",
        "device 0 sends twice",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let uneven = within(|x| reduce_scatter(x.slice(0, ..1), "data", 0));
    let text = message(uneven, matrix([4, 4]));
    assert!(text.contains("cannot be cut into 2 equal parts"), "{text}");
    let nowhere = within(|x| all_gather(x, "data", 2));
    let text = message(nowhere, matrix([4, 4]));
    assert!(text.contains("has no dimension 2"), "{text}");
    let booleans = within(|x| psum(x.gt(0.0), "data").cast(DType::F32));
    let text = message(booleans, matrix([4, 4]));
    assert!(text.contains("booleans have no sum"), "{text}");
    let integers = within(|x| pmean(x.cast(DType::I32), "data").cast(DType::F32));
    let text = message(integers, matrix([4, 4]));
    assert!(
        text.contains("the mean of integers is not an integer"),
        "{text}"
    );
}

#[test]
fn effects_inside() {
    let f = |x: Tensor| {
        let region = |x: Tensor| {
            x.sum(..).print("sum");
            x
        };
        manual("data", rows(), rows(), region)(x)
    };
    let text = message(f, matrix([4, 4]));
    assert!(text.contains("print it outside"), "{text}");
}
