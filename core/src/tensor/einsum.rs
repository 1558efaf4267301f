//! Products of tensors: `dot`, `matmul` and `einsum`.

use std::panic::Location;

use super::Tensor;
use super::arithmetic::promote;
use super::shape::broadcast_shapes;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Comparison, Dims, DotDims};
use crate::trace::{fail_at, method};
use crate::types::{Shape, TensorType};

impl Tensor {
    /// The product over the last dimension of `self` and the first of `rhs`:
    /// `[..., k] . [k, ...] -> [..., ...]`.
    ///
    /// The result has the operands' element type; products are summed in at least f32 by the
    /// compiler. See [`Tensor::dot_as`] for another.
    #[track_caller]
    pub fn dot(self, rhs: Tensor) -> Tensor {
        let source = Location::caller();
        method("dot", source, || {
            dot_last_first("dot", self, rhs, None, source)
        })
    }

    /// [`Tensor::dot`] with a result of element type `result`, in which products are summed:
    /// bf16 operands with an f32 result, say.
    #[track_caller]
    pub fn dot_as(self, rhs: Tensor, result: DType) -> Tensor {
        let source = Location::caller();
        method("dot_as", source, || {
            dot_last_first("dot_as", self, rhs, Some(result), source)
        })
    }

    /// The matrix product of the last two dimensions, batched over the others, which broadcast.
    #[track_caller]
    pub fn matmul(self, rhs: Tensor) -> Tensor {
        let source = Location::caller();
        method("matmul", source, || {
            matmul("matmul", self, rhs, None, source)
        })
    }

    /// [`Tensor::matmul`] with a result of element type `result`, in which products are summed.
    #[track_caller]
    pub fn matmul_as(self, rhs: Tensor, result: DType) -> Tensor {
        let (op, source) = ("matmul_as", Location::caller());
        method(op, source, || matmul(op, self, rhs, Some(result), source))
    }
}

fn matmul(
    op: &'static str,
    lhs: Tensor,
    rhs: Tensor,
    result: Option<DType>,
    source: Source,
) -> Tensor {
    let (lhs_ty, rhs_ty) = (lhs.ty(), rhs.ty());
    if lhs_ty.rank() < 2 || rhs_ty.rank() < 2 {
        let problem = format!("takes tensors of two dimensions or more, not {lhs_ty} and {rhs_ty}");
        let help = "use `dot` for vectors";
        fail_at(ErrorKind::Shape { op, problem }, Some(help.into()), source)
    }
    let batch_of = |ty: &TensorType| TensorType::new(ty.dtype, &ty.shape[..ty.rank() - 2]);
    let batch = broadcast_shapes(op, &[&batch_of(&lhs_ty), &batch_of(&rhs_ty)], source);
    let fit = |x: Tensor, ty: &TensorType| {
        let shape: Shape = batch
            .iter()
            .chain(&ty.shape[ty.rank() - 2..])
            .copied()
            .collect();
        let dims: Dims = (shape.len() - ty.rank()..shape.len()).collect();
        lax::broadcast(x, &shape, &dims)
    };
    let n = batch.len();
    let dims = DotDims {
        lhs_batch: (0..n).collect(),
        rhs_batch: (0..n).collect(),
        lhs_contract: Dims::from_slice(&[n + 1]),
        rhs_contract: Dims::from_slice(&[n]),
        result: result.unwrap_or_else(|| common(op, &lhs_ty, &rhs_ty, source)),
    };
    product(op, fit(lhs, &lhs_ty), fit(rhs, &rhs_ty), dims, source)
}

fn dot_last_first(
    op: &'static str,
    lhs: Tensor,
    rhs: Tensor,
    result: Option<DType>,
    source: Source,
) -> Tensor {
    let (lhs_ty, rhs_ty) = (lhs.ty(), rhs.ty());
    let (Some(last), false) = (lhs_ty.rank().checked_sub(1), rhs_ty.rank() == 0) else {
        let problem = format!("takes tensors of one dimension or more, not {lhs_ty} and {rhs_ty}");
        let help = "multiply by a scalar with `*`";
        fail_at(ErrorKind::Shape { op, problem }, Some(help.into()), source)
    };
    let dims = DotDims {
        lhs_batch: Dims::new(),
        rhs_batch: Dims::new(),
        lhs_contract: Dims::from_slice(&[last]),
        rhs_contract: Dims::from_slice(&[0]),
        result: result.unwrap_or_else(|| common(op, &lhs_ty, &rhs_ty, source)),
    };
    product(op, lhs, rhs, dims, source)
}

