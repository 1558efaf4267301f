//! From a function to a loaded program: trace, place, lower, and compile or load.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use shardax_core::{
    CheckPoint, Dim, Function, Leaf, NonFinite, On, Path, Role, Tensor, TensorType, Traced, Tree,
    check_finite,
    ir::{Constraint, Graph, Op, ValueId},
    trace_under,
};
use shardax_pjrt::{CompileOptions, HOST_PLATFORM, LoadedExecutable, donated_inputs};
use shardax_sharding::{Cluster, Layout, Note, PartitionSpec, Partitioner};

use super::Options;
use super::arguments::Signature;
use super::program::{Inner, Program, Specialized, no_faults};
use crate::ahead::{self, AheadOptions, AheadProgram, Job};
use crate::array::Sharding;
use crate::array::{intern_sharding, intern_type};
use crate::compiled::{Input, Output, described};
use crate::error::{Error, Result};
use crate::lower::{self, Argument, LayoutFault, Module};
use crate::runtime::Runtime;

/// A function that was traced and lowered, and is not compiled.
struct Lowered<A, R> {
    traced: Traced<A, R>,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    /// Of each input, whether it is to be donated.
    donated: Vec<bool>,
    module: Module,
    /// Where values are looked at, if they are.
    points: Option<(NonFinite, Vec<CheckPoint>)>,
}

/// Traces `f` on arguments like `args`, and compiles what it wrote; `retraced` says why, if it was
/// compiled before.
#[track_caller]
pub(super) fn compile<S, F: Function<S>, M: Leaf>(
    f: &F,
    args: &On<F::Args, M>,
    signature: impl Fn(&M) -> Signature,
    (options, runtime): (&Options, &Runtime),
    retraced: Vec<String>,
) -> Result<Specialized<F::Args, F::Output>> {
    let on_host = runtime.client().platform_name() == HOST_PLATFORM;
    let lowered = lower_traced(f, args, signature, (options, on_host))?;
    let (executable, from_cache) = load_or_compile(&lowered.module, options, runtime)?;
    lowered.check_donation(options, |input| executable.is_donated(input))?;
    let Traced {
        graph,
        arguments,
        output,
    } = lowered.traced;
    Ok(Specialized {
        program: Program {
            inner: Arc::new(Inner {
                name: options.name.clone(),
                graph,
                layout: options.layout.clone(),
                module: lowered.module,
                executable,
                from_cache,
                retraced,
                inputs: lowered.inputs,
                outputs: lowered.outputs,
                report: options.report,
                points: lowered.points,
            }),
        },
        arguments,
        output,
    })
}

/// Traces `f` on arguments like `args`, and compiles what it wrote for a cluster that is not there.
#[track_caller]
pub(super) fn compile_ahead<S, F: Function<S>>(
    f: &F,
    types: &On<F::Args, TensorType>,
    options: &Options,
    (cluster, with): (&Cluster, &AheadOptions),
) -> Result<AheadProgram> {
    let signature = |ty: &TensorType| Signature {
        ty: intern_type(ty.clone()),
        sharding: None,
    };
    let lowered = lower_traced(f, types, signature, (options, false))?;
    let job = Job {
        name: &options.name,
        module: &lowered.module,
        layout: &options.layout,
        cluster,
        xla: &options.xla,
    };
    let (compiled, from_cache) = job.compile(with)?;
    let taken = donated_inputs(&compiled.hlo)?;
    lowered.check_donation(options, |input| taken.contains(&input))?;
    let program = AheadProgram {
        inner: Arc::new(ahead::Inner {
            name: options.name.clone(),
            cluster: cluster.clone(),
            graph: lowered.traced.graph,
            layout: options.layout.clone(),
            module: lowered.module,
            inputs: lowered.inputs,
            outputs: lowered.outputs,
            report: options.report,
            compiled,
            from_cache,
        }),
    };
    let look = options.compiled();
    look.look_at(|| program.remarks(), || program.report())?;
    Ok(program)
}

