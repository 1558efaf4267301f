//! How an array lies on the devices, drawn in characters.

use std::fmt::Write;

use crate::fault::SpecFault;
use crate::mesh::Mesh;
use crate::spec::PartitionSpec;

/// The widest that a picture becomes, in columns.
const WIDTH: usize = 60;

/// The most rows of blocks that are drawn.
const ROWS: usize = 8;

/// Draws how an array of this shape lies on the mesh: a grid of its blocks, each with the positions of
/// the devices that hold it, its rows and columns labeled with the ranges of indices.
///
/// Of an array with more than two dimensions the two that are split into most parts are drawn, at the
/// first block along the others. What does not fit in 60 columns and 8 rows is left out, and the
/// picture says so.
///
/// # Errors
///
/// What [`PartitionSpec::validate`] finds.
///
/// ```
/// use shardax_sharding::{Mesh, PartitionSpec, picture};
///
/// let mesh = Mesh::new([("data", 2), ("model", 2)])?;
/// let spec = PartitionSpec::new(((), "model"));
/// assert_eq!(
///     picture(&spec, &mesh, &[8, 64]).unwrap(),
///     r#"
/// [8, 64] as P(_, "model") on data=2 x model=2
///
///        0..32    32..64
///      +--------+--------+
/// 0..8 |  0,2   |  1,3   |
///      +--------+--------+
///
/// 2 blocks of [8, 32], each on 2 devices
/// "#
///     .trim_start()
/// );
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
pub fn picture(
    spec: &PartitionSpec,
    mesh: &Mesh,
    shape: &[usize],
) -> Result<String, Vec<SpecFault>> {
    let parts = spec.parts(mesh, shape)?;
    let shard = spec.shard_shape(mesh, shape)?;
    let drawn = drawn_dimensions(&parts, shape);
    let (row_dim, column_dim) = (drawn.0, drawn.1);

    let mut out = format!("{shape:?} as {spec} on {mesh}\n");
    let hidden: Vec<usize> = (0..shape.len())
        .filter(|i| Some(*i) != row_dim && Some(*i) != column_dim)
        .collect();
    if let (Some(row), Some(column), false) = (row_dim, column_dim, hidden.is_empty()) {
        let _ = write!(out, "dimension {row} down, dimension {column} across");
        let cut: Vec<_> = hidden
            .iter()
            .filter(|&&i| parts[i] > 1)
            .map(usize::to_string)
            .collect();
        if !cut.is_empty() {
            let plural = if cut.len() == 1 { "" } else { "s" };
            let _ = write!(
                out,
                ", first block along dimension{plural} {}",
                cut.join(", ")
            );
        }
        out.push('\n');
    }
    out.push('\n');

    let row_parts = row_dim.map_or(1, |i| parts[i]);
    let column_parts = column_dim.map_or(1, |i| parts[i]);
    let holders = holders(spec, mesh, &drawn, (row_parts, column_parts), &hidden);
    let label = |dim: Option<usize>, at: usize| match dim {
        Some(i) => format!("{}..{}", at * shard[i], (at + 1) * shard[i]),
        None => String::new(),
    };
    let grid = Grid {
        rows: (0..row_parts).map(|at| label(row_dim, at)).collect(),
        columns: (0..column_parts).map(|at| label(column_dim, at)).collect(),
        cells: holders
            .iter()
            .map(|row| row.iter().map(|devices| ranges(devices)).collect())
            .collect(),
    };
    grid.draw(&mut out);

    let blocks: usize = parts.iter().product();
    let copies = spec.replicas(mesh);
    let devices = if copies == 1 {
        "1 device".to_owned()
    } else {
        format!("{copies} devices")
    };
    let _ = match blocks {
        1 => writeln!(out, "\n1 block of {shard:?} on {devices}"),
        _ => writeln!(out, "\n{blocks} blocks of {shard:?}, each on {devices}"),
    };
    Ok(out)
}

