//! Convolutions and reductions of windows.

use shardax_core::{
    Number, Reducer, TensorType,
    ir::{Binary, Conv, Window},
};

use super::elementwise::binary;
use super::{Array, fit, indices, offset, reduction};

/// The element of `size` ones, `dilation` apart, at `position`; `None` between them and outside.
fn undilated(position: i64, dilation: usize, size: usize) -> Option<usize> {
    let dilation = dilation as i64;
    let at = usize::try_from(position / dilation).ok()?;
    (position >= 0 && position % dilation == 0 && at < size).then_some(at)
}

pub(super) fn conv(conv: &Conv, ty: TensorType, lhs: &Array, rhs: &Array) -> Array {
    let depth = rhs.ty.shape[conv.rhs.feature];
    let out_features = rhs.ty.shape[conv.rhs.batch];
    let batch = lhs.ty.shape[conv.lhs.batch] / conv.batch_groups;
    let kernel: Vec<usize> = conv.rhs.spatial.iter().map(|&d| rhs.ty.shape[d]).collect();
    let mut result = Array::from_fn(ty.clone(), |_| Number::Int(0));
    // Products are summed as exactly as those of a dot, and rounded once.
    for i in indices(&ty.shape) {
        let feature = i[conv.out.feature];
        let slot = &mut result.data[offset(&i, &ty.shape)];
        for (k, c) in indices(&kernel)
            .into_iter()
            .flat_map(|k| (0..depth).map(move |c| (k.clone(), c)))
        {
            let mut from = vec![0; lhs.ty.rank()];
            let batch_group = feature / (out_features / conv.batch_groups);
            let feature_group = feature / (out_features / conv.feature_groups);
            from[conv.lhs.batch] = batch_group * batch + i[conv.out.batch];
            from[conv.lhs.feature] = feature_group * depth + c;
            let mut at = vec![0; rhs.ty.rank()];
            (at[conv.rhs.batch], at[conv.rhs.feature]) = (feature, c);
            let reached = (0..k.len()).all(|s| {
                at[conv.rhs.spatial[s]] = k[s];
                let position = (i[conv.out.spatial[s]] * conv.strides[s]) as i64
                    + (k[s] * conv.rhs_dilation[s]) as i64
                    - conv.padding[s].0;
                let d = conv.lhs.spatial[s];
                let found = undilated(position, conv.lhs_dilation[s], lhs.ty.shape[d]);
                from[d] = found.unwrap_or(0);
                found.is_some()
            });
            if reached {
                let product = binary(Binary::Mul, lhs.at(&from), rhs.at(&at), ty.dtype);
                *slot = binary(Binary::Add, *slot, product, ty.dtype);
            }
        }
        *slot = fit(*slot, ty.dtype);
    }
    result
}

pub(super) fn reduce_window(reducer: Reducer, of: &Window, ty: TensorType, x: &Array) -> Array {
    let (first, op) = reduction(reducer, ty.dtype);
    let mut result = Array::from_fn(ty.clone(), |_| first);
    for i in indices(&ty.shape) {
        let slot = &mut result.data[offset(&i, &ty.shape)];
        for k in indices(&of.sizes) {
            let from: Option<Vec<usize>> = (0..i.len())
                .map(|d| {
                    let position = (i[d] * of.strides[d] + k[d] * of.window_dilation[d]) as i64
                        - of.padding[d].0 as i64;
                    undilated(position, of.base_dilation[d], x.ty.shape[d])
                })
                .collect();
            if let Some(from) = from {
                *slot = fit(binary(op, *slot, x.at(&from), ty.dtype), ty.dtype);
            }
        }
    }
    result
}
