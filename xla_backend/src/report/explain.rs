//! Works out why a collective is there, from the module, the traced program, and the layout.

use std::collections::BTreeSet;

use shardax_sharding::{Mesh, PartitionSpec};

use super::attribution::{Attribution, Made};
use super::collectives::{Collective, Part, Pass};
use super::cost::CollectiveKind;
use super::hlo::SourceLine;
use super::shape::ArrayShape;
use super::split::{DimSplit, Partial, Split, dims_of_parts, fit, fits_joined, is_possible};
use super::subject::{Argument, ArgumentRole, Placed};
use super::table::{SMALL, short_name};
use super::why::{Cause, MovedTensor, TensorRole, Why};
use crate::lower::{self, Location};

/// What explains the collectives of one program.
pub(super) struct Explainer<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) arguments: &'a [Argument],
    pub(super) results: &'a [Placed],
    /// What the program was traced to, if that is known.
    pub(super) traced: Option<(&'a lower::Module, Attribution)>,
}

/// Names of collective operations of manual regions, in Shardax and in JAX.
const WRITTEN: [&str; 14] = [
    "psum",
    "psum_invariant",
    "pmean",
    "pmax",
    "pmin",
    "all_gather",
    "all_gather_invariant",
    "reduce_scatter",
    "psum_scatter",
    "all_to_all",
    "ppermute",
    "broadcast_from",
    "pbroadcast",
    "ragged_all_to_all",
];

