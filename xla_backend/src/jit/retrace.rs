//! Why a function is compiled again.
//!
//! A program that is compiled in every step because a batch has another length, or because a counter is
//! a part of the configuration, is slow and gives the right numbers. So each compilation after the first
//! knows what differs from the most similar one before it.

use std::collections::HashMap;

use super::arguments::Signature;
use crate::compiled::Input;

/// An array of a call.
pub(super) struct Given {
    pub path: String,
    pub signature: Signature,
}

/// What differs between a call and the compiled program that comes nearest, a sentence each. Empty if
/// there is none.
pub(super) fn changes<'a>(
    known: impl Iterator<Item = &'a [Input]>,
    given: &[Given],
    arguments: usize,
) -> Vec<String> {
    let differences = known.map(|inputs| differences(inputs, given, arguments));
    differences
        .min_by_key(Vec::len)
        .map_or_else(Vec::new, |nearest| {
            if nearest.is_empty() {
                vec![
                "the arrays of the arguments are the same, and a configuration field, an option or \
                 the length of a list around them changed"
                    .to_owned(),
            ]
            } else {
                nearest
            }
        })
}

/// Says on standard error what changed, if `SHARDAX_LOG` asks for it.
pub(super) fn log(program: &str, changes: &[String]) {
    let asked = std::env::var("SHARDAX_LOG").unwrap_or_default();
    if changes.is_empty() || !asked.split(',').any(|topic| topic.trim() == "retrace") {
        return;
    }
    eprintln!("shardax: `{program}` is compiled again:");
    for change in changes {
        eprintln!("  {change}");
    }
}

fn differences(inputs: &[Input], given: &[Given], arguments: usize) -> Vec<String> {
    let mut before: HashMap<&str, &Input> = inputs
        .iter()
        .map(|input| (input.path.as_str(), input))
        .collect();
    let mut found = Vec::new();
    for Given { path, signature } in given {
        let what = argument(path, arguments);
        let ty = &signature.ty;
        let Some(input) = before.remove(path.as_str()) else {
            found.push(format!("{what}: {ty} is new"));
            continue;
        };
        if input.ty != *ty {
            found.push(format!("{what}: {} became {ty}", input.ty));
        }
        // An annotation says where an array lies, whatever the call has.
        let given = signature.sharding.as_ref().filter(|_| input.dims.is_none());
        if let Some(sharding) = given.filter(|&sharding| *sharding != input.sharding) {
            found.push(format!("{what}: {} became {sharding}", input.sharding));
        }
    }
    let gone = inputs
        .iter()
        .filter(|input| before.contains_key(input.path.as_str()));
    found.extend(gone.map(|input| {
        let what = argument(&input.path, arguments);
        format!("{what}: {} is gone", input.ty)
    }));
    found
}

/// ``argument 2 `batch.tokens` ``; the path of one argument among several begins with its position.
fn argument(path: &str, arguments: usize) -> String {
    let (position, path) = match path.split_once('.') {
        _ if arguments == 1 => ("", path),
        Some((position, path)) => (position, path),
        None => (path, ""),
    };
    match (position, path) {
        ("", "") => "the argument".to_owned(),
        ("", path) => format!("argument `{path}`"),
        (position, "") => format!("argument {position}"),
        (position, path) => format!("argument {position} `{path}`"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shardax_core::{DType, Role, TensorType};
    use shardax_sharding::{Mesh, PartitionSpec};

    use super::*;
    use crate::array::Sharding;

    fn sharding(spec: PartitionSpec) -> Arc<Sharding> {
        let mesh = Mesh::new([("data", 8)]).unwrap();
        Arc::new(Sharding::new(mesh, spec))
    }

    fn input(path: &str, shape: &[usize]) -> Input {
        Input {
            path: path.to_owned(),
            ty: Arc::new(TensorType::new(DType::F32, shape)),
            sharding: sharding(PartitionSpec::replicated(shape.len())),
            dims: None,
            role: Role::Parameter,
            notes: Vec::new(),
        }
    }

    fn given(path: &str, shape: &[usize]) -> Given {
        Given {
            path: path.to_owned(),
            signature: Signature {
                ty: Arc::new(TensorType::new(DType::F32, shape)),
                sharding: None,
            },
        }
    }

    #[test]
    fn the_nearest_program_is_compared() {
        let far = [input("0.w", &[4]), input("1", &[2])];
        let near = [input("0.w", &[3]), input("1", &[8, 64])];
        let call = [given("0.w", &[3]), given("1", &[8, 65])];
        let known = [&far[..], &near[..]];
        assert_eq!(
            changes(known.into_iter(), &call, 2),
            ["argument 1: f32[8,64] became f32[8,65]"]
        );
        assert!(changes([].into_iter(), &call, 2).is_empty());
    }

    #[test]
    fn every_leaf_that_changed_is_named() {
        let known = [input("0.w", &[4]), input("0.b", &[4]), input("1.x", &[2])];
        let mut moved = given("0.b", &[4]);
        moved.signature.sharding = Some(sharding(PartitionSpec::new(("data",))));
        let call = [given("0.w", &[5]), moved, given("1.y", &[2])];
        assert_eq!(
            changes([&known[..]].into_iter(), &call, 2),
            [
                "argument 0 `w`: f32[4] became f32[5]",
                "argument 0 `b`: P(_) on data=8 became P(\"data\") on data=8",
                "argument 1 `y`: f32[2] is new",
                "argument 1 `x`: f32[2] is gone",
            ]
        );
    }

    #[test]
    fn one_argument_has_no_position() {
        let known = [input("layers.0.w", &[4])];
        let change = |path| changes([&known[..]].into_iter(), &[given(path, &[5])], 1);
        assert_eq!(
            change("layers.0.w"),
            ["argument `layers.0.w`: f32[4] became f32[5]"]
        );
        let same = changes([&known[..]].into_iter(), &[given("layers.0.w", &[4])], 1);
        assert_eq!(
            same,
            [
                "the arrays of the arguments are the same, and a configuration field, an option or the \
              length of a list around them changed"
            ]
        );
    }
}
