//! Programs compiled for clusters of H100s, which are not there.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use shardax::prelude::*;
use shardax::xla::cache::CompileCache;
use shardax::xla::pjrt::OptionValue;
use shardax::xla::report::{Collective, CollectiveKind};
use shardax::xla::{AheadFault, Error};
use shardax::{AheadOptions, AheadProgram, Chip, Cluster, Link};

use CollectiveKind::{AllGather, AllReduce, CollectivePermute, ReduceScatter};

const LAYERS: usize = 4;
const EMBED: usize = 256;
const MLP: usize = 1024;
const BATCH: usize = 128;

/// A layer of two products.
#[derive(Clone, Module)]
struct Layer<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

type Model<L = Tensor> = Stack<Layer<L>>;

#[shard]
fn loss(model: Model, #[shard(batch, embed)] x: Tensor) -> Tensor {
    let h = model.scan(x, |h: Tensor, layer: Layer| {
        #[shard(batch, mlp)]
        let hidden = h.dot(layer.up).relu();
        h + hidden.dot(layer.down)
    });
    h.square().mean(..)
}

fn step(model: Model, x: Tensor) -> (Model, Tensor) {
    let (loss, gradients) = value_and_grad(|model: Model| crate::loss(model, x))(model.clone());
    let rate = 0.1;
    let model = Stack(Layer {
        up: model.0.up - gradients.0.up * rate,
        down: model.0.down - gradients.0.down * rate,
    });
    (model, loss)
}

fn types() -> (Stack<Layer<TensorType>>, TensorType) {
    let ty = |shape: &[usize]| TensorType::new(DType::BF16, shape);
    let model = Stack(Layer {
        up: ty(&[LAYERS, EMBED, MLP]),
        down: ty(&[LAYERS, MLP, EMBED]),
    });
    (model, ty(&[BATCH, EMBED]))
}

fn cluster(nodes: usize) -> Cluster {
    Cluster::new(Chip::H100, nodes, 8).unwrap()
}

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

/// Bytes of all arrays in the model, bf16.
const MODEL_BYTES: u64 = (LAYERS * 2 * EMBED * MLP * 2) as u64;

/// A sum over a dimension that `data` splits.
fn sum(x: Tensor) -> Tensor {
    x.shard(&[Dim::Logical("batch")]).sum(..)
}

/// The sum compiled for one node of 8, with these options and this option of XLA's.
fn compile_sum(
    options: &AheadOptions,
    xla: Option<(&str, OptionValue)>,
) -> Result<AheadProgram, Error> {
    let layout = Layout::new(mesh("data=8")).shard("batch", "data");
    let sum = jit(sum).layout(&layout);
    let sum = match xla {
        Some((name, value)) => sum.xla_option(name, value),
        None => sum,
    };
    sum.compile_for_with(&cluster(1), TensorType::new(DType::F32, [1024]), options)
}

/// Options with a cache in a folder.
fn cached_in(folder: &Path) -> AheadOptions {
    AheadOptions::default().cache(CompileCache::open(folder, 1 << 30))
}

fn message<T>(outcome: Result<T, Error>) -> String {
    outcome.err().map(|error| error.to_string()).unwrap()
}

/// Bytes that collectives of a kind move in a step over a link, scalars aside; all of them of one element type.
fn moved(program: &AheadProgram, (kind, element): (CollectiveKind, &str), link: Link) -> u64 {
    let report = program.collectives().unwrap();
    let large = |c: &&Collective| c.kind == kind && c.payload_bytes > 64;
    let found = report.collectives.iter().filter(large);
    found
        .filter(|c| {
            let pairs = c.pairs.iter().map(|&(from, to)| vec![from, to]);
            let mut groups = c.groups.iter().cloned().chain(pairs);
            groups.any(|group| program.cluster().link(&group) == link)
        })
        .map(|c| {
            for array in &c.arrays {
                assert_eq!(array.element.to_string(), element, "{report}");
            }
            c.times * c.payload_bytes
        })
        .sum()
}

/// What fully sharded training moves: parameters in bf16, and gradients in f32.
const MOVED: [(CollectiveKind, &str); 3] = [
    (AllGather, "bf16"),
    (ReduceScatter, "f32"),
    (AllReduce, "f32"),
];

#[test]
fn fsdp_gathers_each_layer_in_bf16_and_scatters_it_in_f32() {
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::fsdp(mesh("data=8")).unwrap();
        let program = jit(step)
            .layout(&layout.partitioner(partitioner))
            .donate(&[0])
            .compile_for(&cluster(1), types())
            .unwrap();
        let found = MOVED.map(|kind| moved(&program, kind, Link::Nvlink));
        assert_eq!(
            found,
            [2 * MODEL_BYTES, 2 * MODEL_BYTES, 0],
            "{}",
            program.report().unwrap()
        );
        let report = program.collectives().unwrap();
        assert!(report.collectives.iter().any(|c| c.is_async), "{report}");

        let memory = program.memory();
        let batch = (BATCH * EMBED * 2) as u64;
        assert_eq!(memory.argument, (MODEL_BYTES + batch) / 8);
        assert_eq!(memory.alias, MODEL_BYTES / 8);
        assert!(program.fits() && program.memory_needed() >= memory.argument);
        assert_eq!(program.report().unwrap().memory, Some(memory));
    }
}

