//! What expanded code does when it is traced.

use shardax_core::{
    DType, Dim, Leaf, Path, Stack, Tensor, TensorType, Traced, Tree, ir::Op, trace,
};
use shardax_macros::{Module, shard};

#[derive(Module, Clone, Copy)]
struct Mlp<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
    scale: f32,
}

#[derive(Module)]
struct Model<L = Tensor> {
    blocks: Vec<Mlp<L>>,
    stack: Stack<Mlp<L>>,
    #[shard("data", _)]
    table: Option<L>,
    pair: (L, [L; 1]),
}

#[derive(Module)]
struct Moments<M> {
    first: M,
    count: usize,
}

#[derive(Module)]
struct State<M, L = Tensor>(M, #[shard()] L);

#[shard]
impl Mlp {
    #[shard(batch, embed)]
    fn forward(&self, #[shard(batch, embed)] x: Tensor) -> Tensor {
        #[shard(batch, mlp)]
        let hidden = x.dot(self.up) * self.scale;
        if self.scale == 0.0 {
            return x;
        }
        hidden.dot(self.down)
    }
}

fn ty(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn mlp(scale: f32) -> Mlp<TensorType> {
    Mlp {
        up: ty(&[4, 16]),
        down: ty(&[16, 4]),
        scale,
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Label(String);
impl Leaf for Label {}

/// Each leaf's path and annotation.
fn labels(tree: &impl Tree<TensorType>) -> Vec<String> {
    let mut labels = Vec::new();
    tree.visit_leaves(&mut Path::root(), &mut |path, _| labels.push(label(path)));
    labels
}

fn label(path: &Path) -> String {
    let dims = path
        .dims()
        .map(|dims| dims.iter().map(Dim::to_string).collect::<Vec<_>>());
    format!(
        "{path} {}",
        dims.map_or("?".to_owned(), |dims| dims.join(","))
    )
}

#[test]
fn leaves_know_their_path_and_annotation() {
    let model = Model {
        blocks: vec![mlp(1.0)],
        stack: Stack(mlp(1.0)),
        table: Some(ty(&[2])),
        pair: (ty(&[]), [ty(&[])]),
    };
    assert_eq!(
        labels(&model),
        [
            "blocks.0.up embed,mlp",
            "blocks.0.down mlp,embed",
            "stack.up layers,embed,mlp",
            "stack.down layers,mlp,embed",
            "table \"data\",_",
            "pair.0 ?",
            "pair.1.0 ?",
        ]
    );
}

#[test]
fn mapping_keeps_structure_and_configuration() {
    let state = State(
        Moments {
            first: mlp(0.5),
            count: 3,
        },
        ty(&[]),
    );
    let to_label = &mut |path: &mut Path, _: &TensorType| Label(label(path));
    let mapped = state.map_leaves(&mut Path::root(), to_label);
    assert_eq!(
        mapped.0.first.down,
        Label("0.first.down mlp,embed".to_owned())
    );
    assert_eq!(mapped.1, Label("1 ".to_owned()));
    assert_eq!((mapped.0.first.scale, mapped.0.count), (0.5, 3));
}

/// The constraints of activations in a program, each with the line that it comes from.
fn constraints<A>(traced: &Traced<A, Tensor>) -> Vec<(String, u32)> {
    let equations = traced.graph.equations().iter();
    let constraints = equations.filter_map(|equation| match &equation.op {
        Op::Shard(constraint) => {
            let dims: Vec<_> = constraint.dims.iter().map(Dim::to_string).collect();
            Some((dims.join(","), equation.source.line()))
        }
        _ => None,
    });
    constraints.collect()
}

#[test]
fn constraints_come_from_the_line_of_their_annotation() {
    let forward = |scale| {
        trace(
            |mlp: Mlp, x: Tensor| mlp.forward(x),
            (mlp(scale), ty(&[8, 4])),
        )
        .unwrap()
    };
    let argument = ("batch,embed".to_owned(), 38);
    let local = ("batch,mlp".to_owned(), 39);
    let result = ("batch,embed".to_owned(), 37);
    assert_eq!(
        constraints(&forward(1.0)),
        [argument.clone(), local, result.clone()]
    );
    // Returned early: the value is constrained too. What is not used is not in the program.
    assert_eq!(constraints(&forward(0.0)), [argument, result]);
}

#[test]
fn a_wrong_number_of_dimensions_is_reported_at_the_annotation() {
    let traced = trace(
        |mlp: Mlp, x: Tensor| mlp.forward(x),
        (mlp(1.0), ty(&[2, 8, 4])),
    );
    let message = traced.map(drop).unwrap_err().to_string();
    assert!(message.contains("macros/tests/traced.rs:38"), "{message}");
}
