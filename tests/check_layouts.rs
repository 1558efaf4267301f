//! `check_layouts` and `check_function`: what is equal, what is not, and what cannot run.

use shardax::prelude::*;
use shardax::xla::Quantity;
use shardax::{CheckOptions, LayoutCheck, Verdict, check_function, check_layouts};

#[derive(Clone, Debug, Module)]
struct Net<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

impl Net {
    fn loss(&self, x: Tensor) -> Tensor {
        let x = x.shard(&[Dim::Logical("batch"), Dim::Logical("embed")]);
        let hidden = x.dot(self.up).gelu();
        (hidden.dot(self.down) - x).square().mean(..)
    }
}

fn counted(shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
    Array::from_slice(&values, shape).unwrap()
}

fn net() -> Net<Array> {
    Net {
        up: counted(&[8, 16]),
        down: counted(&[16, 8]),
    }
}

fn batches(count: usize) -> Vec<Array> {
    (0..count).map(|_| counted(&[16, 8])).collect()
}

fn step(net: Net, x: Tensor) -> (Net, Tensor, Net) {
    let (loss, gradients) = value_and_grad(|net: Net| net.loss(x))(net.clone());
    let mut next = gradients.leaves().into_iter();
    let updated = net.replace_leaves(&mut |_, p| *p - next.next().unwrap() * 0.1);
    (updated, loss, gradients)
}

/// Layouts of a strategy on a mesh, with both partitioners.
fn named(strategy: &str, mesh: &str) -> Vec<(String, Layout)> {
    let strategy: Strategy = strategy.parse().unwrap();
    let layout = strategy.layout(mesh.parse().unwrap()).unwrap();
    [Partitioner::Shardy, Partitioner::Gspmd]
        .map(|partitioner| {
            let layout = layout.clone().partitioner(partitioner);
            (strategy.to_string(), layout)
        })
        .into()
}

#[test]
fn layouts_compute_what_one_device_computes() {
    let mut layouts = named("ddp", "data=8");
    layouts.extend(named("zero2+megatron", "data=2,model=4"));
    let table = check_layouts(step, net(), batches(3), &layouts, CheckOptions::default());
    let table = table.unwrap();
    assert!(table.is_equal(), "{table}");
    assert_eq!(table.count(Verdict::Equal), 4);

    let measured = table.rows[0].measured.as_ref().unwrap();
    let of = |quantity| {
        let mut differences = measured.differences.iter();
        differences.find(|d| d.quantity == quantity).unwrap()
    };
    for quantity in [Quantity::Loss, Quantity::Gradients, Quantity::Parameters] {
        assert!(of(quantity).relative <= 1e-6, "{table}");
    }
    let whole = 2 * 8 * 16 * 4;
    assert_eq!(measured.bytes.parameters, whole);
    assert_eq!(measured.bytes.gradients, whole);
    assert_eq!(measured.bytes.optimizer, 0);
    assert_eq!(measured.traffic.len(), 1);
    assert_eq!(measured.traffic[0].axes, Some(vec!["data".to_owned()]));
    // Both gradients and the loss, by a ring.
    assert_eq!(measured.traffic[0].bytes_sent, 2 * (whole + 4) * 7 / 8);
    // Gradients are shards over `data`, parameters over `model` alone.
    let split = table.rows[2].measured.as_ref().unwrap();
    assert_eq!(split.bytes.parameters, whole / 4);
    assert_eq!(split.bytes.gradients, whole / 8);

    let text = table.to_string();
    assert!(text.contains("mesh data=2 x model=4"), "{text}");
    assert!(text.contains("equal   zero2+megatron"), "{text}");
    assert!(text.ends_with("4 layouts: 4 equal\n"), "{text}");
    let json = table.to_json();
    assert_eq!(json["equal"], true);
    assert_eq!(json["rows"][3]["partitioner"], "gspmd");
    assert_eq!(json["rows"][3]["verdict"], "equal");
}

/// Adds to the rows of each device what only that device has.
fn by_device(x: Tensor) -> Tensor {
    let own = |x: Tensor| x + axis_index("data").cast(DType::F32) * 0.25;
    let rows = || PartitionSpec::new(("data",));
    manual("data", rows(), rows(), own)(x)
}

