//! Local steps without a word to other replicas, and the outer step that they agree by.

use shardax::prelude::*;
use shardax::train::collectives::{
    Code, Quantization, quantized_all_reduce, ring_all_reduce, tree_all_reduce,
};
use shardax::train::{AdamW, DiLoCo, Moments, Outer, Replicas, on_each_replica};
use shardax::xla::report::CollectiveKind::{AllGather, AllReduce, CollectivePermute};
use shardax::xla::report::CollectiveReport;

use crate::{Random, layout, sent};

const ROWS: usize = 32;
const REPLICAS: usize = 2;

#[derive(Clone, Debug, Module)]
struct Mlp<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp)]
    bias: L,
    #[shard(mlp, _)]
    down: L,
}

/// 8 x 16, 16, and 16 x 2.
const PARAMETERS: usize = 128 + 16 + 32;

impl Mlp {
    #[shard(batch, _)]
    fn forward(&self, #[shard(batch, embed)] x: Tensor) -> Tensor {
        #[shard(batch, mlp)]
        let hidden = (x.dot(self.up) + self.bias).tanh();
        hidden.dot(self.down)
    }

    fn loss(&self, (x, y): (Tensor, Tensor)) -> Tensor {
        (self.forward(x) - y).square().mean(..)
    }
}

#[derive(Clone, Debug, Module)]
struct State<L = Tensor> {
    model: Mlp<L>,
    moments: Moments<Mlp<L>>,
    step: L,
}

fn adam() -> AdamW {
    AdamW {
        lr: 0.02,
        weight_decay: 0.0,
        ..AdamW::default()
    }
}

/// A step of one replica, written as for one device.
fn inner((state, batch): (State, (Tensor, Tensor))) -> (State, Tensor) {
    let (loss, g) = value_and_grad(|m: Mlp| m.loss(batch))(state.model.clone());
    let (model, moments) = adam().update(state.model, g, state.moments, state.step);
    (
        State {
            model,
            moments,
            step: state.step + 1,
        },
        loss,
    )
}

fn model() -> Mlp {
    let constant = |shape: [usize; 2], seed| {
        let values: Vec<f32> = Random(seed)
            .many(shape[0] * shape[1])
            .iter()
            .map(|x| x * 0.5)
            .collect();
        Tensor::constant(&values, shape)
    };
    Mlp {
        up: constant([8, 16], 1),
        bias: Tensor::zeros(DType::F32, [16]),
        down: constant([16, 2], 2),
    }
}

fn start(diloco: DiLoCo) -> (Outer<Mlp>, Replicas<State>) {
    let model = model();
    let state = State {
        moments: adam().init(&model),
        model: model.clone(),
        step: Tensor::scalar(0, DType::I32),
    };
    (diloco.init(model, REPLICAS), Replicas::of(&state, REPLICAS))
}

/// What a linear map followed by a sine makes of random points.
fn batch(step: u64) -> (Array, Array) {
    let mut random = Random(1000 + step);
    let x = random.many(ROWS * 8);
    let targets: Vec<f32> = x
        .chunks(8)
        .flat_map(|x| [(x[0] - x[1]).sin(), (x[2] * 1.5 + x[3]).sin()])
        .collect();
    (
        Array::from_slice(&x, [ROWS, 8]).unwrap(),
        Array::from_slice(&targets, [ROWS, 2]).unwrap(),
    )
}

fn local_step(state: Replicas<State>, batch: (Tensor, Tensor)) -> (Replicas<State>, Tensor) {
    let batch = Replicas::split(&batch, REPLICAS);
    let Replicas((state, loss)) = on_each_replica(inner)(Replicas((state.0, batch.0)));
    (Replicas(state), loss)
}

fn outer_step(
    diloco: DiLoCo,
    sum: impl Fn(Mlp) -> Mlp + Copy,
) -> impl Fn(Outer<Mlp>, Replicas<State>) -> (Outer<Mlp>, Replicas<State>) {
    move |outer, state| {
        let outer = diloco.update_by(outer, Replicas(state.0.model.clone()), |moved, _| {
            sum(moved)
        });
        let model = Replicas::of(&outer.parameters, REPLICAS).0;
        (outer, Replicas(State { model, ..state.0 }).placed())
    }
}

