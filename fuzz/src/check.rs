//! Whether a program computes on devices what it should.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use shardax::xla::Error;
use shardax::xla::cache::CompileCache;
use shardax::{
    Array, Layout, Literal, Number, Runtime, Tensor, TensorType, ir::Graph, jit, trace, under,
};
use shardax_interpreter as interpreter;

use crate::laws;
use crate::oracle::{Oracle, Verdict};
use crate::program::{Form, Program};
use crate::{run, values};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// The process ended.
    Abort,
    /// The program took too long.
    Hang,
    /// A panic instead of an error.
    Panic,
    /// An error where one device, or the interpreter, had none.
    Refused,
    /// A value on one device.
    OneDevice,
    /// A value under the layout.
    Layout,
    /// Copies of one part differ.
    Replicas,
    /// Another value when it ran again.
    Again,
    /// Another value with donated arguments.
    Donation,
    /// Another value by a program from the cache.
    Cache,
    /// A derivative is not what differences are.
    Differences,
    /// A batch is not what a loop over its elements gives.
    Loop,
}

/// A fault of Shardax, or of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What is wrong.
    pub kind: Kind,
    /// The whole of it.
    pub message: String,
}

/// What came of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What is wrong.
    pub failure: Option<Failure>,
    /// What was done and seen, for counting.
    pub seen: Vec<String>,
}

/// An error that unwinding carried.
type Caught<T> = Result<T, Failure>;

/// Runs what may panic.
pub(crate) fn caught<T>(f: impl FnOnce() -> T) -> Caught<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Failure {
            kind: Kind::Panic,
            message: text.unwrap_or_else(|| "a panic without a message".to_owned()),
        }
    })
}

/// The graph of a program under its layout.
///
/// # Errors
///
/// A panic. What Shardax refuses is inside.
pub fn traced(program: &Program) -> Caught<Result<Graph, shardax::Error>> {
    let layout = run::layout(&program.place).unwrap_or_else(|_| Layout::single());
    traced_under(program, &layout)
}

fn traced_under(program: &Program, layout: &Layout) -> Caught<Result<Graph, shardax::Error>> {
    let types = program
        .inputs
        .iter()
        .map(|input| TensorType::from(&input.ty));
    let types: Vec<TensorType> = types.collect();
    caught(|| {
        let f = |x: Vec<Tensor>| run::program(program, x);
        under(layout, || trace(f, types)).map(|traced| traced.graph)
    })
}

/// The inputs as the interpreter has them.
pub fn inputs(program: &Program) -> Vec<interpreter::Array> {
    let inputs = program.inputs.iter();
    inputs
        .map(|input| values::array(&input.ty, &input.values))
        .collect()
}

/// Checks everything.
pub fn check(program: &Program) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.failure = everything(program, &mut outcome.seen).err();
    outcome
}

fn everything(program: &Program, seen: &mut Vec<String>) -> Caught<()> {
    let graph = match traced(program)? {
        Ok(graph) => graph,
        Err(_) => {
            seen.push("refused while tracing".to_owned());
            return Ok(());
        }
    };
    laws::check(program, seen)?;
    let layout = run::layout(&program.place).map_err(|error| refused("the mesh", &error))?;
    // A region is another program on one device, whose results may have other shapes, or none.
    let regions = features(program).contains(&"[Region]".to_owned());
    let single = match traced_under(program, &Layout::single())? {
        Ok(single) => Some(single),
        Err(_) if regions => None,
        Err(error) => return Err(refused("one device", &error.into())),
    };
    let mut one = None;
    let mut oracle = None;
    if let Some(single) = &single {
        oracle = Oracle::new(single, &inputs(program), 4);
        let found = device_values(program, &Layout::single(), Kind::OneDevice)?;
        let found = found.map_err(|error| refused("one device", &error))?;
        compare(
            program,
            single,
            oracle.as_ref(),
            &found,
            Kind::OneDevice,
            seen,
        )?;
        one = Some(found);
    }
    let is_same = single.is_some_and(|single| single.to_string() == graph.to_string());
    if !is_same {
        oracle = Oracle::new(&graph, &inputs(program), 4);
    }
    if oracle.is_none() {
        seen.push("without oracle".to_owned());
    }
    match device_values(program, &layout, Kind::Layout)? {
        Ok(found) => match &oracle {
            Some(_) => compare(program, &graph, oracle.as_ref(), &found, Kind::Layout, seen)?,
            None => match &one {
                // What a region computes may depend on how many devices there are.
                Some(one) if is_same && !regions => compare_with_one(&found, one)?,
                _ => {}
            },
        },
        Err(Error::Layout { .. }) => seen.push("refused by the layout".to_owned()),
        Err(error) => return Err(refused(&layout.to_string(), &error)),
    }
    Ok(())
}

