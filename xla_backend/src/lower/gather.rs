//! Gather and scatter.

use std::fmt::{self, Display, Write};

use shardax_core::{Combine, DType, GatherDims, TensorType};

use super::writer::{List, tensor_type};

/// Attributes that are left out where they say nothing.
fn attributes(entries: &[(&str, &[usize])], rest: &str) -> String {
    let mut text = String::new();
    for (name, dims) in entries.iter().filter(|(_, dims)| !dims.is_empty()) {
        // Writing to a string does not fail.
        let _ = write!(text, "{name} = {}, ", List(dims));
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
    (operands, combine, dtype): (&dyn Display, Combine, DType),
    functional: &dyn Display,
) -> fmt::Result {
    let element = tensor_type(&TensorType::scalar(dtype));
    let op = match combine {
        Combine::Add => "add",
        Combine::Max => "maximum",
        Combine::Min => "minimum",
        Combine::Mul => "multiply",
        Combine::Set => "",
    };
    write!(
        out,
        "\"stablehlo.scatter\"({operands}) <{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, \
         indices_are_sorted = false, unique_indices = false}}> ({{\n\
         ^bb0(%old: {element}, %new: {element}):\n"
    )?;
    match combine {
        Combine::Set => writeln!(out, "stablehlo.return %new : {element}")?,
        _ => write!(
            out,
            "%both = stablehlo.{op} %old, %new : {element}\n\
             stablehlo.return %both : {element}\n"
        )?,
    }
    write!(out, "}}) : {functional}")
}
