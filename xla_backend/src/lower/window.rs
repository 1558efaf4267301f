//! Convolutions and reductions of windows.
//!
//! XLA's partitioner does not split the dimensions that windows move along: it gives wrong numbers, or
//! aborts, for many strides, paddings, dilations and groups. So these dimensions are stated to be
//! whole, on operands and results; the others are left to it.

use shardax_core::ir::split::Entries;
use shardax_core::{
    Reducer, TensorType,
    ir::{Conv, ConvLayout, ValueId, Window},
};
use shardax_sharding::{Axes, PartitionSpec};

use super::elementwise::{neutral, reducer_name};
use super::writer::{Array, List, Loc, Ssa, tensor_type};
use super::{Block, Lowering};

/// `[b, f, 0, 1]`
fn layout(layout: &ConvLayout, [batch, feature]: [&str; 2]) -> String {
    let names: Vec<String> = (0..layout.spatial.len() + 2)
        .map(|d| match layout.spatial.iter().position(|&s| s == d) {
            Some(spatial) => spatial.to_string(),
            None if d == layout.batch => batch.to_owned(),
            None => feature.to_owned(),
        })
        .collect();
    format!("[{}]", names.join(", "))
}

/// Left to the partitioner, or whole.
fn open_if(is_open: bool) -> Axes {
    match is_open {
        true => Axes::default().open(),
        false => Axes::default(),
    }
}