/// Traces `f` on arguments like `args`, and lowers what it wrote.
#[track_caller]
fn lower_traced<S, F: Function<S>, M: Leaf>(
    f: &F,
    args: &On<F::Args, M>,
    signature: impl Fn(&M) -> Signature,
    (options, on_host): (&Options, bool),
) -> Result<Lowered<F::Args, F::Output>> {
    options.layout.validate()?;
    let ty = |leaf: &M| (*signature(leaf).ty).clone();
    let traced = trace_under(&options.layout, f, args, ty)?;
    let mut signatures = Vec::new();
    args.visit_leaves(&mut Path::root(), &mut |_, leaf| {
        signatures.push(signature(leaf))
    });

    let mut placement = Placement {
        layout: &options.layout,
        faults: Vec::new(),
    };
    let inputs = placement.inputs(&traced, &signatures);
    let outputs = placement.outputs(&traced);
    let donated = donated_leaves(&traced.arguments, F::ARGUMENTS, options)?;
    let aliases = match placement.faults.is_empty() {
        true => aliases(&inputs, &outputs, &donated, options)?,
        // Where arrays lie is not known; what is wrong inside of the program is told all the same.
        false => vec![None; inputs.len()],
    };

    let arguments: Vec<Argument> = inputs
        .iter()
        .zip(aliases)
        .map(|(input, aliases)| Argument {
            name: input.path.clone(),
            spec: Some(input.sharding.spec().clone()),
            aliases,
            is_state: input.role == Role::State,
        })
        .collect();
    let checked = options.check.map(|what| check_finite(&traced.graph, what));
    let mut results: Vec<Option<PartitionSpec>> = outputs
        .iter()
        .map(|output| Some(output.sharding.spec().clone()))
        .collect();
    // What was found is whole on every device.
    results.extend(checked.as_ref().map(|_| None));
    let lowered = lower::lower(&lower::Program {
        name: &options.name,
        graph: checked.as_ref().map_or(&traced.graph, |c| &c.graph),
        layout: &options.layout,
        arguments: &arguments,
        results: &results,
        on_host,
    });
    let module = without_faults(lowered, placement.faults)?;
    Ok(Lowered {
        inputs,
        outputs,
        donated,
        module,
        points: options.check.zip(checked.map(|checked| checked.points)),
        traced,
    })
}

impl<A, R> Lowered<A, R> {
    /// The compiler's word that donated memory is really given over.
    fn check_donation(&self, options: &Options, is_donated: impl Fn(usize) -> bool) -> Result<()> {
        let ignored = |i: &usize| self.donated[*i] && !is_donated(*i);
        let faults: Vec<String> = (0..self.inputs.len())
            .filter(ignored)
            .map(|i| {
                format!(
                    "{} is donated, and the compiler did not take it",
                    self.inputs[i].described()
                )
            })
            .collect();
        no_faults(&options.name, faults)
    }
}

/// The module, or what is wrong with the layout: where arguments and results lie, then what is inside.
fn without_faults(
    lowered: Result<Module, Vec<LayoutFault>>,
    mut faults: Vec<LayoutFault>,
) -> Result<Module> {
    match lowered {
        Ok(module) if faults.is_empty() => return Ok(module),
        Ok(_) => {}
        Err(inner) => faults.extend(inner),
    }
    Err(Error::Layout { faults })
}

/// Decides where arguments and results lie.
struct Placement<'a> {
    layout: &'a Layout,
    faults: Vec<LayoutFault>,
}

