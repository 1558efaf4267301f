//! Why a collective is there: what it moves, between which two ways to lie, for which line.

use std::fmt;

use serde::Serialize;
use shardax_hlo::words::short_line;
use shardax_hlo::{ArrayShape, SourceLine};

use super::split::{Partial, Split};

/// Why a collective is there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Why {
    /// Who wants it.
    pub cause: Cause,
    /// What it moves: one entry for each of [`Collective::arrays`](super::Collective::arrays), but for an all-to-all, whose arrays are
    /// pieces of one tensor, and for arrays that XLA has joined of several tensors.
    pub tensors: Vec<MovedTensor>,
}

/// Who wants a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by", content = "operation")]
pub enum Cause {
    /// The user, by a collective operation of this name in a manual region.
    User(String),
    /// XLA's partitioner, so that each device has what an operation needs.
    Partitioner,
}

/// One array that a collective moves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovedTensor {
    /// What it is.
    pub role: TensorRole,
    /// Its path: of the argument, of the parameter whose gradient it is or of the result that has the
    /// gradient, of the result; the scope and operation of an activation. A `*` stands for what differs between several that it may be. Empty if
    /// nothing is known.
    pub path: String,
    /// What one device has before a reduction, or after another collective.
    pub array: ArrayShape,
    /// Sizes of the whole value, of one layer if `is_layer`.
    pub whole: Option<Vec<usize>>,
    /// Whether it is one element of a stack.
    pub is_layer: bool,
    /// How it lies before, if that is known.
    pub from: Option<Split>,
    /// How it lies after, if that is known.
    pub to: Option<Split>,
    /// The user's line.
    pub source: Option<SourceLine>,
}

/// What a tensor is to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorRole {
    /// A parameter: an argument that the program annotates at its use.
    Parameter,
    /// An argument of the shape and name of a parameter, such as a moment of the optimizer.
    State,
    /// Another argument.
    Input,
    /// The gradient of a parameter.
    Gradient,
    /// A result of the program.
    Result,
    /// A value computed on the way.
    Activation,
    /// A few numbers: a loss, a norm, a flag.
    Scalar,
    /// Not known.
    Unknown,
}

impl TensorRole {
    /// `gradient` of one, `gradients` of several.
    const fn counted(self, count: usize) -> &'static str {
        match (self, count) {
            (TensorRole::Parameter, 1) => "parameter",
            (TensorRole::Parameter, _) => "parameters",
            (TensorRole::State, 1) => "state of the optimizer",
            (TensorRole::State, _) => "states of the optimizer",
            (TensorRole::Input, 1) => "input",
            (TensorRole::Input, _) => "inputs",
            (TensorRole::Gradient, 1) => "gradient",
            (TensorRole::Gradient, _) => "gradients",
            (TensorRole::Result, 1) => "result",
            (TensorRole::Result, _) => "results",
            (TensorRole::Activation, 1) => "activation",
            (TensorRole::Activation, _) => "activations",
            (TensorRole::Scalar, 1) => "scalar",
            (TensorRole::Scalar, _) => "scalars",
            (TensorRole::Unknown, _) => "unknown",
        }
    }
}

impl fmt::Display for TensorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.counted(1))
    }
}

impl MovedTensor {
    /// What it is, in words: ``gradient of `0.blocks.w1` ``, `activation mlp/dot_general`.
    pub fn what(&self) -> String {
        let path = &self.path;
        let layer = if self.is_layer { "a layer of " } else { "" };
        match self.role {
            TensorRole::Parameter | TensorRole::State | TensorRole::Input if path.is_empty() => {
                format!("{layer}the argument")
            }
            TensorRole::Parameter => format!("{layer}parameter `{path}`"),
            TensorRole::State => format!("{layer}state `{path}`"),
            TensorRole::Input => format!("{layer}input `{path}`"),
            TensorRole::Gradient if path.is_empty() => "a gradient".to_owned(),
            TensorRole::Gradient => format!("gradient of `{path}`"),
            TensorRole::Result if path.is_empty() => "the result".to_owned(),
            TensorRole::Result => format!("result `{path}`"),
            TensorRole::Activation => format!("activation {path}").trim_end().to_owned(),
            TensorRole::Scalar => format!("scalar {path}").trim_end().to_owned(),
            TensorRole::Unknown if path.is_empty() => "unknown".to_owned(),
            TensorRole::Unknown => format!("unknown, of {path}"),
        }
    }

