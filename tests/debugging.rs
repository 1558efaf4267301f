//! Looking into a program: effects in order, host functions, what was compiled, and why again.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shardax::nn;
use shardax::prelude::*;
use shardax::xla::pjrt::Error as RuntimeError;
use shardax::xla::{Error, Result};
use shardax::{Literal, cond, host_call, host_effect, vmap, while_loop};

/// One device, and eight under both partitioners.
fn layouts() -> Vec<Layout> {
    let split = Layout::new(Mesh::new([("data", 8)]).unwrap()).shard("batch", "data");
    vec![
        Layout::single(),
        split.clone(),
        split.partitioner(Partitioner::Gspmd),
    ]
}

/// What a program told, a line each.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Writes a line when the program comes here.
    fn tell(&self, what: &'static str, x: Tensor) {
        let log = self.clone();
        host_effect("tell", [x], move |values| {
            let numbers: Vec<String> = values[0].numbers().iter().map(|n| n.to_string()).collect();
            let mut lines = log.0.lock().map_err(|e| e.to_string())?;
            lines.push(format!("{what} {}", numbers.join(" ")));
            Ok(())
        });
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn batch(values: &[f32]) -> Array {
    Array::from_slice(values, [values.len()]).unwrap()
}

const EIGHT: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

#[test]
fn effects_happen_once_and_in_order() -> Result<()> {
    for layout in layouts() {
        let log = Log::default();
        let telling = log.clone();
        let program = jit(move |x: Tensor| {
            let x = x.shard(&[Dim::Logical("batch")]);
            telling.tell("x", x);
            let sum = x.sum(..);
            telling.tell("sum", sum);
            telling.tell("last", x.max(..));
            sum
        })
        .layout(&layout);
        for _ in 0..3 {
            assert_eq!(program.call(batch(&EIGHT))?.item::<f32>()?, 28.0);
            assert_eq!(
                log.take(),
                ["x 0.0 1.0 2.0 3.0 4.0 5.0 6.0 7.0", "sum 28.0", "last 7.0"]
            );
        }
    }
    Ok(())
}

#[test]
fn effects_stay_in_order_inside_of_loops_and_branches() -> Result<()> {
    for layout in layouts() {
        let log = Log::default();
        let tell = log.clone();
        let program = jit(move |x: Tensor| {
            let x = x.shard(&[Dim::Logical("batch")]);
            tell.tell("start", x.sum(..));
            let (total, ()) = scan(x.sum(..) * 0.0, x, |total, element| {
                tell.tell("scan", element);
                let big = element.ge(6.0);
                let next = cond(
                    big,
                    total,
                    |total: Tensor| {
                        tell.tell("big", total);
                        total + 100.0
                    },
                    |total: Tensor| total + 1.0,
                );
                (next, ())
            });
            let count = while_loop(
                total,
                |total| {
                    tell.tell("test", total);
                    total.lt(300.0)
                },
                |total| {
                    tell.tell("turn", total);
                    total + 50.0
                },
            );
            tell.tell("end", count);
            count
        })
        .layout(&layout);
        assert_eq!(program.call(batch(&EIGHT))?.item::<f32>()?, 306.0);
        let expected = [
            "start 28.0",
            "scan 0.0",
            "scan 1.0",
            "scan 2.0",
            "scan 3.0",
            "scan 4.0",
            "scan 5.0",
            "scan 6.0",
            "big 6.0",
            "scan 7.0",
            "big 106.0",
            "test 206.0",
            "turn 206.0",
            "test 256.0",
            "turn 256.0",
            "test 306.0",
            "end 306.0",
        ];
        assert_eq!(log.take(), expected);
    }
    Ok(())
}

#[test]
fn a_program_of_effects_alone_is_done_when_the_call_returns() -> Result<()> {
    for layout in layouts() {
        let log = Log::default();
        let telling = log.clone();
        let program = jit(move |x: Tensor| {
            telling.tell("only", x.shard(&[Dim::Logical("batch")]).sum(..));
        })
        .layout(&layout);
        program.call(batch(&EIGHT))?;
        assert_eq!(log.take(), ["only 28.0"]);
    }
    Ok(())
}

#[test]
fn effects_survive_a_derivative() -> Result<()> {
    for layout in layouts() {
        let log = Log::default();
        let telling = log.clone();
        let gradient = jit(grad(move |x: Tensor| {
            let square = x.shard(&[Dim::Logical("batch")]).square();
            telling.tell("square", square);
            square.sum(..)
        }))
        .layout(&layout);
        let gradient = gradient.call(batch(&EIGHT))?.to_vec::<f32>()?;
        assert_eq!(gradient, EIGHT.map(|x| 2.0 * x));
        assert_eq!(log.take(), ["square 0.0 1.0 4.0 9.0 16.0 25.0 36.0 49.0"]);
    }
    Ok(())
}

#[test]
fn effects_in_a_differentiated_loop_survive() -> Result<()> {
    for layout in layouts() {
        let log = Log::default();
        let telling = log.clone();
        let gradient = jit(grad(move |x: Tensor| {
            let square = x.shard(&[Dim::Logical("batch")]).square();
            let (total, ()) = scan(square.sum(..) * 0.0, square, |total, element| {
                telling.tell("element", element);
                (total + element, ())
            });
            total
        }))
        .layout(&layout);
        let gradient = gradient.call(batch(&EIGHT))?.to_vec::<f32>()?;
        assert_eq!(gradient, EIGHT.map(|x| 2.0 * x));
        assert_eq!(log.take(), EIGHT.map(|x| format!("element {:?}", x * x)));
    }
    Ok(())
}

#[test]
fn launches_that_nobody_awaits_keep_their_effects_in_order() -> Result<()> {
    for layout in layouts() {
        let log = Log::default();
        let telling = log.clone();
        let program = jit(move |x: Tensor| {
            let sum = x.shard(&[Dim::Logical("batch")]).sum(..);
            telling.tell("sum", sum);
            sum
        })
        .layout(&layout);
        let results: Vec<Array> = (0..100)
            .map(|i| program.call(batch(&[i as f32; 8])))
            .collect::<Result<_>>()?;
        for (i, result) in results.iter().enumerate() {
            assert_eq!(result.item::<f32>()?, 8.0 * i as f32);
        }
        let expected: Vec<String> = (0..100)
            .map(|i| format!("sum {:?}", 8.0 * i as f32))
            .collect();
        assert_eq!(log.take(), expected);
    }
    Ok(())
}

/// Sorts on the host, and counts its calls.
fn sorted(x: Tensor, calls: &Arc<AtomicUsize>) -> Tensor {
    let calls = calls.clone();
    host_call("sort", [x], x.ty(), move |arguments| {
        calls.fetch_add(1, Ordering::SeqCst);
        let shape = arguments[0].ty().shape.clone();
        let mut values: Vec<f32> = arguments[0]
            .numbers()
            .iter()
            .map(|n| n.as_f64() as f32)
            .collect();
        values.sort_by(f32::total_cmp);
        Ok(vec![
            Literal::from_slice(&values, shape).ok_or("another size")?,
        ])
    })
}

#[test]
fn a_host_function_gives_all_devices_one_result() -> Result<()> {
    for layout in layouts() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let program = jit(move |x: Tensor| {
            let x = x.shard(&[Dim::Logical("batch")]);
            let y = sorted(-x, &counted).shard(&[Dim::Logical("batch")]);
            (y, x + y)
        })
        .layout(&layout);
        for call in 1..=5 {
            let (y, sum) = program.call(batch(&EIGHT))?;
            assert_eq!(
                y.to_vec::<f32>()?,
                [-7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0]
            );
            assert_eq!(
                sum.to_vec::<f32>()?,
                [-7.0, -5.0, -3.0, -1.0, 1.0, 3.0, 5.0, 7.0]
            );
            assert_eq!(calls.load(Ordering::SeqCst), call);
        }
    }
    Ok(())
}