impl Explainer<'_> {
    pub(super) fn why(&self, collective: &Collective) -> Why {
        let tensors = collective.parts.iter().zip(&collective.arrays);
        Why {
            cause: cause(&collective.op_name),
            tensors: tensors
                .map(|(part, array)| self.tensor(collective, part, array))
                .collect(),
        }
    }

    fn tensor(&self, collective: &Collective, part: &Part, array: &ArrayShape) -> MovedTensor {
        // A parameter that is gathered where the program begins has no line; what reads it has.
        let place = self.place(&part.op_name);
        let line = place.or_else(|| self.place(&part.reader));
        let source = line.map(|place| SourceLine {
            file: place.source.file().to_owned(),
            line: place.source.line(),
        });
        let mut tensor = MovedTensor {
            role: TensorRole::Unknown,
            path: String::new(),
            array: match collective.kind {
                // The arrays are pieces of it.
                CollectiveKind::AllToAll => ArrayShape {
                    element: array.element,
                    dims: part.before.last().unwrap_or(&array.dims).clone(),
                },
                _ => array.clone(),
            },
            whole: None,
            is_layer: false,
            from: None,
            to: None,
            source: source.or_else(|| collective.source.clone()),
        };
        match part.argument.and_then(|i| self.arguments.get(i)) {
            Some(argument) => self.argument(collective, part, argument, &mut tensor),
            None => self.computed(collective, part, place, &mut tensor),
        }
        tensor
    }

    fn place(&self, op_name: &str) -> Option<&Location> {
        let (module, _) = self.traced.as_ref()?;
        module.place_of(op_name)
    }

    fn argument(
        &self,
        collective: &Collective,
        part: &Part,
        argument: &Argument,
        tensor: &mut MovedTensor,
    ) {
        tensor.role = match argument.role {
            ArgumentRole::Parameter => TensorRole::Parameter,
            ArgumentRole::State => TensorRole::State,
            ArgumentRole::Input => TensorRole::Input,
        };
        tensor.path = argument.path.clone();
        let at_use = argument.source.map(|source| SourceLine {
            file: source.file().to_owned(),
            line: source.line(),
        });
        tensor.source = tensor.source.take().or(at_use);
        let shape = &argument.ty.shape;
        let spec = &argument.spec;
        let axes = collective.axes.as_deref().unwrap_or_default();
        let fits = |whole: &[usize]| fits(self.mesh, collective.kind, axes, part, whole);
        // An element of a stack has one dimension less, or a size of 1 there.
        let layer: PartitionSpec = spec.entries().iter().skip(1).cloned().collect();
        let one = |local: &Vec<u64>| local.len() == shape.len() && local.first() == Some(&1);
        let is_layer = shape.first().is_some_and(|&layers| layers > 1)
            && (part.after.iter().all(one) || !fits(shape))
            && fits(&shape[1..]);
        let (whole, spec) = match is_layer {
            true => (&shape[1..], &layer),
            false => (&shape[..], spec),
        };
        tensor.is_layer = is_layer;
        tensor.whole = Some(whole.to_vec());
        (tensor.from, tensor.to) = self.splits(collective, part, whole, Some(spec));
        if collective.kind == CollectiveKind::AllGather && tensor.from.is_none() {
            (tensor.from, tensor.to) = self.gathered(part, whole, spec, axes);
        }
    }

    /// How an argument lies before and after it is gathered, when XLA has turned it and the dimensions of
    /// HLO are not its own: it lay as it was given, if sizes agree.
    fn gathered(
        &self,
        part: &Part,
        whole: &[usize],
        spec: &PartitionSpec,
        axes: &[String],
    ) -> (Option<Split>, Option<Split>) {
        let rest = spec.entries().iter().map(|entry| {
            let kept = entry.names().iter().filter(|axis| !axes.contains(axis));
            kept.cloned().collect::<Vec<String>>()
        });
        let rest: Vec<Vec<String>> = rest.collect();
        let after: PartitionSpec = rest.into_iter().collect();
        let agrees = |spec: &PartitionSpec, locals: &[Vec<u64>]| {
            let local = locals.first();
            local.is_some_and(|local| has_elements(spec, self.mesh, whole, local))
        };
        match agrees(spec, &part.before) && agrees(&after, &part.after) {
            true => (Some(Split::of_spec(spec)), Some(Split::of_spec(&after))),
            false => (None, None),
        }
    }

    fn computed(
        &self,
        collective: &Collective,
        part: &Part,
        place: Option<&Location>,
        tensor: &mut MovedTensor,
    ) {
        tensor.path = short_name(&lower::plain_name(&part.op_name)).unwrap_or_default();
        if let Some((place, (_, attribution))) = place.zip(self.traced.as_ref()) {
            let made = attribution.made(&place.name, place.source);
            self.made(collective, part, made, tensor);
        }
        let is_small = tensor.array.bytes().is_some_and(|bytes| bytes <= SMALL);
        let is_known = tensor.role == TensorRole::Gradient;
        match part.returned_as.and_then(|i| self.results.get(i)) {
            // The module itself says so, of the values of one line exactly this.
            Some(result) if !is_known && !is_small => {
                let Placed { path, ty, spec, .. } = result;
                tensor.role = TensorRole::Result;
                tensor.path = path.clone();
                tensor.whole = Some(ty.shape.to_vec());
                let splits = self.splits(collective, part, &ty.shape, Some(spec));
                (tensor.from, tensor.to) = splits;
            }
            _ if is_small && tensor.role == TensorRole::Unknown => {
                tensor.role = TensorRole::Scalar;
            }
            _ => {}
        }
    }

    /// Finds a value among those that the operations of its location make.
    fn made(&self, collective: &Collective, part: &Part, made: &[Made], tensor: &mut MovedTensor) {
        let is_small = tensor.array.bytes().is_some_and(|bytes| bytes <= SMALL);
        let fitting = self.fitting(made, collective, part);
        let is_backward = Pass::of(&part.op_name) == Some(Pass::Backward);
        let paths = |of: &dyn Fn(&Made) -> &BTreeSet<usize>, names: &dyn Fn(usize) -> String| {
            let paths: BTreeSet<String> = fitting
                .iter()
                .flat_map(|made| of(made).iter().map(|&i| names(i)))
                .collect();
            let all = !fitting.is_empty() && fitting.iter().all(|made| !of(made).is_empty());
            all.then(|| common_path(&paths))
        };
        let argument = |i: usize| {
            self.arguments
                .get(i)
                .map_or(String::new(), |a| a.path.clone())
        };
        let result = |i: usize| {
            self.results
                .get(i)
                .map_or(String::new(), |r| r.path.clone())
        };
        let updated = paths(&|made| &made.updates, &argument).filter(|_| is_backward);
        let summed = paths(&|made| &made.sums, &result).filter(|_| is_backward);
        let returned = paths(&|made| &made.results, &result);
        let name = std::mem::take(&mut tensor.path);
        (tensor.role, tensor.path) = match (updated.or(summed), returned) {
            (Some(parameter), _) => (TensorRole::Gradient, parameter),
            _ if is_small => (TensorRole::Scalar, name),
            (None, Some(path)) => (TensorRole::Result, path),
            (None, None) => (TensorRole::Activation, name),
        };
        if fitting.iter().any(|made| made.is_local) {
            return;
        }
        let shapes: BTreeSet<&[usize]> = fitting.iter().map(|made| &made.shape[..]).collect();
        if let [whole] = shapes.into_iter().collect::<Vec<_>>()[..] {
            let mut stated = fitting.iter().map(|made| made.stated.as_ref());
            let first = stated.next().flatten();
            let stated = first.filter(|first| stated.all(|other| other == Some(first)));
            tensor.whole = Some(whole.to_vec());
            (tensor.from, tensor.to) = self.splits(collective, part, whole, stated);
        }
    }

    /// The values of a location that the array can be. An operation may make several: those of one line in
    /// several calls, and XLA may have merged dimensions, in which case only the number of elements is left
    /// to go by.
    fn fitting<'m>(&self, made: &'m [Made], collective: &Collective, part: &Part) -> Vec<&'m Made> {
        let axes = collective.axes.as_deref().unwrap_or_default();
        let fit = |made: &&Made| match made.is_local {
            true => {
                let shapes = part.before.iter().chain(&part.after);
                let made = || made.shape.iter().map(|&size| size as u64);
                shapes
                    .into_iter()
                    .any(|local| made().eq(local.iter().copied()))
            }
            false => fits(self.mesh, collective.kind, axes, part, &made.shape),
        };
        let found: Vec<&Made> = made.iter().filter(fit).collect();
        if !found.is_empty() {
            let as_stated = |made: &&&Made| is_as_stated(self.mesh, part, made);
            let stated: Vec<&Made> = found.iter().filter(as_stated).copied().collect();
            return if stated.is_empty() { found } else { stated };
        }
        let count = |made: &&Made| {
            let whole: u64 = made.shape.iter().map(|&d| d as u64).product();
            let is_part = |local: &Vec<u64>| {
                let local: u64 = local.iter().product();
                let parts = whole.checked_div(local).unwrap_or(0);
                parts * local == whole && is_possible(self.mesh, &[parts], &[])
            };
            part.before.iter().any(is_part) && part.after.iter().any(is_part)
        };
        made.iter().filter(count).collect()
    }

    /// How a value lies before and after an all-to-all, which takes axes from one dimension to another.
    fn exchanged(
        &self,
        axes: &[String],
        part: &Part,
        whole: &[usize],
        stated: Option<&PartitionSpec>,
    ) -> (Option<Split>, Option<Split>) {
        let way = |parts: Vec<u64>, stated: Option<&PartitionSpec>| {
            let dims = dims_of_parts(self.mesh, &parts, stated, &[]);
            let has = |axis: &String| {
                let mut dims = dims.iter();
                dims.any(|dim| matches!(dim, DimSplit::Axes(split) if split.contains(axis)))
            };
            let is_it = is_possible(self.mesh, &parts, &[]) && axes.iter().all(has);
            is_it.then(|| Split {
                partial: None,
                dims: dims.clone(),
            })
        };
        let ways = |locals: &[Vec<u64>], stated: Option<&PartitionSpec>| {
            // A shape whose dimensions are the value's own tells more than one in which they are cut.
            let mut own = locals.iter().filter_map(|local| fit(local, whole));
            if let Some(way) = own.find_map(|fitted| way(fitted.parts, stated)) {
                return vec![way];
            }
            let joined = locals.iter().flat_map(|local| fits_joined(local, whole));
            let mut ways: Vec<Split> = vec![];
            for way in joined.filter_map(|parts| way(parts, stated)) {
                if !ways.contains(&way) {
                    ways.push(way);
                }
            }
            ways
        };
        let (mut from, mut to) = (ways(&part.before, stated), ways(&part.after, None));
        // It changes something.
        if let [known] = &from[..] {
            to.retain(|way| way != known);
        }
        if let [known] = &to[..] {
            from.retain(|way| way != known);
        }
        let only = |mut ways: Vec<Split>| ways.pop().filter(|_| ways.is_empty());
        (only(from), only(to))
    }

    /// How a value lies before and after.
    fn splits(
        &self,
        collective: &Collective,
        part: &Part,
        whole: &[usize],
        stated: Option<&PartitionSpec>,
    ) -> (Option<Split>, Option<Split>) {
        let Some(axes) = collective.axes.as_ref() else {
            return (None, None);
        };
        let local = match collective.kind {
            CollectiveKind::AllGather | CollectiveKind::AllReduce => &part.after,
            CollectiveKind::ReduceScatter => &part.before,
            CollectiveKind::AllToAll => return self.exchanged(axes, part, whole, stated),
            // Which device has which part is not a matter of sizes.
            CollectiveKind::RaggedAllToAll
            | CollectiveKind::CollectivePermute
            | CollectiveKind::CollectiveBroadcast => return (None, None),
        };
        let Some(local) = local.first() else {
            return (None, None);
        };
        let Some(fitted) = fit(local, whole) else {
            // XLA has merged dimensions: where the layout states how the value lies, and the number of
            // elements agrees, it is that.
            let stated = stated.filter(|spec| has_elements(spec, self.mesh, whole, local));
            let to = stated.map(Split::of_spec);
            return match collective.kind {
                CollectiveKind::AllReduce => (to.clone().map(|to| partial(to, part, axes)), to),
                _ => (
                    None,
                    to.filter(|_| collective.kind != CollectiveKind::ReduceScatter),
                ),
            };
        };
        let dims = dims_of_parts(self.mesh, &fitted.parts, stated, axes);
        let coarse = Split {
            dims,
            partial: None,
        };
        let finer = || {
            let dimension = part.dimension?.checked_sub(fitted.leading)?;
            let mut fine = coarse.clone();
            if let DimSplit::Axes(split) = fine.dims.get_mut(dimension)? {
                split.extend(axes.iter().cloned());
            }
            Some(fine)
        };
        match collective.kind {
            CollectiveKind::AllGather => (finer(), Some(coarse)),
            CollectiveKind::ReduceScatter => {
                let fine = finer();
                (Some(partial(coarse, part, axes)), fine)
            }
            _ => (Some(partial(coarse.clone(), part, axes)), Some(coarse)),
        }
    }
}