impl Placement<'_> {
    /// An annotated argument lies where the layout says. One without annotation lies as the program
    /// first states of it, else where the array given is, else whole on every device.
    fn inputs<A: Tree<Tensor>, R>(
        &mut self,
        traced: &Traced<A, R>,
        signatures: &[Signature],
    ) -> Vec<Input> {
        let mut inputs = Vec::new();
        let graph = &traced.graph;
        let all_stated = stated_of_inputs(graph);
        traced
            .arguments
            .visit_leaves(&mut Path::root(), &mut |path, _| {
                let position = inputs.len();
                let signature = &signatures[position];
                let shape = &signature.ty.shape;
                let stated = all_stated.get(&graph.inputs()[position]).copied();
                let stated_dims = stated.map(|constraint| constraint.dims.to_vec());
                let dims = path.dims().or(stated_dims);
                let own_dims = path.dims();
                let (spec, notes) = match (self.is_leaf(path), stated) {
                    (true, _) => self.resolve("argument", path, own_dims.as_deref(), &signature.ty),
                    (false, Some(constraint)) => self.resolve_stated(constraint, shape),
                    (false, None) => {
                        let own = signature
                            .sharding
                            .as_ref()
                            .filter(|s| s.mesh() == self.layout.mesh());
                        let own = own.map(|sharding| sharding.spec().clone());
                        (
                            own.unwrap_or_else(|| PartitionSpec::replicated(shape.len())),
                            Vec::new(),
                        )
                    }
                };
                let sharding = Sharding::new(self.layout.mesh().clone(), spec);
                inputs.push(Input {
                    path: path.to_string(),
                    ty: signature.ty.clone(),
                    sharding: intern_sharding(sharding),
                    dims,
                    role: path.role(),
                    notes,
                });
            });
        inputs
    }

    /// An annotated result lies where the layout says, another one as the program states of the
    /// value, else whole on every device.
    fn outputs<A, R: Tree<Tensor>>(&mut self, traced: &Traced<A, R>) -> Vec<Output> {
        let mut outputs: Vec<Output> = Vec::new();
        let graph = &traced.graph;
        let stated = stated_of_outputs(graph);
        traced
            .output
            .visit_leaves(&mut Path::root(), &mut |path, _| {
                let value = graph.outputs()[outputs.len()];
                let ty = graph.ty(value);
                let spec = match (self.is_leaf(path), stated.get(&value)) {
                    (true, _) => self.resolve("result", path, path.dims().as_deref(), ty).0,
                    (false, Some(constraint)) => self.resolve_stated(constraint, &ty.shape).0,
                    (false, None) => PartitionSpec::replicated(ty.rank()),
                };
                outputs.push(Output {
                    path: path.to_string(),
                    ty: intern_type(ty.clone()),
                    sharding: intern_sharding(Sharding::new(self.layout.mesh().clone(), spec)),
                });
            });
        outputs
    }

    /// Whether the layout says of a leaf where it lies: of its dimensions, or of itself.
    fn is_leaf(&self, path: &Path) -> bool {
        let by_path = || self.layout.overridden(path.role(), &path.to_string());
        path.dims().is_some() || by_path().is_some()
    }

    /// Where its annotation or its path puts a leaf.
    fn resolve(
        &mut self,
        kind: &str,
        path: &Path,
        dims: Option<&[Dim]>,
        ty: &TensorType,
    ) -> (PartitionSpec, Vec<Note>) {
        let (role, name, shape) = (path.role(), path.to_string(), &ty.shape);
        match self.layout.resolve_leaf(role, &name, dims, shape) {
            Ok(resolved) => (resolved.spec, resolved.notes),
            Err(faults) => {
                let what = described(kind, &name, ty);
                let faults = faults.into_iter();
                self.faults
                    .extend(faults.map(|fault| LayoutFault::of_leaf(what.clone(), path, fault)));
                (PartitionSpec::replicated(shape.len()), Vec::new())
            }
        }
    }

    /// Where an annotation of the program puts a value. Lowering meets the same annotation, and tells
    /// of its faults with the line it is on.
    fn resolve_stated(&self, stated: &Constraint, shape: &[usize]) -> (PartitionSpec, Vec<Note>) {
        match self.layout.resolve(stated.role, &stated.dims, shape) {
            Ok(resolved) => (resolved.spec.closed(), resolved.notes),
            Err(_) => (PartitionSpec::replicated(shape.len()), Vec::new()),
        }
    }
}

