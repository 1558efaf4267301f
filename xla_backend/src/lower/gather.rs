//! Gather and scatter.

use shardax_core::{Combine, DType, TensorType, ir::GatherDims};

use super::writer::{List, Piece, push, tensor_type};

/// Attributes that are left out where they say nothing.
fn attributes(entries: &[(&str, &[usize])], rest: &str) -> String {
    let mut text = String::new();
    for (name, dims) in entries.iter().filter(|(_, dims)| !dims.is_empty()) {
        push!(&mut text, name " = " (List(dims)) ", ");
    }
    text.push_str(rest);
    text
}

fn vector_dimension(dims: &GatherDims, indices_rank: usize) -> String {
    let at = match dims.vectors {
        true => indices_rank.saturating_sub(1),
        false => indices_rank,
    };
    format!("index_vector_dim = {at}")
}

/// The dimension numbers of a gather.
pub(super) fn gather_numbers(dims: &GatherDims, indices_rank: usize) -> String {
    attributes(
        &[
            ("offset_dims", &dims.offset),
            ("collapsed_slice_dims", &dims.collapsed),
            ("operand_batching_dims", &dims.operand_batch),
            ("start_indices_batching_dims", &dims.indices_batch),
            ("start_index_map", &dims.start_map),
        ],
        &vector_dimension(dims, indices_rank),
    )
}

/// The dimension numbers of a scatter.
pub(super) fn scatter_numbers(dims: &GatherDims, indices_rank: usize) -> String {
    attributes(
        &[
            ("update_window_dims", &dims.offset),
            ("inserted_window_dims", &dims.collapsed),
            ("input_batching_dims", &dims.operand_batch),
            ("scatter_indices_batching_dims", &dims.indices_batch),
            ("scatter_dims_to_operand_dims", &dims.start_map),
        ],
        &vector_dimension(dims, indices_rank),
    )
}

/// Writes a scatter; `numbers` are the attributes of its dimension numbers.
pub(super) fn scatter(
    out: &mut String,
    numbers: &str,
    (operands, combine, dtype): (&dyn Piece, Combine, DType),
    functional: &dyn Piece,
) {
    let element = tensor_type(&TensorType::scalar(dtype));
    push!(out, "\"stablehlo.scatter\"(" operands ") <{scatter_dimension_numbers = ");
    push!(out, "#stablehlo.scatter<" numbers ">, indices_are_sorted = false, ");
    push!(out, "unique_indices = false}> ({\n^bb0(%old: " element ", %new: " element "):\n");
    let op = match combine {
        Combine::Add => Some("add"),
        Combine::Max => Some("maximum"),
        Combine::Min => Some("minimum"),
        Combine::Mul => Some("multiply"),
        Combine::Set => None,
    };
    let kept = match op {
        Some(op) => {
            push!(out, "%both = stablehlo." op " %old, %new : " element "\n");
            "%both"
        }
        None => "%new",
    };
    push!(out, "stablehlo.return " kept " : " element "\n}) : " functional);
}