impl Lowering<'_> {
    /// A convolution; `summed` is [`Self::summed_by_all`].
    pub(super) fn conv(
        &mut self,
        (conv, summed): (&Conv, Axes),
        [lhs, rhs]: [Ssa; 2],
        [lhs_type, rhs_type, result]: [&TensorType; 3],
        loc: Loc,
    ) -> Ssa {
        let (features, batches) = (conv.feature_groups > 1, conv.batch_groups > 1);
        // What groups cut through is whole too.
        let summed = match batches {
            true => summed,
            false => open_if(!features),
        };
        let lhs_lies = [
            (conv.lhs.batch, open_if(!batches)),
            (conv.lhs.feature, summed.clone()),
        ];
        let rhs_lies = [
            (conv.rhs.batch, open_if(!features && !batches)),
            (conv.rhs.feature, summed),
        ];
        let out_lies = [
            (conv.out.batch, open_if(!batches)),
            (conv.out.feature, open_if(!features && !batches)),
        ];
        let lhs = self.lies_whole_but(&lhs_lies, lhs, lhs_type, loc);
        let rhs = self.lies_whole_but(&rhs_lies, rhs, rhs_type, loc);
        let padding: Vec<String> = conv
            .padding
            .iter()
            .map(|(low, high)| format!("[{low}, {high}]"))
            .collect();
        let text = format!(
            "stablehlo.convolution({lhs}, {rhs}) dim_numbers = {}x{}->{}, window = {{stride = {}, \
             pad = [{}], lhs_dilate = {}, rhs_dilate = {}}} {{batch_group_count = {} : i64, \
             feature_group_count = {} : i64}} : ({}, {}) -> {}",
            layout(&conv.lhs, ["b", "f"]),
            layout(&conv.rhs, ["o", "i"]),
            layout(&conv.out, ["b", "f"]),
            List(&conv.strides),
            padding.join(", "),
            List(&conv.lhs_dilation),
            List(&conv.rhs_dilation),
            conv.batch_groups,
            conv.feature_groups,
            tensor_type(lhs_type),
            tensor_type(rhs_type),
            tensor_type(result),
        );
        let found = self.assign(&text, loc);
        self.lies_whole_but(&out_lies, found, result, loc)
    }

    /// What splits the features that a convolution sums, if that is all devices.
    ///
    /// In the gradient of a kernel with groups these stand beside groups of the batch, and the partitioner adds up what they
    /// give over all devices, not over those that split them. So they are split over all, or whole.
    pub(super) fn summed_by_all(&self, conv: &Conv, lhs: ValueId, block: &Block) -> Axes {
        let split = block.split(lhs);
        let axes = split.get(conv.lhs.feature).cloned().unwrap_or_default();
        let parts = self.annotations.parts(&axes);
        let devices: usize = parts.iter().map(|part| part.size).product();
        match devices == self.annotations.device_count() {
            true => axes,
            false => Axes::default(),
        }
    }

    /// What is sliced with a step that is larger than a device's part of the dimension: whole there, for the partitioner
    /// expects parts of another size than it makes.
    pub(super) fn before_steps(
        &mut self,
        strides: &[usize],
        (value, split): (Ssa, &Entries),
        ty: &TensorType,
        loc: Loc,
    ) -> Ssa {
        let steps_over = |d: usize| {
            let axes = split.get(d).cloned().unwrap_or_default();
            let parts = self.annotations.parts(&axes);
            let parts: usize = parts.iter().map(|part| part.size).product();
            parts > 1 && ty.shape[d].div_ceil(parts) < strides[d]
        };
        let open = (0..ty.rank()).filter(|&d| !steps_over(d));
        let open: Vec<(usize, Axes)> = open.map(|d| (d, open_if(true))).collect();
        match open.len() == ty.rank() {
            true => value,
            false => self.lies_whole_but(&open, value, ty, loc),
        }
    }

    /// States that a value is whole in every dimension but those listed, which lie as told.
    fn lies_whole_but(
        &mut self,
        listed: &[(usize, Axes)],
        value: Ssa,
        ty: &TensorType,
        loc: Loc,
    ) -> Ssa {
        if self.annotations.is_single() {
            return value;
        }
        let entry = |d: usize| {
            let told = listed.iter().find(|(dim, _)| *dim == d);
            told.map(|(_, axes)| axes.clone()).unwrap_or_default()
        };
        let spec = PartitionSpec::from_iter((0..ty.rank()).map(entry));
        self.stated(&spec, value, ty, loc)
    }

    pub(super) fn reduce_window(
        &mut self,
        (reducer, window): (Reducer, &Window),
        [operand, result]: [&TensorType; 2],
        x: Ssa,
        loc: Loc,
    ) -> Ssa {
        let scalar = tensor_type(&TensorType::scalar(operand.dtype));
        let value = neutral(reducer, operand.dtype);
        let initial = self.assign(
            &format!("stablehlo.constant dense<{value}> : {scalar}"),
            loc,
        );
        // A dimension in which a window is one element, and every element has one, is left as it is.
        let still = |d: usize| {
            window.sizes[d] == 1
                && window.strides[d] == 1
                && window.padding[d] == (0, 0)
                && window.base_dilation[d] == 1
        };
        let open: Vec<(usize, Axes)> = (0..operand.rank())
            .map(|d| (d, open_if(still(d))))
            .collect();
        let x = self.lies_whole_but(&open, x, operand, loc);
        let padding = window.padding.iter();
        let padding: Vec<String> = padding
            .map(|(low, high)| format!("[{low}, {high}]"))
            .collect();
        let padding = match padding.len() {
            0 => "dense<> : tensor<0x2xi64>".to_owned(),
            rank => format!("dense<[{}]> : tensor<{rank}x2xi64>", padding.join(", ")),
        };
        let text = format!(
            "\"stablehlo.reduce_window\"({x}, {initial}) <{{window_dimensions = {}, \
             window_strides = {}, base_dilations = {}, window_dilations = {}, padding = {padding}}}> ({{\n\
             ^bb0(%one: {scalar}, %other: {scalar}):\n\
             %both = stablehlo.{} %one, %other : {scalar}\n\
             stablehlo.return %both : {scalar}\n\
             }}) : ({}, {scalar}) -> {}",
            Array(&window.sizes),
            Array(&window.strides),
            Array(&window.base_dilation),
            Array(&window.window_dilation),
            reducer_name(reducer),
            tensor_type(operand),
            tensor_type(result),
        );
        let found = self.assign(&text, loc);
        self.lies_whole_but(&open, found, result, loc)
    }
}