/// The annotations that the program puts on its arguments themselves: of several, the first.
fn stated_of_inputs(graph: &Graph) -> FxHashMap<ValueId, &Constraint> {
    let mut stated = FxHashMap::default();
    for equation in graph.equations() {
        if let Op::Shard(constraint) = &equation.op {
            let operand = equation.operands[0];
            stated.entry(operand).or_insert(constraint.as_ref());
        }
    }
    stated
}

/// The annotations on the values that results are.
fn stated_of_outputs(graph: &Graph) -> FxHashMap<ValueId, &Constraint> {
    let equations = graph.equations().iter();
    let stated = equations.filter_map(|equation| match &equation.op {
        Op::Shard(constraint) => Some((equation.results[0], constraint.as_ref())),
        _ => None,
    });
    stated.collect()
}

/// Which leaves belong to the arguments that are donated, of `count` arguments.
fn donated_leaves<A: Tree<Tensor>>(
    arguments: &A,
    count: usize,
    options: &Options,
) -> Result<Vec<bool>> {
    let beyond = options.donate.iter().filter(|&&argument| argument >= count);
    let faults: Vec<String> = beyond
        .map(|argument| {
            format!(
                "argument {argument} is to be donated, and the function takes {count}; they are \
                 counted from 0"
            )
        })
        .collect();
    no_faults(&options.name, faults)?;
    let mut donated = Vec::new();
    arguments.visit_leaves(&mut Path::root(), &mut |path, _| {
        // A function of one argument has no tuple around it.
        let argument = if count == 1 {
            Some(0)
        } else {
            path.first_index()
        };
        donated.push(argument.is_some_and(|argument| options.donate.contains(&argument)));
    });
    Ok(donated)
}

/// The result that takes over each donated argument's memory: the first that is not taken, of the
/// same type and sharding.
fn aliases(
    inputs: &[Input],
    outputs: &[Output],
    donated: &[bool],
    options: &Options,
) -> Result<Vec<Option<usize>>> {
    let mut taken = vec![false; outputs.len()];
    let mut faults = Vec::new();
    let mut aliases = Vec::with_capacity(inputs.len());
    for (input, &is_donated) in inputs.iter().zip(donated) {
        let fits = |o: &usize| {
            !taken[*o] && outputs[*o].ty == input.ty && outputs[*o].sharding == input.sharding
        };
        let found = (0..outputs.len()).filter(|_| is_donated).find(fits);
        match found {
            Some(output) => taken[output] = true,
            None if is_donated => faults.push(format!(
                "{} is donated, and no result of the same type and sharding is there to take its \
                 memory: return its new value, or do not donate it",
                input.described()
            )),
            None => {}
        }
        aliases.push(found);
    }
    no_faults(&options.name, faults)?;
    Ok(aliases)
}

fn load_or_compile(
    module: &Module,
    wanted: &Options,
    runtime: &Runtime,
) -> Result<(LoadedExecutable, bool)> {
    let layout = &wanted.layout;
    let devices = layout.mesh().device_count();
    let options = CompileOptions {
        use_shardy_partitioner: layout.chosen_partitioner() == Partitioner::Shardy,
        device_assignment: Some(runtime.first_devices(devices)),
        ..CompileOptions::partitioned(devices)
    }
    // Without this, XLA's CPU compiler leaves NaNs out of `max` and `min` over a dimension.
    .option("xla_cpu_enable_fast_min_max", false);
    let options = wanted.xla.iter().fold(options, |options, (name, value)| {
        options.option(name.clone(), value.clone())
    });
    if !module.calls().is_empty() {
        // Closures are of this process, and so is the program.
        let (text, client) = (module.text(), runtime.client());
        let compiled = client.compile_with_calls(text.as_bytes(), &options, module.calls());
        let compiled = compiled.map(|executable| (executable, false));
        return compiled.map_err(|error| Error::of_compiling(&wanted.name, error.into()));
    }
    let compiled = runtime.load_or_compile(module.identity(), module.text(), &options);
    compiled.map_err(|error| Error::of_compiling(&wanted.name, error))
}
