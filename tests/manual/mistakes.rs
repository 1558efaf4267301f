//! What is refused, and how it is said.

use shardax::prelude::*;
use shardax::{Function, On};

use crate::layout;

fn message<S, F: Function<S>>(f: F, args: On<F::Args, TensorType>) -> String {
    let layout = layout("data=2,model=4");
    let error = jit(f)
        .layout(&layout)
        .compile(args)
        .map(|_| ())
        .unwrap_err();
    // Without the place in this file, which the errors' own tests look at.
    let text = error.to_string();
    text.lines()
        .filter(|l| !l.contains("-->"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn matrix(shape: [usize; 2]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

#[test]
fn specs_that_do_not_fit() {
    let f = |x: Tensor, y: Tensor| {
        let bad = (
            PartitionSpec::new(("data", "data")),
            PartitionSpec::new(("dat", (), "model")),
        );
        manual(
            "data",
            bad,
            PartitionSpec::whole(),
            |(x, y): (Tensor, Tensor)| (x.sum(..), y),
        )((x, y))
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
