//! Which device holds which block of an array.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use shardax_sharding::{Mesh, PartitionSpec};

use super::{add, color, device_ranges, escape};

/// Width of a picture.
const WIDTH: usize = 226;
/// Blocks drawn along a dimension.
const DRAWN: usize = 16;

/// The blocks of an array along the two dimensions that are split into most parts, each with the devices that
/// hold it; of further dimensions the first block.
pub(super) fn picture(spec: &PartitionSpec, mesh: &Mesh, shape: &[usize]) -> String {
    let Ok(shard) = spec.shard_shape(mesh, shape) else {
        return String::new();
    };
    let parts: Vec<usize> = shape
        .iter()
        .zip(&shard)
        .map(|(w, s)| w / s.max(&1))
        .collect();
    let (row_dim, column_dim) = drawn_dimensions(&parts, shape);
    let count = |dim: Option<usize>| dim.map_or(1, |dim| parts[dim].max(1));
    let (rows, columns) = (count(row_dim), count(column_dim));

    // Row and column of the block that a device holds -> devices.
    let mut holders: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for device in 0..mesh.device_count() {
        let Ok(bounds) = spec.shard_bounds(mesh, shape, device) else {
            continue;
        };
        let at = |dim: usize| bounds[dim].start / shard[dim].max(1);
        let is_drawn = |dim: &usize| Some(*dim) == row_dim || Some(*dim) == column_dim;
        if (0..shape.len())
            .filter(|dim| !is_drawn(dim))
            .any(|dim| at(dim) > 0)
        {
            continue;
        }
        let block = (row_dim.map_or(0, at), column_dim.map_or(0, at));
        holders.entry(block).or_default().push(device);
    }

    let (drawn_rows, drawn_columns) = (rows.min(DRAWN), columns.min(DRAWN));
    let (cell, line) = (WIDTH / drawn_columns, (112 / drawn_rows).clamp(14, 44));
    let height = drawn_rows * line + 2;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n"
    );
    for (&(row, column), devices) in &holders {
        if row >= drawn_rows || column >= drawn_columns {
            continue;
        }
        let (x, y) = (column * cell, row * line);
        let text = device_ranges(devices);
        add(
            &mut svg,
            format_args!(
                "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>",
                escape(&format!("devices {text}")),
                cell - 2,
                line - 2,
                color(row * columns + column, rows * columns),
            ),
        );
        // What has no room is in the title.
        if text.len() * 7 <= cell {
            add(
                &mut svg,
                format_args!(
                    "<text x=\"{}\" y=\"{}\" font-size=\"11\" text-anchor=\"middle\">{text}</text>",
                    x + cell / 2 - 1,
                    y + line / 2 + 3,
                ),
            );
        }
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    let mut notes = vec![];
    match parts.iter().product::<usize>() {
        1 => notes.push("whole on every device".to_owned()),
        blocks => notes.push(format!("{blocks} blocks of {shard:?}")),
    }
    if let (Some(row), Some(column)) = (row_dim, column_dim)
        && shape.len() > 2
    {
        notes.push(format!("dimension {row} down, {column} across"));
    }
    if rows > DRAWN || columns > DRAWN {
        notes.push("not all are drawn".to_owned());
    }
    add(
        &mut svg,
        format_args!(
            "<br/><span class=\"soft\">{}</span>\n",
            escape(&notes.join("; "))
        ),
    );
    svg
}

/// The dimensions drawn down and across; a vector is drawn across.
fn drawn_dimensions(parts: &[usize], shape: &[usize]) -> (Option<usize>, Option<usize>) {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|&dim| Reverse((parts[dim], shape[dim])));
    order.truncate(2);
    order.sort_unstable();
    match order[..] {
        [row, column] => (Some(row), Some(column)),
        [column] => (None, Some(column)),
        _ => (None, None),
    }
}
