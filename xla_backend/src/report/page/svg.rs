//! Pictures of the mesh and of sums.

use shardax_hlo::human_bytes;
use shardax_sharding::Mesh;

use super::{add, color, escape, size_of};

/// Devices drawn along one axis; of longer ones the first.
const DRAWN: usize = 16;
/// Width and height of a device.
const CELL: (usize, usize) = (40, 28);

/// The devices of a mesh: the last axis across, the one before it down, a panel for each position along the
/// others.
pub(super) fn mesh(mesh: &Mesh) -> String {
    let rank = mesh.axes().len();
    let columns = rank.checked_sub(1).map_or(1, |axis| size_of(mesh, axis));
    let rows = rank.checked_sub(2).map_or(1, |axis| size_of(mesh, axis));
    let panels = mesh.device_count() / (rows * columns).max(1);
    let (drawn_rows, drawn_columns) = (rows.min(DRAWN), columns.min(DRAWN));
    let drawn_panels = panels.min(DRAWN);
    let panel_width = drawn_columns * CELL.0 + 24;
    let (width, panel_height) = (panel_width.max(64), drawn_rows * CELL.1 + 34);
    let across = (1080 / width.max(1)).clamp(1, drawn_panels.max(1));
    let total_width = across * width + 80;
    let total_height = drawn_panels.div_ceil(across) * panel_height;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{total_width}\" height=\"{total_height}\" \
         viewBox=\"0 0 {total_width} {total_height}\" role=\"img\">\n<title>{}</title>\n",
        escape(&format!("devices of the mesh {mesh}"))
    );
    for panel in 0..drawn_panels {
        let (x, y) = (
            70 + panel % across * width,
            20 + panel / across * panel_height,
        );
        let label = panel_label(mesh, panel * rows * columns);
        add(
            &mut svg,
            format_args!(
                "<text class=\"axis\" x=\"{x}\" y=\"{}\" font-size=\"11\">{}</text>\n",
                y - 6,
                escape(&label)
            ),
        );
        for row in 0..drawn_rows {
            for column in 0..drawn_columns {
                let device = (panel * rows + row) * columns + column;
                let fill = color(row, drawn_rows);
                let (left, top) = (x + column * CELL.0, y + row * CELL.1);
                add(
                    &mut svg,
                    format_args!(
                        "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{fill}\"/>\
                     <text x=\"{}\" y=\"{}\" font-size=\"12\" text-anchor=\"middle\">{device}</text>\n",
                        CELL.0 - 4,
                        CELL.1 - 4,
                        left + CELL.0 / 2 - 2,
                        top + CELL.1 / 2 + 2,
                    ),
                );
            }
        }
    }
    // The axes' names, at the first panel.
    if let Some(axis) = rank.checked_sub(2).and_then(|axis| mesh.axes().get(axis)) {
        add(
            &mut svg,
            format_args!(
                "<text class=\"axis\" x=\"62\" y=\"{}\" font-size=\"12\" text-anchor=\"end\">{} &#8595;</text>\n",
                20 + CELL.1 / 2 + 2,
                escape(axis.name())
            ),
        );
    }
    svg.push_str("</svg>\n");
    let left_out = mesh.device_count() - drawn_panels * drawn_rows * drawn_columns;
    if left_out > 0 {
        add(
            &mut svg,
            format_args!("<p class=\"soft\">and {left_out} more devices</p>\n"),
        );
    }
    svg
}

/// `model across`, with the position along the axes that are not drawn.
fn panel_label(mesh: &Mesh, device: usize) -> String {
    let coordinates = mesh.coordinates(device).unwrap_or_default();
    let rank = mesh.axes().len();
    let outer = mesh
        .axes()
        .iter()
        .zip(&coordinates)
        .take(rank.saturating_sub(2));
    let mut words: Vec<String> = outer
        .map(|(axis, at)| format!("{}={at}", axis.name()))
        .collect();
    words.extend(
        mesh.axes()
            .last()
            .map(|axis| format!("{} \u{2192}", axis.name())),
    );
    words.join(" ")
}

/// A bar of several parts.
#[derive(Clone, Debug)]
pub(super) struct Bar<'a> {
    pub(super) label: String,
    /// Name and bytes.
    pub(super) parts: Vec<(&'a str, u64)>,
}

/// Bars of one scale, with a legend of the parts' names.
pub(super) fn bars(bars: &[Bar]) -> String {
    const LENGTH: u64 = 640;
    let total = |bar: &Bar| {
        bar.parts
            .iter()
            .map(|(_, bytes)| *bytes)
            .fold(0, u64::saturating_add)
    };
    let largest = bars.iter().map(total).max().unwrap_or(0).max(1);
    let mut names: Vec<&str> = vec![];
    for (name, _) in bars.iter().flat_map(|bar| &bar.parts) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let fill = |name: &str| {
        let at = names.iter().position(|known| *known == name).unwrap_or(0);
        color(at, names.len())
    };
    let labels = bars
        .iter()
        .map(|bar| bar.label.chars().count())
        .max()
        .unwrap_or(0);
    let left = 14 + 8 * labels as u64;
    let (width, height) = (left + LENGTH + 110, 30 * bars.len() as u64 + 26);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n"
    );
    for (i, bar) in bars.iter().enumerate() {
        let y = 30 * i as u64;
        add(
            &mut svg,
            format_args!(
                "<text class=\"label\" x=\"{}\" y=\"{}\" font-size=\"13\" text-anchor=\"end\">{}</text>\n",
                left - 8,
                y + 17,
                escape(&bar.label)
            ),
        );
        let mut before: u64 = 0;
        for (name, bytes) in &bar.parts {
            let at =
                |bytes: u64| (u128::from(bytes) * u128::from(LENGTH) / u128::from(largest)) as u64;
            let (start, end) = (at(before), at(before.saturating_add(*bytes)));
            before = before.saturating_add(*bytes);
            add(
                &mut svg,
                format_args!(
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"22\" fill=\"{}\"><title>{}: {}</title></rect>\n",
                    left + start,
                    y + 2,
                    (end - start).max(1),
                    fill(name),
                    escape(name),
                    human_bytes(*bytes),
                ),
            );
        }
        let end = left + (u128::from(before) * u128::from(LENGTH) / u128::from(largest)) as u64;
        add(
            &mut svg,
            format_args!(
                "<text class=\"label\" x=\"{}\" y=\"{}\" font-size=\"12\">{}</text>\n",
                end + 8,
                y + 17,
                human_bytes(before)
            ),
        );
    }
    let mut x = left;
    for name in &names {
        let y = 30 * bars.len() as u64 + 4;
        add(
            &mut svg,
            format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text class=\"axis\" x=\"{}\" y=\"{}\" font-size=\"12\">{}</text>\n",
                fill(name),
                x + 17,
                y + 11,
                escape(name)
            ),
        );
        x += 34 + 8 * name.chars().count() as u64;
    }
    svg.push_str("</svg>\n");
    svg
}
