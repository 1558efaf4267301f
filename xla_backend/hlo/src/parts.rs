//! What the module itself says of each array that a collective moves.

use super::collectives::Part;
use super::dataflow::{Origin, Site, Value};
use super::kind::CollectiveKind;
use super::module::Instruction;
use super::shape::{ArrayShape, Shape};
use super::walk::{Path, Walk, origin};

impl Walk<'_> {
    /// What is known of each array: of a combined collective, operand by operand.
    pub(super) fn parts(
        &self,
        site: Site,
        kind: CollectiveKind,
        starts: bool,
        path: &Path,
        arrays: &[ArrayShape],
    ) -> Vec<Part> {
        let here = &self.module.computations()[site.computation];
        let instruction = &here.instructions()[site.instruction];
        // Of the start of an all-gather or a permutation the results are the second element.
        let results = match instruction.shape() {
            Shape::Tuple(parts) if starts && keeps_operands(kind) && parts.len() > 1 => {
                parts[1].arrays()
            }
            shape => shape.arrays(),
        };
        let reduces = instruction.called().first().map(|&reducer| {
            let root = self.module.computations()[reducer].root_instruction();
            reduced(root.opcode())
        });
        let dimension = instruction.dimensions.first();
        let dimension = dimension.and_then(|&d| usize::try_from(d).ok());
        let combined = results.len() > 1;
        let value = |instruction: usize, element: Vec<usize>| Value {
            callers: path.callers.clone(),
            site: Site {
                instruction,
                ..site
            },
            element,
        };
        let exchanges = kind == CollectiveKind::AllToAll;
        let exchanged = results.iter().map(|array| elements(&array.dims)).sum();
        let part = |i: usize, array: &ArrayShape| {
            let operand = instruction.operands().get(i);
            let operand = operand.map(|&operand| value(operand, vec![]));
            let result = value(site.instruction, if combined { vec![i] } else { vec![] });
            let shape_of = |value: &Value| {
                let arrays = self.flow.instruction(value.site).shape().arrays();
                arrays.first().map(|array| array.dims.clone())
            };
            let mut before: Vec<Vec<u64>> = operand.iter().filter_map(shape_of).collect();
            let mut after: Vec<Vec<u64>> = results
                .get(i)
                .map(|array| array.dims.clone())
                .into_iter()
                .collect();
            if let Some(operand) = operand.as_ref().filter(|_| exchanges) {
                before.extend(self.flow.shapes_before(operand));
                after.extend(self.flow.shapes_after(result.clone()));
                keep_whole(&mut before, exchanged);
                keep_whole(&mut after, exchanged);
            }
            let origin = operand.as_ref().map(|operand| self.flow.origin(operand));
            let part = Part {
                array: match exchanges {
                    true => of_shape(array, before.last()),
                    false => array.clone(),
                },
                before,
                after,
                op_name: self.name_of_part(site, operand.as_ref(), combined.then_some(i)),
                reader: self.flow.reader(result.clone()),
                returned_as: self.flow.returned_as(result.clone()),
                argument: match origin {
                    Some(Origin::Argument(number)) => Some(number),
                    Some(Origin::Carried { .. } | Origin::Computed) | None => None,
                },
                dimension,
                reduces,
                is_split_again: kind == CollectiveKind::AllGather
                    && self.flow.is_only_split_again(result.clone()),
                accumulated_in: match path.loops.is_empty() || reduces.is_none() {
                    true => None,
                    false => self.loop_of_sum(path, result),
                },
            };
            // Compilers for GPUs join what is to be reduced into one array.
            let pieces = operand.filter(|_| kind == CollectiveKind::AllReduce);
            let pieces = pieces.map_or(vec![], |operand| self.flow.pieces(&operand));
            match pieces.is_empty() {
                true => vec![part],
                false => pieces
                    .iter()
                    .map(|piece| self.piece(&part, piece))
                    .collect(),
            }
        };
        // An exchange of several arrays is one value, cut into as many parts as there are devices.
        let count = if exchanges { 1 } else { arrays.len() };
        let parts = arrays.iter().take(count).enumerate();
        parts.flat_map(|(i, array)| part(i, array)).collect()
    }

    /// What is known of a value that was joined with others to be reduced.
    fn piece(&self, joined: &Part, piece: &Value) -> Part {
        let arrays = self.flow.instruction(piece.site).shape().arrays();
        let mut shapes: Vec<Vec<u64>> = arrays
            .first()
            .map(|array| array.dims.clone())
            .into_iter()
            .collect();
        let size = shapes.first().map_or(0, |dims| elements(dims));
        shapes.extend(self.flow.shapes_before(piece));
        shapes.retain(|dims| elements(dims) == size);
        let name = self.flow.name_before(piece);
        Part {
            array: of_shape(&joined.array, shapes.last()),
            before: shapes.clone(),
            after: shapes,
            op_name: name.map_or_else(|| joined.op_name.clone(), str::to_owned),
            returned_as: None,
            argument: None,
            ..joined.clone()
        }
    }

    /// The position in the path's loops of the one in which a value is only added up.
    fn loop_of_sum(&self, path: &Path, value: Value) -> Option<usize> {
        let callers = self.flow.accumulated_in(value)?;
        let is_loop = |site: &&Site| self.flow.instruction(**site).opcode() == "while";
        let loops = path.callers.get(..callers)?.iter().filter(is_loop);
        loops.count().checked_sub(1)
    }

    /// XLA names a combined collective after some of its parts, and what takes a part out of it after that
    /// part.
    fn name_of_part(&self, site: Site, operand: Option<&Value>, part: Option<usize>) -> String {
        let here = &self.module.computations()[site.computation];
        let instruction = &here.instructions()[site.instruction];
        let own = || origin(here, instruction).0;
        let Some(part) = part else {
            return own();
        };
        let takes_it = |user: &&Instruction| {
            user.opcode() == "get-tuple-element"
                && user.tuple_index == part as i64
                && user.operands() == [site.instruction]
        };
        let taken = here.instructions().iter().find(takes_it);
        let name = taken
            .map(Instruction::op_name)
            .filter(|name| !name.is_empty());
        let name = name.or_else(|| self.flow.name_before(operand?));
        name.map_or_else(own, str::to_owned)
    }
}

/// An array of the same elements in another shape.
fn of_shape(array: &ArrayShape, dims: Option<&Vec<u64>>) -> ArrayShape {
    ArrayShape {
        element: array.element,
        dims: dims.unwrap_or(&array.dims).clone(),
    }
}

/// Leaves the shapes of all that is exchanged, and not of a piece of it, if there are any.
fn keep_whole(shapes: &mut Vec<Vec<u64>>, exchanged: u64) {
    if shapes.iter().any(|dims| elements(dims) == exchanged) {
        shapes.retain(|dims| elements(dims) == exchanged);
    }
}

fn elements(dims: &[u64]) -> u64 {
    dims.iter().fold(1, |all, &size| all.saturating_mul(size))
}

/// Whether the start's value has the operands beside the results.
fn keeps_operands(kind: CollectiveKind) -> bool {
    matches!(
        kind,
        CollectiveKind::AllGather | CollectiveKind::CollectivePermute
    )
}

/// What devices have before a reduction by this operation.
fn reduced(opcode: &str) -> &'static str {
    match opcode {
        "add" => "sums",
        "maximum" => "maxima",
        "minimum" => "minima",
        "multiply" => "products",
        _ => "results",
    }
}
