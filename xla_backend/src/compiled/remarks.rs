//! What is worth saying of a compiled program though nothing is wrong with it.
//!
//! A batch that nobody annotated, or a rule for a name with a letter too many, gives the right numbers
//! on every device at once. Nothing fails, and nothing is gained from the devices.

use std::collections::BTreeSet;

use shardax_core::{Dim, Graph, Op, Source};
use shardax_sharding::{Layout, did_you_mean};

use super::Input;

/// Up to this size an argument is a step counter, a rate or a key, and belongs on every device.
const SMALL: usize = 64;

/// The remarks on a program, a sentence each.
pub(crate) fn remarks(inputs: &[Input], graph: &Graph, layout: &Layout) -> Vec<String> {
    let devices = layout.mesh().device_count();
    let mut remarks = kept_by_no_name(graph);
    if devices == 1 {
        return remarks;
    }
    for input in inputs {
        let what = input.described();
        remarks.extend(input.notes.iter().map(|note| format!("{what}: {note}")));
        let is_meant = layout.overridden(input.role, &input.path).is_some();
        let whole = input.sharding.spec().is_replicated(layout.mesh()) && !is_meant;
        if whole && input.dims.is_none() && input.ty.host_bytes() > SMALL {
            remarks.push(format!(
                "{what} is whole on each of {devices} devices, for it has no annotation: if it is \
                 to be split, name its dimensions with `#[shard(...)]`"
            ));
        }
    }
    remarks.extend(misspelled(inputs, graph, layout));
    remarks.extend(unmatched(inputs, layout));
    remarks.extend(unnamed(graph, layout));
    remarks
}

/// Overrides by paths that no argument has.
fn unmatched(inputs: &[Input], layout: &Layout) -> Vec<String> {
    let paths: Vec<&str> = inputs.iter().map(|input| input.path.as_str()).collect();
    let remark = |pattern: &str| {
        let segments = pattern.split('.').count();
        // A pattern is matched with the ends of paths.
        let ends = paths.iter().map(|path| {
            let mut dots = path.rmatch_indices('.').map(|(at, _)| at + 1);
            &path[dots.nth(segments - 1).unwrap_or(0)..]
        });
        let near = match did_you_mean(pattern, ends) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => String::new(),
        };
        format!("the layout has an override for `{pattern}`, and no argument has such a path{near}")
    };
    layout.unmatched_overrides(&paths).map(remark).collect()
}

/// Constraints on names that the program gives to no value.
fn unnamed(graph: &Graph, layout: &Layout) -> Vec<String> {
    let mut names = BTreeSet::new();
    named(graph, &mut names);
    let missing = layout
        .constrained_names()
        .filter(|name| !names.contains(name));
    missing
        .map(|name| {
            let near = match did_you_mean(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "name it with `.named(..)`".to_owned(),
            };
            format!(
                "the layout constrains `{name}`, and no value of the program has that name: {near}"
            )
        })
        .collect()
}

/// Names that policies of recomputation keep, and that no operation of the function has.
fn kept_by_no_name(graph: &Graph) -> Vec<String> {
    let mut found = BTreeSet::new();
    unmatched_policies(graph, &mut found);
    let mut names = BTreeSet::new();
    if !found.is_empty() {
        named(graph, &mut names);
    }
    let advice = |name: &str| match did_you_mean(name, names.iter().copied()) {
        Some(same) if same == name => {
            "one in a loop or a branch of the function has: rematerialize the body of that"
                .to_owned()
        }
        Some(near) => format!("did you mean `{near}`?"),
        None => "name it with `.named(..)`".to_owned(),
    };
    let remark = |(name, at): &(&str, Source)| {
        format!(
            "the policy of a `remat` keeps `{name}`, and no operation of its function has that name: {} --> {}:{}:{}",
            advice(name),
            at.file(),
            at.line(),
            at.column()
        )
    };
    found.iter().map(remark).collect()
}

fn unmatched_policies<'a>(graph: &'a Graph, found: &mut BTreeSet<(&'a str, Source)>) {
    for equation in graph.equations() {
        if let Op::Remat(remat) = &equation.op {
            let names = remat.unmatched.iter();
            found.extend(names.map(|name| (name.as_str(), equation.source)));
        }
        for (_, region) in equation.op.regions() {
            unmatched_policies(region, found);
        }
    }
}

fn named<'a>(graph: &'a Graph, names: &mut BTreeSet<&'a str>) {
    for equation in graph.equations() {
        if let Op::Name(of) = &equation.op {
            names.insert(&of.name);
        }
        for (_, region) in equation.op.regions() {
            named(region, names);
        }
    }
}

/// Rules that no annotation follows, where one has nearly the same name and no rule.
fn misspelled(inputs: &[Input], graph: &Graph, layout: &Layout) -> Vec<String> {
    let mut names = BTreeSet::new();
    for input in inputs {
        collect(input.dims.iter().flatten(), &mut names);
    }
    annotated(graph, &mut names);
    let rules: BTreeSet<&str> = layout.names().collect();
    let unruled: Vec<&str> = names.difference(&rules).copied().collect();
    rules
        .difference(&names)
        .filter_map(|rule| {
            let near = did_you_mean(rule, unruled.iter().copied())?;
            Some(format!(
                "no dimension is called `{rule}`, for which the layout has a rule, and it has none \
                 for `{near}`: are they meant to be the same?"
            ))
        })
        .collect()
}

fn annotated(graph: &Graph, names: &mut BTreeSet<&'static str>) {
    for equation in graph.equations() {
        if let Op::Shard(constraint) = &equation.op {
            collect(&constraint.dims, names);
        }
        for (_, region) in equation.op.regions() {
            annotated(region, names);
        }
    }
}

fn collect<'a>(dims: impl IntoIterator<Item = &'a Dim>, names: &mut BTreeSet<&'static str>) {
    for dim in dims {
        if let Dim::Logical(name) = dim {
            names.insert(name);
        }
    }
}