/// The dimensions drawn down and across: the two split into most parts, then the largest, in the order
/// of the shape. A vector is drawn across.
fn drawn_dimensions(parts: &[usize], shape: &[usize]) -> (Option<usize>, Option<usize>) {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse((parts[i], shape[i])));
    order.truncate(2);
    order.sort_unstable();
    match order[..] {
        [row, column] => (Some(row), Some(column)),
        [column] => (None, Some(column)),
        _ => (None, None),
    }
}

/// The positions of the devices that hold each block of the grid.
fn holders(
    spec: &PartitionSpec,
    mesh: &Mesh,
    drawn: &(Option<usize>, Option<usize>),
    (rows, columns): (usize, usize),
    hidden: &[usize],
) -> Vec<Vec<Vec<usize>>> {
    let mut holders = vec![vec![Vec::new(); columns]; rows];
    for position in 0..mesh.device_count() {
        let block = spec.block(mesh, position).unwrap_or_default();
        if hidden.iter().all(|&i| block[i] == 0) {
            let (row, column) = (
                drawn.0.map_or(0, |i| block[i]),
                drawn.1.map_or(0, |i| block[i]),
            );
            holders[row][column].push(position);
        }
    }
    holders
}

/// `0,2`, `0-3,8`.
fn ranges(positions: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &position in positions {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == position => *last = position,
            _ => runs.push((position, position)),
        }
    }
    let runs = runs.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    let text = runs.collect::<Vec<_>>().join(",");
    if text.len() <= 16 {
        return text;
    }
    let kept = text[..12].rfind(',').unwrap_or(12);
    format!("{},..", &text[..kept])
}

/// Labeled cells, all as wide as the widest.
struct Grid {
    rows: Vec<String>,
    columns: Vec<String>,
    cells: Vec<Vec<String>>,
}

impl Grid {
    fn draw(&self, out: &mut String) {
        let margin = self.rows.iter().map(String::len).max().unwrap_or(0);
        let cells = self.cells.iter().flatten().chain(&self.columns);
        let width = cells.map(String::len).max().unwrap_or(0) + 2;
        let columns = elided(
            self.columns.len(),
            (WIDTH.saturating_sub(margin + 2) / (width + 1)).max(3),
        );
        let rows = elided(self.rows.len(), ROWS);

        // A leading blank stands for the vertical line left of the first cell.
        let indent = if margin == 0 {
            String::new()
        } else {
            " ".repeat(margin + 1)
        };
        let line = |edge: &str, text: &dyn Fn(usize) -> String, out: &mut String| {
            for column in &columns {
                let text = column.map_or_else(|| "..".to_owned(), text);
                let _ = write!(out, "{edge}{text:^width$}");
            }
        };
        if self.columns.iter().any(|label| !label.is_empty()) {
            let mut labels = indent.clone();
            line(" ", &|column| self.columns[column].clone(), &mut labels);
            let _ = writeln!(out, "{}", labels.trim_end());
        }
        let rule = format!(
            "{indent}{}+\n",
            format!("+{}", "-".repeat(width)).repeat(columns.len())
        );
        out.push_str(&rule);
        for row in &rows {
            let label = row.map_or("..", |row| &self.rows[row]);
            if margin > 0 {
                let _ = write!(out, "{label:>margin$} ");
            }
            let text = |column: usize| match row {
                Some(row) => self.cells[*row][column].clone(),
                None => "..".to_owned(),
            };
            line("|", &text, out);
            out.push_str("|\n");
            out.push_str(&rule);
        }
    }
}

