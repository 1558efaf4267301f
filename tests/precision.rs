//! Mixed precision: parameters at rest in f32, used in bf16.

use shardax::prelude::*;

#[derive(Clone, Module)]
struct Linear<L = Tensor> {
    #[shard(embed, mlp)]
    weight: L,
}

fn gradient(model: Linear, x: Tensor) -> Linear {
    let x = x.shard(&[Dim::Logical("batch"), Dim::Logical("embed")]);
    let loss = |model: Linear| {
        let weight = model.weight.cast(DType::BF16);
        x.cast(DType::BF16)
            .dot(weight)
            .cast(DType::F32)
            .square()
            .mean(..)
    };
    grad(loss)(model)
}

#[test]
fn a_parameter_is_narrowed_before_it_is_gathered() {
    let ty = |shape| TensorType::new(DType::F32, shape);
    let layout = Layout::fsdp(Mesh::new([("data", 8)]).unwrap()).unwrap();
    let step = jit(gradient).layout(&layout);
    let types = (
        Linear {
            weight: ty([16, 32]),
        },
        ty([8, 16]),
    );
    let graph = step.compile(types).unwrap().graph().to_string();
    let gathered = "(embed, mlp) at use : bf16[16,32]";
    assert!(graph.contains(gathered), "{graph}");
    assert!(!graph.contains("(embed, mlp) at use : f32"), "{graph}");
    // The gradient comes to rest as the parameter does.
    let weight: Vec<f32> = (0..16 * 32).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
    let x: Vec<f32> = (0..8 * 16).map(|i| (i % 7) as f32 / 7.0 - 0.5).collect();
    let arguments = || {
        let weight = Array::from_slice(&weight, [16, 32]).unwrap();
        (Linear { weight }, Array::from_slice(&x, [8, 16]).unwrap())
    };
    let split = step.call(arguments()).unwrap().weight;
    assert_eq!(split.dtype(), DType::F32);
    let whole = jit(gradient)
        .call(arguments())
        .unwrap()
        .weight
        .to_vec::<f32>()
        .unwrap();
    for (a, b) in split.to_vec::<f32>().unwrap().iter().zip(&whole) {
        assert!((a - b).abs() <= 0.02 * b.abs().max(0.01), "{a} and {b}");
    }
}
