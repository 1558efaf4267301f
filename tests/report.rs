//! What a report says of programs that are meant as they are, and of programs that are not.

use shardax::prelude::*;
use shardax::scan;
use shardax::xla::report::{
    Cause, Report, ReportOptions, TensorRole, Warning, WarningKind,
};
use shardax::{Error, Program};

use WarningKind::{
    FullRematerialization, ParameterGathered, ReductionPerMicroBatch, ReplicatedTensor,
    ReshardingInLoop,
};

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
            let out = h + hidden.dot(block.down);
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

fn kinds(report: &Report) -> Vec<WarningKind> {
    report.warnings.iter().map(|w| w.kind).collect()
}

#[test]
fn show() {
    println!("{}", compiled(Layout::megatron_fsdp(grid()).unwrap()).report().unwrap());
    // accumulation
    let accumulate = |model: Model, xs: Tensor| {
        let zero = Model { embedding: model.embedding * 0.0, blocks: Stack(Block { up: model.blocks.0.up * 0.0, down: model.blocks.0.down * 0.0 }) };
        let (sum, _) = scan(zero, xs, |sum: Model, x: Tensor| {
            let (loss, g) = value_and_grad(|m: Model| m.loss(x))(model.clone());
            let sum = Model { embedding: sum.embedding + g.embedding, blocks: Stack(Block { up: sum.blocks.0.up + g.blocks.0.up, down: sum.blocks.0.down + g.blocks.0.down }) };
            (sum, loss)
        });
        sum
    };
    let p = jit(accumulate).layout(&Layout::ddp(data8()).unwrap()).compile((model(), f32s([4, 64, WIDTH]))).unwrap();
    std::fs::write("/tmp/w/rep/acc.hlo", p.optimized_hlo().unwrap()).unwrap();
    println!("ACC {}", p.report().unwrap());
    let resharded = |x: Tensor| {
        let (h, _) = scan(x, Tensor::zeros(DType::F32, [5, 1]), |h: Tensor, _x: Tensor| {
            let a = h.shard(&[SPLIT, WHOLE]).tanh();
            let b = a.shard(&[WHOLE, SPLIT]).softmax(0);
            (b.shard(&[SPLIT, WHOLE]), Tensor::scalar(0.0, DType::F32))
        });
        h
    };
    let p = jit(resharded).layout(&Layout::new(data8())).compile(f32s([16, 32])).unwrap();
    println!("RESH {}", p.report().unwrap());
    for (i, (a, b)) in [
        (["data", ""], ["model", ""]), (["data", ""], ["", "model"]), (["data", "model"], ["model", "data"]), (["data", "model"], ["model", ""]),
    ].into_iter().enumerate() {
        let f = move |x: Tensor| {
            let d = |s: &'static str| match s { "" => WHOLE, "data" => Dim::Mesh(&["data"]), _ => Dim::Mesh(&["model"]) };
            let y = x.shard(&a.map(d)).sin();
            y.shard(&b.map(d)).cos()
        };
        for part in [Partitioner::Shardy, Partitioner::Gspmd] {
        let p = jit(f).layout(&Layout::new(grid()).partitioner(part)).compile(f32s([16, 32])).unwrap();
        std::fs::write(format!("/tmp/w/rep/remat{i}{part:?}.hlo"), p.optimized_hlo().unwrap()).unwrap();
        println!("REMAT {i} {part:?} {}", p.report().unwrap());
        }
    }
    let whole_stack = |m: Model, x: Tensor| {
        let all = m.blocks.0.up.sum(0);
        (m.loss(x), all)
    };
    let p = jit(whole_stack).layout(&Layout::fsdp(data8()).unwrap()).compile((model(), f32s([64, WIDTH]))).unwrap();
    println!("STACK {}", p.report().unwrap());
    let returned = |m: Model, x: Tensor| {
        let all = m.blocks.0.up.reshape([-1]);
        (m.loss(x), all)
    };
    let p = jit(returned).layout(&Layout::fsdp(data8()).unwrap()).compile((model(), f32s([64, WIDTH]))).unwrap();
    println!("STACK {}", p.report().unwrap());
}