fn refused(by: &str, error: &Error) -> Failure {
    Failure {
        kind: Kind::Refused,
        message: format!("{by}: {error}"),
    }
}

/// A result on devices.
struct Found {
    ty: TensorType,
    numbers: Vec<f64>,
}

/// The client of this process, of eight devices, without a cache.
pub(crate) fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = Runtime::shared(8)?.with_cache(CompileCache::disabled());
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// The arguments on the host.
pub(crate) fn arguments(program: &Program) -> Result<Vec<Array>, Error> {
    let inputs = program.inputs.iter();
    inputs
        .map(|input| to_array(&values::array(&input.ty, &input.values)))
        .collect()
}

fn to_array(x: &interpreter::Array) -> Result<Array, Error> {
    use half::{bf16, f16};
    use shardax::DType::*;
    let shape = &x.ty.shape;
    macro_rules! of {
        ($floats:ident as $ty:ty) => {
            Array::from_slice(
                &x.floats().iter().map(|&v| v as $ty).collect::<Vec<$ty>>(),
                shape,
            )
        };
        ($ints:ident to $ty:ty) => {
            Array::from_slice(
                &x.ints().iter().map(|&v| v as $ty).collect::<Vec<$ty>>(),
                shape,
            )
        };
    }
    match x.ty.dtype {
        Bool => Array::from_slice(&x.ints().iter().map(|&v| v != 0).collect::<Vec<_>>(), shape),
        I8 | I4 => of!(ints to i8),
        I16 => of!(ints to i16),
        I32 => of!(ints to i32),
        I64 => of!(ints to i64),
        U8 | U4 => of!(ints to u8),
        U16 => of!(ints to u16),
        U32 => of!(ints to u32),
        U64 => of!(ints to u64),
        F16 => Array::from_slice(
            &x.floats()
                .into_iter()
                .map(f16::from_f64)
                .collect::<Vec<_>>(),
            shape,
        ),
        BF16 => Array::from_slice(
            &x.floats()
                .into_iter()
                .map(bf16::from_f64)
                .collect::<Vec<_>>(),
            shape,
        ),
        F64 => of!(floats as f64),
        F32 | F8E4M3FN | F8E5M2 | C64 => of!(floats as f32),
    }
}

/// What devices compute, after what must change nothing did not.
fn device_values(
    program: &Program,
    layout: &Layout,
    kind: Kind,
) -> Caught<Result<Vec<Found>, Error>> {
    caught(|| {
        let f = |x: Vec<Tensor>| run::program(program, x);
        let function = jit(f)
            .layout(layout)
            .runtime(runtime()?)
            .xla_option("xla_backend_optimization_level", 1);
        let found = function.call(arguments(program)?)?;
        if kind == Kind::Layout
            && let Some(failure) = crate::again::changes(program, layout, &function, &found)?
        {
            return Ok(Err(failure));
        }
        if kind == Kind::Layout
            && let Some(message) = differing_copies(&found)?
        {
            let kind = Kind::Replicas;
            return Ok(Err(Failure { kind, message }));
        }
        read(&found).map(Ok)
    })
    .and_then(|found| match found {
        Ok(Ok(found)) => Ok(Ok(found)),
        Ok(Err(failure)) => Err(failure),
        Err(error) => Ok(Err(error)),
    })
}

