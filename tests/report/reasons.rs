//! Why each collective is there.

use shardax::prelude::*;
use shardax::scan;
use shardax::xla::report::{Cause, ExplainedCollective, TensorRole};

use super::*;

#[test]
fn each_collective_says_what_it_moves_from_where_to_where() {
    let report = compiled(Layout::megatron_fsdp(grid()).unwrap())
        .report()
        .unwrap();
    let found: Vec<String> = report
        .collectives
        .iter()
        .flat_map(|explained| {
            let kind = explained.collective.kind;
            let tensors = explained.why.tensors.iter();
            tensors.map(move |t| format!("{kind} {}: {}", t.what(), t.movement()))
        })
        .collect();
    for wanted in [
        r#"all-gather parameter `0.embedding`: P("model", "data") -> P("model", _)"#,
        r#"all-gather a layer of parameter `0.blocks.up`: P("data", "model") -> P(_, "model")"#,
        r#"all-gather a layer of parameter `0.blocks.down`: P("model", "data") -> P("model", _)"#,
        r#"all-reduce activation dot_general: partial sums over model -> P("data", _)"#,
        // Of the embedding as it is used, transposed.
        r#"all-reduce gradient of `0.embedding`: partial sums over data -> P(_, "model")"#,
        r#"all-reduce gradient of `0.blocks.up`: partial sums over data -> P(_, "model")"#,
        r#"all-reduce gradient of `0.blocks.down`: partial sums over data -> P("model", _)"#,
    ] {
        assert!(found.iter().any(|f| f == wanted), "{wanted}\n{found:#?}");
    }
    let known = |e: &ExplainedCollective| {
        let tensors = e.why.tensors.iter();
        tensors.filter(|t| t.role != TensorRole::Scalar).all(|t| {
            t.role != TensorRole::Unknown
                && t.from.is_some()
                && t.to.is_some()
                && t.source.is_some()
        })
    };
    assert!(report.collectives.iter().all(known), "{report}");
    // Forward, the product that is summed over `model` is on its own line.
    let forward = report
        .collectives
        .iter()
        .find(|e| e.why.tensors[0].role == TensorRole::Activation && e.collective.pass.is_none());
    let source = forward.unwrap().collective.source.as_ref().unwrap();
    assert_eq!(
        source.line,
        line_of(include_str!("main.rs"), "Summed over model.")
    );
}

#[test]
fn arguments_have_roles_and_their_bytes_add_up() {
    let program = compiled(Layout::fsdp(data8()).unwrap());
    let report = program.report().unwrap();
    let parameters = 4 * (VOCAB * WIDTH + 2 * LAYERS * WIDTH * HIDDEN) as u64;
    let [of_parameters, of_inputs] = &report.argument_bytes[..] else {
        panic!("{report}");
    };
    assert_eq!((of_parameters.count, of_parameters.bytes), (3, parameters));
    assert_eq!(of_parameters.device_bytes, parameters / 8);
    assert_eq!(of_inputs.count, 1);
    let on_device = of_parameters.device_bytes + of_inputs.device_bytes;
    assert_eq!(report.memory.unwrap().argument, on_device);
    let up = report
        .arguments
        .iter()
        .find(|a| a.path == "0.blocks.up")
        .unwrap();
    assert_eq!(up.layers, Some(LAYERS));
    assert_eq!(up.sharding.to_string(), r#"P(_, "data", _)"#);
    assert_eq!(up.at_use.as_ref().unwrap().to_string(), "P(_, _)");
}

#[test]
fn a_sum_in_a_manual_region_is_reduced_once() {
    let layout = Layout::new(data8());
    let batch = PartitionSpec::new(((), "data"));
    let f = move |w: Tensor, batches: Tensor| {
        let body = |(w, batches): (Tensor, Tensor)| {
            let (sum, _) = scan(
                shardax::pvary(w * 0.0, "data"),
                batches,
                |sum: Tensor, x: Tensor| {
                    (
                        sum + x.transpose([1, 0]).dot(x),
                        Tensor::scalar(0.0, DType::F32),
                    )
                },
            );
            shardax::psum(sum, "data") // Reduced once.
        };
        let specs = (PartitionSpec::whole(), batch.clone());
        shardax::manual("data", specs, PartitionSpec::whole(), body)((w, batches))
    };
    let report = report_of(f, &layout, (f32s([16, 16]), f32s([4, 64, 16])));
    assert_eq!(report.warnings, [], "{report}");
    let [reduce] = &report.collectives[..] else {
        panic!("{report}");
    };
    assert_eq!(reduce.why.cause, Cause::User("psum".into()));
    assert_eq!(reduce.collective.times, 1);
    assert_eq!(
        reduce.collective.source.as_ref().unwrap().line,
        line_of(include_str!("reasons.rs"), "Reduced once.")
    );
    assert!(report.to_string().contains(&format!(
        "reasons.rs:{} (psum)",
        line_of(include_str!("reasons.rs"), "Reduced once.")
    )));
}
