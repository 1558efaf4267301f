//! The runtime: many launches in flight, many threads, donation, when a function is traced again, and
//! unusual arguments.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Program, Runtime};

fn ones(shape: &[usize]) -> Array {
    Array::from_slice(&vec![1f32; shape.iter().product()], shape).unwrap()
}

fn data8() -> Layout {
    Layout::new(Mesh::new([("data", 8)]).unwrap()).shard("batch", "data")
}

// ---- Launches ----

#[derive(Clone, Debug, Module)]
struct State<L = Tensor> {
    #[shard(_, _)]
    w: L,
    #[shard(_, _)]
    momentum: L,
    step: L,
}

/// A step of gradient descent, with an all-reduce of the gradient and one of the loss.
#[shard]
fn train(state: State, #[shard(batch, _)] x: Tensor) -> (State, Tensor) {
    let loss = |w: Tensor| (x.dot(w) - x).square().mean(..);
    let (loss, gradient) = value_and_grad(loss)(state.w);
    let momentum = state.momentum * 0.9 + gradient;
    (
        State {
            w: state.w - momentum * 0.1,
            momentum,
            step: state.step + 1,
        },
        loss,
    )
}

fn fresh_state() -> State<Array> {
    let zeros = Array::from_slice(&[0f32; 64], [8, 8]).unwrap();
    State {
        w: zeros.clone(),
        momentum: zeros,
        step: Array::scalar(0i32),
    }
}

fn batch() -> Array {
    let values: Vec<f32> = (0..16 * 8)
        .map(|i| ((i * 37) % 19) as f32 / 10.0 - 0.9)
        .collect();
    Array::from_slice(&values, [16, 8]).unwrap()
}

#[test]
fn thousands_of_launches_that_nobody_awaits() -> Result<()> {
    let step = jit(train).layout(&data8()).donate(&[0]);
    let x = batch();
    let (mut state, first) = step.call((fresh_state(), x.clone()))?;
    let mut loss = first.clone();
    for _ in 1..5000 {
        (state, loss) = step.call((state, x.clone()))?;
    }
    assert_eq!(state.step.item::<i32>()?, 5000);
    let (first, last) = (first.item::<f32>()?, loss.item::<f32>()?);
    assert!(last < first / 100.0, "{first} {last}");
    Ok(())
}

#[test]
fn a_call_returns_before_the_result_is_there() -> Result<()> {
    let slow = jit(|x: Tensor| {
        let (x, ()) = scan(
            x,
            Tensor::arange(DType::F32, 300),
            |x: Tensor, _: Tensor| (x.dot(x).tanh(), ()),
        );
        x
    });
    let x = slow.call(ones(&[256, 256]))?;
    x.wait()?;
    let start = Instant::now();
    let y = slow.call(x)?;
    let (launched, was_ready) = (start.elapsed(), y.buffers()[0].ready_event()?.is_ready()?);
    y.wait()?;
    let finished = start.elapsed();
    assert!(
        !was_ready && launched < finished / 2,
        "launched after {launched:?} of {finished:?}"
    );
    Ok(())
}

#[test]
fn arrays_and_functions_are_dropped_in_flight() -> Result<()> {
    let runtime = Runtime::cpu(8)?;
    for _ in 0..20 {
        let step = jit(train).layout(&data8()).runtime(&runtime);
        let (state, loss) = step.call((fresh_state(), batch()))?;
        let (later, _) = step.call((state.clone(), batch()))?;
        drop(state);
        drop(step);
        drop(loss);
        assert_eq!(later.step.item::<i32>()?, 2);
    }
    let (state, _) = jit(train)
        .layout(&data8())
        .runtime(&runtime)
        .call((fresh_state(), batch()))?;
    // The array keeps its client.
    drop(runtime);
    assert_eq!(state.step.item::<i32>()?, 1);
    Ok(())
}

#[test]
fn threads_share_a_function() -> Result<()> {
    let traces = AtomicUsize::new(0);
    let shared = jit(|state: State, x: Tensor| {
        traces.fetch_add(1, Ordering::Relaxed);
        train(state, x)
    })
    .layout(&data8());
    let losses: Vec<f32> = std::thread::scope(|scope| {
        let one = || -> Result<f32> {
            let (mut state, mut loss) = shared.call((fresh_state(), batch()))?;
            for _ in 1..50 {
                (state, loss) = shared.call((state, batch()))?;
            }
            loss.item()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap())
            .collect::<Result<_>>()
    })?;
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    // Threads that all find nothing compiled may each compile, and never again.
    assert!((1..=4).contains(&traces.load(Ordering::Relaxed)));
    Ok(())
}

