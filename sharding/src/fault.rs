//! What can be wrong with the sharding of one array, and what is only worth a remark.

use std::fmt;

use crate::dim::Dim;

/// A dimension of an array, with the name that an annotation gives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dimension {
    /// The place in the shape, from 0.
    pub index: usize,
    /// The logical name, where there is one.
    pub name: Option<&'static str>,
}

impl Dimension {
    pub(crate) fn new(index: usize, dims: Option<&[Dim]>) -> Self {
        let name = match dims.and_then(|dims| dims.get(index)) {
            Some(Dim::Logical(name)) => Some(*name),
            Some(Dim::Unsharded | Dim::Open | Dim::Mesh(_)) | None => None,
        };
        Dimension { index, name }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dimension {}", self.index)?;
        match self.name {
            Some(name) => write!(f, " (`{name}`)"),
            None => Ok(()),
        }
    }
}

/// One thing that is wrong with the sharding of an array.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecFault {
    /// A spec or annotation has more or fewer entries than the array has dimensions.
    #[error(
        "{}{} for an array of shape {shape:?} with {}: write one entry for each dimension, `_` where \
         it is not split",
        overriding(rule),
        counted(*entries, "entry", "entries"),
        counted(shape.len(), "dimension", "dimensions")
    )]
    Rank {
        /// The path of the layout's override that has them, if it is one.
        rule: Option<String>,
        /// How many entries there are.
        entries: usize,
        /// The array's dimension sizes.
        shape: Vec<usize>,
    },
    /// An axis is named that the mesh does not have.
    #[error(
        "{}the mesh has no axis `{axis}`{}",
        prefix(dimension),
        suggestion(axis, known.iter().map(String::as_str))
    )]
    UnknownAxis {
        /// The dimension that it was to split, where there is one.
        dimension: Option<Dimension>,
        /// The axis named.
        axis: String,
        /// The axes that the mesh has.
        known: Vec<String>,
    },
    /// The sizes in a name do not make it a part of its axis.
    #[error(
        "{}`{part}` is no part of {}={}: write `{}:(M)K`, where M times K divides {}, K is more than 1, \
         and M is the size of what comes before",
        prefix(dimension), axis.0, axis.1, axis.0, axis.1
    )]
    NoPart {
        /// The dimension that it was to split, where there is one.
        dimension: Option<Dimension>,
        /// What was written.
        part: String,
        /// The axis and its size.
        axis: (String, usize),
    },
    /// Two parts of an axis belong to different grids.
    #[error(
        "`{}` and `{}` are not of one grid: what comes before the second must be a multiple of the first \
         with what comes before it",
        parts[0], parts[1]
    )]
    PartsApart {
        /// The parts.
        parts: [String; 2],
    },
    /// A priority, for a partitioner that has none.
    #[error(
        "it has priority {priority}, and the gspmd partitioner knows no priorities: choose shardy, or \
         leave the priority away"
    )]
    Priority {
        /// The priority.
        priority: u32,
    },
    /// A rule by path, for values that have none.
    #[error(
        "values computed on the way have no path: name them in the program with `.named(..)`, and \
         write `Layout::constrain`"
    )]
    NoPath,
    /// An override by path that may or may not be for a parameter of a loop.
    #[error(
        "`{path}` in a loop may be {}, and the layout's overrides differ for them: give the fields names \
         of their own, or override them alike",
        candidates.join(" or ")
    )]
    Ambiguous {
        /// The path within the loop.
        path: String,
        /// The arguments that it may be.
        candidates: Vec<String>,
    },
    /// One axis was to split two dimensions, or one dimension twice.
    #[error(
        "mesh axis `{axis}` is wanted twice, by {}: an axis splits one dimension of an array, once",
        places(first, second)
    )]
    AxisTwice {
        /// The axis.
        axis: String,
        /// Where it is named first.
        first: Option<Dimension>,
        /// Where it is named again.
        second: Option<Dimension>,
    },
    /// The axes do not divide the dimension.
    #[error(
        "{dimension} of size {size} is not divisible by {}: {}",
        parts(axes),
        indivisible_advice(dimension, *size, axes)
    )]
    Indivisible {
        /// The dimension.
        dimension: Dimension,
        /// Its size.
        size: usize,
        /// The axes with their sizes, major first.
        axes: Vec<(String, usize)>,
    },
    /// A manual region leaves axes to a partitioner that cannot go on splitting inside of it.
    #[error(
        "it takes {} into its own hands and leaves {} to the partitioner, and XLA cannot compile that \
         under GSPMD: use the partitioner `shardy`, or take all axes of the mesh",
        manual.join(", "),
        rest.join(", ")
    )]
    PartlyManual {
        /// The region's axes.
        manual: Vec<String>,
        /// The others of more than one device.
        rest: Vec<String>,
    },
    /// A position that is not one of the mesh's devices.
    #[error("there is no device at position {position}: the mesh has {device_count}")]
    Position {
        /// The position asked for.
        position: usize,
        /// How many devices the mesh has.
        device_count: usize,
    },
}

