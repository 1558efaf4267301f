//! What a compiled program says of itself though nothing is wrong.

use shardax::prelude::*;
use shardax::{Policy, remat_with};

#[derive(Clone, Module)]
struct Linear<L = Tensor> {
    #[shard(embed, mlp)]
    weight: L,
}

fn types(weight: [usize; 2], x: [usize; 2]) -> (Linear<TensorType>, TensorType) {
    let ty = |shape| TensorType::new(DType::F32, shape);
    (Linear { weight: ty(weight) }, ty(x))
}

fn forward(model: Linear, x: Tensor) -> Tensor {
    x.dot(model.weight).sum(..)
}

fn mesh() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

#[test]
fn a_batch_without_annotation_is_remarked() {
    let program = jit(forward).layout(&Layout::megatron(mesh()).unwrap());
    let program = program.compile(types([16, 32], [8, 16])).unwrap();
    assert_eq!(
        program.remarks(),
        [
            "argument `1` f32[8,16] is whole on each of 8 devices, for it has no annotation: if it is \
             to be split, name its dimensions with `#[shard(...)]`"
        ]
    );
    let annotated = |model: Linear, x: Tensor| {
        forward(model, x.shard(&[Dim::Logical("batch"), Dim::Unsharded]))
    };
    let program = jit(annotated).layout(&Layout::megatron(mesh()).unwrap());
    let program = program.compile(types([16, 32], [8, 16])).unwrap();
    assert_eq!(program.remarks(), Vec::<String>::new());
}

#[test]
fn a_misspelled_annotation_is_remarked() {
    let misspelled = |x: Tensor| {
        let up = x.shard(&[Dim::Logical("batch"), Dim::Logical("embed")]) * 2.0;
        up.shard(&[Dim::Logical("batch"), Dim::Logical("embd")])
            .shard(&[Dim::Logical("batch"), Dim::Logical("embed2")])
    };
    let layout = Layout::new(mesh())
        .shard("batch", "data")
        .shard("embed", "model");
    let program = jit(misspelled).layout(&layout);
    let remarks = program
        .compile(TensorType::new(DType::F32, [8, 16]))
        .unwrap()
        .remarks();
    let told = "an annotation has `embd`, for which the layout has no rule, and others have `embed`, for which it has one: are \
                they meant to be the same?";
    assert_eq!(remarks, [told]);
}

#[test]
fn a_rule_for_a_misspelled_name_is_remarked() {
    let layout = Layout::new(mesh())
        .shard("mpl", "model")
        .shard("batch", "data");
    let program = jit(forward).layout(&layout);
    let program = program.compile(types([16, 32], [1, 16])).unwrap();
    assert_eq!(
        program.remarks(),
        [
            "nothing of the program is split: each of 8 devices computes all of it, as the layout has no rule for any \
             dimension that it names",
            "no dimension is called `mpl`, for which the layout has a rule, and it has none for `mlp`: \
             are they meant to be the same?"
        ]
    );
}

#[test]
fn what_a_layout_chose_by_itself_is_remarked() {
    let layout = Layout::fsdp(Mesh::new([("data", 8)]).unwrap()).unwrap();
    let program = jit(forward).layout(&layout);
    let program = program.compile(types([12, 32], [1, 12])).unwrap();
    let remarks = program.remarks();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    for part in ["`0.weight` f32[12,32]", "embed", "12", "data"] {
        assert!(remarks[0].contains(part), "{part} is not in {}", remarks[0]);
    }
    let one = jit(forward).compile(types([12, 32], [1, 12])).unwrap();
    assert_eq!(one.remarks(), Vec::<String>::new());
}

#[test]
fn a_policy_that_names_nothing_is_remarked() {
    let line = line!() + 6;
    let loss = |w: Tensor| {
        let block = |w: Tensor| {
            let looped = scan(w, w, |h: Tensor, w: Tensor| ((h * w).named("step"), ())).0;
            looped.sin().named("product").exp().sum(..)
        };
        remat_with(Policy::names(["prodct", "product", "step"]), block)(w)
    };
    let ty = TensorType::new(DType::F32, [4, 4]);
    let place = format!("{}:{line}:9", file!());
    for program in [jit(grad(loss)).compile(ty.clone()), jit(loss).compile(ty)] {
        let of = "the policy of a `remat` keeps";
        let lacks = "and no operation of its function has that name";
        assert_eq!(
            program.unwrap().remarks(),
            [
                format!("{of} `prodct`, {lacks}: did you mean `product`? --> {place}"),
                format!(
                    "{of} `step`, {lacks}: one in a loop or a branch of the function has: rematerialize the body of \
                     that --> {place}"
                ),
            ]
        );
    }
}

#[test]
fn a_large_constant_is_remarked() {
    let values: Vec<u8> = (0..8 << 20).map(|i| (i % 251) as u8).collect();
    let line = line!() + 1;
    let f = |i: Tensor| Tensor::constant(&values, [8 << 20]).take(i, 0);
    let program = jit(f).compile(TensorType::scalar(DType::I32)).unwrap();
    let memory = program.memory().unwrap();
    assert_eq!(memory.constants, 8 << 20);
    assert!(
        memory.to_string().contains("\n  constants      8.0 MiB"),
        "{memory}"
    );
    assert_eq!(
        program.remarks(),
        [format!(
            "a constant u8[8388608] of 8.0 MiB is compiled into the program, whole on every device: pass it as an argument \
             --> tests/remarks.rs:{line}:25"
        )]
    );
}
