//! `jit`: trace once, compile once, then run.
//!
//! A call looks for a program that was compiled for arguments like these (element types, shapes,
//! structure, and where device arrays lie); only the first such call traces and compiles. After that
//! a call compares pointers, launches, and wraps the results.

mod arguments;
mod compile;
mod program;
mod retrace;
mod shardings;

use std::panic::Location;
use std::sync::{Arc, PoisonError, RwLock};

use shardax_core::{
    DType, Function, Leaf, NonFinite, On, Path, Tensor, TensorType, Tree, scope, trace_under,
};
use shardax_pjrt::{ExecuteOptions, OptionValue};
use shardax_sharding::{Cluster, Layout};

use crate::ahead::{AheadOptions, AheadProgram};
use crate::array::intern_type;
use crate::array::{Array, try_replace};
use crate::compiled::{Compiled, described};
use crate::error::{Error, Result};
use crate::report::{ReportOptions, WarningKind};
use crate::runtime::Runtime;
use arguments::{Placed, Signature};
pub use program::Program;
use program::{Specialized, no_faults};
use retrace::Given;
pub use shardings::NamedSharding;

/// A function to be compiled for each kind of arguments it is called with.
///
/// With `SHARDAX_LOG=retrace` in the environment, each compilation after the first says on standard
/// error what changed; [`Program::retraced_because`] says it too.
///
/// ```no_run
/// use shardax_core::Tensor;
/// use shardax_xla::{Array, jit};
///
/// let norm = jit(|x: Tensor| x.square().sum(..).sqrt());
/// let length: f32 = norm.call(Array::from_slice(&[3f32, 4.0], [2])?)?.item()?;
/// assert_eq!(length, 5.0);
/// # Ok::<(), shardax_xla::Error>(())
/// ```
#[track_caller]
pub fn jit<S, F: Function<S>>(f: F) -> Jit<S, F> {
    Jit {
        f,
        options: Options {
            name: name_of::<F>(Location::caller()),
            layout: Layout::single(),
            runtime: None,
            donate: Vec::new(),
            check: None,
            xla: Vec::new(),
            report: ReportOptions::default(),
            strict: Vec::new(),
            quiet: false,
        },
        programs: RwLock::new(Vec::new()),
    }
}

/// The name of a function, or where a closure, or a pointer to a function, is compiled.
fn name_of<F>(at: &Location) -> String {
    let whole = std::any::type_name::<F>();
    let place = |what: &str| format!("{what} at {}:{}", at.file(), at.line());
    if whole.ends_with("{{closure}}") {
        return place("closure");
    }
    // Without what is between angle brackets: types that the function is for.
    let (mut depth, mut name) = (0usize, String::new());
    for c in whole.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 => name.push(c),
            _ => {}
        }
    }
    match name.trim_end_matches("::").rsplit("::").next() {
        Some(name) if !name.is_empty() && !whole.contains('(') => name.to_owned(),
        _ => place("function"),
    }
}

/// See [`jit`].
pub struct Jit<S, F: Function<S>> {
    f: F,
    options: Options,
    /// Compiled programs, the latest in front.
    programs: RwLock<Programs<F::Args, F::Output>>,
}

type Programs<A, R> = Vec<Arc<Specialized<A, R>>>;

/// What is compiled beside the function.
#[derive(Clone, Debug)]
struct Options {
    name: String,
    layout: Layout,
    runtime: Option<Runtime>,
    donate: Vec<usize>,
    check: Option<NonFinite>,
    /// Debug options of XLA's.
    xla: Vec<(String, OptionValue)>,
    report: ReportOptions,
    /// Warnings that are errors.
    strict: Vec<WarningKind>,
    /// Whether nothing is told of compiled programs.
    quiet: bool,
}

impl Options {
    fn compiled(&self) -> Compiled<'_> {
        Compiled {
            name: &self.name,
            layout: &self.layout,
            strict: &self.strict,
            quiet: self.quiet,
        }
    }
}

impl<S, F: Function<S>> Jit<S, F> {
    /// Runs under this layout; without one, on one device.
    #[must_use]
    pub fn layout(self, layout: &Layout) -> Self {
        self.with(|options| options.layout = layout.clone())
    }

    /// Runs on this runtime; without one, on the process's own.
    #[must_use]
    pub fn runtime(self, runtime: &Runtime) -> Self {
        self.with(|options| options.runtime = Some(runtime.clone()))
    }

