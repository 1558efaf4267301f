//! Sorting, and running reductions.

use std::fmt::Write;

use shardax_core::{
    DType, TensorType,
    ir::{Cumulative, Equation, Graph, Sort, cumulative_in_blocks},
};

use super::elementwise::{compare_type, neutral, reducer_name};
use super::writer::{Array, Loc, Results, Ssa, Writer, tensor_type};
use super::{Block, Lowering};

impl Lowering<'_> {
    pub(super) fn sort(
        &mut self,
        (graph, equation, sort): (&Graph, &Equation, Sort),
        x: &[Ssa],
        loc: Loc,
    ) -> Results {
        let ssa = self.out.fresh();
        let dtypes: Vec<DType> = equation
            .operands
            .iter()
            .map(|&o| graph.ty(o).dtype)
            .collect();
        let types: Vec<String> = equation
            .operands
            .iter()
            .map(|&o| tensor_type(graph.ty(o)))
            .collect();
        let names: Vec<String> = x.iter().map(Ssa::to_string).collect();
        let count = match x.len() {
            1 => String::new(),
            count => format!(":{count}"),
        };
        let types = types.join(", ");
        let (dimension, comparator) = (sort.dim, comparator(sort, &dtypes));
        self.out.line(format_args!(
            "{ssa}{count} = \"stablehlo.sort\"({}) <{{dimension = {dimension} : i64, is_stable = true}}> \
             ({{\n{comparator}}}) : ({types}) -> ({types}) {loc}",
            names.join(", "),
        ));
        Writer::results(ssa, x.len())
    }

    pub(super) fn cumulative(
        &mut self,
        (graph, equation, cumulative): (&Graph, &Equation, Cumulative),
        (x, block): (Ssa, &Block),
        loc: Loc,
    ) -> Ssa {
        let ty = graph.ty(equation.results[0]);
        let size = ty.shape[cumulative.dim];
        if size == 0 {
            return x;
        }
        if self.annotations.is_single() {
            // The compiler makes a scan of it.
            let window = cumulative.window(ty.rank(), size);
            return self.reduce_window((cumulative.reducer, &window), [ty, ty], x, loc);
        }
        let split = block.split(equation.operands[0]);
        match self
            .annotations
            .block_count(&split, &ty.shape, cumulative.dim)
        {
            count if count == 1 || count == size => self.running_steps(cumulative, ty, x, loc),
            count => {
                let blocks = cumulative_in_blocks(equation, cumulative, ty, count);
                self.region(&blocks, &[x], vec![split])[0]
            }
        }
    }

    /// Each element combined with the one 1 before, then 2 before, then 4 before, ...: the partitioner
    /// pads a window of a split dimension with zeros, whatever its reduction begins with.
    fn running_steps(&mut self, cumulative: Cumulative, ty: &TensorType, x: Ssa, loc: Loc) -> Ssa {
        let (dim, size) = (cumulative.dim, ty.shape[cumulative.dim]);
        let scalar = tensor_type(&TensorType::scalar(ty.dtype));
        let value = neutral(cumulative.reducer, ty.dtype);
        let outside = format!("stablehlo.constant dense<{value}> : {scalar}");
        let outside = self.assign(&outside, loc);
        let (whole, reducer) = (tensor_type(ty), reducer_name(cumulative.reducer));
        let at = |value: usize| {
            let mut dims = vec![0; ty.rank()];
            dims[dim] = value;
            dims
        };
        let mut result = x;
        let mut by = 1;
        while by < size {
            let (start, low, high) = match cumulative.reverse {
                false => (0, by, 0),
                true => (by, 0, by),
            };
            let mut limits = ty.shape.to_vec();
            limits[dim] = start + size - by;
            let mut kept = ty.clone();
            kept.shape[dim] = size - by;
            let kept = tensor_type(&kept);
            let text = format!(
                "\"stablehlo.slice\"({result}) <{{start_indices = {}, limit_indices = {}, strides = {}}}> : \
                 ({whole}) -> {kept}",
                Array(&at(start)),
                Array(&limits),
                Array(&vec![1; ty.rank()])
            );
            let earlier = self.assign(&text, loc);
            let text = format!(
                "\"stablehlo.pad\"({earlier}, {outside}) <{{edge_padding_low = {}, edge_padding_high = {}, \
                 interior_padding = {}}}> : ({kept}, {scalar}) -> {whole}",
                Array(&at(low)),
                Array(&at(high)),
                Array(&at(0))
            );
            let earlier = self.assign(&text, loc);
            let text = format!("stablehlo.{reducer} {earlier}, {result} : {whole}");
            result = self.assign(&text, loc);
            by *= 2;
        }
        result
    }
}

/// Whether an element comes before another, by the first key in which they differ. Each operand has
/// an element of both: `%l0, %r0, %l1, %r1, ...`.
fn comparator(sort: Sort, dtypes: &[DType]) -> String {
    let mut text = String::from("^bb0(");
    for (i, &dtype) in dtypes.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let ty = tensor_type(&TensorType::scalar(dtype));
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}%l{i}: {ty}, %r{i}: {ty}");
    }
    text.push_str("):\n");
    let (first, second) = match sort.descending {
        false => ("l", "r"),
        true => ("r", "l"),
    };
    // Of the last key on: elements of which neither is less are told apart by the next key.
    let mut before = String::new();
    for (key, &dtype) in dtypes.iter().enumerate().take(sort.keys).rev() {
        let is_less = less(&mut text, "less", key, [first, second], dtype);
        if before.is_empty() {
            before = is_less;
            continue;
        }
        let is_more = less(&mut text, "more", key, [second, first], dtype);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "%same{key} = stablehlo.not {is_more} : tensor<i1>\n\
             %next{key} = stablehlo.and %same{key}, {before} : tensor<i1>\n\
             %before{key} = stablehlo.or {is_less}, %next{key} : tensor<i1>\n"
        );
        before = format!("%before{key}");
    }
    let _ = writeln!(text, "stablehlo.return {before} : tensor<i1>");
    text
}

/// Writes whether `a` is less than `b`: of floats, whether it is a number and `b` is not, too.
fn less(text: &mut String, name: &str, key: usize, [a, b]: [&str; 2], dtype: DType) -> String {
    let ty = tensor_type(&TensorType::scalar(dtype));
    let kind = compare_type(dtype);
    let mut compare = |result: &str, direction: &str, [a, b]: [&str; 2]| {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "%{result}{key} = stablehlo.compare {direction}, %{a}{key}, %{b}{key}, {kind} : \
             ({ty}, {ty}) -> tensor<i1>"
        );
    };
    if !dtype.is_float() {
        compare(name, "LT", [a, b]);
        return format!("%{name}{key}");
    }
    let [below, number, nan, last] =
        ["below", "number", "nan", "last"].map(|p| format!("{name}_{p}"));
    compare(&below, "LT", [a, b]);
    compare(&number, "EQ", [a, a]);
    compare(&nan, "NE", [b, b]);
    let _ = write!(
        text,
        "%{last}{key} = stablehlo.and %{number}{key}, %{nan}{key} : tensor<i1>\n\
         %{name}{key} = stablehlo.or %{below}{key}, %{last}{key} : tensor<i1>\n"
    );
    format!("%{name}{key}")
}
