//! Compiled programs on disk: what finds them, several processes on one folder, and processes that are
//! killed.

#[path = "common/processes.rs"]
mod processes;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use shardax::prelude::*;
use shardax::xla::cache::{CacheKey, CompileCache};
use shardax::xla::{self, Result};
use shardax::{Program, Runtime};

use processes::{plugin, scratch};

fn data8() -> Layout {
    Layout::new(Mesh::new([("data", 8)]).unwrap()).shard("batch", "data")
}

#[shard]
fn mean(#[shard(batch, _)] x: Tensor) -> Tensor {
    x.mean(..)
}

fn polynomial(runtime: &Runtime) -> Result<Program> {
    let f = |x: Tensor| x * x * 3.0 + x.sin();
    jit(f)
        .name("polynomial")
        .runtime(runtime)
        .compile(TensorType::new(DType::F32, [7]))
}

fn entries(folder: &FilePath) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn a_program_is_compiled_once_and_a_corrupt_entry_again() -> Result<()> {
    let folder = scratch("corrupt");
    let open = || -> Result<Runtime> {
        Ok(Runtime::shared(1)?.with_cache(CompileCache::open(&folder, 1 << 30)))
    };
    assert!(!polynomial(&open()?)?.is_from_cache());
    assert!(polynomial(&open()?)?.is_from_cache());
    let [entry] = &entries(&folder)[..] else {
        panic!("{:?}", entries(&folder))
    };
    let whole = fs::read(entry).unwrap();
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let corrupt = [
        flipped,
        whole[..middle].to_vec(),
        Vec::new(),
        b"something else".to_vec(),
    ];
    for bytes in corrupt {
        fs::write(entry, bytes).unwrap();
        assert!(!polynomial(&open()?)?.is_from_cache());
        assert!(polynomial(&open()?)?.is_from_cache(), "it is mended");
    }
    Ok(())
}

#[test]
fn where_a_program_is_written_does_not_matter() -> Result<()> {
    let runtime = Runtime::shared(8)?.with_cache(CompileCache::open(scratch("lines"), 1 << 30));
    let ty = || TensorType::new(DType::F32, [16, 4]);
    #[shard]
    fn one(#[shard(batch, _)] x: Tensor) -> Tensor {
        x.exp().sum(..)
    }
    // The same, later in the file.
    #[shard]
    fn two(#[shard(batch, _)] x: Tensor) -> Tensor {
        let y = x.exp();
        y.sum(..)
    }
    let line_of_two = line!() - 2;
    let one = jit(one)
        .name("f")
        .layout(&data8())
        .runtime(&runtime)
        .compile(ty())?;
    let two = jit(two)
        .name("f")
        .layout(&data8())
        .runtime(&runtime)
        .compile(ty())?;
    assert!(!one.is_from_cache() && two.is_from_cache());
    // The report has the lines of the program as it is now.
    let report = two.collectives()?;
    let source = report.collectives[0].source.as_ref().unwrap();
    assert_eq!(
        (source.file.as_str(), source.line),
        ("tests/cache.rs", line_of_two)
    );
    // Anything that the compiled program depends on is in the key.
    let cached = |layout: &Layout, ty: TensorType| {
        jit(|x: Tensor| x.exp().sum(..))
            .name("f")
            .layout(layout)
            .runtime(&runtime)
            .compile(ty)
    };
    assert!(!cached(&data8(), ty())?.is_from_cache());
    assert!(!cached(&Layout::single(), ty())?.is_from_cache());
    assert!(!cached(&data8(), TensorType::new(DType::F32, [16, 5]))?.is_from_cache());
    assert!(!cached(&data8().partitioner(shardax::Partitioner::Gspmd), ty())?.is_from_cache());
    assert!(cached(&data8(), ty())?.is_from_cache());
    Ok(())
}

/// Says what a child process of these tests does.
const CHILD: &str = "SHARDAX_TEST_CHILD";

/// This program again, as a child that runs nothing but [`child`].
fn start(task: &str, cache: &FilePath) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, task)
        .env("SHARDAX_CACHE", cache)
        .env("SHARDAX_PLUGIN", plugin())
        .env_remove("SHARDAX_CACHE_LIMIT")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[track_caller]
fn finish(child: Child) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(
        status.success(),
        "{status}\n{text}\n{}",
        String::from_utf8_lossy(&stderr)
    );
    text
}

/// A program that takes long to compile: 16 layers, each written out.
fn unrolled(x: Tensor) -> Tensor {
    (0..16).fold(x, |x, i| {
        let h = (x.dot(x) * f64::from(i)).tanh().softmax(-1);
        (x.transpose([1, 0]).dot(h) + h.sum(-1).expand_dims(-1))
            .sin()
            .softmax(0)
    })
}

