//! What a layout says beyond rules for names reaches the compiled program, and changes no number: parts
//! of axes, open dimensions, priorities, overrides by path and constraints on named values.

use shardax::prelude::*;
use shardax::train::AdamW;
use shardax::{PartitionSpec, Partitioner, Role};

fn data8() -> Mesh {
    Mesh::new([("data", 8)]).unwrap()
}

fn data2_model4() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

const ROWS: usize = 8;
const WIDTH: usize = 16;

#[shard]
fn product(#[shard(batch, embed)] x: Tensor) -> (Tensor, Tensor) {
    #[shard(batch, embed)]
    let y = (x * 2.0 + 1.0).named("y");
    let gram = y.dot(y.transpose([1, 0])).named("gram");
    (gram, y.sum(0))
}

fn input() -> Array {
    let numbers: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i % 13) as f32).collect();
    Array::from_slice(&numbers, [ROWS, WIDTH]).unwrap()
}

/// The products under a layout, and the spec of the argument.
fn products(layout: &Layout) -> (Vec<f32>, Vec<f32>, String) {
    let f = jit(product).layout(layout);
    let (gram, sums) = f.call(input()).unwrap();
    let program = f
        .compile(TensorType::new(DType::F32, [ROWS, WIDTH]))
        .unwrap();
    let spec = program.inputs()[0].sharding.spec().to_string();
    (gram.to_vec().unwrap(), sums.to_vec().unwrap(), spec)
}

/// The argument's spec under both partitioners, the products being those of one device.
#[track_caller]
fn check(layout: Layout) -> String {
    let one = products(&Layout::single());
    let specs = [Partitioner::Shardy, Partitioner::Gspmd].map(|partitioner| {
        let (gram, sums, spec) = products(&layout.clone().partitioner(partitioner));
        assert_eq!((gram, sums), (one.0.clone(), one.1.clone()), "{layout}");
        spec
    });
    assert_eq!(specs[0], specs[1]);
    specs[0].clone()
}

