//! What must change nothing: a second run, donated arguments, and a program from the cache.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use shardax::xla::Error;
use shardax::xla::cache::CompileCache;
use shardax::{Array, DType, Function, Jit, Layout, Tensor, jit};

use crate::check::{Failure, Kind, arguments, runtime};
use crate::program::{Also, Program};
use crate::run;

/// What was changed, by a function that has given `first`.
pub(crate) fn changes<S, F: Function<S, Args = Vec<Tensor>, Output = Vec<Tensor>>>(
    program: &Program,
    layout: &Layout,
    function: &Jit<S, F>,
    first: &[Array],
) -> Result<Option<Failure>, Error> {
    let second = function.call(arguments(program)?)?;
    if let Some(message) = differs(first, &second)? {
        let kind = Kind::Again;
        return Ok(Some(Failure { kind, message }));
    }
    match program.also {
        Also::Nothing => Ok(None),
        Also::Donate => donated(program, layout, first),
        Also::Cache => cached(program, layout),
    }
}

/// Whether any result has other bytes.
fn differs(first: &[Array], second: &[Array]) -> Result<Option<String>, Error> {
    for (i, (first, second)) in first.iter().zip(second).enumerate() {
        let (one, other) = (first.to_bytes()?, second.to_bytes()?);
        if let Some(byte) = (0..one.len()).find(|&b| one[b] != other[b]) {
            let element = byte / first.dtype().host_bytes();
            let ty = first.ty();
            return Ok(Some(format!(
                "result {i}, {ty}, has another element {element}"
            )));
        }
    }
    Ok(None)
}

/// Donates all arguments to results of their types.
fn donated(program: &Program, layout: &Layout, _: &[Array]) -> Result<Option<Failure>, Error> {
    let updated = |x: Vec<Tensor>| {
        let results = run::program(program, x.clone());
        let inputs = x.into_iter().zip(&program.inputs);
        let updates = inputs.map(|(x, input)| {
            let annotated = match &input.split {
                Some(splits) => x.shard(&run::dims(splits)),
                None => x,
            };
            let update = match x.dtype() {
                DType::Bool => !annotated,
                _ => annotated + annotated,
            };
            match &input.split {
                Some(splits) => update.shard(&run::dims(splits)),
                None => update,
            }
        });
        (updates.collect::<Vec<_>>(), results)
    };
    let compiled = |donate: &[usize]| {
        jit(updated)
            .layout(layout)
            .runtime(runtime()?)
            .xla_option("xla_backend_optimization_level", 1)
            .donate(donate)
            .call(arguments(program)?)
    };
    let fault = |message| {
        let kind = Kind::Donation;
        Ok(Some(Failure { kind, message }))
    };
    let kept = compiled(&[])?;
    let given = match compiled(&[0]) {
        Ok(given) => given,
        // An update may lie otherwise than the argument where the partitioner decides.
        Err(Error::Call { .. } | Error::Layout { .. }) => return Ok(None),
        Err(error) => return fault(error.to_string()),
    };
    for (kept, given) in [(&kept.0, &given.0), (&kept.1, &given.1)] {
        if let Some(message) = differs(kept, given)? {
            return fault(message);
        }
    }
    Ok(None)
}

/// Compiles the program, and reads it from the cache. Programs that could hang when they are loaded
/// are not kept there, and are compiled again.
fn cached(program: &Program, layout: &Layout) -> Result<Option<Failure>, Error> {
    static FOLDER: OnceLock<std::path::PathBuf> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = FOLDER
        .get_or_init(|| std::env::temp_dir().join(format!("shardax-fuzz-{}", std::process::id())));
    let folder = folder.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
    let run = || {
        let runtime = runtime()?.with_cache(CompileCache::open(&folder, 1 << 30));
        let function = jit(|x: Vec<Tensor>| run::program(program, x))
            .layout(layout)
            .runtime(&runtime)
            .xla_option("xla_backend_optimization_level", 1);
        function.call(arguments(program)?)
    };
    let both = run().and_then(|first| Ok((first, run()?)));
    // What is left there belongs to nobody.
    let _ = std::fs::remove_dir_all(&folder);
    let (first, second) = both?;
    let kind = Kind::Cache;
    let message = differs(&first, &second)?;
    Ok(message.map(|message| Failure { kind, message }))
}
