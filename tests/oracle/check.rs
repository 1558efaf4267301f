//! Each case is computed in several ways, and every way has to give what JAX gives.
//!
//! One row alone: results, gradients (reverse mode), and the derivative in one direction (forward
//! mode), whose inner product with the cotangents is that of the direction with the gradients. All
//! rows at once, by `vmap`: results and gradients. Many cases are compiled as one program, for
//! compiling is what takes time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{ir::Graph, mistake, vmap_axes};

use crate::golden::{Case, Numbers, ROWS, cotangent, tangent, wide};
use crate::ops;

/// Runs in one program.
const PROGRAM: usize = 32;

/// Results that are joined to one.
const PARCEL: usize = 8;

/// A case, and a way of computing it.
type Run<'a> = (&'a Case, Way);

/// A way of computing a case.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Row 0: results, gradients, and the derivatives in one direction.
    Row,
    /// All rows, which lie along this axis of everything: results and gradients.
    Batch(isize),
}

impl Way {
    /// `position` is that among the cases of the family: every other batch lies along the last axis.
    fn of(position: usize) -> [Way; 2] {
        let axis = if position.is_multiple_of(2) { 0 } else { -1 };
        [Way::Row, Way::Batch(axis)]
    }

    /// The shape in which it takes and gives what has this type in one row.
    fn shape(self, ty: &TensorType) -> Vec<usize> {
        let shape = &ty.shape[..];
        match self {
            Way::Row => shape.to_vec(),
            Way::Batch(0) => [&[ROWS], shape].concat(),
            Way::Batch(_) => [shape, &[ROWS]].concat(),
        }
    }

    /// The numbers of all rows, as this way takes and gives them.
    fn of_rows(self, numbers: &Numbers, ty: &TensorType) -> Numbers {
        match self {
            Way::Row => numbers.row(0),
            Way::Batch(0) => numbers.clone(),
            Way::Batch(_) => numbers.transposed(ty.dtype, ROWS, ty.element_count()),
        }
    }

    /// The arrays that it takes: inputs, cotangents of the float results, and for a single row the
    /// direction of the float inputs.
    fn arguments(self, case: &Case) -> Result<Vec<Array>> {
        let mut arguments = Vec::new();
        for (k, input) in case.inputs.iter().enumerate() {
            let ty = &input.ty;
            arguments.push(match case.shared.contains(&k) {
                true => input.elements(k as u32, 1).array(ty.dtype, &ty.shape)?,
                false => {
                    let numbers = self.of_rows(&input.elements(k as u32, ROWS), ty);
                    numbers.array(ty.dtype, &self.shape(ty))?
                }
            });
        }
        for (j, ty) in float_results(case) {
            let numbers = self.of_rows(&cotangent(j, ty, ROWS), ty);
            arguments.push(numbers.array(ty.dtype, &self.shape(ty))?);
        }
        if self == Way::Row && case.has_forward {
            for k in case.floats() {
                let ty = &case.inputs[k].ty;
                arguments.push(tangent(k, &case.inputs[k]).array(ty.dtype, &ty.shape)?);
            }
        }
        Ok(arguments)
    }

    fn compute(self, case: &Case, arguments: &[Tensor]) -> Vec<Tensor> {
        let inputs = case.inputs.iter().map(|input| input.ty.dtype);
        let cotangents = float_results(case).map(|(_, ty)| ty.dtype);
        let directions = case.floats().into_iter().map(|k| case.inputs[k].ty.dtype);
        let dtypes = inputs.chain(cotangents).chain(directions);
        let arguments = arguments.iter().zip(dtypes);
        let arguments: Vec<Tensor> = arguments.map(|(x, dtype)| typed(*x, dtype)).collect();
        let (inputs, rest) = arguments.split_at(case.inputs.len());
        let (cotangents, directions) = rest.split_at(float_results(case).count());
        let computed = match self {
            Way::Row => {
                let mut computed = value_and_gradients(case, inputs, cotangents.to_vec());
                if case.has_forward {
                    let at: Vec<Tensor> = case.floats().into_iter().map(|k| inputs[k]).collect();
                    let f = |at: Vec<Tensor>| of_floats(case, inputs, &at);
                    computed.extend(jvp(f, at, directions.to_vec()).1);
                }
                computed
            }
            Way::Batch(axis) => {
                let row = |all: Vec<Tensor>| {
                    let (inputs, cotangents) = all.split_at(case.inputs.len());
                    value_and_gradients(case, inputs, cotangents.to_vec())
                };
                let shared = |k| case.shared.contains(&k);
                let axes = (0..arguments.len()).map(|k| (!shared(k)).then_some(axis));
                vmap_axes(row, axes.collect::<Vec<_>>(), axis)(arguments)
            }
        };
        let wide = |x: Tensor| x.cast(wide(x.dtype()));
        computed.into_iter().map(wide).collect()
    }

    /// The types of what it computes.
    fn types(self, case: &Case) -> Vec<TensorType> {
        let parts = (0..case.expected.len()).map(|i| case.part_type(i));
        let forward = float_results(case).filter(|_| self == Way::Row && case.has_forward);
        let all = parts.chain(forward.map(|(_, ty)| ty));
        all.map(|ty| TensorType::new(wide(ty.dtype), self.shape(ty)))
            .collect()
    }

