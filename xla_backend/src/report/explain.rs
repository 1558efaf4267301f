//! Works out why a collective is there, from the module, the traced program, and the layout.

use std::collections::BTreeSet;

use shardax_hlo::words::short_name;
use shardax_hlo::{Collective, CollectiveKind, Part, Pass, SMALL, SourceLine};
use shardax_sharding::{Mesh, PartitionSpec};

use super::attribution::{Attribution, Made};
use super::split::{
    DimSplit, Partial, Split, dims_of_parts, fit, fit_turned, fits_joined, is_possible,
};
use super::subject::{Argument, ArgumentRole, Placed};
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
        let tensor = |part: &Part| self.tensor(collective, part);
        Why {
            cause: cause(&collective.op_name),
            tensors: collective.parts.iter().map(tensor).collect(),
        }
    }

    fn tensor(&self, collective: &Collective, part: &Part) -> MovedTensor {
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
            array: part.array.clone(),
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
        // An element of a stack has one dimension less, or a size of 1 there.
        let layer: PartitionSpec = spec.entries().iter().skip(1).cloned().collect();
        let layers = shape.first().filter(|&&layers| layers > 1);
        let gathers = collective.kind == CollectiveKind::AllGather;
        let gathered = |whole: &[usize], spec: &PartitionSpec| {
            let splits = gathers.then(|| self.gathered(part, whole, spec, axes));
            splits.flatten().map(|(from, to)| (Some(from), Some(to)))
        };
        let mut known = gathered(shape, spec);
        if known.is_none() && layers.is_some() {
            known = gathered(&shape[1..], &layer);
            tensor.is_layer = known.is_some();
        }
        if known.is_none() && layers.is_some() {
            let fits = |whole: &[usize]| fits(self.mesh, collective, part, whole, Order::Any);
            let one = |local: &Vec<u64>| local.len() == shape.len() && local.first() == Some(&1);
            let is_element = part.after.iter().all(one) || !fits(shape);
            tensor.is_layer = is_element && fits(&shape[1..]);
        }
        let (whole, spec) = match tensor.is_layer {
            true => (&shape[1..], &layer),
            false => (&shape[..], spec),
        };
        tensor.whole = Some(whole.to_vec());
        let known = known.unwrap_or_else(|| self.splits(collective, part, whole, Some(spec)));
        (tensor.from, tensor.to) = known;
    }

    /// How an argument lies before and after it is gathered: before as it was given, if the numbers of
    /// elements agree. Their order in HLO is not asked, which XLA may have changed.
    fn gathered(
        &self,
        part: &Part,
        whole: &[usize],
        spec: &PartitionSpec,
        axes: &[String],
    ) -> Option<(Split, Split)> {
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
        let is_it = agrees(spec, &part.before) && agrees(&after, &part.after);
        is_it.then(|| (Split::of_spec(spec), Split::of_spec(&after)))
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
        if fitting.is_empty() {
            return;
        }
        let is_backward = Pass::of(&part.op_name) == Some(Pass::Backward);
        let paths = |of: &dyn Fn(&Made) -> &BTreeSet<usize>, names: &dyn Fn(usize) -> String| {
            let paths: BTreeSet<String> = fitting
                .iter()
                .flat_map(|made| of(made).iter().map(|&i| names(i)))
                .collect();
            let all = fitting.iter().all(|made| !of(made).is_empty());
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
        let fits_in = |made: &Made, order: Order| match made.is_local {
            true => {
                let mut shapes = part.before.iter().chain(&part.after);
                let made = || made.shape.iter().map(|&size| size as u64);
                shapes.any(|local| made().eq(local.iter().copied()))
            }
            false => fits(self.mesh, collective, part, &made.shape, order),
        };
        for order in [Order::Own, Order::Any] {
            let found: Vec<&Made> = made.iter().filter(|made| fits_in(made, order)).collect();
            if !found.is_empty() {
                let as_stated = |made: &&&Made| is_as_stated(self.mesh, part, made);
                let stated: Vec<&Made> = found.iter().filter(as_stated).copied().collect();
                return if stated.is_empty() { found } else { stated };
            }
        }
        let (taken_before, taken_after) = taken(collective);
        let count = |made: &&Made| {
            let whole: u64 = made.shape.iter().map(|&d| d as u64).product();
            let any = |locals: &[Vec<u64>], taken: &[String]| {
                locals.iter().any(|local| {
                    let local: u64 = local.iter().product();
                    let parts = whole.checked_div(local).unwrap_or(0);
                    parts * local == whole && is_possible(self.mesh, &[parts], taken)
                })
            };
            any(&part.before, taken_before) && any(&part.after, taken_after)
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
        let mut ways: Vec<(Split, Split)> = vec![];
        for fitted in local.iter().flat_map(|local| fit_turned(local, whole)) {
            if !is_possible(self.mesh, &fitted.parts, axes) {
                continue;
            }
            let coarse = Split {
                dims: dims_of_parts(self.mesh, &fitted.parts, stated, axes),
                partial: None,
            };
            // The side on which the collective's axes split its dimension.
            let mut fine = coarse.clone();
            let dimension = fitted
                .order
                .iter()
                .position(|dim| Some(*dim) == part.dimension);
            if let Some(DimSplit::Axes(split)) = dimension.and_then(|dim| fine.dims.get_mut(dim)) {
                split.extend(axes.iter().cloned());
            }
            let way = match collective.kind {
                CollectiveKind::AllGather => (fine, coarse),
                CollectiveKind::ReduceScatter => (partial(coarse, part, axes), fine),
                _ => (partial(coarse.clone(), part, axes), coarse),
            };
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        if ways.len() > 1 {
            return (None, None);
        }
        if let Some((from, to)) = ways.pop() {
            return (Some(from), Some(to));
        }
        // XLA has merged dimensions: where the layout states how the value lies, and the number of elements
        // agrees, it is that.
        let is_it = |spec: &&PartitionSpec| {
            let mut locals = local.iter();
            locals.any(|local| has_elements(spec, self.mesh, whole, local))
        };
        let to = stated.filter(is_it).map(Split::of_spec);
        match collective.kind {
            CollectiveKind::AllReduce => (to.clone().map(|to| partial(to, part, axes)), to),
            CollectiveKind::AllGather => (None, to),
            _ => (None, None),
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

/// The axes that split nothing before and after, for every device along them has the same.
fn taken(collective: &Collective) -> (&[String], &[String]) {
    let axes = collective.axes.as_deref().unwrap_or_default();
    match collective.kind {
        CollectiveKind::AllReduce => (axes, axes),
        CollectiveKind::AllGather => (&[], axes),
        CollectiveKind::ReduceScatter => (axes, &[]),
        _ => (&[], &[]),
    }
}

/// The order of a local shape's dimensions.
#[derive(Clone, Copy)]
enum Order {
    /// The whole value's.
    Own,
    /// One that a compiler may have chosen.
    Any,
}

/// Whether the shapes before and after can be parts of a whole value.
fn fits(mesh: &Mesh, collective: &Collective, part: &Part, whole: &[usize], order: Order) -> bool {
    let ways = |local: &Vec<u64>| match (collective.kind, order) {
        (CollectiveKind::AllToAll, _) => fits_joined(local, whole),
        (_, Order::Own) => fit(local, whole)
            .map(|fitted| fitted.parts)
            .into_iter()
            .collect(),
        (_, Order::Any) => {
            let fitted = fit_turned(local, whole).into_iter();
            fitted.map(|fitted| fitted.parts).collect()
        }
    };
    let any = |locals: &[Vec<u64>], taken: &[String]| {
        let mut ways = locals.iter().flat_map(ways);
        ways.any(|parts| is_possible(mesh, &parts, taken))
    };
    let (before, after) = taken(collective);
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
    // In whatever order, and with whatever dimensions of size 1.
    let sizes = |dims: &mut dyn Iterator<Item = u64>| {
        let mut sizes: Vec<u64> = dims.filter(|&size| size != 1).collect();
        sizes.sort_unstable();
        sizes
    };
    let shard = sizes(&mut shard.iter().map(|&size| size as u64));
    let is_it = |local: &Vec<u64>| sizes(&mut local.iter().copied()) == shard;
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

/// Paths in one, `*` for what differs: `blocks.*.w1`, or `blocks.*` if they are not of one length.
fn common_path(paths: &BTreeSet<String>) -> String {
    let split: Vec<Vec<&str>> = paths.iter().map(|path| path.split('.').collect()).collect();
    let Some(first) = split.first() else {
        return String::new();
    };
    let is_same = |i: usize| split.iter().all(|path| path.get(i) == first.get(i));
    if split.iter().all(|path| path.len() == first.len()) {
        let segment = |i: usize| if is_same(i) { first[i] } else { "*" };
        return (0..first.len()).map(segment).collect::<Vec<_>>().join(".");
    }
    let same = (0..first.len())
        .take_while(|&i| is_same(i))
        .map(|i| first[i]);
    same.chain(["*"]).collect::<Vec<_>>().join(".")
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
        assert_eq!(common(&["0.a", "0.b.c"]), "0.*");
        assert_eq!(common(&["a", "b.c"]), "*");
        assert_eq!(common(&[]), "");
    }
}
