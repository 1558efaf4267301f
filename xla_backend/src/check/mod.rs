//! Whether a program computes under other layouts what it computes on one device.
//!
//! A layout says where arrays lie and must not change a number beyond rounding. [`check_layouts`] runs
//! a training step on one device and under each layout and compares losses, gradients and updated state
//! leaf by leaf; [`check_function`] does so for the results of any function. Each row says as well what
//! the layout costs: collectives and memory of a device, as the compiler tells.

mod compare;
mod cost;
mod table;

use std::cell::RefCell;
use std::time::Instant;

use shardax_core::{Function, On, Path, Role, Tensor, TensorType, Tree, mistake, tree_paths};
use shardax_pjrt::OptionValue;
use shardax_sharding::{Layout, SpecFault};

use crate::array::Array;
use crate::error::{Error, Result};
use crate::jit::{Jit, Program, jit};
pub use compare::{Difference, Quantity, Tolerance};
use compare::{Leaf, Part, read};
pub use cost::{AxisTraffic, DeviceBytes};
pub use table::{LayoutRow, LayoutTable, Measured, Verdict};

/// How [`check_layouts`] runs and compares.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// How far results may be from those of one device.
    pub tolerance: Tolerance,
    /// Debug options of XLA's for every compilation ([`Jit::xla_option`](crate::Jit::xla_option)).
    pub xla: Vec<(String, OptionValue)>,
}

impl Default for CheckOptions {
    /// The tolerance of f32, and XLA's own options.
    fn default() -> Self {
        CheckOptions {
            tolerance: Tolerance::F32,
            xla: Vec::new(),
        }
    }
}

impl CheckOptions {
    /// Compiles machine code with little optimization: faster to compile, slower to run, and the same
    /// numbers up to rounding. Temporary memory may be other than that of a program to train with.
    ///
    /// This is XLA's level 1. At level 0 its CPU backend may round one number in two ways in one
    /// program, and then the derivative of a maximum finds no element that is equal to it.
    #[must_use]
    pub fn quick(mut self) -> Self {
        let level = ("xla_backend_optimization_level".to_owned(), 1.into());
        self.xla.push(level);
        self
    }
}

/// Runs a training step on one device and under each layout, and compares.
///
/// `step` takes the state and a batch, and returns the next state, the loss, a scalar, and the
/// gradients, a tree of any kind (`()` if there are none to compare). It runs once for each of
/// `batches`, each time on the state before. Compared are the losses of all steps, the gradients of the
/// first, before rounding has had time to grow, and the state after the last.
///
/// # Errors
///
/// If the step does not run on one device or its loss is NaN there, or there is no batch. What goes wrong under a
/// layout is told in its row.
///
/// ```no_run
/// use shardax_core::{Tensor, value_and_grad};
/// use shardax_sharding::{Layout, Mesh};
/// use shardax_xla::{Array, CheckOptions, check_layouts};
///
/// let step = |w: Tensor, x: Tensor| {
///     let (loss, gradient) = value_and_grad(|w: Tensor| x.dot(w).square().mean(..))(w);
///     (w - gradient * 0.1, loss, gradient)
/// };
/// let w = Array::from_slice(&[1f32; 4], [4])?;
/// let x = Array::from_slice(&[2f32; 32], [8, 4])?;
/// let layouts = [("ddp".to_owned(), Layout::ddp(Mesh::new([("data", 8)])?)?)];
/// let table = check_layouts(step, w, vec![x], &layouts, CheckOptions::default())?;
/// println!("{table}");
/// assert!(table.is_equal());
/// # Ok::<(), shardax_xla::Error>(())
/// ```
pub fn check_layouts<S, B, G>(
    step: impl Fn(S, B) -> (S, Tensor, G),
    state: On<S, Array>,
    batches: Vec<On<B, Array>>,
    layouts: &[(String, Layout)],
    options: CheckOptions,
) -> Result<LayoutTable>
where
    S: Tree<Tensor>,
    B: Tree<Tensor>,
    G: Tree<Tensor>,
{
    let check = LayoutCheck::new(&step, state, batches, options)?;
    let rows = layouts
        .iter()
        .map(|(name, layout)| check.row(name, layout, &step));
    Ok(LayoutTable {
        rows: rows.collect(),
    })
}