#[test]
#[ignore = "only a child process of other tests"]
fn child() -> Result<()> {
    match std::env::var(CHILD).unwrap_or_default().as_str() {
        "run" => {
            let mean = || jit(mean).layout(&data8());
            assert_eq!(
                mean()
                    .call(Array::from_slice(&[2f32; 64], [16, 4])?)?
                    .item::<f32>()?,
                2.0
            );
            let again = mean().compile(TensorType::new(DType::F32, [16, 4]))?;
            assert!(again.is_from_cache());
            println!("ran");
        }
        "compile" => {
            Runtime::shared(1)?;
            println!("compiling");
            let program = jit(unrolled).compile(TensorType::new(DType::F32, [32, 32]))?;
            println!("compiled, from cache: {}", program.is_from_cache());
        }
        "write" => {
            let cache = CompileCache::from_environment(&xla::plugin::Environment::of_process());
            let large = vec![7; 32 << 20];
            println!("writing");
            for i in 0..200u8 {
                cache.put(&CacheKey::new(&[&[i % 8]]), &large);
            }
        }
        other => panic!("no such task: {other:?}"),
    }
    Ok(())
}

/// Reads the child's output up to a line that contains this.
fn wait_for(child: &mut Child, words: &str) {
    let output = BufReader::new(child.stdout.take().unwrap());
    let found = output.lines().any(|line| line.unwrap().contains(words));
    assert!(found, "the child never said `{words}`");
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    assert!(
        !child.wait().unwrap().success(),
        "it was done before it was killed"
    );
}

#[test]
fn processes_share_the_cache() {
    let folder = scratch("shared");
    let both = [start("run", &folder), start("run", &folder)];
    for child in both {
        assert!(finish(child).contains("ran"));
    }
    let files = entries(&folder.join("compiled"));
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(finish(start("run", &folder)).contains("ran"));
    assert!(finish(start("compile", &folder)).contains("from cache: false"));
    assert!(finish(start("compile", &folder)).contains("from cache: true"));
}

#[test]
fn a_process_is_killed_while_it_compiles() {
    let folder = scratch("killed_compiling");
    for delay in [0, 20, 100] {
        let mut child = start("compile", &folder);
        wait_for(&mut child, "compiling");
        std::thread::sleep(Duration::from_millis(delay));
        kill(child);
    }
    assert_eq!(entries(&folder.join("compiled")), [] as [PathBuf; 0]);
    assert!(finish(start("compile", &folder)).contains("from cache: false"));
    assert!(finish(start("compile", &folder)).contains("from cache: true"));
}

#[test]
fn a_process_is_killed_while_it_writes() {
    let folder = scratch("killed_writing");
    let compiled = folder.join("compiled");
    let temporary = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(".writing-")
    };
    let cache = || CompileCache::open(&compiled, 1 << 30);
    let mut left = Vec::new();
    for round in 0..5 {
        let mut child = start("write", &folder);
        wait_for(&mut child, "writing");
        let end = Instant::now() + Duration::from_secs(20);
        // In the middle of a file: there is one that is not whole.
        while !entries(&compiled)
            .iter()
            .any(|path| temporary(path) && !left.contains(path))
        {
            assert!(Instant::now() < end, "round {round}: nothing is written");
        }
        kill(child);
        left = entries(&compiled).into_iter().filter(temporary).collect();
        for i in 0..8u8 {
            let found = cache().get(&CacheKey::new(&[&[i]]));
            assert!(
                found.is_none_or(|bytes| bytes == vec![7; 32 << 20]),
                "key {i} is damaged"
            );
        }
    }
    assert!(finish(start("run", &folder)).contains("ran"));
    // What the killed ones left goes, once it is old enough to be nobody's.
    for path in entries(&compiled).iter().filter(|path| temporary(path)) {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60))
            .unwrap();
    }
    cache().put(&CacheKey::new(&[b"another"]), b"program");
    assert!(!entries(&compiled).iter().any(temporary));
}

/// Collectives that do not depend on each other, beside loops that have some inside: the order among them is kept.
#[test]
fn programs_of_many_collectives_are_kept() -> Result<()> {
    let folder = scratch("collectives");
    let runtime = Runtime::shared(8)?.with_cache(CompileCache::open(&folder, 1 << 30));
    // Each of its own element type, or XLA joins them.
    let types = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U32];
    let region = |x: Tensor| {
        let sum = |i: usize| psum(x.index(0, i).cast(types[i]), "data").cast(DType::F32);
        let turn = |_: Tensor, y: Tensor| pmean(y * 2.0, "data");
        let repeated = |i: usize| pmean(fori_loop(0, 3, x.index(0, i), turn), "data");
        let results = (0..types.len()).flat_map(|i| [sum(i), repeated(i)]);
        results.collect::<Vec<Tensor>>()
    };
    let x: Vec<f32> = (0..40u8).map(f32::from).collect();
    let mean = |i: u8| 8.0 * f32::from(i) + 3.5;
    let expected: Vec<f32> = (0..5)
        .flat_map(|i| [8.0 * mean(i), 8.0 * mean(i)])
        .collect();
    for is_kept in [false, true] {
        let split = PartitionSpec::new(((), "data"));
        let region = manual("data", split, PartitionSpec::whole(), region);
        let sums = jit(region).name("sums").layout(&data8()).runtime(&runtime);
        let program = sums.compile(TensorType::new(DType::F32, [types.len(), 8]))?;
        assert_eq!(program.is_from_cache(), is_kept);
        for _ in 0..20 {
            let results = sums.call(Array::from_slice(&x, [types.len(), 8])?)?;
            let results = results.iter().map(Array::item::<f32>);
            assert_eq!(results.collect::<Result<Vec<f32>>>()?, expected);
        }
    }
    Ok(())
}