fn partial(split: Split, part: &Part, axes: &[String]) -> Split {
    Split {
        partial: Some(Partial {
            of: part.reduces.unwrap_or("results"),
            axes: axes.to_vec(),
        }),
        ..split
    }
}

/// Whether a device's part of a value of this spec has as many elements as the local shape.
fn has_elements(spec: &PartitionSpec, mesh: &Mesh, whole: &[usize], local: &[u64]) -> bool {
    let shard = spec.shard_shape(mesh, whole);
    shard.is_ok_and(|shard| shard.iter().product::<usize>() as u64 == local.iter().product::<u64>())
}

/// Whether the shapes before and after can be parts of a whole value.
fn fits(mesh: &Mesh, kind: CollectiveKind, axes: &[String], part: &Part, whole: &[usize]) -> bool {
    let ways = |local: &Vec<u64>| match kind {
        CollectiveKind::AllToAll => fits_joined(local, whole),
        _ => fit(local, whole)
            .map(|fitted| fitted.parts)
            .into_iter()
            .collect(),
    };
    let any = |locals: &[Vec<u64>], taken: &[String]| {
        let mut ways = locals.iter().flat_map(ways);
        ways.any(|parts| is_possible(mesh, &parts, taken))
    };
    // Axes along which every device has the same split nothing.
    let (before, after): (&[String], &[String]) = match kind {
        CollectiveKind::AllReduce => (axes, axes),
        CollectiveKind::AllGather => (&[], axes),
        CollectiveKind::ReduceScatter => (axes, &[]),
        _ => (&[], &[]),
    };
    any(&part.before, before) && any(&part.after, after)
}

