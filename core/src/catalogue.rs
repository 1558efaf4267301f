//! What each primitive can do, asked of its rules.
//!
//! An example of every primitive is traced, differentiated, transposed and batched, and what its
//! rules wrote, or refused, is listed. The table in the documentation and `shardax ops` are made of
//! it, so neither can claim what the code does not do.

use std::panic::Location;
use std::sync::Arc;

use smallvec::smallvec;

use crate::context::in_region;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Graph;
use crate::lax;
use crate::literal::Literal;
use crate::op::{
    Binary, Collective, CollectiveOp, Combine, Comparison, Cond, Constraint, Conv, ConvLayout,
    Cumulative, Custom, CustomRule, Dims, DotDims, Fft, FftKind, Foreign, GatherDims, HostFunction,
    Manual, ManualAxis, Memory, Op, Policy, Reducer, Remat, Scan, Sort, Target, TriangularSolve,
    Unary, While, Window,
};
use crate::tensor::Tensor;
use crate::trace::{catch, emit, input, program, region};
use crate::transform::close::finished;
use crate::transform::{jvp, vjp, vmap};
use crate::types::{Shape, TensorType};
use crate::varying::Varying;
use shardax_sharding::{Dim, PartitionSpec, Role};

/// What is known of a primitive.
#[derive(Clone, Debug)]
pub struct OpInfo {
    /// Its name, as it is printed in a graph.
    pub name: &'static str,
    /// What it belongs to: `element-wise`, `index`, ...
    pub family: &'static str,
    /// A program that consists of it.
    pub example: Graph,
    /// What its derivative is written with.
    pub forward: Rule,
    /// What its transposed derivative is written with.
    pub reverse: Rule,
    /// What it is written with for a batch.
    pub batched: Rule,
}

/// What a rule does with the example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It writes these operations; none where the derivative is zero.
    Writes(Vec<&'static str>),
    /// It refuses, with this message.
    Refuses(String),
    /// There is nothing to ask: the operation takes no operand.
    NoOperand,
}

/// Every primitive.
pub fn catalogue() -> Vec<OpInfo> {
    examples()
        .into_iter()
        .map(|example| example.ask())
        .collect()
}

struct Example {
    family: &'static str,
    op: Op,
    operands: Vec<TensorType>,
}

impl Example {
    fn ask(&self) -> OpInfo {
        let example = self.graph(self.operands.clone(), |x| self.call(&x));
        let example = example.unwrap_or_default();
        let floats = self
            .operands
            .iter()
            .filter(|ty| ty.dtype.is_differentiable());
        let floats: Vec<TensorType> = floats.cloned().collect();
        let results = example.outputs().iter().map(|&o| example.ty(o).clone());
        let results: Vec<TensorType> = results.collect();
        let count = floats.len();
        let derivative =
            |more: &[TensorType], f: &dyn Fn(Vec<Tensor>, Vec<Tensor>) -> Vec<Tensor>| {
                let types = [&floats, more].concat();
                match count {
                    0 => Rule::NoOperand,
                    _ => written(self.graph(types, |mut x| {
                        let more = x.split_off(count);
                        f(x, more)
                    })),
                }
            };
        OpInfo {
            name: self.op.name(),
            family: self.family,
            forward: derivative(&floats, &|x, t| jvp(|x| self.on_floats(&x), x, t).1),
            reverse: derivative(&results, &|x, cts| vjp(|x| self.on_floats(&x), x).1(cts)),
            batched: self.batched(),
            example,
        }
    }

    fn call(&self, x: &[Tensor]) -> Vec<Tensor> {
        emit(self.op.clone(), x, Location::caller()).to_vec()
    }

    /// The operation of its floating-point operands; the others are constants.
    fn on_floats(&self, floats: &[Tensor]) -> Vec<Tensor> {
        let mut floats = floats.iter().copied();
        let operands: Vec<Tensor> = self
            .operands
            .iter()
            .filter_map(|ty| match ty.dtype.is_differentiable() {
                true => floats.next(),
                false => Some(lax::zeros(ty)),
            })
            .collect();
        self.call(&operands)
    }