    /// Gives the memory of these arguments, counted from 0, to results of the same type and sharding.
    /// Their arrays cannot be used again.
    ///
    /// An argument for which there is no such result is an error when the function is compiled.
    #[must_use]
    pub fn donate(self, arguments: &[usize]) -> Self {
        self.with(|options| options.donate = arguments.to_vec())
    }

    /// Looks for NaNs: a call that gives one anywhere in the program is an [`Error::NonFinite`], which
    /// names the user's line whose operation gave the first.
    ///
    /// Every value is looked at, also in loops and branches, and the call waits for the result: for
    /// finding a fault, not for training.
    ///
    /// [`Error::NonFinite`]: crate::Error::NonFinite
    #[must_use]
    pub fn debug_nans(self) -> Self {
        self.with(|options| options.check = Some(NonFinite::Nan))
    }

    /// [`Jit::debug_nans`] that looks for infinities too. A program that means some, such as a mask
    /// of -inf, does not get far under it.
    #[must_use]
    pub fn debug_infs(self) -> Self {
        self.with(|options| options.check = Some(NonFinite::NanOrInfinity))
    }

    /// Compiles with one of XLA's debug options, such as `xla_backend_optimization_level`. An option
    /// that the plugin does not know, or a value of another kind than the option's, is an error when
    /// the function is compiled.
    #[must_use]
    pub fn xla_option(self, name: impl Into<String>, value: impl Into<OptionValue>) -> Self {
        let option = (name.into(), value.into());
        self.with(|options| options.xla.push(option))
    }

    /// Makes warnings of these kinds errors: a program whose [`report`](Program::report) has any does not
    /// compile, and [`Error::Strict`] tells all that were found. Without it no warning is an error.
    ///
    /// [`WarningKind::ALL`] are all kinds. The kinds are compared with the optimized program, so this costs
    /// reading it once for each compilation.
    ///
    /// [`Error::Strict`]: crate::Error::Strict
    #[must_use]
    pub fn strict(self, kinds: impl IntoIterator<Item = WarningKind>) -> Self {
        self.with(|options| options.strict = kinds.into_iter().collect())
    }

    /// Tells nothing by itself of the programs compiled; see [`set_advice_hook`](crate::set_advice_hook).
    #[must_use]
    pub fn quiet(self) -> Self {
        self.with(|options| options.quiet = true)
    }

    /// Sets what reports and [`Jit::strict`] look for.
    #[must_use]
    pub fn report_options(self, report: ReportOptions) -> Self {
        self.with(|options| options.report = report)
    }

