//! Convolutions and reductions of windows.

use super::{Fault, Rule};
use crate::op::{Conv, ConvLayout, Dims, Reducer, Window};
use crate::types::{Shape, TensorType};

/// The number of windows of `size` elements, `dilation` apart, in `length` elements.
fn windows(length: i64, size: usize, dilation: usize, stride: usize) -> usize {
    let spanned = match size {
        0 => 0,
        size => (size as i64 - 1)
            .saturating_mul(dilation as i64)
            .saturating_add(1),
    };
    match length >= spanned {
        true => (length - spanned) as usize / stride.max(1) + 1,
        false => 0,
    }
}

/// The elements of `size` ones that are `dilation` apart.
fn dilated(size: usize, dilation: usize) -> i64 {
    match size {
        0 => 0,
        size => (size as i64 - 1)
            .saturating_mul(dilation as i64)
            .saturating_add(1),
    }
}

impl Rule<'_> {
    pub(super) fn conv(&self, conv: &Conv) -> Result<TensorType, Fault> {
        let (lhs, rhs) = (self.operand(0)?, self.operand(1)?);
        if lhs.dtype != rhs.dtype && !(lhs.dtype.is_float() && rhs.dtype.is_float()) {
            return self.dtype_error(
                format!("element types {lhs} and {rhs} differ"),
                Some("convert one of them with `.cast(...)`".into()),
            );
        }
        let count = conv.lhs.spatial.len();
        let fits = lhs.rank() == count + 2
            && rhs.rank() == count + 2
            && [&conv.strides, &conv.lhs_dilation, &conv.rhs_dilation]
                .iter()
                .all(|of| of.len() == count && of.iter().all(|&n| n > 0))
            && conv.padding.len() == count
            && conv.rhs.spatial.len() == count
            && conv.out.spatial.len() == count;
        if !fits {
            return self.argument_error(format!(
                "{lhs} with kernel {rhs}: {count} spatial dimensions want operands of rank {}, and \
                 as many strides, paddings and dilations, none of them 0",
                count + 2
            ));
        }
        for layout in [&conv.lhs, &conv.rhs, &conv.out] {
            self.dimensions(&all_dims(layout), count + 2)?;
        }
        let (batch, features) = (lhs.shape[conv.lhs.batch], lhs.shape[conv.lhs.feature]);
        let (out, depth) = (rhs.shape[conv.rhs.batch], rhs.shape[conv.rhs.feature]);
        let (groups, batches) = (conv.feature_groups, conv.batch_groups);
        let mut problems = Vec::new();
        if groups == 0 || batches == 0 || (groups > 1 && batches > 1) {
            problems.push(format!(
                "{groups} feature groups with {batches} batch groups"
            ));
        } else {
            if features != depth.saturating_mul(groups) {
                problems.push(format!(
                    "{features} features in {groups} groups do not meet {depth} features of the kernel"
                ));
            }
            if !out.is_multiple_of(groups.max(batches)) {
                let groups = groups.max(batches);
                problems.push(format!("{out} features of the result in {groups} groups"));
            }
            if !batch.is_multiple_of(batches) {
                problems.push(format!("a batch of {batch} in {batches} groups"));
            }
        }
        if !problems.is_empty() {
            let refused =
                self.shape_error(format!("{lhs} with kernel {rhs}: {}", problems.join("; ")));
            let help = "by default an operand has the dimensions batch, features, space, and a kernel \
                        out, in, space; `.layouts(\"NHWC\", \"HWIO\", \"NHWC\")` says otherwise";
            return self.advise(refused, help);
        }
        let mut shape: Shape = smallvec::smallvec![0; count + 2];
        shape[conv.out.batch] = batch / batches;
        shape[conv.out.feature] = out;
        for i in 0..count {
            let base = dilated(lhs.shape[conv.lhs.spatial[i]], conv.lhs_dilation[i]);
            let (low, high) = conv.padding[i];
            shape[conv.out.spatial[i]] = windows(
                base.saturating_add(low).saturating_add(high),
                rhs.shape[conv.rhs.spatial[i]],
                conv.rhs_dilation[i],
                conv.strides[i],
            );
        }
        Ok(TensorType::new(conv.result, shape))
    }

    pub(super) fn reduce_window(
        &self,
        reducer: Reducer,
        window: &Window,
    ) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.reducible(reducer, ty)?;
        let counted = [
            &window.sizes,
            &window.strides,
            &window.base_dilation,
            &window.window_dilation,
        ];
        let fits = counted
            .iter()
            .all(|of| of.len() == ty.rank() && of.iter().all(|&n| n > 0))
            && window.padding.len() == ty.rank();
        if !fits {
            return self.argument_error(format!(
                "{ty} wants a size, stride, padding and dilation for each dimension, none of them 0"
            ));
        }
        let shape: Shape = (0..ty.rank())
            .map(|d| {
                let (low, high) = window.padding[d];
                let length = dilated(ty.shape[d], window.base_dilation[d])
                    .saturating_add(low as i64)
                    .saturating_add(high as i64);
                windows(
                    length,
                    window.sizes[d],
                    window.window_dilation[d],
                    window.strides[d],
                )
            })
            .collect();
        Ok(TensorType::new(ty.dtype, shape))
    }
}

fn all_dims(layout: &ConvLayout) -> Dims {
    [layout.batch, layout.feature]
        .iter()
        .chain(&layout.spatial)
        .copied()
        .collect()
}