fn common(op: &'static str, lhs: &TensorType, rhs: &TensorType, source: Source) -> DType {
    promote(lhs.dtype, rhs.dtype).unwrap_or_else(|| {
        let problem = format!("no element type holds both {lhs} and {rhs}");
        let help = "convert one of them with `.cast(...)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    })
}

/// A dot with operands of one element type, checked under the name that the user called.
fn product(op: &'static str, lhs: Tensor, rhs: Tensor, dims: DotDims, source: Source) -> Tensor {
    let (lhs_ty, rhs_ty) = (lhs.ty(), rhs.ty());
    let pairs = dims.lhs_contract.iter().zip(&dims.rhs_contract);
    let clashes: Vec<String> = pairs
        .filter(|&(&l, &r)| lhs_ty.shape[l] != rhs_ty.shape[r])
        .map(|(l, r)| {
            format!(
                "dimension {l} of the left operand {lhs_ty} ({}) is contracted with dimension {r} \
                 of the right operand {rhs_ty} ({})",
                lhs_ty.shape[*l], rhs_ty.shape[*r]
            )
        })
        .collect();
    if !clashes.is_empty() {
        let help = "contracted dimensions must have the same size";
        let problem = clashes.join("; ");
        fail_at(ErrorKind::Shape { op, problem }, Some(help.into()), source)
    }
    // XLA has no products of 4-bit integers.
    let wide = |dtype: DType| match dtype {
        DType::I4 => DType::I8,
        DType::U4 => DType::U8,
        dtype => dtype,
    };
    let operand = wide(common(op, &lhs_ty, &rhs_ty, source));
    let narrow = dims.result;
    let dims = DotDims {
        result: wide(narrow),
        ..dims
    };
    let product = lax::dot(lax::convert(lhs, operand), lax::convert(rhs, operand), dims);
    lax::convert(product, narrow)
}

/// A product of tensors in Einstein's notation: `einsum("bthk,bshk->bhts", [q, k])`.
///
/// Letters name dimensions. One that is missing after the arrow is summed over; without an arrow
/// the result has the letters that occur once, in alphabetical order. `...` stands for any number of
/// dimensions, which broadcast among the operands by numpy's rules and come first in a result
/// without an arrow. Spaces do not count. Products of more than two tensors are taken from the left.
#[track_caller]
pub fn einsum(subscripts: &str, operands: impl AsRef<[Tensor]>) -> Tensor {
    let source = Location::caller();
    method("einsum", source, || {
        multiply(subscripts, operands.as_ref(), None, source)
    })
}

/// [`einsum`] with a result of element type `result`, in which products are summed.
#[track_caller]
pub fn einsum_as(subscripts: &str, operands: impl AsRef<[Tensor]>, result: DType) -> Tensor {
    let source = Location::caller();
    method("einsum_as", source, || {
        multiply(subscripts, operands.as_ref(), Some(result), source)
    })
}

fn multiply(
    subscripts: &str,
    operands: &[Tensor],
    result: Option<DType>,
    source: Source,
) -> Tensor {
    let plan = Plan::parse(subscripts, operands, source);
    let mut labeled = plan.without_repeated(operands).into_iter();
    let first = labeled.next().map(|(labels, x)| Labeled::new(&labels, x));
    let Some(mut left) = first else {
        plan.fail("there are no operands".into(), source)
    };
    let mut rest: Vec<Labeled> = labeled
        .map(|(labels, x)| Labeled::new(&labels, x))
        .collect();
    while !rest.is_empty() {
        let right = rest.remove(0);
        let wanted =
            |c: char| plan.output.contains(&c) || rest.iter().any(|r| r.labels.contains(&c));
        left = contract(left, right, wanted, result, source);
    }
    let left = left.summed(|c| plan.output.contains(&c));
    let permutation: Dims = plan
        .output
        .iter()
        .filter_map(|c| left.labels.iter().position(|l| l == c))
        .collect();
    let tensor = result.map_or(left.tensor, |dtype| lax::convert(left.tensor, dtype));
    lax::transpose(tensor, &permutation)
}

struct Plan<'a> {
    subscripts: &'a str,
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}

impl<'a> Plan<'a> {
    fn parse(subscripts: &'a str, operands: &[Tensor], source: Source) -> Self {
        let compact: String = subscripts.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) = match compact.split_once("->") {
            Some((inputs, output)) => (inputs.to_owned(), Some(output.to_owned())),
            None => (compact, None),
        };
        let parts: Vec<&str> = inputs.split(',').collect();
        // As many dimensions as `...` stands for where it stands for most.
        let open = |(part, x): (&&str, &Tensor)| {
            let letters = part.chars().filter(|&c| c != '.').count();
            part.contains("...")
                .then(|| x.ty().rank().saturating_sub(letters))
        };
        let most = parts.iter().zip(operands).filter_map(open).max();
        let inputs: Vec<Vec<char>> = parts
            .iter()
            .enumerate()
            .map(|(i, part)| {
                let own = operands.get(i).and_then(|x| open((part, x)));
                spelled(part, most.unwrap_or(0), own.unwrap_or(0))
            })
            .collect();
        let output = match output {
            Some(output) => spelled(&output, most.unwrap_or(0), most.unwrap_or(0)),
            None => [
                spelled("...", most.unwrap_or(0), most.unwrap_or(0)),
                once(&inputs),
            ]
            .concat(),
        };
        let plan = Plan {
            subscripts,
            inputs,
            output,
        };
        plan.check(operands, source);
        plan
    }

    fn check(&self, operands: &[Tensor], source: Source) {
        let mut problems = Vec::new();
        let letters = self.inputs.iter().flatten().chain(&self.output);
        let is_letter = |c: &char| c.is_alphabetic() || is_open(*c);
        if let Some(c) = letters.into_iter().find(|c| !is_letter(c)) {
            problems.push(format!("{c:?} is not a letter"));
        }
        if self.inputs.len() != operands.len() {
            problems.push(format!(
                "the subscripts name {} operands, {} are given",
                self.inputs.len(),
                operands.len()
            ));
        }
        let mut sizes: Vec<(char, usize, usize)> = Vec::new();
        for (position, (labels, operand)) in self.inputs.iter().zip(operands).enumerate() {
            let ty = operand.ty();
            if labels.len() != ty.rank() {
                let labels: String = labels.iter().filter(|c| !is_open(**c)).collect();
                problems.push(format!(
                    "operand {position} is {ty}, with {} dimensions, and its subscripts `{labels}` \
                     have {}",
                    ty.rank(),
                    labels.len()
                ));
                continue;
            }
            for (&label, &size) in labels.iter().zip(&ty.shape) {
                if is_open(label) && size == 1 {
                    continue;
                }
                match sizes.iter().find(|(l, ..)| *l == label) {
                    Some(&(_, known, of)) if known != size => {
                        let label = if is_open(label) {
                            "...".into()
                        } else {
                            label.to_string()
                        };
                        problems.push(format!(
                            "`{label}` is {known} in operand {of} and {size} in operand {position}"
                        ));
                    }
                    Some(_) => {}
                    None => sizes.push((label, size, position)),
                }
            }
        }
        let summed = |c: &&char| is_open(**c) && !self.output.contains(*c);
        if self.inputs.iter().flatten().any(|c| summed(&c)) {
            problems.push("`...` stands in an operand and not in the result".into());
        }
        for (i, c) in self.output.iter().enumerate() {
            if self.output[..i].contains(c) {
                problems.push(format!("`{c}` stands twice in the result"));
            }
            if !is_open(*c) && !self.inputs.iter().flatten().any(|l| l == c) {
                problems.push(format!("`{c}` in the result is in no operand"));
            }
        }
        if !problems.is_empty() {
            self.fail(problems.join("; "), source)
        }
    }

    /// The operands without dimensions of `...` that have size 1 and are repeated.
    fn without_repeated(&self, operands: &[Tensor]) -> Vec<(Vec<char>, Tensor)> {
        let types: Vec<TensorType> = operands.iter().map(|x| x.ty()).collect();
        let wide = |label: char| {
            let mut all = self.inputs.iter().zip(&types);
            all.any(|(labels, ty)| {
                let mut sizes = labels.iter().zip(&ty.shape);
                sizes.any(|(&l, &size)| l == label && size != 1)
            })
        };
        let each = self.inputs.iter().zip(operands).zip(&types);
        each.map(|((labels, &x), ty)| {
            let kept = |d: &usize| !(is_open(labels[*d]) && ty.shape[*d] == 1 && wide(labels[*d]));
            let kept: Vec<usize> = (0..labels.len()).filter(kept).collect();
            let shape: Shape = kept.iter().map(|&d| ty.shape[d]).collect();
            let labels = kept.iter().map(|&d| labels[d]).collect();
            (labels, lax::reshape(x, &shape))
        })
        .collect()
    }

    fn fail(&self, problem: String, source: Source) -> ! {
        let problem = format!("\"{}\": {problem}", self.subscripts);
        fail_at(
            ErrorKind::Shape {
                op: "einsum",
                problem,
            },
            None,
            source,
        )
    }
}