    /// The name of the program in reports and messages; without one, the function's own.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with(|options| options.name = name.into())
    }

    /// Programs that were compiled with other options are not those that are wanted now.
    fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self.programs = RwLock::new(Vec::new());
        self
    }

    /// Calls the function on arrays. Returns when the work is launched; reading a result waits. A
    /// function that returns nothing and has an effect, such as printing, returns when it is done.
    ///
    /// # Errors
    ///
    /// Mistakes of the traced function, layouts that do not fit, arguments of another client, donated
    /// before or sharded in another way, and what the compiler refuses. An error of the program that
    /// only shows while it runs comes from reading its results.
    ///
    /// Arrays of a mesh stay there unless they are moved. An array on one device, as a function without a layout returns it, was
    /// never put anywhere on purpose: a function with a layout copies it to where it wants it, at every call. [`Jit::place`]
    /// does so once.
    #[track_caller]
    pub fn call(&self, args: On<F::Args, Array>) -> Result<On<F::Output, Array>> {
        let source = Location::caller();
        self.launch(args).map_err(|error| error.called_at(source))
    }

    #[track_caller]
    fn launch(&self, args: On<F::Args, Array>) -> Result<On<F::Output, Array>> {
        let mut leaves = Vec::with_capacity(64);
        args.visit_leaves(&mut Path::root(), &mut |_, array| leaves.push(array));
        let program = match self.find(|program| program.accepts(&args, &leaves)) {
            Some(program) => program,
            None if self.has_single(&args) => return self.launch(self.place(args)?),
            None => self.program_for(&args)?,
        };
        match program.run(&leaves) {
            Err(Error::Call { .. }) if self.has_single(&args) => self.launch(self.place(args)?),
            outcome => outcome,
        }
    }

    /// Whether an argument is on one device, and the program on several.
    fn has_single(&self, args: &On<F::Args, Array>) -> bool {
        let mut found = false;
        if self.options.layout.mesh().device_count() > 1 {
            args.visit_leaves(&mut Path::root(), &mut |_, array: &Array| {
                let sharding = array.sharding();
                found |= sharding.is_some_and(|sharding| sharding.mesh().device_count() == 1);
            });
        }
        found
    }

    /// The arguments where the function wants them, so that a call moves nothing: what is on the host is
    /// put on devices, and what lies elsewhere moves with the least communication, as
    /// [`Array::reshard`] says. Compiles the function if it was not yet for these types.
    ///
    /// # Errors
    ///
    /// Those of compiling, as for [`Jit::call`], and [`Error::Leaf`](crate::Error::Leaf) when an
    /// argument was donated or its program failed.
    #[track_caller]
    pub fn place(&self, args: On<F::Args, Array>) -> Result<On<F::Args, Array>> {
        let mut types = Vec::new();
        args.visit_leaves(&mut Path::root(), &mut |_, array| types.push(array.ty()));
        let runtime = self.runtime_for_mesh()?;
        // An argument without annotation stays where it is, if that is on the mesh.
        let signature = |array: &Array| Signature {
            ty: array.shared_type().clone(),
            sharding: array.shared_sharding().cloned(),
        };
        let found = match self.find(|program| program.accepts_types(&args, &types)) {
            Some(found) => found,
            None => self.specialize(&args, signature, &runtime)?,
        };
        let mut inputs = found.program.inputs().iter();
        try_replace(&args, |_, array| match inputs.next() {
            Some(input) => array.put_shared(&runtime, &input.sharding),
            None => Ok(array.clone()),
        })
    }

    /// The function's equations, written into the program that is being traced, in a scope of the
    /// function's name: what a call of a jitted function inside of another one means. The layout and
    /// the donation are the outer function's.
    pub fn inside(&self, args: F::Args) -> F::Output {
        scope(&self.options.name, || self.f.apply(args))
    }

    /// The types of the results for arguments of these types: the function is traced, and nothing is compiled or computed.
    /// JAX calls this `eval_shape`.
    ///
    /// ```
    /// use shardax_core::{DType, Tensor, TensorType};
    /// use shardax_xla::jit;
    ///
    /// let split = jit(|x: Tensor| (x.dot(x), x.sum(1)));
    /// let (product, sums) = split.types(TensorType::new(DType::F32, [512, 512]))?;
    /// assert_eq!((product.to_string(), sums.to_string()), ("f32[512,512]".into(), "f32[512]".into()));
    /// # Ok::<(), shardax_xla::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Mistakes of the traced function.
    #[track_caller]
    pub fn types(&self, arguments: On<F::Args, TensorType>) -> Result<On<F::Output, TensorType>> {
        let layout = &self.options.layout;
        let traced = trace_under(layout, &self.f, &arguments, TensorType::clone)?;
        let mut types = traced.output_types().into_iter();
        // There is a type for each leaf, in their order.
        let next =
            &mut |_: &mut Path, _: &Tensor| types.next().unwrap_or(TensorType::scalar(DType::F32));
        Ok(traced.output.map_leaves(&mut Path::root(), next))
    }

    /// Compiles the function for arguments of these types, as a call with host arrays would.
    ///
    /// # Errors
    ///
    /// As for [`Jit::call`].
    #[track_caller]
    pub fn compile(&self, types: On<F::Args, TensorType>) -> Result<Program> {
        let mut leaves = Vec::new();
        types.visit_leaves(&mut Path::root(), &mut |_, ty| leaves.push(ty));
        if let Some(found) = self.find(|p| p.accepts_types(&types, &leaves)) {
            return Ok(found.program.clone());
        }
        let signature = |ty: &TensorType| Signature {
            ty: intern_type(ty.clone()),
            sharding: None,
        };
        let runtime = self.runtime_for_mesh()?;
        let compiled = self.specialize(&types, signature, &runtime)?;
        Ok(compiled.program.clone())
    }

    /// Compiles the function for arguments of these types and for a cluster that need not be there: what
    /// the program does on it, its collectives, its schedule and its memory, is known then.
    ///
    /// The mesh of the layout is laid over the cluster in order, the GPUs of a node in sequence
    /// ([`Cluster`]). XLA's compiler for CUDA works in a child process, which is this program's own
    /// executable, started again and ended before `main`. It is fetched on first use, about 230 MB.
    /// Products of matrices become calls of cuBLAS, or kernels of Triton where cuBLAS lacks one of
    /// them; `.xla_option("xla_gpu_enable_triton_gemm", true)` asks for Triton at once.
    ///
    /// ```no_run
    /// use shardax_core::{DType, Tensor, TensorType};
    /// use shardax_sharding::{Chip, Cluster, Layout, Mesh};
    /// use shardax_xla::jit;
    ///
    /// let layout = Layout::fsdp(Mesh::new([("data", 8)])?)?;
    /// let cluster = Cluster::new(Chip::H100, 1, 8)?;
    /// let program = jit(|x: Tensor| x.square().sum(..))
    ///     .layout(&layout)
    ///     .compile_for(&cluster, TensorType::new(DType::F32, [1024]))?;
    /// println!("{program}\n{}", program.report()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Mistakes of the traced function, layouts that do not fit, a mesh of another size than the
    /// cluster, calls of host functions, what the compiler refuses, and a compiler that ends
    /// untimely ([`Error::Ahead`](crate::Error::Ahead)).
    #[track_caller]
    pub fn compile_for(
        &self,
        cluster: &Cluster,
        types: On<F::Args, TensorType>,
    ) -> Result<AheadProgram> {
        self.compile_for_with(cluster, types, &AheadOptions::default())
    }

    /// [`Jit::compile_for`] with a limit of time and a cache of its own.
    ///
    /// # Errors
    ///
    /// As for [`Jit::compile_for`].
    #[track_caller]
    pub fn compile_for_with(
        &self,
        cluster: &Cluster,
        types: On<F::Args, TensorType>,
        with: &AheadOptions,
    ) -> Result<AheadProgram> {
        compile::compile_ahead(&self.f, &types, &self.options, (cluster, with))
    }

    /// [`Jit::compile`] for the types of these arrays, wherever they lie.
    #[track_caller]
    pub(crate) fn compile_like(&self, args: &On<F::Args, Array>) -> Result<Program> {
        let signature = |array: &Array| Signature {
            ty: array.shared_type().clone(),
            sharding: None,
        };
        let runtime = self.runtime_for_mesh()?;
        let compiled = self.specialize(args, signature, &runtime)?;
        Ok(compiled.program.clone())
    }

    fn runtime_for_mesh(&self) -> Result<Runtime> {
        let devices = self.options.layout.mesh().device_count();
        match &self.options.runtime {
            Some(runtime) => {
                runtime.check_mesh(self.options.layout.mesh())?;
                Ok(runtime.clone())
            }
            None => Runtime::shared(devices),
        }
    }

    #[track_caller]
    fn program_for(
        &self,
        args: &On<F::Args, Array>,
    ) -> Result<Arc<Specialized<F::Args, F::Output>>> {
        self.check_meshes(args)?;
        let runtime = self.runtime_for_mesh()?;
        let signature = |array: &Array| Signature {
            ty: array.shared_type().clone(),
            sharding: array.shared_sharding().cloned(),
        };
        self.specialize(args, signature, &runtime)
    }

    /// Compiles the function for arguments like these, and keeps the program.
    #[track_caller]
    fn specialize<M: Leaf>(
        &self,
        args: &On<F::Args, M>,
        signature: impl Fn(&M) -> Signature,
        runtime: &Runtime,
    ) -> Result<Arc<Specialized<F::Args, F::Output>>> {
        let mut given = Vec::new();
        args.visit_leaves(&mut Path::root(), &mut |path, leaf| {
            given.push(Given {
                path: path.to_string(),
                signature: signature(leaf),
            })
        });
        let retraced = {
            let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
            let known = programs.iter().map(|p| p.program.inputs());
            retrace::changes(known, &given, F::ARGUMENTS)
        };
        retrace::log(&self.options.name, &retraced);
        let options = &self.options;
        let compiled = compile::compile(&self.f, args, signature, (options, runtime), retraced)?;
        let program = &compiled.program;
        let look = options.compiled();
        look.look_at(|| program.remarks(), || program.report())?;
        Ok(self.add(compiled))
    }

    /// An array never moves to other devices by itself.
    fn check_meshes(&self, args: &On<F::Args, Array>) -> Result<()> {
        let mesh = self.options.layout.mesh();
        let mut faults = Vec::new();
        args.visit_leaves(&mut Path::root(), &mut |path, array| {
            if let Some(sharding) = array.sharding().filter(|sharding| sharding.mesh() != mesh) {
                let what = described("argument", &path.to_string(), array.ty());
                faults.push(format!(
                    "{what} lies as {sharding}, and the program runs on {mesh}: move the arguments there \
                     with `Jit::place`, or a tree of arrays with `.place(&layout)`"
                ));
            }
        });
        no_faults(&self.options.name, faults)
    }

    fn find(
        &self,
        accepts: impl Fn(&Specialized<F::Args, F::Output>) -> bool,
    ) -> Option<Arc<Specialized<F::Args, F::Output>>> {
        let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
        programs.iter().find(|p| accepts(p)).cloned()
    }

    fn add(
        &self,
        program: Specialized<F::Args, F::Output>,
    ) -> Arc<Specialized<F::Args, F::Output>> {
        let program = Arc::new(program);
        let mut programs = self
            .programs
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        programs.insert(0, program.clone());
        program
    }
}