#[test]
fn vmap_calls_a_host_function_for_each_element() -> Result<()> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let program = jit(vmap(move |x: Tensor| sorted(x, &counted)));
    let x = Array::from_slice(&[3f32, 1.0, 2.0, 9.0, 7.0, 8.0], [2, 3])?;
    let y = program.call(x)?.to_vec::<f32>()?;
    assert_eq!(y, [1.0, 2.0, 3.0, 7.0, 8.0, 9.0]);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    Ok(())
}

#[test]
fn what_a_host_function_refuses_is_an_error_at_its_line() -> Result<()> {
    for layout in layouts() {
        let line = line!() + 3;
        let program = jit(move |x: Tensor| {
            let x = x.shard(&[Dim::Logical("batch")]);
            let y = host_call("lookup", [x], x.ty(), |_| Err("no such key: 17".to_owned()));
            (y * 2.0).sum(..) + x.sum(..)
        })
        .layout(&layout);
        let outcome = program.call(batch(&EIGHT)).and_then(|y| y.item::<f32>());
        let Err(error @ Error::Runtime(RuntimeError::HostFunction(_))) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(
            error.to_string(),
            format!(
                "the host function `lookup` called at tests/debugging.rs:{line}:21 failed: no such key: 17"
            )
        );
        // The program can be called again.
        assert!(program.call(batch(&EIGHT)).and_then(|y| y.wait()).is_err());
    }
    Ok(())
}