#[test]
fn threads_run_different_programs_with_collectives() -> Result<()> {
    std::thread::scope(|scope| {
        let one = |rows: usize| -> Result<f32> {
            let sum = jit(|x: Tensor| {
                let (sum, ()) = scan(x, Tensor::arange(DType::F32, 3), |x: Tensor, i: Tensor| {
                    (x + x.mean(..) + i, ())
                });
                sum.mean(..)
            });
            let sum = sum.layout(&data8());
            let mut last = 0.0;
            for _ in 0..50 {
                last = sum.call(ones(&[rows * 8, 4]))?.item()?;
            }
            Ok(last)
        };
        let threads: Vec<_> = (1..5).map(|rows| scope.spawn(move || one(rows))).collect();
        for thread in threads {
            // 1, 2, 4 + 1, 10 + 2.
            assert_eq!(thread.join().unwrap()?, 12.0);
        }
        Ok(())
    })
}

// ---- When a function is traced again ----

#[derive(Clone, Debug, Module)]
struct Scaled<L = Tensor> {
    x: L,
    factor: u32,
}

#[test]
fn a_function_is_traced_once_for_each_kind_of_arguments() -> Result<()> {
    let traces = AtomicUsize::new(0);
    let count = || traces.load(Ordering::Relaxed);
    let sum = jit(
        |scaled: Scaled, others: Vec<Tensor>, more: Option<Tensor>| {
            traces.fetch_add(1, Ordering::Relaxed);
            let sum = others
                .into_iter()
                .fold(scaled.x * f64::from(scaled.factor), |sum, x| sum + x);
            more.map_or(sum, |more| sum + more)
        },
    );
    let scaled = |x: &Array, factor| Scaled {
        x: x.clone(),
        factor,
    };
    let two = Array::from_slice(&[1f32, 2.0], [2])?;
    let call = |x: &Array, factor, others: usize, more: bool| -> Result<Vec<f32>> {
        let more = more.then(|| two.clone());
        sum.call((scaled(x, factor), vec![two.clone(); others], more))?
            .to_vec()
    };
    assert_eq!(call(&two, 3, 1, false)?, [4.0, 8.0]);
    assert_eq!(count(), 1);
    let other = Array::from_slice(&[5f32, 7.0], [2])?;
    assert_eq!(call(&other, 3, 1, false)?, [16.0, 23.0], "other values");
    let on_device = sum.call((scaled(&two, 3), vec![two.clone()], None))?;
    assert_eq!(call(&on_device, 3, 1, false)?, [13.0, 26.0], "on a device");
    assert_eq!(count(), 1);
    assert_eq!(
        call(&two, 2, 1, false)?,
        [3.0, 6.0],
        "another static configuration"
    );
    assert_eq!(count(), 2);
    assert_eq!(call(&two, 3, 2, false)?, [5.0, 10.0], "another length");
    assert_eq!(count(), 3);
    assert_eq!(call(&two, 3, 1, true)?, [5.0, 10.0], "an optional part");
    assert_eq!(count(), 4);
    assert_eq!(
        call(&Array::scalar(1f32), 3, 1, false)?,
        [4.0, 5.0],
        "another shape"
    );
    assert_eq!(count(), 5);
    let integers = Array::from_slice(&[1i32, 2], [2])?;
    assert_eq!(
        call(&integers, 3, 1, false)?,
        [4.0, 8.0],
        "another element type"
    );
    assert_eq!(count(), 6);
    for (x, factor, others, more) in [(&two, 3, 1, false), (&two, 2, 1, false), (&two, 3, 1, true)]
    {
        call(x, factor, others, more)?;
    }
    assert_eq!(count(), 6, "all are kept");
    // What is compiled ahead is what a call finds.
    let ty = || TensorType::new(DType::F32, [2]);
    let types = (Scaled { x: ty(), factor: 3 }, vec![ty(); 5], None);
    sum.compile(types)?;
    assert_eq!(count(), 7);
    assert_eq!(call(&two, 3, 5, false)?, [8.0, 16.0]);
    assert_eq!(count(), 7);
    Ok(())
}

#[test]
fn results_keep_their_sharding() -> Result<()> {
    let traces = AtomicUsize::new(0);
    let layout = Layout::fsdp(Mesh::new([("data", 8)]).unwrap())?;
    #[derive(Clone, Debug, Module)]
    struct Weight<L = Tensor> {
        #[shard(embed, _)]
        w: L,
    }
    let step = jit(|weight: Weight| {
        traces.fetch_add(1, Ordering::Relaxed);
        Weight { w: weight.w * 2.0 }
    });
    let step = step.layout(&layout).donate(&[0]);
    let mut weight = Weight { w: ones(&[16, 3]) };
    for _ in 0..5 {
        weight = step.call(weight)?;
        assert_eq!(
            weight.w.sharding().unwrap().to_string(),
            "P(\"data\", _) on data=8"
        );
        assert_eq!(weight.w.buffers().len(), 8);
        assert_eq!(weight.w.buffers()[3].dims(), [2, 3]);
    }
    assert_eq!(weight.w.to_vec::<f32>()?, [32.0; 48]);
    assert_eq!(traces.load(Ordering::Relaxed), 1);
    Ok(())
}