    /// [`Way::compute`], if it gives [`Way::types`].
    fn compute_typed(self, case: &Case, arguments: &[Tensor]) -> Vec<Tensor> {
        let computed = self.compute(case, arguments);
        let types: Vec<TensorType> = computed.iter().map(|x| x.ty()).collect();
        let expected = self.types(case);
        if types != expected {
            let listed = |types: &[TensorType]| {
                let texts: Vec<String> = types.iter().map(ToString::to_string).collect();
                texts.join(", ")
            };
            let problem = format!("gives {}, not {}", listed(&types), listed(&expected));
            mistake("case", problem, None)
        }
        computed
    }

    /// What is wrong with what was computed.
    fn differences(self, case: &Case, computed: &[Numbers]) -> Vec<String> {
        let (computed, forward) = computed.split_at(case.expected.len());
        let mut differences = Vec::new();
        for (i, (numbers, expected)) in computed.iter().zip(&case.expected).enumerate() {
            let ty = case.part_type(i);
            let expected = self.of_rows(expected, ty);
            let difference = difference(numbers, &expected, ty.dtype, case.tolerance);
            differences.extend(difference.map(|d| format!("{}: {d}", case.part(i))));
        }
        if !forward.is_empty() {
            differences.extend(forward_difference(case, forward));
        }
        differences
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Row => write!(f, "one row"),
            Way::Batch(axis) => write!(f, "rows along axis {axis}"),
        }
    }
}

/// A tensor of an element type, of one in which its numbers are passed to the program.
fn typed(x: Tensor, dtype: DType) -> Tensor {
    match dtype {
        DType::C64 => x.index(-1, 0).complex(x.index(-1, 1)),
        _ => x.cast(dtype),
    }
}

/// What is wrong with derivatives in one direction: their inner product with the cotangents is that
/// of the direction with the gradients.
fn forward_difference(case: &Case, computed: &[Numbers]) -> Option<String> {
    let mut forward = Sum::default();
    for ((j, ty), numbers) in float_results(case).zip(computed) {
        forward.add(numbers, &cotangent(j, ty, ROWS).row(0));
    }
    let mut reverse = Sum::default();
    for (g, k) in case.floats().into_iter().enumerate() {
        let gradient = case.expected[case.results.len() + g].row(0);
        reverse.add(&gradient, &tangent(k, &case.inputs[k]));
    }
    let inputs = case.floats().into_iter().map(|k| case.inputs[k].ty.dtype);
    let types = inputs.chain(float_results(case).map(|(_, ty)| ty.dtype));
    let error = types.map(relative_error).fold(0.0, f64::max) * case.tolerance;
    let allowed = error * forward.size.max(reverse.size).max(0.1);
    let (forward, reverse) = (forward.value, reverse.value);
    // A NaN is not near anything.
    let near = (forward - reverse).abs() <= allowed;
    let fault = format!("derivative {forward}, by the gradients {reverse}");
    (!near).then_some(fault)
}

/// An inner product, and the sum of the absolute values of its terms.
#[derive(Default)]
struct Sum {
    value: f64,
    size: f64,
}

impl Sum {
    fn add(&mut self, a: &Numbers, b: &Numbers) {
        let (Numbers::Float(a), Numbers::Float(b)) = (a, b) else {
            return;
        };
        for (a, b) in a.iter().zip(b) {
            self.value += a * b;
            self.size += (a * b).abs();
        }
    }
}

fn float_results(case: &Case) -> impl Iterator<Item = (usize, &TensorType)> {
    let results = case.results.iter().enumerate();
    results.filter(|(_, ty)| case.has_gradient && ty.dtype.is_float())
}

/// The results of a case as a function of its float inputs.
fn of_floats(case: &Case, inputs: &[Tensor], floats: &[Tensor]) -> Vec<Tensor> {
    let mut full = inputs.to_vec();
    for (k, &x) in case.floats().into_iter().zip(floats) {
        full[k] = x;
    }
    let results = apply(case, &full);
    results
        .into_iter()
        .filter(|x| x.dtype().is_float())
        .collect()
}

fn apply(case: &Case, inputs: &[Tensor]) -> Vec<Tensor> {
    let results = ops::apply(&case.op, &case.params, inputs);
    results.unwrap_or_else(|| panic!("no operation for {case}"))
}

fn value_and_gradients(case: &Case, inputs: &[Tensor], cotangents: Vec<Tensor>) -> Vec<Tensor> {
    let mut computed = apply(case, inputs);
    if case.has_gradient {
        let floats: Vec<Tensor> = case.floats().into_iter().map(|k| inputs[k]).collect();
        let (_, pullback) = vjp(|floats| of_floats(case, inputs, &floats), floats);
        computed.extend(pullback(cotangents));
    }
    computed
}

/// How much a computed number of a type may differ from the expected one, as a part of the
/// expected one; where that is small, of 0.1 or of a tenth of the largest.
fn relative_error(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 | DType::C64 => 4e-6,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::F8E4M3FN => 0.13,
        DType::F8E5M2 => 0.26,
        _ => 0.0,
    }
}