fn read(arrays: &[Array]) -> Result<Vec<Found>, Error> {
    let each = arrays.iter().map(|array| {
        let ty = array.ty().clone();
        let literal = Literal::from_bytes(ty.clone(), array.to_bytes()?);
        let numbers = literal.map(|literal| literal.numbers()).unwrap_or_default();
        let numbers = numbers.into_iter().map(Number::as_f64).collect();
        Ok(Found { ty, numbers })
    });
    each.collect()
}

/// Whether devices hold different values for the same part of a result.
fn differing_copies(arrays: &[Array]) -> Result<Option<String>, Error> {
    for (i, array) in arrays.iter().enumerate() {
        let mut first = HashMap::new();
        for shard in array.shards()? {
            let bytes = shard.to_bytes()?;
            let known = first
                .entry(shard.bounds().to_vec())
                .or_insert_with(|| bytes.clone());
            if *known != bytes {
                let (device, bounds) = (shard.device(), shard.bounds());
                return Ok(Some(format!(
                    "result {i}: device {device} holds another value of {bounds:?} than the first"
                )));
            }
        }
    }
    Ok(None)
}

/// Compares with what the interpreter says.
fn compare(
    program: &Program,
    graph: &Graph,
    oracle: Option<&Oracle>,
    found: &[Found],
    kind: Kind,
    seen: &mut Vec<String>,
) -> Caught<()> {
    let Some(oracle) = oracle else { return Ok(()) };
    for (i, result) in found.iter().enumerate() {
        match oracle.judge(i, &result.numbers) {
            Verdict::Right => seen.push(format!("{kind:?} right")),
            Verdict::Open => seen.push(format!("{kind:?} open")),
            Verdict::Wrong(..) => {
                // Four runs may agree by chance.
                let more = Oracle::new(graph, &inputs(program), 40);
                let verdict = more.map_or(Verdict::Open, |more| more.judge(i, &result.numbers));
                let Verdict::Wrong(element, value, wanted) = verdict else {
                    seen.push(format!("{kind:?} open"));
                    continue;
                };
                let ty = &result.ty;
                let message = format!(
                    "result {i}, {ty}, element {element} is {value:e}, and {wanted:e} by the interpreter"
                );
                return Err(Failure { kind, message });
            }
        }
    }
    Ok(())
}

/// Compares with one device, where the interpreter cannot say more.
fn compare_with_one(found: &[Found], one: &[Found]) -> Caught<()> {
    for (i, (found, one)) in found.iter().zip(one).enumerate() {
        let finite = one.numbers.iter().filter(|v| v.is_finite());
        let scale = finite.fold(0.0f64, |most, v| most.max(v.abs()));
        let bits = one.ty.dtype.precision().map_or(23, |(bits, _)| bits);
        let bound = scale * 0.5f64.powi(bits as i32 / 2);
        // Where sums overflow or meet NaN depends on their order.
        let near = |a: f64, b: f64| !a.is_finite() || !b.is_finite() || (a - b).abs() <= bound;
        let mut pairs = found.numbers.iter().zip(&one.numbers).enumerate();
        if let Some((element, (a, b))) = pairs.find(|(_, (a, b))| !near(**a, **b)) {
            let ty = &one.ty;
            let message =
                format!("result {i}, {ty}, element {element} is {a:e}, and {b:e} on one device");
            let kind = Kind::Layout;
            return Err(Failure { kind, message });
        }
    }
    Ok(())
}

/// The names of what a program uses, for counting.
pub fn features(program: &Program) -> Vec<String> {
    let mut all = Vec::new();
    all.push(match &program.form {
        Form::Batch { .. } => "form Batch".to_owned(),
        form => format!("form {form:?}"),
    });
    all.push(match program.place.gspmd {
        true => "gspmd".to_owned(),
        false => "shardy".to_owned(),
    });
    all.push(format!("mesh {:?}", program.place.mesh));
    crate::program::visit(&program.body, &mut |statement| {
        all.push(statement.action.name());
    });
    all.sort();
    all.dedup();
    all
}