/// The first of the characters, of no alphabet, that stand for the dimensions of `...`.
const OPEN: u32 = 0xE000;

fn is_open(c: char) -> bool {
    ('\u{E000}'..='\u{F8FF}').contains(&c)
}

/// The letters of one operand; `...` is the last `own` of `most` dimensions.
fn spelled(part: &str, most: usize, own: usize) -> Vec<char> {
    let open = (most.saturating_sub(own)..most).filter_map(|i| char::from_u32(OPEN + i as u32));
    let open: String = open.collect();
    part.replacen("...", &open, 1).chars().collect()
}

fn once(inputs: &[Vec<char>]) -> Vec<char> {
    let all = inputs.iter().flatten().copied();
    let all: Vec<char> = all.filter(|&c| !is_open(c)).collect();
    let mut once: Vec<char> = all
        .iter()
        .copied()
        .filter(|c| all.iter().filter(|l| *l == c).count() == 1)
        .collect();
    once.sort_unstable();
    once
}

/// A tensor whose dimensions have letters, each once.
struct Labeled {
    labels: Vec<char>,
    tensor: Tensor,
}

impl Labeled {
    /// A letter that stands twice in one operand takes the diagonal.
    fn new(labels: &[char], tensor: Tensor) -> Self {
        let mut this = Labeled {
            labels: labels.to_vec(),
            tensor,
        };
        while let Some((first, second)) = repeated(&this.labels) {
            this = this.diagonal(first, second);
        }
        this
    }