#[test]
fn parts_of_an_axis_split_two_dimensions() {
    let layout = Layout::new(data8())
        .shard("batch", "data:(2)4")
        .shard("embed", "data:(1)2");
    assert_eq!(check(layout), r#"P("data:(2)4", "data:(1)2")"#);
    let layout = Layout::new(data8()).shard("batch", ("data:(1)2", "data:(2)2"));
    assert_eq!(check(layout), r#"P(("data:(1)2", "data:(2)2"), _)"#);
    let layout = Layout::new(data2_model4())
        .shard("batch", ("model:(2)2", "data"))
        .shard("embed", "model:(1)2");
    assert_eq!(check(layout), r#"P(("model:(2)2", "data"), "model:(1)2")"#);
}

#[test]
fn open_dimensions_are_the_partitioners() {
    let layout = Layout::new(data2_model4())
        .shard("batch", ("data", "?"))
        .shard("embed", "?");
    // An argument lies where it is known to lie.
    assert_eq!(check(layout), r#"P("data", _)"#);
}

#[test]
fn priorities_are_shardys() {
    let layout = Layout::new(data2_model4())
        .shard("batch", "data")
        .shard("embed", "model")
        .priority("batch", 1);
    let one = products(&Layout::single());
    assert_eq!(products(&layout).0, one.0);
    let gspmd = layout.partitioner(Partitioner::Gspmd);
    let error = jit(product).layout(&gspmd).call(input()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("rule for `batch`: it has priority 1, and the gspmd partitioner knows no"),
        "{text}"
    );
}

#[test]
fn a_named_value_is_constrained() {
    let layout = Layout::new(data2_model4()).shard("batch", "data");
    check(layout.clone().constrain("gram", ("model", "data")));
    check(layout.clone().constrain("gram", ("?", "model")));

    // The sums of one device's columns are reduced only if the value is split along rows.
    let reduced = |layout: Layout| {
        let program = jit(product).layout(&layout);
        let ty = TensorType::new(DType::F32, [ROWS, WIDTH]);
        let program = program.compile(ty).unwrap();
        let report = program.collectives().unwrap();
        report.collectives.len()
    };
    let plain = reduced(Layout::new(data8()));
    assert_eq!(plain, 0);
    assert!(reduced(Layout::new(data8()).constrain("gram", ("data", ()))) > 0);

    let wrong = layout.constrain("gram", ["data"]).constrain("yy", ((), ()));
    let line = 1 + include_str!("placement.rs")
        .lines()
        .position(|line| line.contains("named(\"gram\")"))
        .unwrap();
    let error = jit(product).layout(&wrong).call(input()).unwrap_err();
    let text = error.to_string();
    for part in [
        "a value f32[8,8] named `gram`".to_owned(),
        "1 entry for an array of shape [8, 8]".to_owned(),
        format!("placement.rs:{line}"),
    ] {
        assert!(text.contains(&part), "{part} is not in:\n{text}");
    }
}

#[derive(Clone, Debug, Module)]
struct Layer<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

#[derive(Clone, Debug, Module)]
struct Model<L = Tensor> {
    layers: Stack<Layer<L>>,
    #[shard(embed)]
    gain: L,
}

fn init() -> (Model, shardax::train::Moments<Model>) {
    let weights = |shape: [usize; 3], scale: f64| {
        let count = shape.iter().product::<usize>();
        let numbers = Tensor::arange(DType::F32, count);
        (numbers * scale).sin().reshape(shape) * 0.1
    };
    let model = Model {
        layers: Stack(Layer {
            up: weights([2, WIDTH, 32], 0.7),
            down: weights([2, 32, WIDTH], 0.3),
        }),
        gain: Tensor::ones(DType::F32, [WIDTH]),
    };
    let moments = AdamW::default().init(&model);
    (model, moments)
}

type State = (Model, shardax::train::Moments<Model>);

#[shard]
fn step(state: State, #[shard(batch, embed)] x: Tensor) -> (State, Tensor) {
    let (model, moments) = state;
    let loss = |model: Model| {
        let h = model.layers.scan(x, |h: Tensor, layer: Layer| {
            h + h.dot(layer.up).gelu().dot(layer.down)
        });
        (h * model.gain).square().mean(..)
    };
    let (loss, gradients) = value_and_grad(loss)(model.clone());
    let count = Tensor::scalar(0, DType::I32);
    (
        AdamW::default().update(model, gradients, moments, count),
        loss,
    )
}

/// Paths of arguments with their specs.
type Specs = Vec<(String, String)>;

/// Loss and parameters after a step, and where arguments lie.
fn trained(layout: &Layout) -> Result<(Vec<f32>, Specs), shardax::xla::Error> {
    let state = jit(init).layout(layout).call(())?;
    let step = jit(step).layout(layout);
    let program = step.compile((
        (state.0.types(), state.1.types()),
        TensorType::new(DType::F32, [ROWS, WIDTH]),
    ))?;
    let ((model, _), loss) = step.call((state, input()))?;
    let mut numbers = vec![loss.item()?];
    for leaf in model.leaves() {
        numbers.extend(leaf.to_vec::<f32>()?);
    }
    let specs = program.inputs().iter();
    let specs = specs.map(|input| (input.path.clone(), input.sharding.spec().to_string()));
    let specs: Specs = specs.collect();
    // Results lie as arguments do, or the next step could not take them.
    let state = &specs[..specs.len() - 1];
    for (output, (path, spec)) in program.outputs().iter().zip(state) {
        assert_eq!(&output.sharding.spec().to_string(), spec, "{path}");
    }
    Ok((numbers, specs))
}

#[track_caller]
fn check_trained(layout: Layout) -> Specs {
    let (one, _) = trained(&Layout::single()).unwrap();
    let mut specs = Specs::new();
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = layout.clone().partitioner(partitioner);
        let (numbers, found) = trained(&layout).unwrap();
        for (a, b) in numbers.iter().zip(&one) {
            assert!((a - b).abs() <= 1e-5, "{a} {b}\n{layout}");
        }
        specs = found;
    }
    specs
}

fn spec_of<'a>(specs: &'a [(String, String)], end: &str) -> Vec<&'a str> {
    let found = specs.iter().filter(|(path, _)| path.ends_with(end));
    found.map(|(_, spec)| spec.as_str()).collect()
}

#[test]
fn a_parameter_is_overridden_by_its_path() {
    let base = Layout::new(data2_model4())
        .shard("batch", "data")
        .shard("mlp", "model");
    let specs = check_trained(
        base.clone()
            .override_spec("layers.up", ((), "data", "model")),
    );
    assert_eq!(
        spec_of(&specs, "layers.up"),
        [r#"P(_, "data", "model")"#; 3]
    );
    assert_eq!(spec_of(&specs, "layers.down"), [r#"P(_, "model", _)"#; 3]);

    // State only, of all that a layer has; and in use something else.
    let layout = base
        .override_as("layers.*", Role::State, ("data", (), ()))
        .override_as("up", Role::ParameterAtUse, PartitionSpec::replicated(3))
        .override_as("gain", Role::Gradient, ["data"]);
    let specs = check_trained(layout);
    let state = r#"P("data", _, _)"#;
    assert_eq!(
        spec_of(&specs, "layers.up"),
        [r#"P(_, _, "model")"#, state, state]
    );
    assert_eq!(spec_of(&specs, "gain"), ["P(_)"; 3]);
}

#[test]
fn a_wrong_override_is_told_with_the_path() {
    let layout = Layout::new(data8())
        .override_spec("layers.up", ("data", ()))
        .override_spec("gain", ["dat"]);
    let error = trained(&layout).unwrap_err().to_string();
    assert!(
        error.contains("rule for `gain`: the mesh has no axis `dat`: did you mean `data`?"),
        "{error}"
    );
    let layout = Layout::new(data8()).override_spec("layers.up", ("data", ()));
    let error = trained(&layout).unwrap_err().to_string();
    for part in ["layers.up", "2 entries for an array of shape [2, 16, 32]"] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
}

#[derive(Clone, Debug, Module)]
struct Twins<L = Tensor> {
    left: Stack<Layer<L>>,
    right: Stack<Layer<L>>,
}

#[test]
fn an_override_that_a_loop_cannot_tell_apart_is_an_error() {
    let loss = |model: Twins, x: Tensor| {
        let layer = |h: Tensor, layer: Layer| h.dot(layer.up).dot(layer.down);
        let both = model.left.scan(x, layer) + model.right.scan(x, layer);
        both.sum(..)
    };
    let ty = |shape: [usize; 3]| TensorType::new(DType::F32, shape);
    let stack = || {
        Stack(Layer {
            up: ty([2, WIDTH, 32]),
            down: ty([2, 32, WIDTH]),
        })
    };
    let (left, right) = (stack(), stack());
    let types = || {
        let (left, right) = (left.clone(), right.clone());
        (
            Twins { left, right },
            TensorType::new(DType::F32, [ROWS, WIDTH]),
        )
    };
    let spec = ((), "data", ());
    let compile = |layout: &Layout| jit(loss).layout(layout).compile(types());
    let layout = Layout::new(data8()).override_as("left.up", Role::ParameterAtUse, spec);
    let error = compile(&layout).map(|_| ()).unwrap_err().to_string();
    for part in ["`up` in a loop may be", "`0.left.up`", "`0.right.up`"] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
    let both = layout.override_as("right.up", Role::ParameterAtUse, spec);
    compile(&both).unwrap();
    // At rest there is nothing to tell apart.
    let rest = Layout::new(data8()).override_spec("left.up", spec);
    compile(&rest).unwrap();
}

#[test]
fn a_program_tells_what_another_layout_would_change() {
    let state = jit(init).call(()).unwrap();
    let types = (state.0.types(), state.1.types());
    let x = TensorType::new(DType::F32, [ROWS, WIDTH]);
    let ddp = Layout::ddp(data8()).unwrap();
    let program = jit(step).layout(&ddp).compile((types, x)).unwrap();
    let zero1 = Layout::zero1(data8()).unwrap();
    let diff = ddp.diff_of(&zero1, &program.stored_arrays()).unwrap();
    let changed: Vec<&str> = diff
        .arrays
        .iter()
        .map(|array| array.path.as_str())
        .collect();
    let state = ["layers.up", "layers.down", "gain"];
    let expected: Vec<String> = ["first", "second"]
        .iter()
        .flat_map(|of| state.map(|leaf| format!("0.1.{of}.{leaf}")))
        .collect();
    assert_eq!(changed, expected);
    let parameters = 4 * (2 * 2 * WIDTH * 32 + WIDTH) as u64;
    let x = (4 * WIDTH) as u64;
    let bytes = [3 * parameters + x, parameters + 2 * parameters / 8 + x];
    assert_eq!(diff.bytes, Some(bytes), "{diff}");
}

#[test]
fn what_nothing_matches_is_remarked() {
    let layout = Layout::new(data8())
        .override_spec("layers.upp", ((), (), ()))
        .constrain("gramm", ((), ()));
    let state = jit(init).call(()).unwrap();
    let types = (state.0.types(), state.1.types());
    let x = TensorType::new(DType::F32, [ROWS, WIDTH]);
    let program = jit(step).layout(&layout).compile((types, x.clone()));
    let remarks = program.unwrap().remarks();
    assert_eq!(
        remarks,
        [
            "nothing of the program is split: each of 8 devices computes all of it, as the layout has \
             no rule for any dimension that it names",
            "the layout has an override for `layers.upp`, and no argument or result has such a path; \
             did you mean `layers.up`?",
            "the layout constrains `gramm`, and no value of the program has that name: name it with \
             `.named(..)`",
        ]
    );
    let remarks = jit(product).layout(&layout).compile(x).unwrap().remarks();
    assert!(
        remarks
            .iter()
            .any(|remark| remark.ends_with("did you mean `gram`?")),
        "{remarks:?}"
    );
}

#[test]
fn what_a_program_does_not_have_is_not_missed() {
    let layout = Layout::new(data8())
        .override_spec("layers.up", ((), (), "data"))
        .override_as("gain", Role::State, ["data"]);
    let remarks = |program: shardax::xla::Result<shardax::Program>| program.unwrap().remarks();
    let missed = |remarks: Vec<String>| {
        remarks
            .into_iter()
            .find(|remark| remark.contains("override"))
    };
    // Results have the paths.
    assert_eq!(missed(remarks(jit(init).layout(&layout).compile(()))), None);
    // There is neither a module nor state.
    let x = TensorType::new(DType::F32, [ROWS, WIDTH]);
    assert_eq!(
        missed(remarks(jit(product).layout(&layout).compile(x))),
        None
    );
}

/// Two key heads on four devices: each on two of them, beside the query heads that it goes with.
#[test]
fn grouped_heads_are_split_as_far_as_they_divide() {
    let names = |heads: &'static str| ["batch", "seq", heads, "head_dim"].map(Dim::Logical);
    let f = |q: Tensor, k: Tensor, v: Tensor| {
        let loss = |(q, k, v): (Tensor, Tensor, Tensor)| {
            let (q, k) = (q.shard(&names("heads")), k.shard(&names("kv_heads")));
            let v = v.shard(&names("kv_heads"));
            let options = shardax::nn::AttentionOptions::causal();
            let mixed = shardax::nn::attention(q, k, v, options).shard(&names("heads"));
            mixed.square().mean(..)
        };
        value_and_grad(loss)((q, k, v))
    };
    let counted = |shape: [usize; 4]| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
        Array::from_slice(&values, shape).unwrap()
    };
    let args = || {
        (
            counted([2, 8, 4, 8]),
            counted([2, 8, 2, 8]),
            counted([2, 8, 2, 8]),
        )
    };
    let (loss, (q, k, v)) = jit(f).call(args()).unwrap();
    let wanted = [loss, q, k, v].map(|x| x.to_vec::<f32>().unwrap());
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::megatron("data=2,model=4".parse().unwrap()).unwrap();
        let refused = jit(f).layout(&layout).call(args());
        assert!(refused.is_err());
        let layout = layout
            .shard_where_divides("kv_heads", "model")
            .partitioner(partitioner);
        let program = jit(f).layout(&layout);
        let (loss, (q, k, v)) = program.call(args()).unwrap();
        assert_eq!(
            k.sharding().unwrap().spec().to_string(),
            r#"P("data", _, "model:(1)2", _)"#
        );
        for (found, wanted) in [loss, q, k, v].iter().zip(&wanted) {
            let found = found.to_vec::<f32>().unwrap();
            let is_near = found.iter().zip(wanted).all(|(f, w)| (f - w).abs() < 1e-6);
            assert!(is_near, "{partitioner}");
        }
    }
}

/// Averages of squares by row and by column, of which a parameter's is the product, as Adafactor keeps them.
#[derive(Clone, Module)]
struct Factors<P> {
    #[module(state)]
    rows: P,
    #[module(state)]
    columns: P,
}

#[test]
fn state_may_have_another_shape_than_its_parameter() -> shardax::xla::Result<()> {
    fn updated<P: Tree<Tensor>>(model: P, factors: Factors<P>) -> (P, Factors<P>) {
        let rows = tree_combine([&model, &factors.rows], |[p, r]| {
            r * 0.9 + p.square().mean(-1)
        });
        let columns = tree_combine([&model, &factors.columns], |[p, c]| {
            c * 0.9 + p.square().mean(-2).keep_dims(p, -2)
        });
        let model = tree_combine([&model, &rows, &columns], |[p, r, c]| {
            p - p / ((r.expand_dims(-1) * c).sqrt() + 1.0)
        });
        (model, Factors { rows, columns })
    }
    let init = || {
        let model = Layer {
            up: Tensor::arange(DType::F32, WIDTH * 32).reshape([WIDTH, 32]) / 100.0,
            down: Tensor::arange(DType::F32, WIDTH * 32).reshape([32, WIDTH]) / 200.0,
        };
        let rows = tree_combine([&model], |[p]| p.mean(-1));
        let columns = tree_combine([&model], |[p]| p.mean(-2).keep_dims(p, -2));
        (model, Factors { rows, columns })
    };
    let step = |model: Layer, factors: Factors<Layer>| updated(model, factors);
    let run = |layout: &Layout| {
        let (model, factors) = jit(init).layout(layout).call(())?;
        let (model, _) = jit(step)
            .layout(layout)
            .donate(&[0, 1])
            .call((model, factors))?;
        model.up.to_vec::<f32>()
    };
    let wanted = run(&Layout::single())?;
    for layout in [
        Layout::zero1(data8()).unwrap(),
        Layout::fsdp(data8()).unwrap(),
        Layout::new(data2_model4())
            .shard("mlp", "model")
            .shard("embed", "data"),
    ] {
        for (found, wanted) in run(&layout)?.iter().zip(&wanted) {
            assert!(
                (found - wanted).abs() <= 1e-5 * wanted.abs(),
                "{layout}: {found}, {wanted}"
            );
        }
    }
    Ok(())
}