impl<A: Tree<Tensor>, R: Tree<Tensor>> Specialized<A, R> {
    fn run(&self, leaves: &[&Array]) -> Result<On<R, Array>> {
        let placed = self.place(leaves)?;
        let executable = &self.program.inner.executable;
        let execution = executable
            .execute(
                leaves.len(),
                |device, input| placed.shard(leaves, input, device),
                &ExecuteOptions::default(),
            )
            .map_err(|error| self.program.name_arguments(error))?;
        if self.program.inner.outputs.is_empty() && self.program.inner.graph.has_effect() {
            // There is no result that could tell of an error.
            execution.launch.wait()?;
        }
        let devices = executable.devices().len();
        let results = devices * self.program.inner.outputs.len();
        self.program.check_finite(&execution.outputs[results..])?;
        // Behind the results is the order of effects, if there are any, which nobody reads.
        let mut buffers = execution.outputs.into_iter();
        // The leaves of the result are the outputs of the program, in order.
        let mut outputs = self.program.inner.outputs.iter();
        let mut next = || match outputs.next() {
            Some(output) => {
                let shards = buffers.by_ref().take(devices).collect();
                Array::on_devices(output.ty.clone(), output.sharding.clone(), shards)
            }
            None => Array::scalar(0u8),
        };
        Ok(self
            .output
            .map_leaves(&mut Path::root(), &mut |_, _| next()))
    }