#[test]
fn a_step_that_depends_on_the_layout_is_told_of() {
    let layouts = named("ddp", "data=4");
    let single = Layout::new("data=1".parse().unwrap());
    let wrong = |net: Net, x: Tensor| step(net, by_device(x));
    let right = |net: Net, x: Tensor| step(net, x);
    let check = LayoutCheck::new(right, net(), batches(2), CheckOptions::default()).unwrap();

    let row = check.row("one device", &single, wrong);
    assert_eq!(row.verdict, Verdict::Equal, "{row}");
    for (name, layout) in &layouts {
        let row = check.row(name, layout, wrong);
        assert_eq!(row.verdict, Verdict::Differs, "{row}");
        let text = row.to_string();
        for part in [
            "DIFFERS",
            "loss of step",
            "gradients `up`",
            "parameters `",
            "on one device",
            "1e-5 is allowed",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}

#[test]
fn the_results_of_a_function_are_compared_leaf_by_leaf() {
    let layouts = named("ddp", "data=4");
    // A sum by parts: its value depends on how many there are.
    let devices = |x: Tensor| {
        let count = shardax::layout().mesh().device_count() as f64;
        vec![
            (x * 2.0).shard(&[Dim::Logical("batch"), Dim::Open]),
            x + count,
            x.sum(0),
        ]
    };
    let table = check_function(devices, counted(&[8, 3]), &layouts, CheckOptions::default());
    let table = table.unwrap();
    assert_eq!(table.count(Verdict::Differs), 2, "{table}");
    assert!(!table.is_equal());
    for row in &table.rows {
        assert_eq!(row.problems.len(), 1, "{row}");
        assert!(row.problems[0].starts_with("results `1` at ["), "{row}");
        let worst = &row.measured.as_ref().unwrap().differences[0];
        assert_eq!(
            (worst.quantity, worst.path.as_str()),
            (Quantity::Results, "1")
        );
        assert!((worst.found - worst.expected - 3.0).abs() < 1e-6);
    }
    let integers = |x: Tensor| x.argmax(0) + (shardax::layout().mesh().device_count() as i32 - 1);
    let table = check_function(
        integers,
        counted(&[8, 3]),
        &layouts,
        CheckOptions::default(),
    );
    assert_eq!(table.unwrap().count(Verdict::Differs), 2);
}

#[test]
fn what_a_partitioner_cannot_run_is_refused_and_what_does_not_fit_has_failed() {
    // Half of the mesh is in the function's own hands.
    let summed = |x: Tensor| {
        let x = x.shard(&[Dim::Logical("batch"), Dim::Open]);
        match shardax::layout().mesh().axis_size("model") {
            None => x.sum(1),
            Some(_) => {
                let columns = PartitionSpec::new(((), "model"));
                let sum = |x: Tensor| psum(x.sum(1), "model");
                manual("model", columns, PartitionSpec::whole(), sum)(x)
            }
        }
    };
    let mut layouts = named("megatron", "data=2,model=2");
    layouts.extend(named("ddp", "data=3"));
    let table = check_function(summed, counted(&[8, 4]), &layouts, CheckOptions::default());
    let table = table.unwrap();
    let verdicts: Vec<Verdict> = table.rows.iter().map(|row| row.verdict).collect();
    let expected = [
        Verdict::Equal,
        Verdict::Refused,
        Verdict::Failed,
        Verdict::Failed,
    ];
    assert_eq!(verdicts, expected, "{table}");
    assert!(table.rows[1].problems[0].contains("manual"), "{table}");
    for part in ["batch", "8", "data", "3"] {
        assert!(table.rows[2].problems[0].contains(part), "{table}");
    }
    assert!(!table.is_equal());
}

#[test]
fn a_check_without_batches_is_an_error() {
    let check = LayoutCheck::new(step, net(), Vec::new(), CheckOptions::default());
    let error = check.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("there is no batch"), "{error}");
}

#[test]
fn a_loss_of_several_numbers_is_refused() {
    let step = |w: Tensor, x: Tensor| (w, x.dot(w), ());
    let error = check_layouts(
        step,
        counted(&[8]),
        batches(1),
        &[],
        CheckOptions::default(),
    );
    let text = error.unwrap_err().to_string();
    assert!(text.contains("the loss of the step is f32[16]"), "{text}");
    assert!(text.contains("return a scalar"), "{text}");
}

/// All layouts would be equal.
#[test]
fn a_loss_that_is_nan_on_one_device_is_refused() {
    let step = |w: Tensor, x: Tensor| (w, x.dot(w).mean(..) * f64::NAN, ());
    let error = check_layouts(
        step,
        counted(&[8]),
        batches(1),
        &[],
        CheckOptions::default(),
    );
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("the loss of step 0 is NaN on one device"),
        "{text}"
    );
}