/// Parameters are gathered and gradients scattered in the node, and shards of gradients reduced across.
#[test]
fn hybrid_sharding_reduces_shards_across_nodes() {
    let groups = Layout::hsdp(mesh("replica=2,data=8")).unwrap();
    // The same with parts of one axis.
    let parts = Layout::ddp(mesh("data=16")).unwrap();
    let parts = parts.shard_every_parameter("data:(2)8");
    for layout in [
        groups.clone(),
        groups.partitioner(Partitioner::Gspmd),
        parts,
    ] {
        let program = jit(step)
            .layout(&layout)
            .compile_for(&cluster(2), types())
            .unwrap();
        let over = |link| MOVED.map(|kind| moved(&program, kind, link));
        let report = program.report().unwrap();
        let inside = [2 * MODEL_BYTES, 2 * MODEL_BYTES, 0];
        assert_eq!(over(Link::Nvlink), inside, "{report}");
        assert_eq!(over(Link::Network), [0, 0, 2 * MODEL_BYTES / 8], "{report}");
    }
}

/// What a manual region writes is what the cluster does, in bf16, over the link of its axis.
#[test]
fn collectives_of_manual_regions_are_compiled_as_they_are_written() {
    let layout = Layout::new(mesh("data=2,model=8"));
    let rows = PartitionSpec::new(("model", ()));
    let split = [Dim::Mesh(&["model"]), Dim::Unsharded];
    let region = |x: Tensor| {
        manual("model", rows.clone(), rows.clone(), |x: Tensor| {
            let next = (0..8).map(|i| (i, (i + 1) % 8));
            let sent = ppermute(x, "model", next).tanh();
            let scattered = reduce_scatter(sent, "model", 1).tanh();
            let gathered = all_gather(scattered, "model", 1).tanh();
            gathered * psum(gathered, "model")
        })(x.shard(&split))
        .shard(&split)
    };
    let program = jit(region)
        .layout(&layout)
        .compile_for(&cluster(2), TensorType::new(DType::BF16, [1024, 1024]))
        .unwrap();
    let shard = 1024 * 1024 * 2 / 8;
    for kind in [CollectivePermute, ReduceScatter, AllGather, AllReduce] {
        let found = [Link::Nvlink, Link::Network].map(|link| moved(&program, (kind, "bf16"), link));
        assert_eq!(found, [shard, 0], "{kind:?}\n{}", program.report().unwrap());
    }
}

#[test]
fn a_second_compilation_is_read_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let options = cached_in(folder.path());
    let first = compile_sum(&options, None).unwrap();
    let second = compile_sum(&options, None).unwrap();
    assert!(!first.is_from_cache() && second.is_from_cache());
    assert_eq!(first.memory(), second.memory());
    assert_eq!(first.compile_time(), second.compile_time());
    let text = |program: &AheadProgram| program.optimized_hlo().unwrap();
    assert_eq!(text(&first), text(&second));
    assert!(text(&first).contains("tests/ahead.rs"));
    let other = compile_sum(&options, Some(("xla_gpu_autotune_level", 0.into()))).unwrap();
    assert!(!other.is_from_cache(), "an option is a part of the key");
}

#[test]
fn another_profile_of_the_same_name_is_another_key() {
    let folder = tempfile::tempdir().unwrap();
    let options = cached_in(folder.path());
    let profile = folder.path().join("profile.pbtxt");
    let mut compile = |cost: u32| {
        fs::write(
            &profile,
            format!("costs {{ name: \"sum\" cost_us: {cost} }}\n"),
        )
        .unwrap();
        let option = OptionValue::from(profile.to_str().unwrap());
        let option = Some(("xla_gpu_pgle_profile_file_or_directory_path", option));
        compile_sum(&options, option).unwrap().is_from_cache()
    };
    assert_eq!([1, 1, 2].map(&mut compile), [false, true, false]);
}

#[test]
fn several_compile_at_once() {
    std::thread::scope(|scope| {
        let compile = || {
            compile_sum(
                &AheadOptions::default().cache(CompileCache::disabled()),
                None,
            )
        };
        let threads = [(); 3].map(|()| scope.spawn(compile));
        for thread in threads {
            let program = thread.join().unwrap().unwrap();
            let report = program.collectives().unwrap();
            assert_eq!(report.collectives.len(), 1, "{report}");
        }
    });
}

#[test]
fn a_product_that_cublas_lacks_is_made_of_triton() {
    let product = |x: Tensor, y: Tensor| x.dot_as(y, DType::BF16);
    let ty = |dtype| TensorType::new(dtype, [256, 256]);
    let program = jit(product)
        .layout(&Layout::new(mesh("data=8")))
        .compile_for(&cluster(1), (ty(DType::F32), ty(DType::F32)))
        .unwrap();
    let text = program.optimized_hlo().unwrap();
    assert!(text.contains("gemm_fusion"), "{text}");
}

