//! What is worth saying of a compiled program though nothing is wrong with it.
//!
//! A batch that nobody annotated, or a rule for a name with a letter too many, gives the right numbers
//! on every device at once. Nothing fails, and nothing is gained from the devices.

use std::collections::BTreeSet;

use shardax_core::{
    Dim, Role, Source,
    ir::{Graph, Op},
};
use shardax_hlo::human_bytes;
use shardax_sharding::{Layout, did_you_mean};

use super::{Input, Output};

/// Up to this size an argument is a step counter, a rate or a key, and belongs on every device.
const SMALL: usize = 64;

/// From this size on a constant is told of.
const LARGE: usize = 8 << 20;

/// Names of the dimensions of a transformer, which presets have rules for whether a program has them or not.
const USUAL: [&str; 8] = [
    "batch", "seq", "embed", "mlp", "vocab", "heads", "kv_heads", "head_dim",
];

/// The remarks on a program, a sentence each.
pub(crate) fn remarks(
    inputs: &[Input],
    outputs: &[Output],
    graph: &Graph,
    layout: &Layout,
) -> Vec<String> {
    let devices = layout.mesh().device_count();
    let mut remarks = kept_by_no_name(graph);
    large_constants(graph, &mut remarks);
    remarks.extend_from_slice(graph.notes());
    if devices == 1 {
        return remarks;
    }
    for input in inputs {
        let what = input.described();
        remarks.extend(input.notes.iter().map(|note| format!("{what}: {note}")));
    }
    remarks.extend(whole(inputs, layout, devices));
    remarks.extend(undivided(inputs, graph, layout, devices));
    let misspelled = misspelled(inputs, graph, layout);
    if misspelled.is_empty() {
        remarks.extend(unused(inputs, graph, layout));
    }
    remarks.extend(misspelled);
    remarks.extend(unmatched(inputs, outputs, layout));
    remarks.extend(unnamed(graph, layout));
    remarks
}

/// Numbers that are part of the program: they are compiled in, on every device, and in no account of its arguments.
fn large_constants(graph: &Graph, remarks: &mut Vec<String>) {
    for equation in graph.equations() {
        if let Op::Constant(literal) = &equation.op
            && !literal.is_splat()
            && literal.bytes().len() >= LARGE
        {
            remarks.push(format!(
                "a constant {} of {} is compiled into the program, whole on every device: pass it as an argument --> {}",
                graph.ty(equation.results[0]),
                human_bytes(literal.bytes().len() as u64),
                equation.source
            ));
        }
        for (_, region) in equation.op.regions() {
            large_constants(region, remarks);
        }
    }
}

/// Arguments that nobody annotated, and that every device holds.
fn whole(inputs: &[Input], layout: &Layout, devices: usize) -> Option<String> {
    let is_whole = |input: &&Input| {
        input.sharding.spec().is_replicated(layout.mesh())
            && layout.overridden(input.role, &input.path).is_none()
            && input.dims.is_none()
            && input.ty.host_bytes() > SMALL
    };
    let found: Vec<&Input> = inputs.iter().filter(is_whole).collect();
    let (what, are, have, them, their) = match &found[..] {
        [] => return None,
        [input] => (input.described(), "is", "it has", "it is", "its"),
        [first, second, others @ ..] => {
            let mut what = format!("arguments {} and {}", first.short(), second.short());
            if !others.is_empty() {
                what = format!(
                    "arguments {}, {} and {} more",
                    first.short(),
                    second.short(),
                    others.len()
                );
            }
            (what, "are", "they have", "they are", "their")
        }
    };
    Some(format!(
        "{what} {are} whole on each of {devices} devices, for {have} no annotation: if {them} to be split, name \
         {their} dimensions with `#[shard(...)]`"
    ))
}

/// A program that every device computes from beginning to end.
fn undivided(inputs: &[Input], graph: &Graph, layout: &Layout, devices: usize) -> Option<String> {
    let is_split = |input: &Input| !input.sharding.spec().is_replicated(layout.mesh());
    let has_work = inputs.iter().any(|input| input.ty.host_bytes() > SMALL);
    let is_undivided = has_work && !inputs.iter().any(is_split) && !divides(graph, layout);
    is_undivided.then(|| {
        format!(
            "nothing of the program is split: each of {devices} devices computes all of it, as the layout has no rule for \
             any dimension that it names"
        )
    })
}