    fn graph(
        &self,
        types: Vec<TensorType>,
        f: impl FnOnce(Vec<Tensor>) -> Vec<Tensor>,
    ) -> Result<Graph> {
        // Collectives stand inside of a region.
        let axes = match &self.op {
            Op::Collective(collective) => collective.axes.as_slice(),
            _ => &[],
        };
        let written = || program(|| f(types.into_iter().map(input).collect()));
        let traced = catch(|| in_region(axes, written))?;
        Ok(finished(traced.graph, &traced.result))
    }

    fn batched(&self) -> Rule {
        if self.operands.is_empty() {
            return Rule::NoOperand;
        }
        let types = self.operands.iter().map(|ty| {
            let shape: Shape = std::iter::once(2).chain(ty.shape.iter().copied()).collect();
            ty.with_shape(shape)
        });
        let each = |x: Vec<Tensor>| vmap(|x: Vec<Tensor>| self.call(&x))(x);
        written(self.graph(types.collect(), each))
    }
}

fn written(graph: Result<Graph>) -> Rule {
    match graph {
        Ok(graph) => Rule::Writes(names(&graph)),
        Err(error) => Rule::Refuses(error.kind.to_string()),
    }
}

/// The operations of a graph, each once.
fn names(graph: &Graph) -> Vec<&'static str> {
    let mut names = Vec::new();
    for equation in graph.equations() {
        let name = equation.op.name();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn examples() -> Vec<Example> {
    let f32 = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let i32 = |shape: &[usize]| TensorType::new(DType::I32, shape);
    let boolean = |shape: &[usize]| TensorType::new(DType::Bool, shape);
    let mut all = Vec::new();
    let mut add = |family, op, operands: Vec<TensorType>| {
        all.push(Example {
            family,
            op,
            operands,
        })
    };

    let family = "constant";
    let number = Literal::scalar(2.5.into(), DType::F32);
    if let Some(literal) = number {
        add(family, Op::Constant(literal), vec![]);
    }
    let ty = i32(&[3]);
    add(family, Op::Iota { ty, dimension: 0 }, vec![]);

    let family = "element-wise";
    for &unary in Unary::ALL {
        add(family, Op::Unary(unary), vec![unary_operand(unary)]);
    }
    for &binary in Binary::ALL {
        let ty = binary_operand(binary);
        add(family, Op::Binary(binary), vec![ty.clone(), ty]);
    }
    for &comparison in Comparison::ALL {
        add(family, Op::Compare(comparison), vec![f32(&[3]), f32(&[3])]);
    }
    add(
        family,
        Op::Select,
        vec![boolean(&[3]), f32(&[3]), f32(&[3])],
    );
    add(family, Op::Convert(DType::BF16), vec![f32(&[3])]);
    add(family, Op::BitcastConvert(DType::I32), vec![f32(&[3])]);
    let op = Op::ReducePrecision {
        exponent: 5,
        mantissa: 10,
    };
    add(family, op, vec![f32(&[3])]);

    let family = "shape";
    let op = Op::Broadcast {
        shape: Shape::from_slice(&[2, 3]),
        dims: Dims::from_slice(&[1]),
    };
    add(family, op, vec![f32(&[3])]);
    add(
        family,
        Op::Reshape(Shape::from_slice(&[6])),
        vec![f32(&[2, 3])],
    );
    add(
        family,
        Op::Transpose(Dims::from_slice(&[1, 0])),
        vec![f32(&[2, 3])],
    );
    let op = Op::Slice {
        starts: Dims::from_slice(&[1]),
        limits: Dims::from_slice(&[5]),
        strides: Dims::from_slice(&[2]),
    };
    add(family, op, vec![f32(&[6])]);
    let op = Op::Pad {
        low: Dims::from_slice(&[1]),
        high: Dims::from_slice(&[2]),
        interior: Dims::from_slice(&[0]),
    };
    add(family, op, vec![f32(&[3]), f32(&[])]);
    add(family, Op::Concatenate(0), vec![f32(&[3]), f32(&[2])]);
    add(family, Op::Reverse(Dims::from_slice(&[0])), vec![f32(&[3])]);

    let family = "reduction";
    for &reducer in Reducer::ALL {
        let ty = reduced(reducer);
        let dims = Dims::from_slice(&[0]);
        add(family, Op::Reduce(reducer, dims), vec![ty.clone()]);
        let window = Window {
            sizes: smallvec![2],
            strides: smallvec![1],
            padding: smallvec![(0, 0)],
            base_dilation: smallvec![1],
            window_dilation: smallvec![1],
        };
        add(
            family,
            Op::ReduceWindow(reducer, Box::new(window)),
            vec![ty.clone()],
        );
        let running = Cumulative {
            reducer,
            dim: 0,
            reverse: false,
        };
        add(family, Op::Cumulative(running), vec![ty]);
    }

    let family = "linear algebra";
    let dims = DotDims {
        lhs_batch: Dims::new(),
        rhs_batch: Dims::new(),
        lhs_contract: Dims::from_slice(&[1]),
        rhs_contract: Dims::from_slice(&[0]),
        result: DType::F32,
    };
    add(
        family,
        Op::DotGeneral(Box::new(dims)),
        vec![f32(&[2, 3]), f32(&[3, 4])],
    );
    let layout = |batch, feature| ConvLayout {
        batch,
        feature,
        spatial: Dims::from_slice(&[2]),
    };
    let conv = Conv {
        lhs: layout(0, 1),
        rhs: layout(0, 1),
        out: layout(0, 1),
        strides: smallvec![1],
        padding: smallvec![(0, 0)],
        lhs_dilation: smallvec![1],
        rhs_dilation: smallvec![1],
        feature_groups: 1,
        batch_groups: 1,
        result: DType::F32,
    };
    let operands = vec![f32(&[2, 3, 5]), f32(&[4, 3, 2])];
    add(family, Op::Conv(Box::new(conv)), operands);
    add(family, Op::Cholesky, vec![f32(&[3, 3])]);
    let solve = TriangularSolve {
        left: true,
        lower: true,
        transpose: false,
        unit_diagonal: false,
    };
    let operands = vec![f32(&[3, 3]), f32(&[3, 2])];
    add(family, Op::TriangularSolve(solve), operands);
    let fft = Fft {
        kind: FftKind::Rfft,
        lengths: smallvec![4],
    };
    add(family, Op::Fft(fft), vec![f32(&[4])]);

    let family = "index";
    let sizes = Dims::from_slice(&[2]);
    add(family, Op::DynamicSlice(sizes), vec![f32(&[5]), i32(&[])]);
    let operands = vec![f32(&[5]), f32(&[2]), i32(&[])];
    add(family, Op::DynamicUpdateSlice, operands);
    let rows = Box::new(GatherDims::rows(0, 2, 1));
    let op = Op::Gather {
        dims: rows.clone(),
        sizes: smallvec![1, 3],
    };
    add(family, op, vec![f32(&[5, 3]), i32(&[2])]);
    for &combine in Combine::ALL {
        let op = Op::Scatter {
            dims: rows.clone(),
            combine,
        };
        add(family, op, vec![f32(&[5, 3]), i32(&[2]), f32(&[2, 3])]);
    }
    let sort = Sort {
        dim: 0,
        keys: 1,
        descending: false,
    };
    add(family, Op::Sort(sort), vec![f32(&[4])]);

    let family = "program";
    let constraint = Constraint {
        dims: smallvec![Dim::Logical("batch")],
        role: Role::Activation,
        leaf: None,
        leaves_batch_open: false,
    };
    add(family, Op::Shard(Box::new(constraint)), vec![f32(&[4])]);
    add(family, Op::OptimizationBarrier, vec![f32(&[4])]);
    add(family, Op::StopGradient(None), vec![f32(&[4])]);
    add(family, Op::Name("hidden".into()), vec![f32(&[4])]);
    add(family, Op::Place(Memory::Host), vec![f32(&[4])]);

    let family = "control";
    let sine = || body(&[f32(&[3])], |x| vec![lax::unary(Unary::Sin, x[0])]);
    let op = Op::Scan(Scan {
        body: sine(),
        length: 4,
        reverse: false,
        unroll: 1,
        carries: 1,
        xs: 0,
    });
    add(family, op, vec![f32(&[3])]);
    let op = Op::Cond(Cond {
        branches: vec![sine(), sine()],
    });
    add(family, op, vec![i32(&[]), f32(&[3])]);
    let op = Op::While(While {
        cond: body(&[f32(&[])], |x| {
            let one = lax::full(1.0.into(), &TensorType::scalar(DType::F32));
            vec![lax::compare(Comparison::Lt, x[0], one)]
        }),
        body: body(&[f32(&[])], |x| vec![lax::add(x[0], x[0])]),
        carries: 1,
    });
    add(family, op, vec![f32(&[])]);
    let op = Op::Remat(Remat {
        body: sine(),
        policy: Policy::Nothing,
        recomputes: false,
        unmatched: Arc::default(),
    });
    add(family, op, vec![f32(&[3])]);
    let op = Op::Custom(Box::new(Custom {
        body: sine(),
        arguments: 1,
        rule: CustomRule::Jvp(body(&[f32(&[3]), f32(&[3])], |x| {
            let slope = lax::unary(Unary::Cos, x[0]);
            vec![lax::unary(Unary::Sin, x[0]), lax::mul(slope, x[1])]
        })),
    }));
    add(family, op, vec![f32(&[3])]);
    let op = Op::Custom(Box::new(Custom {
        body: sine(),
        arguments: 1,
        rule: CustomRule::Vjp {
            forward: body(&[f32(&[3])], |x| vec![lax::unary(Unary::Sin, x[0]), x[0]]),
            backward: body(&[f32(&[3]), f32(&[3])], |x| {
                vec![lax::mul(lax::unary(Unary::Cos, x[0]), x[1])]
            }),
            residuals: 1,
        },
    }));
    add(family, op, vec![f32(&[3])]);
    manual_examples(&mut add, sine);
    let function = HostFunction::new("identity", |x: &[Literal]| Ok(x.to_vec()));
    let op = Op::Foreign(Foreign {
        target: Target::Host(function),
        results: vec![f32(&[3])],
        effect: false,
    });
    add(family, op, vec![f32(&[3])]);
    all
}

fn manual_examples(
    add: &mut impl FnMut(&'static str, Op, Vec<TensorType>),
    sine: impl FnOnce() -> Arc<Graph>,
) {
    let family = "manual";
    let axes = vec![ManualAxis::new("data", 2)];
    let region = Op::Manual(Manual {
        body: sine(),
        axes: axes.clone(),
        inputs: vec![PartitionSpec::replicated(1)],
        outputs: vec![PartitionSpec::replicated(1)],
    });
    add(family, region, vec![TensorType::new(DType::F32, [3])]);
    let own = TensorType::new(DType::F32, [4, 4]).with_varying(Varying::new(["data"]));
    for kind in [
        CollectiveOp::Psum,
        CollectiveOp::Pmax,
        CollectiveOp::Pmin,
        CollectiveOp::AllGather {
            dim: 0,
            invariant: false,
        },
        CollectiveOp::AllGather {
            dim: 0,
            invariant: true,
        },
        CollectiveOp::ReduceScatter(0),
        CollectiveOp::AllToAll { split: 0, join: 1 },
        CollectiveOp::Ppermute(vec![(0, 1), (1, 0)]),
        CollectiveOp::AxisIndex,
        CollectiveOp::Vary,
        CollectiveOp::AssumeInvariant,
    ] {
        let operands = match kind {
            CollectiveOp::AxisIndex => vec![],
            CollectiveOp::Vary => vec![own.with_varying(Varying::NOTHING)],
            _ => vec![own.clone()],
        };
        let axes = axes.clone();
        add(family, Op::Collective(Collective { kind, axes }), operands);
    }
}

fn unary_operand(unary: Unary) -> TensorType {
    let dtype = match unary {
        Unary::CountLeadingZeros | Unary::Not | Unary::PopulationCount => DType::I32,
        Unary::Imag | Unary::Real => DType::C64,
        _ => DType::F32,
    };
    TensorType::new(dtype, [3])
}

fn binary_operand(binary: Binary) -> TensorType {
    let dtype = match binary {
        Binary::And
        | Binary::Or
        | Binary::ShiftLeft
        | Binary::ShiftRight
        | Binary::ShiftRightLogical
        | Binary::Xor => DType::I32,
        _ => DType::F32,
    };
    TensorType::new(dtype, [3])
}

fn reduced(reducer: Reducer) -> TensorType {
    let dtype = match reducer {
        Reducer::And | Reducer::Or => DType::Bool,
        Reducer::Max | Reducer::Min | Reducer::Prod | Reducer::Sum => DType::F32,
    };
    TensorType::new(dtype, [4])
}

/// A function inside an operation.
fn body(types: &[TensorType], f: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Arc<Graph> {
    let traced = region(|| {
        let inputs: Vec<Tensor> = types.iter().cloned().map(input).collect();
        f(&inputs)
    });
    Arc::new(finished(traced.graph, &traced.result))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The variant of an operation; a new one does not compile before it has a number here.
    fn variant(op: &Op) -> usize {
        match op {
            Op::Constant(_) => 0,
            Op::Iota { .. } => 1,
            Op::Unary(_) => 2,
            Op::Binary(_) => 3,
            Op::Compare(_) => 4,
            Op::Select => 5,
            Op::Convert(_) => 6,
            Op::BitcastConvert(_) => 7,
            Op::Broadcast { .. } => 8,
            Op::Reshape(_) => 9,
            Op::Transpose(_) => 10,
            Op::Slice { .. } => 11,
            Op::Pad { .. } => 12,
            Op::Concatenate(_) => 13,
            Op::Reverse(_) => 14,
            Op::Reduce(..) => 15,
            Op::DotGeneral(_) => 16,
            Op::DynamicSlice(_) => 17,
            Op::DynamicUpdateSlice => 18,
            Op::Gather { .. } => 19,
            Op::Scatter { .. } => 20,
            Op::Conv(_) => 21,
            Op::ReduceWindow(..) => 22,
            Op::Cumulative(_) => 23,
            Op::Sort(_) => 24,
            Op::Cholesky => 25,
            Op::TriangularSolve(_) => 26,
            Op::Fft(_) => 27,
            Op::ReducePrecision { .. } => 28,
            Op::Shard(_) => 29,
            Op::OptimizationBarrier => 30,
            Op::StopGradient(_) => 31,
            Op::Name(_) => 32,
            Op::Place(_) => 33,
            Op::Scan(_) => 34,
            Op::Cond(_) => 35,
            Op::While(_) => 36,
            Op::Remat(_) => 37,
            Op::Custom(_) => 38,
            Op::Foreign(_) => 39,
            Op::Manual(_) => 40,
            Op::Collective(_) => 41,
            // Exist inside of a derivative only.
            Op::CustomLinear(_) | Op::Tangent(_) => 42,
        }
    }

    #[test]
    fn every_primitive_has_an_example() {
        let found: BTreeSet<usize> = examples().iter().map(|e| variant(&e.op)).collect();
        assert_eq!(found, (0..42).collect());
    }

    /// What has no derivative is known, and nothing else is refused.
    #[test]
    fn rules_refuse_what_has_no_derivative() {
        let mut refused = BTreeSet::new();
        for info in catalogue() {
            assert!(!info.example.equations().is_empty(), "{}", info.name);
            let rules = [
                ("forward", &info.forward),
                ("reverse", &info.reverse),
                ("batched", &info.batched),
            ];
            for (which, rule) in rules {
                if let Rule::Refuses(_) = rule {
                    refused.insert((info.name, which));
                }
            }
        }
        let wanted = [
            ("bitcast_convert", "forward"),
            ("bitcast_convert", "reverse"),
            ("custom_vjp", "forward"),
            ("foreign", "forward"),
            ("foreign", "reverse"),
            ("next_after", "forward"),
            ("next_after", "reverse"),
            ("polygamma", "forward"),
            ("polygamma", "reverse"),
            ("while", "reverse"),
        ];
        assert_eq!(refused, BTreeSet::from(wanted));
    }

    #[test]
    fn what_rules_write_is_listed() {
        let all = catalogue();
        let of = |name: &str| all.iter().find(|info| info.name == name);
        let sine = of("sin").map(|info| info.forward.clone());
        assert_eq!(sine, Some(Rule::Writes(vec!["cos", "mul_or_zero"])));
        let floor = of("floor").map(|info| info.batched.clone());
        assert_eq!(floor, Some(Rule::Writes(vec!["floor"])));
        let reverse = of("while").map(|info| info.reverse.clone());
        assert!(matches!(reverse, Some(Rule::Refuses(_))), "{reverse:?}");
    }
}
