//! Cotangents as they are added up, use by use.
//!
//! A value that is used often has a cotangent that is a long sum. In eight bits of mantissa such a sum stops growing
//! once it is 256 times its next term. So it is kept in the accumulator type, [`DType::accumulator`], and rounded once,
//! when it is taken. Two terms need none of this: their sum is rounded once in any type.

use crate::dtype::DType;
use crate::graph::ValueId;
use crate::lax;
use crate::tensor::Tensor;

/// Cotangents of linear values, of which none is before `first`.
pub(super) struct Cotangents {
    first: usize,
    slots: Vec<Sum>,
}

/// The cotangent of one value.
#[derive(Clone, Copy, Default)]
enum Sum {
    #[default]
    Nothing,
    One(Tensor),
    /// Two terms, and what they give in their own type.
    Two([Tensor; 2], Tensor),
    /// More of them, added up in the accumulator type, and the type of each.
    More(Tensor, DType),
}

impl Sum {
    fn with(self, ct: Tensor) -> Self {
        let dtype = ct.dtype();
        let wide = |term: Tensor| lax::convert(term, dtype.accumulator());
        match self {
            Sum::Nothing => Sum::One(ct),
            Sum::One(first) => Sum::Two([first, ct], lax::add(first, ct)),
            Sum::Two(_, total) if dtype.accumulator() == dtype => {
                Sum::More(lax::add(total, ct), dtype)
            }
            Sum::Two([first, second], _) => {
                let total = lax::add(wide(first), wide(second));
                Sum::More(lax::add(total, wide(ct)), dtype)
            }
            Sum::More(total, dtype) => Sum::More(lax::add(total, wide(ct)), dtype),
        }
    }

    fn total(self) -> Option<Tensor> {
        match self {
            Sum::Nothing => None,
            Sum::One(total) | Sum::Two(_, total) => Some(total),
            Sum::More(total, dtype) => Some(lax::convert(total, dtype)),
        }
    }
}

impl Cotangents {
    pub(super) fn new(first: usize) -> Self {
        Cotangents {
            first,
            slots: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, value: ValueId, ct: Tensor) {
        let Some(position) = value.index().checked_sub(self.first) else {
            return;
        };
        if self.slots.len() <= position {
            self.slots.resize(position + 1, Sum::Nothing);
        }
        self.slots[position] = self.slots[position].with(ct);
    }

    pub(super) fn take(&mut self, value: ValueId) -> Option<Tensor> {
        let position = value.index().checked_sub(self.first)?;
        self.slots
            .get_mut(position)
            .map(std::mem::take)
            .and_then(Sum::total)
    }
}