#[test]
fn what_an_effect_refuses_is_an_error_of_the_call() {
    for layout in layouts() {
        let program = jit(|x: Tensor| {
            host_effect("check", [x], |_| Err("the disk is full".to_owned()));
        })
        .layout(&layout);
        let error = program.call(batch(&EIGHT)).unwrap_err().to_string();
        assert!(
            error.starts_with("the host function `check` called at tests/debugging.rs:")
                && error.ends_with("failed: the disk is full"),
            "{error}"
        );
    }
}

#[test]
fn what_a_host_function_returns_is_checked() -> Result<()> {
    let program = jit(|x: Tensor| {
        let ty = x.ty();
        host_call("half", [x], ty, |arguments| {
            let half = Literal::from_slice(&[1f32; 4], [4]).ok_or("another size")?;
            assert_eq!(arguments.len(), 1);
            Ok(vec![half])
        })
    });
    let error = program
        .call(batch(&EIGHT))
        .and_then(|y| y.wait())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("it returned f32[4] as result 0, which is declared f32[8]"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_program_with_a_closure_is_not_kept_on_disk() -> Result<()> {
    let ty = TensorType::new(DType::F32, [8]);
    for _ in 0..2 {
        let program = jit(|x: Tensor| {
            host_effect("see", [x], |_| Ok(()));
            x.sin().sum(..)
        });
        assert!(!program.compile(ty.clone())?.is_from_cache());
    }
    Ok(())
}

#[test]
fn the_graph_the_stablehlo_and_the_optimized_hlo_can_be_read() -> Result<()> {
    let program = jit(|x: Tensor| x.shard(&[Dim::Logical("batch")]).sum(..)).layout(&layouts()[1]);
    let line = line!() - 1;
    let program = program.compile(TensorType::new(DType::F32, [8]))?;
    assert!(
        program.graph().to_string().contains("reduce_sum"),
        "{}",
        program.graph()
    );
    assert!(program.stablehlo().contains("stablehlo.reduce"));
    let hlo = program.optimized_hlo()?;
    assert!(hlo.contains(" all-reduce("), "{hlo}");
    assert!(
        hlo.contains(&format!("// reduce_sum tests/debugging.rs:{line}")),
        "{hlo}"
    );
    Ok(())
}

#[derive(Clone, Module)]
struct Batch<L = Tensor> {
    tokens: L,
    weights: Option<L>,
    masked: bool,
}

fn typed(
    tokens: [usize; 2],
    weights: Option<usize>,
    masked: bool,
) -> (TensorType, Batch<TensorType>) {
    let batch = Batch {
        tokens: TensorType::new(DType::I32, tokens),
        weights: weights.map(|n| TensorType::new(DType::F32, [n])),
        masked,
    };
    (TensorType::scalar(DType::F32), batch)
}

fn score(scale: Tensor, batch: Batch) -> Tensor {
    let tokens = batch.tokens.cast(DType::F32);
    let score = scale
        * if batch.masked {
            tokens.max(..)
        } else {
            tokens.sum(..)
        };
    match batch.weights {
        Some(weights) => score * weights.sum(..),
        None => score,
    }
}

#[test]
fn a_program_says_why_it_was_compiled_again() -> Result<()> {
    let program = jit(score);
    let why =
        |types| -> Result<Vec<String>> { Ok(program.compile(types)?.retraced_because().to_vec()) };
    assert!(why(typed([8, 64], None, false))?.is_empty());
    assert_eq!(
        why(typed([8, 65], None, false))?,
        ["argument 1 `tokens`: i32[8,64] became i32[8,65]"]
    );
    assert_eq!(
        why(typed([8, 65], Some(3), false))?,
        ["argument 1 `weights`: f32[3] is new"]
    );
    assert_eq!(
        why(typed([8, 65], Some(3), true))?,
        [
            "the arrays of the arguments are the same, and a configuration field, an option or the \
          length of a list around them changed"
        ]
    );
    assert_eq!(
        why(typed([9, 64], Some(4), false))?,
        [
            "argument 1 `tokens`: i32[8,65] became i32[9,64]",
            "argument 1 `weights`: f32[3] became f32[4]",
        ]
    );
    // The same again is no compilation.
    assert!(why(typed([8, 64], None, false))?.is_empty());
    Ok(())
}

/// Not a test by itself: compiles a function three times in a process of its own.
#[test]
#[ignore = "a child process of another test"]
fn child_that_retraces() {
    let program = jit(|x: Tensor| x.sum(..)).name("total");
    for size in [3, 4, 4, 5] {
        program.call(batch(&vec![1.0; size])).unwrap();
    }
}

#[test]
fn retraces_are_logged_on_request() {
    let run = |log: &str| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_retraces", "--exact", "--ignored", "--nocapture"])
            .env("SHARDAX_LOG", log)
            .output()
            .unwrap();
        assert!(child.status.success());
        String::from_utf8(child.stderr).unwrap()
    };
    let logged = run("retrace");
    assert_eq!(
        logged,
        "shardax: `total` is compiled again:\n  the argument: f32[3] became f32[4]\n\
         shardax: `total` is compiled again:\n  the argument: f32[4] became f32[5]\n"
    );
    assert_eq!(run(""), "");
}

// ---- Shardings ----

#[test]
fn the_compiler_says_how_it_split_what_is_named() {
    let layout = Layout::new(Mesh::new([("data", 2), ("model", 4)]).unwrap())
        .shard("batch", "data")
        .shard("mlp", "model");
    let step = jit(|x: Tensor, w: Tensor| {
        let x = x
            .shard(&[Dim::Logical("batch"), Dim::Unsharded])
            .named("input");
        let w = w.shard(&[Dim::Unsharded, Dim::Logical("mlp")]);
        x.dot(w).named("hidden").tanh().sum(..)
    })
    .layout(&layout);
    let types = (
        TensorType::new(DType::F32, [16, 8]),
        TensorType::new(DType::F32, [8, 32]),
    );
    let program = step.compile(types).unwrap();
    let found = program.shardings().unwrap();
    let hidden = found.iter().find(|s| s.name == "hidden").unwrap();
    assert_eq!(hidden.shards, [vec![8, 8]], "{hidden}");
    let text = hidden.to_string();
    assert!(
        text.contains("f32[8,8] on each device, split by (data, model)"),
        "{text}"
    );
}

/// A jitted function inside of another one is written into it, under its name.
#[test]
fn a_jitted_function_is_called_inside_of_another() {
    let square = jit(|x: Tensor| x * x).name("square");
    let sum = jit(|x: Tensor| square.inside(x).sum(..));
    let x = Array::from_slice(&[1f32, 2.0], [2]).unwrap();
    assert_eq!(sum.call(x).unwrap().item::<f32>().unwrap(), 5.0);
    let program = sum.compile(TensorType::new(DType::F32, [2])).unwrap();
    assert!(program.stablehlo().contains("square/mul"));
}

// ---- NaN ----

fn fault<T>(outcome: shardax::xla::Result<T>) -> String {
    outcome.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn the_first_nan_has_a_line() {
    let layouts = [
        Layout::new(Mesh::new([("data", 1)]).unwrap()),
        Layout::new(Mesh::new([("data", 8)]).unwrap()).shard("batch", "data"),
    ];
    for layout in layouts {
        let f = jit(|x: Tensor| {
            let x = x.shard(&[Dim::Logical("batch")]);
            let (h, ()) = scan(x, Tensor::arange(DType::F32, 4), |h: Tensor, i: Tensor| {
                let next = (h - i).log();
                (next, ())
            });
            (h * 2.0).sum(..)
        })
        .layout(&layout)
        .debug_nans();
        let fine = Array::from_slice(&[1e9f32; 8], [8]).unwrap();
        // log(log(log(1e9)) - 1) - 2) is of a negative number in the third turn.
        let message = fault(f.call(fine));
        assert!(
            message.contains("`log` gave the first NaN, in its result f32[8]"),
            "{message}"
        );
        assert!(message.contains("tests/debugging.rs"), "{message}");
        let line = message
            .rsplit("debugging.rs:")
            .next()
            .unwrap()
            .split(':')
            .next()
            .unwrap();
        let text = std::fs::read_to_string(file!()).unwrap();
        let at: usize = line.parse().unwrap();
        assert!(
            text.lines().nth(at - 1).unwrap().contains(".log()"),
            "{message}"
        );

        let bad = Array::from_slice(&[f32::NAN; 8], [8]).unwrap();
        let message = fault(f.call(bad));
        assert!(
            message.contains("the argument f32[8] has a NaN"),
            "{message}"
        );
    }
}

#[test]
fn what_is_finite_passes() {
    let f = jit(|x: Tensor| {
        let masked = x.gt(0.0).select(x, f64::NEG_INFINITY);
        cond(
            x.sum(..).gt(0.0),
            masked,
            |x: Tensor| x.softmax(0),
            |x: Tensor| x.log(),
        )
    });
    let x = Array::from_slice(&[1f32, -1.0, 3.0], [3]).unwrap();
    assert!(f.call(x.clone()).is_ok());
    let f = f.debug_nans();
    assert!(f.call(x.clone()).is_ok());
    // The mask is an infinity that is meant.
    let message = fault(f.debug_infs().call(x));
    assert!(
        message.contains("gave the first NaN or infinity"),
        "{message}"
    );
}

/// Lookups give NaN where an index is outside, and have one ready where none is.
#[test]
fn what_only_stands_ready_passes() {
    let f = |table: Tensor, at: Tensor| {
        let rows = nn::embedding(at, table);
        let options = nn::CrossEntropyOptions::default();
        let loss = nn::cross_entropy(rows, at, options).sum(..);
        let picked = table.take(at, 0) + table.take_along(at.expand_dims(1), 1).softmax(0);
        loss + picked.sum(..)
    };
    let table = Array::from_slice(&[1f32, -1.0, 3.0, 2.0], [2, 2]).unwrap();
    let call = |at: [i32; 2]| {
        let args = (table.clone(), Array::from_slice(&at, [2]).unwrap());
        let both = [jit(f).debug_nans(), jit(f).debug_infs()];
        both.map(|f| f.call(args.clone()))
    };
    for found in call([0, 1]) {
        assert!(found.is_ok(), "{found:?}");
    }
    for found in call([0, 2]) {
        let message = fault(found);
        assert!(message.contains("`select` gave the first NaN"), "{message}");
        let line = "let rows = nn::embedding(at, table);";
        let text = std::fs::read_to_string(file!()).unwrap();
        let at = text.lines().position(|of| of.trim() == line).unwrap() + 1;
        assert!(
            message.contains(&format!("debugging.rs:{at}:")),
            "{message}"
        );
    }
}

/// What is recomputed does not act a second time.
#[test]
fn effects_of_recomputed_functions_happen_once() {
    let log = Log::default();
    let inner = log.clone();
    let f = jit(move |x: Tensor| {
        let log = inner.clone();
        grad(move |x: Tensor| {
            let log = log.clone();
            let step = remat(move |(h, e): (Tensor, Tensor)| {
                log.tell("step", h);
                (h * e).sin()
            });
            let (h, ()) = scan(x.sum(..), x.slice(0, 0..2), |h: Tensor, e: Tensor| {
                (step((h, e)), ())
            });
            h
        })(x)
    });
    let x = Array::from_slice(&[1f32, 0.0, 1.0], [3]).unwrap();
    f.call(x).unwrap().wait().unwrap();
    assert_eq!(log.take(), ["step 2.0", "step 0.9092974066734314"]);
}
