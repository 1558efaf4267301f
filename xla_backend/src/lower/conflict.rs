//! Products whose operands and result want one axis for different dimensions.
//!
//! XLA's partitioner may put blocks of a product in the wrong order, if it is summed over an axis, and its result is
//! split over that axis and others that the operands do not have in these places. Such a product is stated to lie as its
//! operands do first, and as its annotation says afterwards. And an operand that is contracted over an axis which splits a
//! dimension that the other one keeps is stated to be whole there: what becomes of weights under fully sharded data
//! parallelism.

use shardax_core::ir::{DotDims, Equation, Graph, Op};
use shardax_core::{TensorType, ir::Constraint};
use shardax_sharding::{Axes, AxisPart, PartitionSpec};

use super::partial::overlap;
use super::writer::{Loc, Results};
use super::{Block, Lowering};

/// The parts of axes that split each dimension.
type Parts = Vec<Vec<AxisPart>>;

fn any_of(part: &AxisPart, parts: &[AxisPart]) -> bool {
    parts.iter().any(|other| overlap(part, other))
}

impl Lowering<'_> {
    fn parts_of_operand(&self, equation: &Equation, operand: usize, block: &Block) -> Parts {
        let split = block.split(equation.operands[operand]);
        split
            .iter()
            .map(|axes| self.annotations.parts(axes))
            .collect()
    }

    /// How a value lies before its constraint holds, if it is a product that does not come to lie so in one step.
    pub(super) fn product_before(
        &self,
        constraint: &Constraint,
        equation: &Equation,
        block: &Block,
        ty: &TensorType,
    ) -> Option<PartitionSpec> {
        let product = (*block.definitions.get(equation.operands[0].index())?)?;
        let Op::DotGeneral(dims) = &product.op else {
            return None;
        };
        let [lhs, rhs] = [0, 1].map(|i| self.parts_of_operand(product, i, block));
        if lhs.is_empty() || rhs.is_empty() {
            return None;
        }
        let contracted = [(&lhs, &dims.lhs_contract), (&rhs, &dims.rhs_contract)];
        let contracted = contracted
            .iter()
            .flat_map(|(of, dims)| dims.iter().map(|&d| &of[d]));
        let summed: Vec<AxisPart> = contracted.flatten().cloned().collect();
        let stated = self
            .annotations
            .lies(constraint.role, constraint, ty)
            .ok()?;
        let wanted = stated
            .spec
            .entries()
            .iter()
            .map(|axes| self.annotations.parts(axes));
        let wanted: Parts = wanted.collect();
        if !wanted.iter().flatten().any(|part| any_of(part, &summed)) {
            return None;
        }
        let batches = dims.lhs_batch.iter().map(|&d| &lhs[d]);
        let [left, right] = [dims.lhs_free(lhs.len()), dims.rhs_free(rhs.len())];
        let of_operands = batches
            .chain(left.iter().map(|&d| &lhs[d]))
            .chain(right.iter().map(|&d| &rhs[d]));
        let mut before = Parts::new();
        let mut is_other = false;
        for (own, wanted) in of_operands.zip(&wanted) {
            let taken = |part: &AxisPart| {
                any_of(part, &summed) || before.iter().any(|parts| any_of(part, parts))
            };
            let left = |parts: &[AxisPart]| -> Vec<AxisPart> {
                parts.iter().filter(|part| !taken(part)).cloned().collect()
            };
            let (own, wanted) = (left(own), left(wanted));
            is_other |= own != wanted;
            before.push(if own.is_empty() { wanted } else { own });
        }
        let spec = before.iter().map(|parts| self.annotations.axes(parts));
        is_other.then(|| spec.collect())
    }

    /// The operands of a product, each whole along contracted dimensions that an axis splits which the other operand has
    /// elsewhere.
    pub(super) fn contracted_whole(
        &mut self,
        (graph, equation, dims): (&Graph, &Equation, &DotDims),
        block: &Block,
        x: &mut Results,
        loc: Loc,
    ) {
        if self.annotations.is_single() {
            return;
        }
        let parts = [0, 1].map(|i| self.parts_of_operand(equation, i, block));
        if parts.iter().any(Vec::is_empty) {
            return;
        }
        let contract = [&dims.lhs_contract, &dims.rhs_contract];
        let free = [dims.lhs_free(parts[0].len()), dims.rhs_free(parts[1].len())];
        for (own, other) in [(0, 1), (1, 0)] {
            let kept: Vec<AxisPart> = free[other]
                .iter()
                .flat_map(|&d| parts[other][d].iter().cloned())
                .collect();
            let mut entries = vec![Axes::default().open(); parts[own].len()];
            for (&d, &e) in contract[own].iter().zip(contract[other]) {
                let split = &parts[own][d];
                if parts[other][e].is_empty() && split.iter().any(|part| any_of(part, &kept)) {
                    let left = split.iter().filter(|part| !any_of(part, &kept));
                    entries[d] = self.annotations.axes(left);
                }
            }
            if entries.iter().any(|axes| !axes.is_open()) {
                let ty = graph.ty(equation.operands[own]);
                x[own] = self.stated(&entries.into_iter().collect(), x[own], ty, loc);
            }
        }
    }
}