fn difference(
    computed: &Numbers,
    expected: &Numbers,
    dtype: DType,
    tolerance: f64,
) -> Option<String> {
    let equal = match (computed, expected) {
        (Numbers::Float(computed), Numbers::Float(expected)) => {
            let largest = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
            let error = relative_error(dtype) * tolerance;
            let near = |(a, b): (&f64, &f64)| {
                a == b || (a - b).abs() <= error * b.abs().max(0.1 * largest).max(0.1)
            };
            computed.len() == expected.len() && computed.iter().zip(expected).all(near)
        }
        (Numbers::Int(computed), Numbers::Int(expected)) => computed == expected,
        _ => false,
    };
    (!equal).then(|| format!("computed {computed:?}, expected {expected:?}"))
}

/// Panics with the faults of all cases of a family.
pub(crate) fn check(family: &str, cases: &[Case]) {
    let ways = |(position, case)| Way::of(position).map(|way| (case, way));
    let runs: Vec<Run> = cases.iter().enumerate().flat_map(ways).collect();
    let faults: Vec<String> = runs.chunks(PROGRAM).flat_map(check_together).collect();
    assert!(
        faults.is_empty(),
        "{} faults in {} cases of {family}\n{}",
        faults.len(),
        cases.len(),
        faults.join("\n")
    );
}

/// Adds the names of the primitives that a case consists of.
pub(crate) fn primitives(case: &Case, names: &mut BTreeSet<&'static str>) -> Result<()> {
    fn add(graph: &Graph, names: &mut BTreeSet<&'static str>) {
        for equation in graph.equations() {
            names.insert(equation.op.name());
            for (_, region) in equation.op.regions() {
                add(region, names);
            }
        }
    }
    let arguments = Way::Row.arguments(case)?;
    let types: Vec<TensorType> = arguments.iter().map(|a| a.ty().clone()).collect();
    let row = |arguments: Vec<Tensor>| Way::Row.compute(case, &arguments);
    add(&shardax::trace(row, types)?.graph, names);
    Ok(())
}

/// The faults of some cases. Where there is no program of them, they are halved until those are
/// found that spoil it.
fn check_together(runs: &[Run]) -> Vec<String> {
    match run(runs) {
        Ok(faults) => faults,
        Err(_) if runs.len() > 1 => {
            let (a, b) = runs.split_at(runs.len() / 2);
            [check_together(a), check_together(b)].concat()
        }
        Err(error) => {
            let (case, way) = runs[0];
            vec![format!("{case}, {way}: {error}")]
        }
    }
}

fn run(runs: &[Run]) -> Result<Vec<String>> {
    let arguments = runs.iter().map(|(case, way)| way.arguments(case));
    let arguments = arguments.collect::<Result<Vec<_>>>()?;
    let types: Vec<TensorType> = runs
        .iter()
        .flat_map(|(case, way)| way.types(case))
        .collect();
    let parcels = parcels(&types);
    let program = jit(|arguments: Vec<Vec<Tensor>>| -> Vec<Tensor> {
        let all = runs.iter().zip(&arguments);
        let results: Vec<Tensor> = all
            .flat_map(|((case, way), arguments)| way.compute_typed(case, arguments))
            .collect();
        let packed = |parcel: &Vec<usize>| {
            let parts = parcel.iter().map(|&i| results[i].ravel());
            concatenate(parts.collect::<Vec<_>>(), 0)
        };
        parcels.iter().map(packed).collect()
    });
    let packed = program
        .name("oracle")
        .xla_option("xla_backend_optimization_level", 0)
        .call(arguments)?;
    let mut results = vec![Numbers::Int(Vec::new()); types.len()];
    for (parcel, array) in parcels.iter().zip(packed) {
        let bytes = array.to_bytes()?;
        let mut rest = bytes.as_slice();
        for &i in parcel {
            let (part, after) = rest.split_at(types[i].host_bytes());
            results[i] = Numbers::of_bytes(types[i].dtype, part);
            rest = after;
        }
    }
    let mut rest = results.as_slice();
    let mut faults = Vec::new();
    for (case, way) in runs {
        let (computed, after) = rest.split_at(way.types(case).len());
        let differences = way.differences(case, computed).into_iter();
        faults.extend(differences.map(|d| format!("{case}, {way}: {d}")));
        rest = after;
    }
    Ok(faults)
}

/// Which results travel together. What the compiler makes of a result costs it more than computing
/// some more elements, so those of one element type are joined.
fn parcels(types: &[TensorType]) -> Vec<Vec<usize>> {
    let mut by_dtype: BTreeMap<DType, Vec<usize>> = BTreeMap::new();
    for (i, ty) in types.iter().enumerate() {
        by_dtype.entry(ty.dtype).or_default().push(i);
    }
    let lists = by_dtype.into_values();
    lists
        .flat_map(|list| {
            list.chunks(PARCEL)
                .map(<[usize]>::to_vec)
                .collect::<Vec<_>>()
        })
        .collect()
}
