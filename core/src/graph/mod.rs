//! The graph: a program as a list of equations in SSA form.
//!
//! A graph is plain data. Tracing writes one, transforms read one and write another, the backend
//! lowers one. An equation that contains a function (scan, remat) holds it as a graph of its own
//! that refers to nothing outside: what its body captured has become an input.

mod print;
mod prune;

pub(crate) use prune::Effects;

use std::ops::Range;

use smallvec::SmallVec;

use crate::error::Source;
use crate::op::Op;
use crate::types::TensorType;

/// A value of one graph: an input or the result of an equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// Position in tables that have an entry for each value of a graph.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A few values.
pub type Values = SmallVec<[ValueId; 3]>;

/// One operation: `results = op(operands)`.
#[derive(Clone, Debug)]
pub struct Equation {
    /// What is computed.
    pub op: Op,
    /// What it is computed from.
    pub operands: Values,
    /// What it is called.
    pub results: SmallVec<[ValueId; 1]>,
    /// The user's line that asked for it.
    pub source: Source,
    /// The name scopes around that line, outermost first, joined by `/`.
    pub scope: Scope,
}

/// A name scope, shared by the equations inside it.
pub type Scope = Option<std::sync::Arc<str>>;

/// Sources do not count: two programs are equal when they compute the same.
impl PartialEq for Equation {
    fn eq(&self, other: &Self) -> bool {
        self.op == other.op && self.operands == other.operands && self.results == other.results
    }
}

/// A program.
///
/// Every value is defined before it is used, and once. A value id is below [`Graph::value_count`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub(crate) types: Vec<TensorType>,
    pub(crate) inputs: Vec<ValueId>,
    pub(crate) equations: Vec<Equation>,
    pub(crate) outputs: Vec<ValueId>,
    /// What was seen while it was traced that may not be meant.
    pub(crate) notes: Vec<String>,
}

impl Graph {
    /// What was seen while the program was traced that may not be meant, a sentence each; of a region nothing, for it is told of
    /// with the whole program.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The arguments.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The equations, in an order in which they can be computed.
    pub fn equations(&self) -> &[Equation] {
        &self.equations
    }

    /// The results.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.types[value.index()]
    }

    /// The number of values: ids are below it.
    pub fn value_count(&self) -> usize {
        self.types.len()
    }

    /// The number of equations, those inside of regions included.
    pub fn equation_count(&self) -> usize {
        let inner = |e: &Equation| -> usize {
            let regions = e.op.regions();
            regions
                .iter()
                .map(|(_, region)| region.equation_count())
                .sum()
        };
        self.equations.iter().map(|e| 1 + inner(e)).sum()
    }

    /// Whether it does something beside computing results.
    pub fn has_effect(&self) -> bool {
        self.equations.iter().any(|e| e.op.has_effect())
    }

    pub(crate) fn new_value(&mut self, ty: TensorType) -> ValueId {
        // 2^32 values of at least 40 bytes do not fit the memory of any machine this runs on.
        let id = ValueId(self.types.len() as u32);
        self.types.push(ty);
        id
    }

    /// New values of these types, one after the other.
    pub(crate) fn new_values(&mut self, types: impl IntoIterator<Item = TensorType>) -> Range<u32> {
        let first = self.types.len() as u32;
        self.types.extend(types);
        first..self.types.len() as u32
    }

    pub(crate) fn new_input(&mut self, ty: TensorType) -> ValueId {
        let id = self.new_value(ty);
        self.inputs.push(id);
        id
    }
}