/// Two replicas of 2 x 2 devices, each in data and tensor parallel.
fn eight() -> Layout {
    layout("replica=2,data=2,model=2")
        .shard("replica", "replica")
        .shard("batch", "data")
        .shard("mlp", "model")
}

fn psummed(moved: Mlp) -> Mlp {
    psum(moved, "replica")
}

fn crosses(report: &CollectiveReport) -> Vec<String> {
    let over = report.collectives.iter().filter(|c| {
        c.axes
            .as_ref()
            .is_none_or(|axes| axes.iter().any(|axis| axis == "replica"))
    });
    over.map(|c| format!("{c:?}")).collect()
}

fn types_of((x, y): (Array, Array)) -> (TensorType, TensorType) {
    (x.ty().clone(), y.ty().clone())
}

/// The losses of rounds of 4 steps, and the parameters then.
fn train(
    layout: &Layout,
    diloco: DiLoCo,
    rounds: u64,
    steps: u64,
) -> (Vec<f32>, Vec<f32>, [CollectiveReport; 2]) {
    let (mut outer, mut state) = jit(move || start(diloco)).layout(layout).call(()).unwrap();
    let local = jit(local_step).layout(layout).donate(&[0]);
    let agree = jit(outer_step(diloco, psummed))
        .layout(layout)
        .donate(&[0, 1]);
    let reports = [
        local.compile((state.types(), types_of(batch(0)))),
        agree.compile((outer.types(), state.types())),
    ]
    .map(|program| program.unwrap().collectives().unwrap());
    let mut losses = Vec::new();
    for round in 0..rounds {
        for step in 0..steps {
            let loss;
            (state, loss) = local.call((state, batch(round * steps + step))).unwrap();
            let of_replicas: Vec<f32> = loss.to_vec().unwrap();
            losses.push(of_replicas.iter().sum::<f32>() / REPLICAS as f32);
        }
        (outer, state) = agree.call((outer, state)).unwrap();
    }
    let model = outer.parameters;
    let numbers = [&model.up, &model.bias, &model.down].map(|a| a.to_vec::<f32>().unwrap());
    (losses, numbers.concat(), reports)
}

#[track_caller]
fn close(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!(
            (f - w).abs() <= 2e-5 * w.abs().max(1.0),
            "element {i}: {f} instead of {w}"
        );
    }
}

/// Replicas on devices of their own, split in themselves, compute what they compute on one device, and
/// say nothing to each other until the outer step.
#[test]
fn replicas_are_silent_until_the_outer_step() {
    for delayed in [false, true] {
        let diloco = DiLoCo {
            delayed,
            ..DiLoCo::default()
        };
        let (losses, parameters, [local, agree]) = train(&eight(), diloco, 3, 3);
        let (wanted, of_one, _) = train(&Layout::single(), diloco, 3, 3);
        close(&losses, &wanted);
        close(&parameters, &of_one);

        assert_eq!(crosses(&local), Vec::<String>::new(), "{local}");
        // Inside of a replica, data and tensor parallel.
        assert!(sent(&local, AllReduce, &["data"]) > 0, "{local}");
        assert!(sent(&local, AllReduce, &["model"]) > 0, "{local}");
        // Half of the parameters is on each device of a replica's two along `model`.
        let moved = agree
            .of(AllReduce, &["replica"])
            .map(|c| c.payload_bytes * c.times);
        assert_eq!(moved.sum::<u64>(), (PARAMETERS / 2 * 4) as u64, "{agree}");
        let others = agree.collectives.iter().filter(|c| c.kind != AllReduce);
        assert_eq!(others.count(), 0, "{agree}");
    }
}