crate::debug_is_the_message!(SpecFault);

impl SpecFault {
    /// Whether both have one cause: what mends this one mends the other.
    ///
    /// So it is with dimensions of one name and size, in whatever place, that the same axes do not
    /// divide.
    pub fn has_cause_of(&self, other: &SpecFault) -> bool {
        match (self, other) {
            (
                SpecFault::Indivisible {
                    dimension,
                    size,
                    axes,
                },
                SpecFault::Indivisible {
                    dimension: other_dimension,
                    size: other_size,
                    axes: other_axes,
                },
            ) if dimension.name.is_some() => {
                (dimension.name, size, axes) == (other_dimension.name, other_size, other_axes)
            }
            _ => self == other,
        }
    }
}

/// A choice that was made for the user and that a report should show.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A dimension that would have been split first was passed over.
    PassedOver {
        /// The dimension.
        dimension: Dimension,
        /// Its size.
        size: usize,
        /// The axes with their sizes, which do not divide it.
        axes: Vec<(String, usize)>,
    },
    /// No dimension had a name that is split by preference, so the largest one was.
    FellBack {
        /// The dimension that was chosen.
        dimension: Dimension,
        /// Its size.
        size: usize,
        /// The axes with their sizes.
        axes: Vec<(String, usize)>,
    },
    /// No dimension could be split: every device keeps the whole parameter.
    Replicated {
        /// The parameter's dimension sizes.
        shape: Vec<usize>,
        /// The axes with their sizes.
        axes: Vec<(String, usize)>,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::PassedOver {
                dimension,
                size,
                axes,
            } => {
                let parts = parts(axes);
                write!(
                    f,
                    "{dimension} of size {size} is not split: {parts} does not divide it"
                )
            }
            Note::FellBack {
                dimension,
                size,
                axes,
            } => {
                let parts = parts(axes);
                write!(
                    f,
                    "{dimension} of size {size} is split by {parts}, the largest that can be: no \
                     dimension of a preferred name is whole and divisible"
                )
            }
            Note::Replicated { shape, axes } => {
                let parts = parts(axes);
                write!(
                    f,
                    "every device along {parts} keeps the whole {shape:?}: no dimension could be split"
                )
            }
        }
    }
}

/// The one of `known` that `name` is most likely a misspelling of, if any is near enough.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &&str| strsim::osa_distance(name, known);
    let nearest = known.into_iter().min_by_key(distance)?;
    (distance(&nearest) * 3 <= name.chars().count().max(3)).then_some(nearest)
}

/// `; did you mean ...` or the names that there are, to stand after a message.
pub(crate) fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    if known.is_empty() {
        return ": it has none at all".to_owned();
    }
    match did_you_mean(name, known.iter().copied()) {
        Some(near) => format!(": did you mean `{near}`? There are {}", known.join(", ")),
        None if known.len() == 1 => format!(": there is only {}", known[0]),
        None => format!(": there are {}", known.join(", ")),
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn overriding(rule: &Option<String>) -> String {
    match rule {
        Some(path) => format!("the layout's override for `{path}` has "),
        None => String::new(),
    }
}

fn prefix(dimension: &Option<Dimension>) -> String {
    match dimension {
        Some(dimension) => format!("{dimension}: "),
        None => String::new(),
    }
}

fn places(first: &Option<Dimension>, second: &Option<Dimension>) -> String {
    let place = |dimension: &Option<Dimension>| match dimension {
        Some(dimension) => dimension.to_string(),
        None => "the same rule".to_owned(),
    };
    match first == second {
        true => place(first),
        false => format!("{} and by {}", place(first), place(second)),
    }
}

/// `model=4`, or `data=2 x model=4 (8 parts)`.
fn parts(axes: &[(String, usize)]) -> String {
    let named: Vec<_> = axes
        .iter()
        .map(|(name, size)| format!("{name}={size}"))
        .collect();
    match axes {
        [_] => named.join(""),
        _ => format!("{} ({} parts)", named.join(" x "), product(axes)),
    }
}

fn product(axes: &[(String, usize)]) -> usize {
    axes.iter().map(|(_, size)| size).product()
}

fn indivisible_advice(dimension: &Dimension, size: usize, axes: &[(String, usize)]) -> String {
    let unsplit = match dimension.name {
        Some(name) => format!("remove the rule for `{name}`"),
        None => "leave the dimension unsplit".to_owned(),
    };
    format!(
        "make the size a multiple of {}, choose mesh sizes that divide {size}, or {unsplit}",
        product(axes)
    )
}
