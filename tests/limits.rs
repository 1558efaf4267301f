//! Programs at the limits of what can be expressed: sizes that no machine has, and donation of arguments
//! of every form.

#[path = "common/messages.rs"]
mod messages;

use shardax::prelude::*;
use shardax::xla;

use messages::{message, ones, place};

#[test]
fn sizes_beyond_every_machine() {
    let text = |op: &str, ty: &str, place: String| {
        format!(
            "`{op}`: {ty} has more than 288230376151711744 bytes, and no machine holds that\
             \n  --> {place}\n  help: check the sizes that it is made from"
        )
    };
    let line = line!() + 1;
    let zeros = jit(|| Tensor::zeros(DType::F32, [1 << 40, 1 << 30]).sum(..)).call(());
    assert_eq!(
        message(zeros),
        text(
            "zeros",
            "f32[1099511627776,1073741824]",
            place(line, "Tensor::zeros")
        )
    );
    let line = line!() + 1;
    let outer =
        jit(|x: Tensor| x.expand_dims(1) * x).compile(TensorType::new(DType::F32, [1 << 33]));
    let ty = "f32[8589934592,8589934592]";
    assert_eq!(
        message(outer),
        text("mul", ty, place(line, "x.expand_dims(1) * x"))
    );
    let line = line!() + 1;
    let argument = jit(|x: Tensor| x + 1.0).compile(TensorType::new(DType::F32, [usize::MAX, 2]));
    let ty = "f32[18446744073709551615,2]";
    assert_eq!(
        message(argument),
        text("argument", ty, place(line, "compile("))
    );
    // What is below, and more than this machine has, is found when it runs.
    let large = jit(|x: Tensor| x.broadcast_to([1 << 20, 1 << 20, 1 << 10]) + 1.0);
    let text = message(large.call(ones(&[])).and_then(|y| y.wait()));
    assert!(text.contains("RESOURCE_EXHAUSTED: Out of memory"), "{text}");
}

#[test]
fn arguments_are_donated_whole() -> xla::Result<()> {
    // One argument that is a tuple; one of several that is.
    let swap = jit(|pair: (Tensor, Tensor)| (pair.1 * 2.0, pair.0 * 2.0)).donate(&[0]);
    let pair = swap.call((ones(&[3]), ones(&[3])))?;
    let kept = pair.clone();
    let last = swap.call(pair)?;
    assert!(kept.0.buffers()[0].is_deleted() && kept.1.buffers()[0].is_deleted());
    let add = jit(|x: Tensor, pair: (Tensor, Tensor)| (pair.0 + x, pair.1 - x)).donate(&[1]);
    let x = jit(|| Tensor::ones(DType::F32, [3])).call(())?;
    let kept = last.clone();
    let (sum, difference) = add.call((x.clone(), last))?;
    assert!(kept.0.buffers()[0].is_deleted() && kept.1.buffers()[0].is_deleted());
    assert!(!x.buffers()[0].is_deleted());
    assert_eq!(
        (sum.to_vec::<f32>()?, difference.to_vec::<f32>()?),
        (vec![5.0; 3], vec![3.0; 3])
    );
    Ok(())
}

#[test]
fn an_argument_that_is_not_there_is_donated() {
    let add = jit(|x: Tensor, y: Tensor| x + y)
        .name("add")
        .donate(&[0, 2, 7]);
    assert_eq!(
        message(add.call((ones(&[3]), ones(&[3])))),
        "cannot call `add`:\
         \n  argument 2 is to be donated, and the function takes 2; they are counted from 0\
         \n  argument 7 is to be donated, and the function takes 2; they are counted from 0"
    );
}