/// Runs a function on one device and under each layout, and compares every leaf of the result.
///
/// # Errors
///
/// If the function does not run on one device. What goes wrong under a layout is told in its row.
pub fn check_function<Signature, F: Function<Signature>>(
    f: F,
    args: On<F::Args, Array>,
    layouts: &[(String, Layout)],
    options: CheckOptions,
) -> Result<LayoutTable> {
    let observe = |layout: &Layout| {
        let step = jit(|args: F::Args| f.apply(args)).layout(layout).quiet();
        let step = configured(step, &options);
        let start = Instant::now();
        let program = step.compile_like(&args)?;
        let seconds = [start.elapsed().as_secs_f64(), 0.0];
        let args = placed(&args, &program, 0)?;
        let results = leaves(&step.call(args)?)?;
        let parts = vec![Part::new(Quantity::Results, results)];
        let bytes = DeviceBytes::of_results(&program)?;
        Ok(Observed {
            parts,
            program,
            bytes,
            seconds,
        })
    };
    let reference = observe(&Layout::single())?;
    let row = |(name, layout): &(String, Layout)| {
        let found = observe(layout);
        row(name, layout, found, &reference.parts, &options.tolerance)
    };
    Ok(LayoutTable {
        rows: layouts.iter().map(row).collect(),
    })
}

/// What one device computes, against which layouts and ways to write the same step are checked.
///
/// [`check_layouts`] for a caller that wants each row when it is there, or to check steps that are
/// written otherwise and have to compute the same, such as one with gradient accumulation.
pub struct LayoutCheck<S: Tree<Tensor>, B: Tree<Tensor>> {
    state: On<S, Array>,
    batches: Vec<On<B, Array>>,
    options: CheckOptions,
    reference: Vec<Part>,
}

impl<S: Tree<Tensor>, B: Tree<Tensor>> LayoutCheck<S, B> {
    /// Runs the step on one device. See [`check_layouts`] for what it is.
    ///
    /// # Errors
    ///
    /// As for [`check_layouts`].
    pub fn new<G: Tree<Tensor>>(
        step: impl Fn(S, B) -> (S, Tensor, G),
        state: On<S, Array>,
        batches: Vec<On<B, Array>>,
        options: CheckOptions,
    ) -> Result<Self> {
        let mut check = LayoutCheck {
            state,
            batches,
            options,
            reference: Vec::new(),
        };
        check.reference = check.observe(&Layout::single(), &step)?.parts;
        Ok(check)
    }

    /// Runs a step under a layout and compares.
    pub fn row<G: Tree<Tensor>>(
        &self,
        name: &str,
        layout: &Layout,
        step: impl Fn(S, B) -> (S, Tensor, G),
    ) -> LayoutRow {
        let found = self.observe(layout, &step);
        row(
            name,
            layout,
            found,
            &self.reference,
            &self.options.tolerance,
        )
    }

    fn observe<G: Tree<Tensor>>(
        &self,
        layout: &Layout,
        step: &impl Fn(S, B) -> (S, Tensor, G),
    ) -> Result<Observed> {
        let Some(first) = self.batches.first() else {
            return Err(Error::Call {
                program: "step".to_owned(),
                faults: vec!["there is no batch: give one for each step to be run".to_owned()],
                source_line: None,
            });
        };
        // Gradients come as a list, without the annotations of parameters: a layout may want them to
        // lie in another way. Their paths are kept beside it.
        let paths = RefCell::new(Vec::new());
        let listed = |state: S, batch: B| {
            let (state, loss, gradients) = step(state, batch);
            if loss.rank() != 0 {
                let problem = format!("the loss of the step is {}", loss.ty());
                let help = "return a scalar, such as the mean of the batch".to_owned();
                mistake("check_layouts", problem, Some(help))
            }
            let named = tree_paths(&gradients).into_iter();
            let (names, listed): (Vec<String>, Vec<Tensor>) = named.unzip();
            *paths.borrow_mut() = names;
            (state, loss, listed)
        };
        let step = jit(listed).name("step").layout(layout).donate(&[0]).quiet();
        let step = configured(step, &self.options);
        let start = Instant::now();
        let program = step.compile_like(&(copy(&self.state), copy(first)))?;
        let compiled = Instant::now();

        let mut state = placed(&self.state, &program, 0)?;
        let (mut losses, mut gradients) = (Vec::new(), Vec::new());
        let inputs = program.inputs().len();
        for (i, batch) in self.batches.iter().enumerate() {
            let batch = placed(batch, &program, inputs - batch.leaves().len())?;
            let (next, loss, found) = step.call((state, batch))?;
            state = next;
            losses.extend(read(&loss)?);
            if self.reference.is_empty() && losses.iter().any(|loss| loss.is_nan()) {
                return Err(Error::Call {
                    program: "step".to_owned(),
                    faults: vec![format!(
                        "the loss of step {i} is NaN on one device: there is nothing to compare it with"
                    )],
                    source_line: None,
                });
            }
            if i == 0 {
                gradients = leaves(&found)?;
                for (leaf, path) in gradients.iter_mut().zip(paths.borrow().iter()) {
                    leaf.path.clone_from(path);
                }
            }
        }
        let mut parts = vec![Part::of_steps(losses)];
        parts.push(Part::new(Quantity::Gradients, gradients));
        let roles = roles(&state);
        let bytes = DeviceBytes::of_step(&program, &roles)?;
        let state = leaves(&state)?.into_iter().zip(roles);
        let (optimizer, parameters): (Vec<_>, Vec<_>) =
            state.partition(|(_, role)| *role == Role::State);
        let own = |leaves: Vec<(Leaf, Role)>| leaves.into_iter().map(|(leaf, _)| leaf).collect();
        parts.push(Part::new(Quantity::Parameters, own(parameters)));
        parts.push(Part::new(Quantity::Optimizer, own(optimizer)));
        let seconds = [compiled - start, compiled.elapsed()].map(|d| d.as_secs_f64());
        Ok(Observed {
            parts,
            program,
            bytes,
            seconds,
        })
    }
}

