//! `jit`: trace once, compile once, then run.
//!
//! A call looks for a program that was compiled for arguments like these (element types, shapes,
//! structure, and where device arrays lie); only the first such call traces and compiles. After that
//! a call compares pointers, launches, and wraps the results.

mod arguments;
mod compile;
mod program;
mod remarks;

use std::sync::{Arc, PoisonError, RwLock};

use shardax_core::{Function, On, Path, Tensor, TensorType, Tree};
use shardax_sharding::Layout;

use crate::array::Array;
use crate::error::Result;
use crate::intern::intern_type;
use crate::pjrt::ExecuteOptions;
use crate::runtime::Runtime;
use arguments::{Placed, Signature};
pub use program::Program;
use program::{Specialized, described, no_faults};

/// A function to be compiled for each kind of arguments it is called with.
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
pub fn jit<S, F: Function<S>>(f: F) -> Jit<S, F> {
    let name = std::any::type_name::<F>();
    let name = name
        .split('<')
        .next()
        .unwrap_or(name)
        .trim_end_matches("::{{closure}}");
    Jit {
        f,
        options: Options {
            name: name.rsplit("::").next().unwrap_or("main").to_owned(),
            layout: Layout::single(),
            runtime: None,
            donate: Vec::new(),
        },
        programs: RwLock::new(Vec::new()),
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
}

impl<S, F: Function<S>> Jit<S, F> {
    /// Runs under this layout; without one, on one device.
    #[must_use]
    pub fn layout(mut self, layout: &Layout) -> Self {
        self.options.layout = layout.clone();
        self
    }

    /// Runs on this runtime; without one, on the process's own.
    #[must_use]
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.options.runtime = Some(runtime.clone());
        self
    }

    /// Gives the memory of these arguments, counted from 0, to results of the same type and sharding.
    /// Their arrays cannot be used again.
    ///
    /// An argument for which there is no such result is an error when the function is compiled.
    #[must_use]
    pub fn donate(mut self, arguments: &[usize]) -> Self {
        self.options.donate = arguments.to_vec();
        self
    }

    /// The name of the program in reports and messages; without one, the function's own.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Calls the function on arrays. Returns when the work is launched; reading a result waits.
    ///
    /// # Errors
    ///
    /// Mistakes of the traced function, layouts that do not fit, arguments of another client, donated
    /// before or sharded in another way, and what the compiler refuses. An error of the program that
    /// only shows while it runs comes from reading its results.
    #[track_caller]
    pub fn call(&self, args: On<F::Args, Array>) -> Result<On<F::Output, Array>> {
        let mut leaves = Vec::with_capacity(64);
        args.visit_leaves(&mut Path::root(), &mut |_, array| leaves.push(array));
        let program = self.program_for(&args, &leaves)?;
        program.run(&leaves)
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
        let compiled = compile::compile(&self.f, &types, signature, &self.options, &runtime)?;
        Ok(self.add(compiled).program.clone())
    }

    fn runtime_for_mesh(&self) -> Result<Runtime> {
        let devices = self.options.layout.mesh().device_count();
        match &self.options.runtime {
            Some(runtime) => {
                if devices > runtime.client().device_count() {
                    self.options
                        .layout
                        .mesh()
                        .check_devices(runtime.client().device_count())?;
                }
                Ok(runtime.clone())
            }
            None => Runtime::shared(devices),
        }
    }

    #[track_caller]
    fn program_for(
        &self,
        args: &On<F::Args, Array>,
        leaves: &[&Array],
    ) -> Result<Arc<Specialized<F::Args, F::Output>>> {
        if let Some(program) = self.find(|program| program.accepts(args, leaves)) {
            return Ok(program);
        }
        self.check_meshes(args)?;
        let runtime = self.runtime_for_mesh()?;
        let signature = |array: &Array| Signature {
            ty: array.shared_type().clone(),
            sharding: array.shared_sharding().cloned(),
        };
        Ok(self.add(compile::compile(
            &self.f,
            args,
            signature,
            &self.options,
            &runtime,
        )?))
    }

    /// An array never moves to other devices by itself.
    fn check_meshes(&self, args: &On<F::Args, Array>) -> Result<()> {
        let mesh = self.options.layout.mesh();
        let mut faults = Vec::new();
        args.visit_leaves(&mut Path::root(), &mut |path, array| {
            if let Some(sharding) = array.sharding().filter(|sharding| sharding.mesh() != mesh) {
                let what = described("argument", &path.to_string(), array.ty());
                faults.push(format!(
                    "{what} lies as {sharding}, and the program runs on {mesh}: make it by a program \
                     of the same layout, or move it through the host with `to_vec` and \
                     `Array::from_slice`"
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
        let devices = executable.devices().len();
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
                    "{} lies as {sharding}, and the program wants it as {}: make it by a program \
                     whose result is annotated so, or put it there with `Array::put`",
                    input.described(),
                    input.sharding
                )),
                None => placed.put(i, leaf.put_shared(client, &input.sharding)?),
            }
        }
        no_faults(&self.program.inner.name, faults)?;
        Ok(placed)
    }
}
