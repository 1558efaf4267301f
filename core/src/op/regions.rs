//! Operations that contain functions, and those that leave the program.

use std::fmt;
use std::sync::Arc;

use crate::graph::Graph;
use crate::literal::Literal;
use crate::types::TensorType;

/// A loop over a leading dimension.
///
/// Operands and body inputs: carries, then scanned arrays (one element of each in the body), then
/// constants. Results and body outputs: carries, then stacked outputs (one element in the body).
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// One iteration.
    pub body: Arc<Graph>,
    /// Number of iterations.
    pub length: usize,
    /// Whether it goes from the last element to the first.
    pub reverse: bool,
    /// Iterations that are written out in one turn of the compiled loop, at least 1.
    pub unroll: usize,
    /// Number of carries.
    pub carries: usize,
    /// Number of scanned arrays.
    pub xs: usize,
}

/// One of several functions, chosen by an `i32` scalar, the first operand, which is moved into
/// range. The other operands are the inputs of every branch.
#[derive(Clone, Debug, PartialEq)]
pub struct Cond {
    /// The functions, of the same input and output types.
    pub branches: Vec<Arc<Graph>>,
}

/// A loop that ends when its condition says so.
///
/// Operands, and inputs of both functions: carries, then constants. Results: carries.
#[derive(Clone, Debug, PartialEq)]
pub struct While {
    /// Whether to go on.
    pub cond: Arc<Graph>,
    /// One iteration, from everything to the carries.
    pub body: Arc<Graph>,
    /// Number of carries.
    pub carries: usize,
}

/// A function whose values are recomputed rather than kept for its derivative.
#[derive(Clone, Debug, PartialEq)]
pub struct Remat {
    /// The function.
    pub body: Arc<Graph>,
    /// What is kept all the same.
    pub policy: Policy,
    /// Whether this is the recomputation, which must not be merged with the first computation.
    pub recomputes: bool,
    /// Names that the policy was given for the function, and that none of its own operations has.
    pub unmatched: Arc<[String]>,
}

/// Which values a rematerialized function keeps for its derivative.
///
/// It is asked of the function's own operations. What a loop or a branch inside of the function computes
/// is recomputed with it: rematerialize the loop's body instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// None.
    #[default]
    Nothing,
    /// Results of dots and convolutions.
    Dots,
    /// Results of dots without batch dimensions: products with weights, but not attention scores.
    DotsWithoutBatch,
    /// Values that were given one of these names. A compiled program remarks on names that none was given.
    Names(Arc<[String]>),
    /// Values that were given one of these names, kept in the memory of the host.
    Offload(Arc<[String]>),
}

/// A function with a derivative of its own.
///
/// Operands: the arguments, then what the function or its rule captured.
#[derive(Clone, Debug, PartialEq)]
pub struct Custom {
    /// The function of all operands.
    pub body: Arc<Graph>,
    /// Number of arguments; captures have no derivative.
    pub arguments: usize,
    /// Its derivative.
    pub rule: CustomRule,
}

/// A derivative that was given.
///
/// It is traced when a derivative is taken around the call, and for as many as are taken. So a rule may call the function
/// that it is the rule of.
#[derive(Clone, Debug, PartialEq)]
pub enum CustomRule {
    /// No derivative is taken. The name is that of the construct.
    Untraced(&'static str),
    /// From all operands and the arguments' tangents to the results and their tangents.
    Jvp(Arc<Graph>),
    /// Forward: from all operands to the results and `residuals` more values. Backward: from the
    /// captures, the residuals and the results' cotangents to the arguments' cotangents.
    Vjp {
        /// The results, and what backward reads.
        forward: Arc<Graph>,
        /// The cotangents.
        backward: Arc<Graph>,
        /// Number of residuals.
        residuals: usize,
    },
}

/// The derivative of a function of which only the transpose is known. Exists only between
/// linearization and transposition.
///
/// Operands: `known` values, then the arguments' tangents. Results: tangents.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomLinear {
    /// The transpose: from the known values and the results' cotangents to the arguments'.
    pub backward: Arc<Graph>,
    /// Number of operands that are not tangents.
    pub known: usize,
    /// Types of the results.
    pub results: Vec<TensorType>,
}

/// A computation outside of XLA's own operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Foreign {
    /// What is called.
    pub target: Target,
    /// Types of the results.
    pub results: Vec<TensorType>,
    /// Whether it is called even if nobody reads its results, in the order of the program.
    pub effect: bool,
}

/// What a [`Foreign`] operation calls.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// A function of this process.
    Host(HostFunction),
    /// A handler that is registered with the runtime under a name.
    Custom {
        /// The name.
        name: Arc<str>,
        /// The inside of a dictionary attribute in MLIR's syntax: `eps = 1.0e-6 : f32`; may be
        /// empty.
        attributes: Arc<str>,
    },
}

/// The signature of a [`HostFunction`].
pub type HostClosure = dyn Fn(&[Literal]) -> Result<Vec<Literal>, String> + Send + Sync;

/// A Rust closure that a compiled program calls.
#[derive(Clone)]
pub struct HostFunction {
    name: Arc<str>,
    closure: Arc<HostClosure>,
}

impl HostFunction {
    /// A closure, and what it is called in messages.
    pub fn new(
        name: &str,
        closure: impl Fn(&[Literal]) -> Result<Vec<Literal>, String> + Send + Sync + 'static,
    ) -> Self {
        HostFunction {
            name: name.into(),
            closure: Arc::new(closure),
        }
    }

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The closure.
    pub fn closure(&self) -> &Arc<HostClosure> {
        &self.closure
    }
}

/// The same closure, not an equal one.
impl PartialEq for HostFunction {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.closure, &other.closure)
    }
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostFunction({})", self.name)
    }
}
