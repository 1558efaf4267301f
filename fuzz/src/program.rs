//! What a random program is: plain data, so that it can be run, interpreted, printed, cut down and
//! sent to another process.

use serde::{Deserialize, Serialize};
use shardax::{DType, TensorType};

/// Element type and shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Type {
    /// The element type.
    #[serde(with = "dtype_name")]
    pub dtype: DType,
    /// Dimension sizes.
    pub shape: Vec<usize>,
}

impl Type {
    /// A type with these dimensions.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        Type { dtype, shape }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

impl From<&TensorType> for Type {
    fn from(ty: &TensorType) -> Self {
        Type::new(ty.dtype, ty.shape.to_vec())
    }
}

impl From<&Type> for TensorType {
    fn from(ty: &Type) -> Self {
        TensorType::new(ty.dtype, &ty.shape)
    }
}

/// A program, what is asked of it, and where it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Arguments of the compiled function; the body's are elements of them where the form is a batch.
    pub inputs: Vec<Input>,
    /// The function.
    pub body: Block,
    /// What is computed of it.
    pub form: Form,
    /// Where it is computed.
    pub place: Place,
    /// What is done with it beside.
    pub also: Also,
}

/// What must change nothing, and costs another compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Also {
    /// Nothing is done.
    Nothing,
    /// Its arguments are donated.
    Donate,
    /// It is compiled, and read from the cache.
    Cache,
}

/// An argument and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Its type.
    pub ty: Type,
    /// Its elements, which are of its type.
    #[serde(with = "number_bits")]
    pub values: Vec<f64>,
    /// How it is annotated.
    pub split: Option<Vec<Split>>,
}

/// A function of several values to several values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The types of its arguments, the first values.
    pub parameters: Vec<Type>,
    /// What it computes, one after another; each appends its results to the values.
    pub statements: Vec<Statement>,
    /// The values that it returns, by position.
    pub results: Vec<usize>,
}

/// One line of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// What is done.
    pub action: Action,
    /// With which values, by position.
    pub operands: Vec<usize>,
    /// The types of the results.
    pub types: Vec<Type>,
}

/// What a statement does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Calls an operation of the table.
    Call {
        /// Its name there.
        name: String,
        /// What it is told beside its operands.
        parameters: Parameters,
    },
    /// Annotates a value.
    Annotate(Vec<Split>),
    /// Contains functions. The operands are arguments of the first `arguments` of their parameters;
    /// the functions capture the others.
    Within {
        /// What is done with the functions.
        construct: Construct,
        /// The number of operands that are not captured.
        arguments: usize,
        /// The functions.
        blocks: Vec<Block>,
    },
}

/// What is done with functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Construct {
    /// Computed again in the backward pass.
    Remat,
    /// A loop whose carries are the first arguments, and the others what it runs over.
    Scan {
        /// The number of carries.
        carries: usize,
        /// The number of iterations.
        length: usize,
        /// Whether it goes backwards.
        reverse: bool,
    },
    /// A loop that counts.
    Repeat {
        /// The number of iterations.
        times: i64,
    },
    /// A loop that goes on while its first carry is small, at most so many times.
    While {
        /// The most iterations.
        times: i64,
    },
    /// One of two functions, by the sign of a sum of the first argument.
    Branch,
    /// One of several functions, by the number that the first argument is.
    Switch,
    /// Of every element along an axis of each argument that has one.
    Batch {
        /// The axes.
        axes: Vec<Option<isize>>,
    },
    /// With a backward rule that says what differentiation would have found.
    Backward,
    /// With a forward rule that says what differentiation would have found.
    Forward,
    /// The gradient of a weighted sum of its results by the floating-point arguments.
    Gradient,
    /// By every device along some mesh axes for itself.
    Region {
        /// The axes, by number.
        axes: Vec<usize>,
        /// How each argument is cut into blocks.
        inputs: Vec<Vec<Split>>,
        /// How each result is.
        outputs: Vec<Vec<Split>>,
    },
}

/// What is computed of a program's body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// Its results.
    Values,
    /// And the gradients of a weighted sum of them.
    Gradient,
    /// The results and the derivative along a direction.
    Forward,
    /// The gradients of a weighted sum of the gradients.
    Second,
    /// The results for each element of a batch.
    Batch {
        /// Its size.
        size: usize,
        /// The inputs that have one, along their first dimension.
        mapped: Vec<bool>,
    },
}

/// Where a program is computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Sizes of the mesh axes `a`, `b` and `c`.
    pub mesh: Vec<usize>,
    /// Whether GSPMD partitions it, not Shardy.
    pub gspmd: bool,
}

/// How a dimension is split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Split {
    /// Not at all.
    Whole,
    /// As the partitioner likes.
    Open,
    /// Over mesh axes, by number.
    Axes(Vec<usize>),
}

/// What an operation is told beside its operands; each reads what it names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// An axis of the first operand.
    pub axis: isize,
    /// Another one, which may be the same.
    pub other: isize,
    /// Some of its axes.
    pub axes: Vec<isize>,
    /// All of its axes in some order.
    pub permutation: Vec<usize>,
    /// A shape of as many elements.
    pub shape: Vec<usize>,
    /// A shape that it broadcasts to.
    pub wide: Vec<usize>,
    /// An element of the axis, 0 if it has none.
    pub index: usize,
    /// The first element of a part of the axis.
    pub start: usize,
    /// One past the last element of that part.
    pub stop: usize,
    /// A small number from 1.
    pub count: usize,
    /// Another one.
    pub step: usize,
    /// A small number, perhaps negative.
    pub low: isize,
    /// Another one.
    pub high: isize,
    /// A number of -2 to 2 with few digits.
    pub number: f64,
    /// An element type.
    #[serde(with = "dtype_name")]
    pub dtype: DType,
    /// This or that.
    pub flag: bool,
    /// Mesh axes of the manual region around.
    pub over: Vec<String>,
}

/// The names of mesh axes.
pub const AXES: [&str; 3] = ["a", "b", "c"];

impl Action {
    /// What it is counted as.
    pub fn name(&self) -> String {
        match self {
            Action::Call { name, .. } => name.clone(),
            Action::Annotate(_) => "annotate".to_owned(),
            Action::Within { construct, .. } => {
                let text = format!("{construct:?}");
                let end = text.find([' ', '{']).unwrap_or(text.len());
                format!("[{}]", &text[..end])
            }
        }
    }
}

/// Visits all statements, also those of functions within.
pub fn visit(block: &Block, f: &mut dyn FnMut(&Statement)) {
    for statement in &block.statements {
        f(statement);
        if let Action::Within { blocks, .. } = &statement.action {
            for block in blocks {
                visit(block, f);
            }
        }
    }
}

mod dtype_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use shardax::DType;

    pub(super) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| D::Error::custom(format!("`{name}` is no element type")))
    }
}

/// JSON has no NaN and no infinity.
mod number_bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        let bits: Vec<u64> = values.iter().map(|v| v.to_bits()).collect();
        bits.serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<f64>, D::Error> {
        let bits = Vec::<u64>::deserialize(from)?;
        Ok(bits.into_iter().map(f64::from_bits).collect())
    }
}