#[test]
fn donated_memory_is_given_over() -> Result<()> {
    let step = jit(train).layout(&data8()).donate(&[0]);
    let (state, _) = step.call((fresh_state(), batch()))?;
    let old = state.clone();
    let (new, _) = step.call((state, batch()))?;
    for array in [&old.w, &old.momentum, &old.step] {
        assert!(
            array.buffers().iter().all(|shard| shard.is_deleted()),
            "{array:?}"
        );
    }
    assert!(new.w.buffers().iter().all(|shard| !shard.is_deleted()));
    let types = new.types();
    let program: Program = step.compile((types, batch().ty().clone()))?;
    let memory = program.memory()?;
    assert_eq!(memory.alias, 2 * 64 * 4 + 4, "all of the state: {memory:?}");
    let kept = jit(train).layout(&data8());
    kept.call((new.clone(), batch()))?;
    assert!(!new.w.buffers()[0].is_deleted());
    Ok(())
}

// ---- Unusual arguments ----

#[test]
fn empty_scalar_and_boolean_arrays() -> Result<()> {
    let none = Array::from_slice::<f32>(&[], [0, 3])?;
    let f = jit(|x: Tensor| (x * 2.0, x.sum(0), x.dot(x.transpose([1, 0]))));
    let (same, sum, product) = f.call(none.clone())?;
    assert_eq!((same.to_vec::<f32>()?, same.shape()), (vec![], &[0, 3][..]));
    assert_eq!(
        (sum.to_vec::<f32>()?, product.to_vec::<f32>()?),
        (vec![0.0; 3], vec![])
    );
    #[shard(batch, _)]
    fn doubled(x: Tensor) -> Tensor {
        x * 2.0
    }
    let sharded = jit(doubled).layout(&data8()).call(none)?;
    assert_eq!(
        (sharded.to_vec::<f32>()?, sharded.shape()),
        (vec![], &[0, 3][..])
    );
    let is_large = jit(|x: Tensor| x.gt(1.5)).call(Array::from_slice(&[1f32, 2.0], [2])?)?;
    assert_eq!(is_large.to_vec::<bool>()?, [false, true]);
    assert_eq!(
        jit(|b: Tensor| b.cast(DType::I32))
            .call(is_large)?
            .to_vec::<i32>()?,
        [0, 1]
    );
    assert_eq!(
        jit(|x: Tensor| x * 3)
            .call(Array::scalar(2i64))?
            .item::<i64>()?,
        6
    );
    Ok(())
}

#[test]
fn no_argument_many_arguments_and_no_result() -> Result<()> {
    jit(|| ()).call(())?;
    jit(|_: Tensor| ()).call(ones(&[3]))?;
    assert_eq!(
        jit(|| Tensor::ones(DType::F32, [2]))
            .call(())?
            .to_vec::<f32>()?,
        [1.0; 2]
    );
    let (twice, ()) = jit(|x: Tensor, (): ()| (x * 2.0, ())).call((ones(&[1]), ()))?;
    assert_eq!(twice.item::<f32>()?, 2.0);
    let (a, b) = jit(|x: Tensor| (x, x)).call(ones(&[2]))?;
    assert_eq!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
    let hundred: Vec<Array> = (0..100).map(|i| Array::scalar(i as f32)).collect();
    let next = jit(|xs: Vec<Tensor>| xs.into_iter().map(|x| x + 1.0).collect::<Vec<_>>());
    for layout in [Layout::single(), data8()] {
        let next = jit(|xs: Vec<Tensor>| xs.into_iter().map(|x| x + 1.0).collect::<Vec<_>>())
            .layout(&layout);
        let results = next.call(next.call(hundred.clone())?)?;
        for (i, result) in results.iter().enumerate() {
            assert_eq!(result.item::<f32>()?, i as f32 + 2.0);
        }
    }
    assert_eq!(next.call(vec![])?.len(), 0);
    Ok(())
}

#[test]
fn a_function_calls_another_while_it_is_traced() -> Result<()> {
    let outer = jit(|x: Tensor| {
        let constant = jit(|y: Tensor| y + 1.0)
            .call(ones(&[]))
            .and_then(|y| y.item::<f32>());
        match constant {
            Ok(value) => x * f64::from(value),
            Err(error) => panic!("{error}"),
        }
    });
    assert_eq!(outer.call(ones(&[2]))?.to_vec::<f32>()?, [2.0; 2]);
    Ok(())
}
