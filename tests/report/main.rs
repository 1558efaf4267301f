//! What a report says of programs that are meant as they are, and of programs that are not.

mod forms;
mod reasons;
mod warnings;

use shardax::Program;
use shardax::prelude::*;
use shardax::xla::report::Report;

const SPLIT: Dim = Dim::Mesh(&["data"]);
const WHOLE: Dim = Dim::Unsharded;

#[derive(Clone, Module)]
struct Block<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

#[derive(Clone, Module)]
struct Model<L = Tensor> {
    #[shard(vocab, embed)]
    embedding: L,
    blocks: Stack<Block<L>>,
}

const LAYERS: usize = 3;
const WIDTH: usize = 16;
const HIDDEN: usize = 32;
const VOCAB: usize = 64;

#[shard]
impl Model {
    #[shard(batch, embed)]
    fn forward(&self, #[shard(batch, embed)] x: Tensor) -> Tensor {
        self.blocks.clone().scan(x, |h: Tensor, block: Block| {
            #[shard(batch, mlp)]
            let hidden = h.dot(block.up).tanh();
            #[shard(batch, embed)]
            let out = h + hidden.dot(block.down); // Summed over model.
            out
        })
    }

    fn loss(&self, x: Tensor) -> Tensor {
        #[shard(batch, vocab)]
        let logits = self.forward(x).dot(self.embedding.transpose([1, 0]));
        logits.square().mean(..)
    }
}

fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn model() -> Model<TensorType> {
    Model {
        embedding: f32s([VOCAB, WIDTH]),
        blocks: Stack(Block {
            up: f32s([LAYERS, WIDTH, HIDDEN]),
            down: f32s([LAYERS, HIDDEN, WIDTH]),
        }),
    }
}

fn step(model: Model, x: Tensor) -> (Model, Tensor) {
    let (loss, gradient) = value_and_grad(|m: Model| m.loss(x))(model.clone());
    let update = |w: Tensor, g: Tensor| w - g * 0.1;
    let model = Model {
        embedding: update(model.embedding, gradient.embedding),
        blocks: Stack(Block {
            up: update(model.blocks.0.up, gradient.blocks.0.up),
            down: update(model.blocks.0.down, gradient.blocks.0.down),
        }),
    };
    (model, loss)
}

fn grid() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

fn data8() -> Mesh {
    Mesh::new([("data", 8)]).unwrap()
}

fn compiled(layout: Layout) -> Program {
    let step = jit(step).name("step").layout(&layout);
    step.compile((model(), f32s([64, WIDTH]))).unwrap()
}

fn report_of<S, F: shardax::Function<S>>(
    f: F,
    layout: &Layout,
    types: shardax::On<F::Args, TensorType>,
) -> Report {
    let program = jit(f).layout(layout).compile(types).unwrap();
    program.report().unwrap()
}

/// The line that ends with this comment.
fn line_of(program: &str, text: &str) -> u32 {
    let lines = program.lines();
    let mark = format!("// {text}");
    let found = lines.zip(1..).filter(|(line, _)| line.ends_with(&mark));
    let [(_, number)] = found.collect::<Vec<_>>()[..] else {
        panic!("{text} is not at the end of one line");
    };
    number
}