/// What a program computes, and the program.
struct Observed {
    parts: Vec<Part>,
    program: Program,
    bytes: DeviceBytes,
    /// To compile and to run.
    seconds: [f64; 2],
}

fn row(
    name: &str,
    layout: &Layout,
    found: Result<Observed>,
    reference: &[Part],
    tolerance: &Tolerance,
) -> LayoutRow {
    let mut row = LayoutRow {
        name: name.to_owned(),
        mesh: layout.mesh().to_string(),
        devices: layout.mesh().device_count(),
        partitioner: layout.chosen_partitioner().to_string(),
        verdict: Verdict::Failed,
        problems: Vec::new(),
        measured: None,
    };
    let measured = found.and_then(|observed| {
        let parts = observed.parts.iter().zip(reference);
        let mut problems = Vec::new();
        let differences = parts
            .map(|(found, wanted)| found.compare(wanted, tolerance, &mut problems))
            .collect();
        let measured = Measured {
            differences,
            bytes: observed.bytes,
            traffic: cost::traffic(&observed.program)?,
            compile_seconds: observed.seconds[0],
            run_seconds: observed.seconds[1],
        };
        Ok((measured, problems))
    });
    match measured {
        Ok((measured, problems)) => {
            row.verdict = match problems.is_empty() {
                true => Verdict::Equal,
                false => Verdict::Differs,
            };
            row.problems = problems;
            row.measured = Some(measured);
        }
        Err(error) => {
            if is_refusal(&error) {
                row.verdict = Verdict::Refused;
            }
            row.problems.push(error.to_string());
        }
    }
    row
}

/// Whether the partitioner cannot run such a program, and nothing else is wrong with it.
fn is_refusal(error: &Error) -> bool {
    let Error::Layout { faults } = error else {
        return false;
    };
    let partly = |fault: &SpecFault| matches!(fault, SpecFault::PartlyManual { .. });
    faults.iter().all(|fault| partly(&fault.fault))
}

fn configured<Signature, F: Function<Signature>>(
    step: Jit<Signature, F>,
    options: &CheckOptions,
) -> Jit<Signature, F> {
    let all = options.xla.iter();
    all.fold(step, |step, (name, value)| {
        step.xla_option(name.clone(), value.clone())
    })
}

/// The arrays where the program wants its arguments from position `first` on.
fn placed<T: Tree<Array>>(tree: &T, program: &Program, first: usize) -> Result<T> {
    let client = program.executable().client();
    let mut inputs = program.inputs().iter().skip(first);
    let mut problem = None;
    let placed = tree.replace_leaves(&mut |_, array| {
        let Some(input) = inputs.next() else {
            return array.clone();
        };
        let put = array.put_from_host(client, &input.sharding);
        put.unwrap_or_else(|error| {
            problem = Some(error);
            array.clone()
        })
    });
    match problem {
        Some(error) => Err(error),
        None => Ok(placed),
    }
}

/// The same arrays.
fn copy<T: Tree<Array>>(tree: &T) -> T {
    tree.replace_leaves(&mut |_, array| array.clone())
}

/// What each leaf of a state is.
fn roles<T: Tree<Array>>(state: &T) -> Vec<Role> {
    let mut roles = Vec::new();
    state.visit_leaves(&mut Path::root(), &mut |path, _| roles.push(path.role()));
    roles
}

/// The numbers of every leaf.
fn leaves<T: Tree<Array>>(tree: &T) -> Result<Vec<Leaf>> {
    let mut found = Vec::new();
    tree.visit_leaves(&mut Path::root(), &mut |path, array| {
        found.push((path.to_string(), array));
    });
    let read = |(path, array): (String, &Array)| {
        let ty: TensorType = array.ty().clone();
        let numbers = read(array)?;
        Ok(Leaf { path, ty, numbers })
    };
    found.into_iter().map(read).collect()
}