/// Whether a value can lie as an annotation on it says: before or after.
fn is_as_stated(mesh: &Mesh, part: &Part, made: &Made) -> bool {
    let Some(stated) = &made.stated else {
        return true;
    };
    let Ok(shard) = stated.shard_shape(mesh, &made.shape) else {
        return false;
    };
    let shard = shard.iter().map(|&size| size as u64);
    let is_it = |local: &Vec<u64>| {
        // A local shape may have dimensions of size 1 in front.
        let leading = local.len().saturating_sub(made.shape.len());
        shard.clone().eq(local[leading..].iter().copied())
    };
    part.before.iter().chain(&part.after).any(is_it)
}

/// The operation of a manual region that wrote the collective, if one did.
fn cause(op_name: &str) -> Cause {
    let name = lower::plain_name(op_name);
    let operation = name.rsplit('/').next().unwrap_or_default();
    match WRITTEN.contains(&operation) {
        true => Cause::User(operation.to_owned()),
        false => Cause::Partitioner,
    }
}

/// Paths in one, `*` for what differs: `blocks.*.w1`.
fn common_path(paths: &BTreeSet<String>) -> String {
    let split: Vec<Vec<&str>> = paths.iter().map(|path| path.split('.').collect()).collect();
    let Some(first) = split.first() else {
        return String::new();
    };
    if split.iter().any(|path| path.len() != first.len()) {
        return paths.iter().cloned().collect::<Vec<_>>().join(" or ");
    }
    let segment = |i: usize| match split.iter().all(|path| path[i] == first[i]) {
        true => first[i],
        false => "*",
    };
    (0..first.len()).map(segment).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{KINDS, MEGATRON, mesh};
    use super::super::{HloModule, Placed, Report, ReportOptions, Subject};
    use super::*;

    fn report(hlo: &[u8], arguments: Vec<Placed>) -> Report {
        let subject = Subject {
            hlo: &HloModule::decode(hlo).unwrap(),
            mesh: &mesh("data=2,model=4"),
            arguments,
            results: vec![],
            traced: None,
            memory: None,
        };
        Report::new(&subject, ReportOptions::default()).unwrap()
    }

    #[test]
    fn collectives_of_manual_regions_are_the_users() {
        let report = report(KINDS, vec![]);
        let causes: BTreeSet<&str> = report
            .collectives
            .iter()
            .map(|explained| match &explained.why.cause {
                Cause::User(operation) => operation.as_str(),
                Cause::Partitioner => "partitioner",
            })
            .collect();
        // The names of JAX, whose program this is.
        for operation in ["all_gather", "ppermute", "all_to_all", "reduce_scatter"] {
            assert!(causes.contains(operation), "{causes:?}");
        }
        // Nothing that the user wrote is a resharding that he did not want.
        assert_eq!(report.warnings, []);
    }

    #[test]
    fn without_the_traced_program_little_is_said() {
        let report = report(MEGATRON, vec![]);
        let tensors = report.collectives.iter().flat_map(|e| &e.why.tensors);
        for tensor in tensors {
            let is_small = tensor.array.bytes().unwrap() <= SMALL;
            let role = if is_small {
                TensorRole::Scalar
            } else {
                TensorRole::Unknown
            };
            assert_eq!(tensor.role, role);
            assert_eq!((&tensor.from, &tensor.to), (&None, &None));
            assert_eq!(tensor.movement(), "");
        }
    }

    #[test]
    fn paths_of_several_have_stars() {
        let common = |paths: &[&str]| common_path(&paths.iter().map(|p| (*p).to_owned()).collect());
        assert_eq!(common(&["0.blocks.w1"]), "0.blocks.w1");
        assert_eq!(common(&["0.blocks.0.w1", "0.blocks.1.w1"]), "0.blocks.*.w1");
        assert_eq!(common(&["0.a", "0.b.c"]), "0.a or 0.b.c");
        assert_eq!(common(&[]), "");
    }
}
