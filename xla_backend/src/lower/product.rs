//! Products, and the type in which they are summed across devices.
//!
//! A product of which a contracted dimension is split is a sum over devices, which XLA adds in the product's own
//! element type. A narrow one is computed in f32 and rounded behind the sum where that is what the layout says of
//! activations, or where the program widens it anyway: `x.dot(w).cast(F32)` and the gradient of an f32 parameter
//! that is used in bf16. Gradients that are annotated as such are in `partial/`.

use rustc_hash::FxHashSet;
use shardax_core::{
    TensorType,
    ir::{Binary, DotDims, Equation, Graph, Op, ValueId},
};
use shardax_sharding::ReductionType;

use super::Lowering;
use super::partial::Finder;
use super::sharding::Annotations;
use super::writer::{List, Loc, Ssa, push};

/// Narrow products that are summed across devices in a wider type.
pub(super) fn summed_wide(
    graph: &Graph,
    finder: &Finder,
    annotations: &Annotations,
) -> FxHashSet<ValueId> {
    let all = annotations.activation_reduction() == ReductionType::F32;
    let products = graph.equations().iter().filter(|equation| {
        let is_split = |operand: usize, dims: &[usize]| {
            let split = &finder.splits[equation.operands[operand].index()];
            let mut axes = dims.iter().filter_map(|&d| split.get(d));
            axes.any(|axes| !axes.is_empty())
        };
        let is_summed = match &equation.op {
            Op::DotGeneral(dims) => {
                dims.result.is_narrow_float()
                    && (is_split(0, &dims.lhs_contract) || is_split(1, &dims.rhs_contract))
            }
            Op::Conv(conv) => {
                conv.result.is_narrow_float()
                    && (is_split(0, &[conv.lhs.feature]) || is_split(1, &[conv.rhs.feature]))
            }
            _ => false,
        };
        is_summed && (all || is_widened(graph, finder, equation.results[0]))
    });
    products.map(|equation| equation.results[0]).collect()
}

/// Whether the only use of a value is to be converted to a wider type, and not to be narrowed again after it
/// was added to others, as cotangents of activations are.
fn is_widened(graph: &Graph, finder: &Finder, mut value: ValueId) -> bool {
    let mut is_wide = false;
    while let Some(user) = finder.only_user(value) {
        match &user.op {
            Op::Convert(to) => {
                let bits = graph.ty(value).dtype.bits();
                if !to.is_float() || to.bits() < bits {
                    return false;
                }
                is_wide |= to.bits() > bits;
            }
            Op::Binary(Binary::Add) if is_wide => {}
            Op::Transpose(_) | Op::Reshape(_) | Op::Shard(_) | Op::Name(_) => {}
            _ => return is_wide,
        }
        value = user.results[0];
    }
    is_wide
}

impl Lowering<'_> {
    pub(super) fn dot(
        &mut self,
        dims: &DotDims,
        [lhs, rhs]: [Ssa; 2],
        [lhs_type, rhs_type, result]: [&TensorType; 3],
        loc: Loc,
    ) -> Ssa {
        let types = &self.types;
        let [lhs_type, rhs_type, result] = [lhs_type, rhs_type, result].map(|ty| types.spelled(ty));
        self.out.assign(loc, |out| {
            push!(out, "stablehlo.dot_general " lhs ", " rhs ", ");
            if !dims.lhs_batch.is_empty() {
                let [lhs, rhs] = [List(&dims.lhs_batch), List(&dims.rhs_batch)];
                push!(out, "batching_dims = " lhs " x " rhs ", ");
            }
            let [lhs, rhs] = [List(&dims.lhs_contract), List(&dims.rhs_contract)];
            push!(out, "contracting_dims = " lhs " x " rhs);
            push!(out, ", precision = [DEFAULT, DEFAULT] : (");
            push!(out, lhs_type ", " rhs_type ") -> " result);
        })
    }

    /// What writes a product, in a wider type than it has if told so, and the product in its own type.
    pub(super) fn product(
        &mut self,
        graph: &Graph,
        equation: &Equation,
        is_wide: bool,
        loc: Loc,
        write: impl FnOnce(&mut Self, [&TensorType; 3]) -> Ssa,
    ) -> Ssa {
        let [lhs, rhs] = [0, 1].map(|i| graph.ty(equation.operands[i]));
        let own = graph.ty(equation.results[0]);
        if !is_wide {
            return write(self, [lhs, rhs, own]);
        }
        let wide = TensorType::new(own.dtype.accumulator(), &own.shape);
        let summed = write(self, [lhs, rhs, &wide]);
        self.converted((summed, wide), own.dtype, loc).0
    }
}