/// The indices of `count` things of which at most `most` (3 or more) are shown: the first ones, a gap,
/// and the last.
fn elided(count: usize, most: usize) -> Vec<Option<usize>> {
    if count <= most {
        return (0..count).map(Some).collect();
    }
    let first = (0..most - 2).map(Some);
    first.chain([None, Some(count - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spec: PartitionSpec, mesh: &str, shape: &[usize], expected: &str) {
        let mesh = mesh.parse().unwrap();
        let drawn = picture(&spec, &mesh, shape).unwrap();
        assert_eq!(drawn.trim_end(), expected.trim(), "\n{drawn}");
        let mut grid = drawn.lines().filter(|line| line.contains(['|', '+']));
        assert!(
            grid.all(|line| line.len() <= WIDTH),
            "too wide:
{drawn}"
        );
    }

    #[test]
    fn a_matrix_over_two_axes() {
        check(
            PartitionSpec::new(("data", "model")),
            "data=2,model=4",
            &[64, 256],
            r#"
[64, 256] as P("data", "model") on data=2 x model=4

          0..64     64..128    128..192   192..256
       +----------+----------+----------+----------+
 0..32 |    0     |    1     |    2     |    3     |
       +----------+----------+----------+----------+
32..64 |    4     |    5     |    6     |    7     |
       +----------+----------+----------+----------+

8 blocks of [32, 64], each on 1 device
"#,
        );
    }

    #[test]
    fn a_replicated_matrix_lists_its_devices() {
        check(
            PartitionSpec::replicated(2),
            "data=2,model=4",
            &[64, 256],
            r#"
[64, 256] as P(_, _) on data=2 x model=4

        0..256
      +--------+
0..64 |  0-7   |
      +--------+

1 block of [64, 256] on 8 devices
"#,
        );
    }

    #[test]
    fn a_vector_and_a_scalar() {
        check(
            PartitionSpec::new(["model"]),
            "data=2,model=4",
            &[64],
            r#"
[64] as P("model") on data=2 x model=4

  0..16    16..32   32..48   48..64
+--------+--------+--------+--------+
|  0,4   |  1,5   |  2,6   |  3,7   |
+--------+--------+--------+--------+

4 blocks of [16], each on 2 devices
"#,
        );
        check(
            PartitionSpec::new(()),
            "data=2",
            &[],
            r#"
[] as P() on data=2

+-----+
| 0,1 |
+-----+

1 block of [] on 2 devices
"#,
        );
    }

    #[test]
    fn of_more_than_two_dimensions_the_most_split_are_drawn() {
        check(
            PartitionSpec::new(("pipe", (), "data", "model")),
            "pipe=2,data=2,model=4",
            &[12, 5, 64, 256],
            r#"
[12, 5, 64, 256] as P("pipe", _, "data", "model") on pipe=2 x data=2 x model=4
dimension 2 down, dimension 3 across, first block along dimension 0

          0..64     64..128    128..192   192..256
       +----------+----------+----------+----------+
 0..32 |    0     |    1     |    2     |    3     |
       +----------+----------+----------+----------+
32..64 |    4     |    5     |    6     |    7     |
       +----------+----------+----------+----------+

16 blocks of [6, 5, 32, 64], each on 1 device
"#,
        );
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        check(
            PartitionSpec::new(("data", "model")),
            "data=32,model=16",
            &[4096, 25600],
            r#"
[4096, 25600] as P("data", "model") on data=32 x model=16

               0..1600           ..        24000..25600
           +--------------+--------------+--------------+
    0..128 |      0       |      ..      |      15      |
           +--------------+--------------+--------------+
  128..256 |      16      |      ..      |      31      |
           +--------------+--------------+--------------+
  256..384 |      32      |      ..      |      47      |
           +--------------+--------------+--------------+
  384..512 |      48      |      ..      |      63      |
           +--------------+--------------+--------------+
  512..640 |      64      |      ..      |      79      |
           +--------------+--------------+--------------+
  640..768 |      80      |      ..      |      95      |
           +--------------+--------------+--------------+
        .. |      ..      |      ..      |      ..      |
           +--------------+--------------+--------------+
3968..4096 |     496      |      ..      |     511      |
           +--------------+--------------+--------------+

512 blocks of [128, 1600], each on 1 device
"#,
        );
        check(
            PartitionSpec::new(((), "model")),
            "data=64,model=2",
            &[4096, 25600],
            r#"
[4096, 25600] as P(_, "model") on data=64 x model=2

            0..12800     12800..25600
        +--------------+--------------+
0..4096 | 0,2,4,6,8,.. | 1,3,5,7,9,.. |
        +--------------+--------------+

2 blocks of [4096, 12800], each on 64 devices
"#,
        );
    }

    #[test]
    fn a_wrong_spec_is_not_drawn() {
        assert_eq!(
            picture(&PartitionSpec::new(["x"]), &Mesh::single(), &[4])
                .unwrap_err()
                .len(),
            1
        );
    }
}