/// Whether anything inside of a graph is split, by an annotation or in a manual region.
fn divides(graph: &Graph, layout: &Layout) -> bool {
    graph.equations().iter().any(|equation| {
        let splits = match &equation.op {
            Op::Manual(_) => true,
            Op::Shard(constraint) => {
                let shape = &graph.ty(equation.operands[0]).shape;
                let resolved = layout.resolve(constraint.role, &constraint.dims, shape);
                resolved.is_ok_and(|resolved| !resolved.spec.is_replicated(layout.mesh()))
            }
            Op::Name(of) => layout.constraint_of(&of.name).is_some(),
            _ => false,
        };
        splits
            || equation
                .op
                .regions()
                .iter()
                .any(|(_, region)| divides(region, layout))
    })
}

/// Rules for names of a user's own that no dimension has. Presets have rules for the names of a whole
/// transformer, and a program that takes nothing, such as initialization, has no batch.
fn unused(inputs: &[Input], graph: &Graph, layout: &Layout) -> Option<String> {
    if !inputs.iter().any(|input| input.ty.host_bytes() > SMALL) {
        return None;
    }
    let names = names_of(inputs, graph);
    let found: BTreeSet<&str> = layout.names().collect();
    let is_unused = |rule: &&&str| !names.contains(**rule) && !USUAL.contains(*rule);
    let found: Vec<String> = found
        .iter()
        .filter(is_unused)
        .map(|rule| format!("`{rule}`"))
        .collect();
    match &found[..] {
        [] => None,
        [rule] => Some(format!(
            "no dimension of the program is called {rule}, for which the layout has a rule"
        )),
        rules => Some(format!(
            "no dimensions of the program are called {}, for which the layout has rules",
            rules.join(", ")
        )),
    }
}

/// The names that annotations give to dimensions.
fn names_of(inputs: &[Input], graph: &Graph) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    for input in inputs {
        collect(input.dims.iter().flatten(), &mut names);
    }
    annotated(graph, &mut names);
    names
}

/// Overrides by paths that nothing has. Those of state are not missed by a program without any, nor others by one
/// without a module.
fn unmatched(inputs: &[Input], outputs: &[Output], layout: &Layout) -> Vec<String> {
    let arguments = inputs.iter().map(|input| input.path.as_str());
    let results = outputs.iter().map(|output| output.path.as_str());
    let paths: Vec<&str> = arguments.chain(results).collect();
    let has_state = inputs.iter().any(|input| input.role == Role::State);
    let is_field = |segment: &str| segment.parse::<usize>().is_err() && !segment.is_empty();
    let has_fields = |input: &Input| input.path.split('.').any(is_field);
    let has_modules = inputs.iter().any(has_fields);
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
        format!(
            "the layout has an override for `{pattern}`, and no argument or result has such a path{near}"
        )
    };
    let missed = layout
        .unmatched_overrides(&paths)
        .filter(|(_, role)| match role {
            Some(Role::State) => has_state,
            _ => has_modules,
        });
    missed.map(|(pattern, _)| remark(pattern)).collect()
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
            "the policy of a `remat` keeps `{name}`, and no operation of its function has that name: {} --> {at}",
            advice(name)
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

/// Names without a rule that are nearly those of a rule: either of them may be misspelled.
fn misspelled(inputs: &[Input], graph: &Graph, layout: &Layout) -> Vec<String> {
    let names = names_of(inputs, graph);
    let rules: BTreeSet<&str> = layout.names().collect();
    let unruled = || names.difference(&rules).copied();
    let of_rules = rules.difference(&names).filter_map(|rule| {
        let near = did_you_mean(rule, unruled())?;
        Some(format!(
            "no dimension is called `{rule}`, for which the layout has a rule, and it has none \
             for `{near}`: are they meant to be the same?"
        ))
    });
    // `up1` and `up2` are two names.
    let unnumbered = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let of_annotations = unruled().filter_map(|name| {
        let near = did_you_mean(name, rules.intersection(&names).copied())?;
        (unnumbered(name) != unnumbered(near)).then(|| {
            format!(
                "an annotation has `{name}`, for which the layout has no rule, and others have \
                 `{near}`, for which it has one: are they meant to be the same?"
            )
        })
    });
    of_rules.chain(of_annotations).collect()
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
