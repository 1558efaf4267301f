//! Parts of a mesh axis: sub-axes.
//!
//! An axis of size 8 is a grid of 2 by 4 as well as a row of 8. `data:(1)2` and `data:(2)4` name the two
//! directions of that grid, so that one array can be split in 2 along an axis that splits another in 8.

use crate::mesh::Mesh;

/// A mesh axis or a part of one, of a mesh that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPart {
    /// Which axis of the mesh.
    pub index: usize,
    /// The size of the whole axis.
    pub whole: usize,
    /// The product of the sizes of the parts before it.
    pub before: usize,
    /// The size.
    pub size: usize,
}

impl AxisPart {
    /// The product of the sizes up to the part's end.
    pub fn end(self) -> usize {
        self.before * self.size
    }

    /// Whether it is the whole axis.
    pub fn is_whole(self) -> bool {
        self.size == self.whole
    }

    /// Along the part, the coordinate of what is at `coordinate` along the axis.
    pub fn coordinate(self, coordinate: usize) -> usize {
        coordinate / (self.whole / self.end()) % self.size
    }

    /// Whether the coordinates along both have a part in common: what one splits, the other cannot split too.
    pub fn overlaps(self, other: AxisPart) -> bool {
        let apart = self.end() <= other.before || other.end() <= self.before;
        self.index == other.index && (!apart || self == other)
    }

    /// Whether both are parts of one grid: apart, and what is between their sizes is whole.
    pub(crate) fn fits(self, other: AxisPart) -> bool {
        let follows = |first: AxisPart, second: AxisPart| {
            first.end() <= second.before && second.before.is_multiple_of(first.end())
        };
        self.index != other.index || follows(self, other) || follows(other, self)
    }
}

impl Mesh {
    /// The axis or the part of one that a name such as `data` or `data:(1)2` is.
    ///
    /// `None` if the mesh has no such axis, or the sizes do not divide it.
    pub fn part(&self, name: &str) -> Option<AxisPart> {
        let (axis, part) = parsed(name)?;
        let index = self.axis_names().position(|name| name == axis)?;
        let whole = self.axes()[index].size();
        let (before, size) = part.unwrap_or((1, whole));
        let end = before.checked_mul(size)?;
        let is_part = part.is_none() || (size > 1 && end != 0 && whole.is_multiple_of(end));
        is_part.then_some(AxisPart {
            index,
            whole,
            before,
            size,
        })
    }
}

/// The axis of a name, and the two numbers if it is of a part; `None` if it is ill-formed.
fn parsed(name: &str) -> Option<(&str, Option<(usize, usize)>)> {
    let Some((axis, part)) = name.split_once(':') else {
        return Some((name, None));
    };
    let (before, size) = part.strip_prefix('(')?.split_once(')')?;
    Some((axis, Some((before.parse().ok()?, size.parse().ok()?))))
}

/// The axis that a name is of, or a part of.
pub(crate) fn axis_of(name: &str) -> &str {
    name.split_once(':').map_or(name, |(axis, _)| axis)
}

/// Whether two names, of axes or parts, have a part in common.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (Some((axis, part)), Some((other_axis, other_part))) = (parsed(one), parsed(other)) else {
        return one == other;
    };
    let apart = match (part, other_part) {
        (Some((before, size)), Some((other_before, other_size))) => {
            before.saturating_mul(size) <= other_before
                || other_before.saturating_mul(other_size) <= before
        }
        _ => false,
    };
    axis == other_axis && !apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read() {
        let mesh = Mesh::new([("data", 8), ("model", 3)]).unwrap();
        let part = |name: &str| mesh.part(name).map(|part| (part.before, part.size));
        assert_eq!(part("data"), Some((1, 8)));
        assert_eq!(part("data:(1)2"), Some((1, 2)));
        assert_eq!(part("data:(2)4"), Some((2, 4)));
        assert_eq!(part("data:(1)8"), Some((1, 8)));
        for wrong in [
            "data:(1)3",
            "data:(4)4",
            "data:(0)2",
            "data:(1)1",
            "data:(1)0",
            "data:2",
            "data:(1)",
            "data:",
            "dat:(1)2",
            "model:(1)2",
            "data:(1)99999999999999999999",
            "data:(9223372036854775807)4",
        ] {
            assert_eq!(part(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn coordinates_along_parts() {
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let along = |name: &str| {
            let part = mesh.part(name).unwrap();
            (0..8).map(|at| part.coordinate(at)).collect::<Vec<_>>()
        };
        assert_eq!(along("data:(1)2"), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(along("data:(2)2"), [0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(along("data:(2)4"), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn parts_that_overlap() {
        for (one, other, expected) in [
            ("data", "data", true),
            ("data", "model", false),
            ("data", "data:(1)2", true),
            ("data:(1)2", "data:(2)4", false),
            ("data:(1)4", "data:(2)4", true),
            ("data:(1)2", "model:(1)2", false),
        ] {
            assert_eq!(overlap(one, other), expected, "{one} {other}");
            assert_eq!(overlap(other, one), expected, "{other} {one}");
            let mesh = Mesh::new([("data", 8), ("model", 4)]).unwrap();
            let parts = [one, other].map(|name| mesh.part(name).unwrap());
            assert_eq!(parts[0].overlaps(parts[1]), expected, "{one} {other}");
            assert_eq!(parts[1].overlaps(parts[0]), expected, "{other} {one}");
        }
    }
}