    /// The two ways to lie, `P("data", _) -> P(_, _)`; empty if neither is known.
    pub fn movement(&self) -> String {
        let text = |split: &Option<Split>| {
            split
                .as_ref()
                .map_or("unknown".to_owned(), Split::to_string)
        };
        match (&self.from, &self.to) {
            (None, None) => String::new(),
            // A reduction that changes nothing else.
            (
                Some(Split {
                    dims,
                    partial: Some(Partial { of, axes }),
                }),
                Some(to),
            ) if *dims == to.dims => {
                format!("partial {of} over {} -> {to}", axes.join("+"))
            }
            (from, to) => format!("{} -> {}", text(from), text(to)),
        }
    }
}

impl Why {
    /// What is moved and how: the largest tensor, and how many more there are.
    ///
    /// ``gradient of `0.blocks.w1`: partial sums over data -> P(_, "model"); 11 more gradients, 1 scalar``
    pub fn summary(&self) -> String {
        let tensors = self.by_size();
        let Some(largest) = tensors.first() else {
            return String::new();
        };
        let mut text = largest.what();
        let movement = largest.movement();
        if !movement.is_empty() {
            text += &format!(": {movement}");
        }
        let mut others: Vec<(TensorRole, usize)> = vec![];
        for tensor in &tensors[1..] {
            match others.iter_mut().find(|(role, _)| *role == tensor.role) {
                Some((_, count)) => *count += 1,
                None => others.push((tensor.role, 1)),
            }
        }
        for (i, (role, count)) in others.into_iter().enumerate() {
            let separator = if i == 0 { ";" } else { "," };
            let more = if role == largest.role { " more" } else { "" };
            text += &format!("{separator} {count}{more} {}", role.counted(count));
        }
        text
    }

    fn by_size(&self) -> Vec<&MovedTensor> {
        let mut tensors: Vec<&MovedTensor> = self.tensors.iter().collect();
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.array.bytes().unwrap_or(0)));
        tensors
    }

    /// Who wants it, if that is the user.
    pub fn written(&self, source: Option<&SourceLine>) -> Option<String> {
        let Cause::User(operation) = &self.cause else {
            return None;
        };
        Some(match source {
            Some(source) => format!("written at {} ({operation})", short_line(source)),
            None => format!("written ({operation})"),
        })
    }
}

#[cfg(test)]
mod tests {
    use shardax_sharding::PartitionSpec;

    use super::*;

    #[test]
    fn a_summary_counts_the_rest_by_role() {
        let tensor = |role, path: &str, size| MovedTensor {
            role,
            path: path.to_owned(),
            array: ArrayShape {
                element: crate::report::Element::F32,
                dims: vec![size],
            },
            whole: None,
            is_layer: false,
            from: None,
            to: Some(Split::of_spec(&PartitionSpec::replicated(1))),
            source: None,
        };
        let why = Why {
            cause: Cause::Partitioner,
            tensors: vec![
                tensor(TensorRole::Scalar, "norm", 1),
                tensor(TensorRole::Gradient, "0.w", 64),
                tensor(TensorRole::Gradient, "0.b", 32),
                tensor(TensorRole::Scalar, "loss", 1),
            ],
        };
        assert_eq!(
            why.summary(),
            "gradient of `0.w`: unknown -> P(_); 1 more gradient, 2 scalars"
        );
    }
}