#[test]
fn what_does_not_fit_the_cluster_is_told_before_the_compiler_is_started() {
    let layout = Layout::new(mesh("data=8")).shard("batch", "data");
    let line = line!() + 1;
    let printing = |x: Tensor| sum(x).print("sum");
    let printed = jit(printing).name("printed").layout(&layout);
    let message = message(printed.compile_for(&cluster(2), TensorType::new(DType::F32, [1024])));
    let expected = format!(
        "`printed` cannot be compiled for h100:2x8:\n  mesh data=8 needs 8 devices, 16 are there: use a mesh such as \
         data=16, or run with 8 devices\n  it calls the host function `print` at tests/ahead.rs:{line}:"
    );
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn what_the_compiler_refuses_is_told_in_its_words() {
    let refused = compile_sum(&AheadOptions::default(), Some(("xla_gpu_wrong", 1.into())));
    assert_eq!(
        message(refused),
        "`sum` could not be compiled for h100:1x8: INVALID_ARGUMENT: No such compile option: 'xla_gpu_wrong'"
    );
}

#[test]
fn a_compiler_that_takes_too_long_is_stopped() {
    let options = AheadOptions::default()
        .cache(CompileCache::disabled())
        .time_limit(Duration::from_millis(1));
    match compile_sum(&options, None).err() {
        Some(Error::Ahead {
            fault: AheadFault::TimeLimit { limit, .. },
            ..
        }) => assert_eq!(limit, Duration::from_millis(1)),
        other => panic!("{other:?}"),
    }
}

/// This test program, running one of the tests below.
fn child(program: &Path, test: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn an_abort_of_the_compiler_is_an_error() {
    let options = AheadOptions::default().cache(CompileCache::disabled());
    let abort = Some((
        "xla_gpu_experimental_parallel_collective_overlap_limit",
        0.into(),
    ));
    let said = message(compile_sum(&options, abort));
    let expected = "`sum` could not be compiled for h100:1x8: the compiler was ended by signal 6 (SIGABRT: it gave up), \
         in a process of its own (yours is not harmed); it said last:\n";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.contains("Check failed: "), "{said}");
    // The next one has a process of its own again.
    assert!(compile_sum(&options, None).is_ok());
}

/// XLA ends the process over a flag that it does not know.
#[test]
fn an_end_of_the_compiler_is_an_error() {
    let program = std::env::current_exe().unwrap();
    let output = child(&program, "compile_without_cache")
        .env("XLA_FLAGS", "--xla_no_such_flag=1")
        .output()
        .unwrap();
    let said = said(&output);
    assert!(!output.status.success(), "{said}");
    for piece in [
        "the compiler ended with exit code 1 and gave no answer",
        "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1",
    ] {
        assert!(said.contains(piece), "{said}");
    }
}

#[test]
fn a_program_whose_file_was_removed_compiles() {
    // A second name in the same file system; a copy could still be open for writing when another test starts a process.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = folder.path().join("program");
    fs::hard_link(std::env::current_exe().unwrap(), &program).unwrap();
    let output = child(&program, "compile_after_removal").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_worker_ends_with_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let mut parent = child(&std::env::current_exe().unwrap(), "compile_without_cache")
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let wait_until = |done: &dyn Fn() -> bool| {
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // It has much to load before it can end by itself.
    wait_until(&|| has_child(parent.id()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    // The folder of a worker is there while it works.
    wait_until(&|| fs::read_dir(folder.path()).unwrap().next().is_none());
}

/// Whether any process is a child of this one, by the system's table of processes.
fn has_child(parent: u32) -> bool {
    let parent_of = |status: String| {
        // `pid (name) state parent ...`, and a name may be anything.
        let (_, rest) = status.rsplit_once(')')?;
        rest.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut status = processes.filter_map(|p| fs::read_to_string(p.path().join("stat")).ok());
    status.any(|status| parent_of(status) == Some(parent))
}

/// A variable that somebody set does not make a worker, and never runs the program as if it were not there.
#[test]
fn the_variable_of_workers_is_not_for_users() {
    let program = std::env::current_exe().unwrap();
    for value in ["1", "1:/tmp", ""] {
        let output = child(&program, "compile_without_cache")
            .env("SHARDAX_WORKER", value)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            said(&output),
            "shardax: SHARDAX_WORKER is set, by which a program tells another process of its own to compile; unset it\n"
        );
    }
}

/// Run by other tests in a process of its own.
#[test]
#[ignore = "a part of other tests"]
fn compile_without_cache() {
    let options = AheadOptions::default().cache(CompileCache::disabled());
    if let Err(error) = compile_sum(&options, None) {
        panic!("{error}");
    }
}

/// Run by another test in a process of its own.
#[test]
#[ignore = "a part of another test"]
fn compile_after_removal() {
    let own = std::env::current_exe().unwrap();
    // Only the name that the test made.
    assert_eq!(own.file_name(), Some("program".as_ref()));
    fs::remove_file(own).unwrap();
    compile_without_cache();
}