    /// Puts arguments that are on the host where the program wants them.
    fn place(&self, leaves: &[&Array]) -> Result<Placed> {
        let mut placed = Placed::default();
        let mut faults = Vec::new();
        let client = self.program.inner.executable.client();
        for (i, (leaf, input)) in leaves.iter().zip(&self.program.inner.inputs).enumerate() {
            match leaf.shared_sharding() {
                Some(sharding) if Arc::ptr_eq(sharding, &input.sharding) => {}
                Some(sharding) => faults.push(format!(
                    "{} lies as {sharding}, and the program wants it as {}: move it there with \
                     `Array::reshard`, all arguments with `Jit::place`, or make it by a program whose \
                     result is annotated so",
                    input.described(),
                    input.sharding
                )),
                None => placed.put(i, leaf.put_from_host(client, &input.sharding)?),
            }
        }
        no_faults(&self.program.inner.name, faults)?;
        Ok(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<F>(_: F) -> String {
        name_of::<F>(Location::caller())
    }

    fn plain(x: Tensor) -> Tensor {
        x
    }

    fn generic<T: Default>(x: Tensor) -> Tensor {
        let _ = T::default();
        x
    }

    fn closure_of<T: Default>() -> String {
        named(|x: Tensor| generic::<T>(x))
    }

    trait Forward {
        fn forward(x: Tensor) -> Tensor;
    }

    impl Forward for Vec<u8> {
        fn forward(x: Tensor) -> Tensor {
            x
        }
    }

    #[test]
    fn functions_have_their_names_and_closures_their_lines() {
        assert_eq!(named(plain), "plain");
        assert_eq!(named(generic::<Vec<Option<u8>>>), "generic");
        assert_eq!(named(<Vec<u8> as Forward>::forward), "forward");
        for name in [named(|x: Tensor| x), closure_of::<u8>()] {
            assert!(name.starts_with("closure at "), "{name}");
        }
        let pointer: fn(Tensor) -> Tensor = plain;
        assert!(named(pointer).starts_with("function at "));
    }
}