/// Any layout in a replica, and any sum between replicas: ZeRO-3 and tensor parallel within, and across a
/// ring, or eight bits.
#[test]
fn layouts_within_and_sums_across() {
    let layout = layout("replica=2,data=2,model=2")
        .shard("replica", "replica")
        .shard("batch", "data")
        .shard("mlp", "model")
        .shard_every_parameter("data");
    let diloco = DiLoCo::default();
    let run = |layout: &Layout, sum: fn(Mlp) -> Mlp| {
        let start = jit(move || start(diloco)).layout(layout);
        let local = jit(local_step).layout(layout);
        let agree = jit(outer_step(diloco, sum)).layout(layout);
        let (mut outer, mut state) = start.call(()).unwrap();
        let report = local.compile((state.types(), types_of(batch(0)))).unwrap();
        let report = report.collectives().unwrap();
        for step in 0..4 {
            (state, _) = local.call((state, batch(step))).unwrap();
            if step % 2 == 1 {
                (outer, state) = agree.call((outer, state)).unwrap();
            }
        }
        let leaves = outer.parameters.leaves();
        let numbers: Vec<f32> = leaves.iter().flat_map(|a| a.to_vec().unwrap()).collect();
        (numbers, report)
    };
    let (wanted, _) = run(&Layout::single(), psummed);
    let (found, report) = run(&layout, psummed);
    close(&found, &wanted);
    assert_eq!(crosses(&report), Vec::<String>::new(), "{report}");
    assert!(sent(&report, AllGather, &["data"]) > 0, "{report}");
    close(&run(&layout, |m| ring_all_reduce(m, "replica")).0, &wanted);
    close(&run(&layout, |m| tree_all_reduce(m, "replica")).0, &wanted);
    let coarse = run(&layout, |m| {
        quantized_all_reduce(m, "replica", Quantization::new(Code::Float8E4M3))
    });
    for (f, w) in coarse.0.iter().zip(&wanted) {
        assert!((f - w).abs() < 0.02, "{f} {w}");
    }
}

/// One step, the mean of parameters: without momentum, at rate 1, with plain inner descent, that is data
/// parallelism.
#[test]
fn rate_one_is_the_mean() {
    let diloco = DiLoCo {
        lr: 1.0,
        momentum: 0.0,
        nesterov: false,
        delayed: false,
    };
    let layout = layout("replica=2").shard("replica", "replica");
    let f = move |x: Tensor, y: Tensor| {
        let descent = |(m, batch): (Mlp, (Tensor, Tensor))| {
            let mut slopes = grad(|m: Mlp| m.loss(batch))(m.clone()).leaves().into_iter();
            m.replace_leaves(&mut |_, p| slopes.next().map_or(*p, |g| *p - g * 0.1))
        };
        let own = Replicas((
            Replicas::of(&model(), REPLICAS).0,
            Replicas::split(&(x, y), REPLICAS).0,
        ));
        let outer = diloco.init(model(), REPLICAS);
        let agreed = diloco
            .update(outer, on_each_replica(descent)(own))
            .parameters;
        (agreed, descent((model(), (x, y))))
    };
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = layout.clone().partitioner(partitioner);
        let (found, wanted) = jit(f).layout(&layout).call(batch(0)).unwrap();
        for (f, w) in found.leaves().iter().zip(wanted.leaves()) {
            close(&f.to_vec::<f32>().unwrap(), &w.to_vec::<f32>().unwrap());
        }
    }
}

/// The sum of the outer step can be any: in a ring, or in eight bits.
#[test]
fn sums_of_ones_own() {
    let layout = layout("replica=2").shard("replica", "replica");
    let diloco = DiLoCo::default();
    let run = |sum: fn(Mlp) -> Mlp| {
        let (outer, state) = jit(move || start(diloco)).layout(&layout).call(()).unwrap();
        let (state, _) = jit(local_step)
            .layout(&layout)
            .call((state, batch(0)))
            .unwrap();
        let agree = jit(outer_step(diloco, sum)).layout(&layout);
        let types = (outer.types(), state.types());
        let report = agree.compile(types).unwrap().collectives().unwrap();
        let outer = agree.call((outer, state)).unwrap().0.parameters;
        let all: Vec<f32> = outer
            .leaves()
            .iter()
            .flat_map(|a| a.to_vec::<f32>().unwrap())
            .collect();
        (all, report)
    };
    let (exact, _) = run(psummed);
    let (ring, report) = run(|moved| ring_all_reduce(moved, "replica"));
    close(&ring, &exact);
    assert_eq!(
        sent(&report, CollectivePermute, &["replica"]),
        4 * PARAMETERS as u64,
        "{report}"
    );
    let (coarse, report) = run(|moved| {
        quantized_all_reduce(
            moved,
            "replica",
            Quantization {
                code: Code::Int8,
                block: 16,
            },
        )
    });
    let apart = exact
        .iter()
        .zip(&coarse)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart > 0.0 && apart < 2e-3, "{apart}");
    // A half for the other, and its sum for me, in whole blocks of 16 with a scale each.
    let row = (PARAMETERS / 2).next_multiple_of(16);
    let bytes: u64 = report.totals().iter().map(|t| t.bytes_sent).sum();
    assert_eq!(bytes, 2 * (row + row / 16 * 4) as u64, "{report}");
}