    fn diagonal(mut self, first: usize, second: usize) -> Self {
        let ty = self.tensor.ty();
        let indices = TensorType::new(DType::I32, &ty.shape);
        let (row, column) = (
            lax::iota(indices.clone(), first),
            lax::iota(indices, second),
        );
        let on_diagonal = lax::compare(Comparison::Eq, row, column);
        let kept = lax::select(on_diagonal, self.tensor, lax::zeros(&ty));
        self.tensor = lax::sum(kept, &[second]);
        self.labels.remove(second);
        self
    }

    /// Sums over the letters that nobody wants.
    fn summed(mut self, wanted: impl Fn(char) -> bool) -> Self {
        let dims: Dims = (0..self.labels.len())
            .filter(|&i| !wanted(self.labels[i]))
            .collect();
        if !dims.is_empty() {
            self.tensor = lax::sum(self.tensor, &dims);
            self.labels.retain(|&c| wanted(c));
        }
        self
    }

    fn dims(&self, letters: &[char]) -> Dims {
        letters
            .iter()
            .filter_map(|c| self.labels.iter().position(|l| l == c))
            .collect()
    }
}

fn repeated(labels: &[char]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|second| {
        Some((
            labels[..second].iter().position(|l| *l == labels[second])?,
            second,
        ))
    })
}

fn contract(
    left: Labeled,
    right: Labeled,
    wanted: impl Fn(char) -> bool,
    result: Option<DType>,
    source: Source,
) -> Labeled {
    let left_labels = left.labels.clone();
    let left = left.summed(|c| wanted(c) || right.labels.contains(&c));
    let right = right.summed(|c| wanted(c) || left_labels.contains(&c));
    let shared = || {
        left.labels
            .iter()
            .copied()
            .filter(|c| right.labels.contains(c))
    };
    let batch: Vec<char> = shared().filter(|&c| wanted(c)).collect();
    let contracted: Vec<char> = shared().filter(|&c| !wanted(c)).collect();
    let dims = DotDims {
        lhs_batch: left.dims(&batch),
        rhs_batch: right.dims(&batch),
        lhs_contract: left.dims(&contracted),
        rhs_contract: right.dims(&contracted),
        result: result
            .unwrap_or_else(|| common("einsum", &left.tensor.ty(), &right.tensor.ty(), source)),
    };
    let free = |x: &Labeled| -> Vec<char> {
        let taken = |c: &char| batch.contains(c) || contracted.contains(c);
        x.labels.iter().copied().filter(|c| !taken(c)).collect()
    };
    let labels = [batch.clone(), free(&left), free(&right)].concat();
    Labeled {
        tensor: product("einsum", left.tensor, right.tensor, dims, source),
        labels,
    }
}