/// On a problem that is easy to learn, with a fifth of the communication, nearly as well as with
/// agreement in every step; with updates that are a round late, in more rounds.
#[test]
fn training_converges() {
    let replicas = layout("replica=2").shard("replica", "replica");
    let every_step = {
        let mean = DiLoCo {
            lr: 1.0,
            momentum: 0.0,
            nesterov: false,
            delayed: false,
        };
        train(&replicas, mean, 100, 1).0
    };
    let last = |losses: &[f32]| losses[losses.len() - 10..].iter().sum::<f32>() / 10.0;
    assert!(last(&every_step) < 0.1 * every_step[0], "{every_step:?}");
    for delayed in [false, true] {
        let (lr, momentum, rounds, slack) = match delayed {
            false => (0.7, 0.5, 20, 2.0),
            true => (0.5, 0.3, 40, 3.0),
        };
        let diloco = DiLoCo {
            lr,
            momentum,
            delayed,
            ..DiLoCo::default()
        };
        let losses = train(&replicas, diloco, rounds, 5).0;
        assert!(
            last(&losses) < slack * last(&every_step),
            "{delayed}: {losses:?}\n{every_step:?}"
        );
    }
}

/// More replicas than devices along the axis: several on each.
#[test]
fn several_replicas_on_a_device() {
    let f = |x: Tensor| {
        let own = on_each_replica(|(x, i): (Tensor, Tensor)| (x * i).cumsum(0));
        let i = Tensor::arange(DType::F32, 4);
        let moved = own(Replicas((Replicas::split(&x, 4).0, i)));
        let outer = DiLoCo::default().init(Tensor::zeros(DType::F32, [3]), 4);
        (
            moved.0,
            DiLoCo::default()
                .update(outer, Replicas(moved.0))
                .parameters,
        )
    };
    let x = Array::from_slice(&Random(9).many(12), [12]).unwrap();
    let (wanted, of_one) = jit(f).call(x.clone()).unwrap();
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = layout("replica=2")
            .shard("replica", "replica")
            .partitioner(partitioner);
        let (found, outer) = jit(f).layout(&layout).call(x.clone()).unwrap();
        close(
            &found.to_vec::<f32>().unwrap(),
            &wanted.to_vec::<f32>().unwrap(),
        );
        close(
            &outer.to_vec::<f32>().unwrap(),
            &of_one.to_vec::<f32>().unwrap(),
        );
    }
}

#[test]
fn what_is_refused() {
    let message = |f: fn(Tensor) -> Tensor, layout: &Layout| {
        let types = TensorType::new(DType::F32, [6, 4]);
        jit(f)
            .layout(layout)
            .compile(types)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let four = layout("replica=4").shard("replica", "replica");
    let text = message(|x| on_each_replica(|x: Tensor| x)(Replicas(x)).0, &four);
    assert!(
        text.contains("dimension 0 (`replica`) of size 6 is not divisible by"),
        "{text}"
    );
    let text = message(|x| Replicas::split(&x, 4).0, &four);
    assert!(
        text.contains("no equal part for each of 4 replicas: f32[6,4]"),
        "{text}"
    );
    let pair =
        |x: Tensor| on_each_replica(|(a, _): (Tensor, Tensor)| a)(Replicas((x, x.slice(0, ..3)))).0;
    let text = message(pair, &four);
    assert!(
        text.contains(
            "one number of replicas in their first dimension: `0` f32[6,4], `1` f32[3,4]"
        ),
        "{text}"
    );
    let late = |x: Tensor| {
        let outer = DiLoCo::default().init(x, 2);
        let delayed = DiLoCo {
            delayed: true,
            ..DiLoCo::default()
        };
        delayed.update(outer, Replicas::of(&x, 2)).parameters
    };
    let text = message(late, &four);
    assert!(text.contains("one is `delayed`, and one is not"), "{text}");
    let partly = eight().partitioner(Partitioner::Gspmd);
    let text = message(|x| on_each_replica(|x: Tensor| x)(Replicas(x)).0, &partly);
    assert!(text.contains("use the partitioner `shardy`"), "{text}");
}
