//! How often a `while` loop runs.
//!
//! XLA mostly writes the number into the loop's backend configuration. Where it has not, a loop that
//! counts can still be read: its condition compares an element of the loop's state with a constant, its
//! body adds a constant to that element. The values are followed through copies, fusions and calls,
//! because by the time a program is optimized the comparison is rarely a bare instruction any more.

use serde_json::Value as Json;

use super::module::{Computation, HloModule, Instruction};

/// How many instructions are looked at for one value. Real loops need less than ten; without a bound, sums
/// of sums could keep the reader busy for ever.
const MAX_STEPS: usize = 256;

/// The number of times that the body of `instruction`, a `while` of `computation`, runs. `None` if it
/// depends on data, or on arithmetic that is not understood here.
pub(super) fn trip_count(
    module: &HloModule,
    computation: &Computation,
    instruction: &Instruction,
) -> Option<u64> {
    known_trip_count(&instruction.backend_config)
        .or_else(|| counted_trips(module, computation, instruction))
}

/// `{"known_trip_count":{"n":"12"}}`, in the JSON of protocol buffers, where 64-bit numbers are text.
fn known_trip_count(backend_config: &[u8]) -> Option<u64> {
    let config: Json = serde_json::from_slice(backend_config).ok()?;
    match config.get("known_trip_count")?.get("n")? {
        Json::String(number) => number.parse().ok(),
        number => number.as_u64(),
    }
}

fn counted_trips(
    module: &HloModule,
    computation: &Computation,
    instruction: &Instruction,
) -> Option<u64> {
    let &[body, condition] = instruction.called() else {
        return None;
    };
    let state = |called: usize| Scope {
        module,
        computation: &module.computations()[called],
        parameters: Parameters::LoopState,
    };
    let (body, condition) = (state(body), state(condition));
    let outer = Scope {
        module,
        computation,
        parameters: Parameters::Unknown,
    };
    let initial = |index| {
        outer
            .element(computation.operand(instruction, 0)?, index, &mut {
                MAX_STEPS
            })?
            .constant()
    };
    let next = |index| {
        body.element(body.computation.root_instruction(), index, &mut {
            MAX_STEPS
        })
    };

    let comparison =
        condition.comparison(condition.computation.root_instruction(), &mut { MAX_STEPS })?;
    // A bound that the loop carries along unchanged is the constant it began as.
    let fixed = |value| match value {
        Value::Constant(bound) => Some(bound),
        Value::Carried { index, offset }
            if next(index)? == (Value::Carried { index, offset: 0 }) =>
        {
            Some(initial(index)? + offset)
        }
        Value::Carried { .. } => None,
    };
    let (counter, bound, direction) = match (fixed(comparison.left), fixed(comparison.right)) {
        (None, Some(bound)) => (comparison.left, bound, comparison.direction),
        (Some(bound), None) => (comparison.right, bound, comparison.direction.mirrored()),
        _ => return None,
    };
    let Value::Carried { index, offset } = counter else {
        return None;
    };
    let step = match next(index)? {
        Value::Carried {
            index: from,
            offset,
        } if from == index => offset,
        _ => return None,
    };
    direction.trips(initial(index)? + offset, step, bound)
}

/// A scalar, as far as it is known while a loop is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Constant(i128),
    /// An element of the loop's state at the start of an iteration, plus a constant.
    Carried {
        index: usize,
        offset: i128,
    },
}

impl Value {
    fn constant(self) -> Option<i128> {
        match self {
            Value::Constant(value) => Some(value),
            Value::Carried { .. } => None,
        }
    }

    fn plus(self, other: Value) -> Option<Value> {
        match (self, other) {
            (Value::Constant(a), Value::Constant(b)) => Some(Value::Constant(a + b)),
            (Value::Carried { index, offset }, Value::Constant(c))
            | (Value::Constant(c), Value::Carried { index, offset }) => Some(Value::Carried {
                index,
                offset: offset + c,
            }),
            (Value::Carried { .. }, Value::Carried { .. }) => None,
        }
    }
}

struct Comparison {
    direction: Direction,
    left: Value,
    right: Value,
}

/// A computation, and what its parameters stand for.
#[derive(Clone, Copy)]
struct Scope<'a> {
    module: &'a HloModule,
    computation: &'a Computation,
    parameters: Parameters<'a>,
}

#[derive(Clone, Copy)]
enum Parameters<'a> {
    Unknown,
    /// The one parameter is the loop's state.
    LoopState,
    /// The operands of a fusion or call.
    Operands(&'a Instruction, &'a Scope<'a>),
}

impl<'a> Scope<'a> {
    /// The computation that a fusion or call runs, with that instruction's operands.
    fn callee<'b>(&'b self, caller: &'b Instruction) -> Option<Scope<'b>> {
        let &[called] = caller.called() else {
            return None;
        };
        Some(Scope {
            module: self.module,
            computation: &self.module.computations()[called],
            parameters: Parameters::Operands(caller, self),
        })
    }

    fn scalar(&self, instruction: &Instruction, steps: &mut usize) -> Option<Value> {
        *steps = steps.checked_sub(1)?;
        let operand = |position| self.computation.operand(instruction, position);
        match instruction.opcode() {
            "constant" => Some(Value::Constant(instruction.constant?.into())),
            "copy" | "bitcast" | "reshape" => {
                let operand = operand(0)?;
                // A bitcast to another type would be another number.
                let type_of = |i: &Instruction| Some(i.shape().arrays().first()?.element);
                (type_of(operand)? == type_of(instruction)?).then(|| self.scalar(operand, steps))?
            }
            "add" => self
                .scalar(operand(0)?, steps)?
                .plus(self.scalar(operand(1)?, steps)?),
            "subtract" => {
                let subtrahend = self.scalar(operand(1)?, steps)?.constant()?;
                self.scalar(operand(0)?, steps)?
                    .plus(Value::Constant(-subtrahend))
            }
            "get-tuple-element" => {
                let index = usize::try_from(instruction.tuple_index).ok()?;
                self.element(operand(0)?, index, steps)
            }
            "parameter" => match self.parameters {
                Parameters::Operands(caller, outer) => {
                    outer.scalar(outer.argument(caller, instruction)?, steps)
                }
                Parameters::LoopState | Parameters::Unknown => None,
            },
            "fusion" | "call" => {
                let inner = self.callee(instruction)?;
                inner.scalar(inner.computation.root_instruction(), steps)
            }
            _ => None,
        }
    }

    /// Element `index` of a tuple.
    fn element(&self, tuple: &Instruction, index: usize, steps: &mut usize) -> Option<Value> {
        *steps = steps.checked_sub(1)?;
        match tuple.opcode() {
            "tuple" => self.scalar(self.computation.operand(tuple, index)?, steps),
            "copy" => self.element(self.computation.operand(tuple, 0)?, index, steps),
            "parameter" => match self.parameters {
                Parameters::LoopState => Some(Value::Carried { index, offset: 0 }),
                Parameters::Operands(caller, outer) => {
                    outer.element(outer.argument(caller, tuple)?, index, steps)
                }
                Parameters::Unknown => None,
            },
            "fusion" | "call" => {
                let inner = self.callee(tuple)?;
                inner.element(inner.computation.root_instruction(), index, steps)
            }
            _ => None,
        }
    }

    fn comparison(&self, instruction: &Instruction, steps: &mut usize) -> Option<Comparison> {
        *steps = steps.checked_sub(1)?;
        match instruction.opcode() {
            "compare" => {
                let operand = |position| self.computation.operand(instruction, position);
                Some(Comparison {
                    direction: Direction::parse(&instruction.comparison)?,
                    left: self.scalar(operand(0)?, steps)?,
                    right: self.scalar(operand(1)?, steps)?,
                })
            }
            "copy" => self.comparison(self.computation.operand(instruction, 0)?, steps),
            "fusion" | "call" => {
                let inner = self.callee(instruction)?;
                inner.comparison(inner.computation.root_instruction(), steps)
            }
            _ => None,
        }
    }

    /// The operand of `caller`, which is in this scope, that a parameter of the callee stands for.
    fn argument(&self, caller: &Instruction, parameter: &Instruction) -> Option<&'a Instruction> {
        self.computation
            .operand(caller, usize::try_from(parameter.parameter).ok()?)
    }
}

/// The loop goes on while `counter (direction) bound`.
#[derive(Clone, Copy)]
enum Direction {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    NotEqual,
}

impl Direction {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "LT" => Some(Direction::Less),
            "LE" => Some(Direction::LessOrEqual),
            "GT" => Some(Direction::Greater),
            "GE" => Some(Direction::GreaterOrEqual),
            "NE" => Some(Direction::NotEqual),
            _ => None,
        }
    }

    fn mirrored(self) -> Self {
        match self {
            Direction::Less => Direction::Greater,
            Direction::LessOrEqual => Direction::GreaterOrEqual,
            Direction::Greater => Direction::Less,
            Direction::GreaterOrEqual => Direction::LessOrEqual,
            Direction::NotEqual => Direction::NotEqual,
        }
    }

    /// How many of `first`, `first + step`, ... come before the first one for which the comparison
    /// fails; `None` for those that would only end by wrapping around.
    fn trips(self, first: i128, step: i128, bound: i128) -> Option<u64> {
        let distance = match self {
            Direction::Less | Direction::NotEqual => bound - first,
            Direction::LessOrEqual => bound - first + 1,
            Direction::Greater => first - bound,
            Direction::GreaterOrEqual => first - bound + 1,
        };
        let stride = match self {
            Direction::Less | Direction::LessOrEqual | Direction::NotEqual => step,
            Direction::Greater | Direction::GreaterOrEqual => -step,
        };
        let trips = match self {
            _ if distance == 0 => 0,
            _ if stride == 0 => return None,
            Direction::NotEqual if distance % stride == 0 => distance / stride,
            Direction::NotEqual => return None,
            _ if distance < 0 => 0,
            _ if stride < 0 => return None,
            _ => (distance + stride - 1) / stride,
        };
        u64::try_from(trips).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{DDP, KINDS, MEGATRON, decode_proto};

    /// The trip counts of all loops of a module, with the configuration that XLA wrote and without.
    fn trip_counts(bytes: &[u8], with_config: bool) -> Vec<Option<u64>> {
        let mut proto = decode_proto(bytes);
        let computations = proto
            .module
            .iter_mut()
            .flat_map(|module| &mut module.computations);
        for instruction in computations.flat_map(|computation| &mut computation.instructions) {
            if !with_config {
                instruction.backend_config.clear();
            }
        }
        let module = HloModule::from_proto(proto).unwrap();
        let mut counts = vec![];
        for computation in module.computations() {
            for instruction in computation.instructions() {
                if instruction.opcode() == "while" {
                    counts.push(trip_count(&module, computation, instruction));
                }
            }
        }
        counts
    }

    #[test]
    fn the_configuration_states_it() {
        assert_eq!(trip_counts(DDP, true), [Some(3), Some(3)]);
        assert_eq!(trip_counts(MEGATRON, true), [Some(3), Some(3)]);
        // One of the two depends on data.
        assert_eq!(trip_counts(KINDS, true), [None, Some(5)]);
    }

    #[test]
    fn the_condition_and_the_body_state_it() {
        assert_eq!(trip_counts(DDP, false), [Some(3), Some(3)]);
        assert_eq!(trip_counts(MEGATRON, false), [Some(3), Some(3)]);
        assert_eq!(trip_counts(KINDS, false), [None, Some(5)]);
    }

    #[test]
    fn numbers_in_the_configuration_may_be_text_or_not() {
        assert_eq!(
            known_trip_count(br#"{"known_trip_count":{"n":"12"}}"#),
            Some(12)
        );
        assert_eq!(
            known_trip_count(br#"{"known_trip_count":{"n":0}}"#),
            Some(0)
        );
        assert_eq!(known_trip_count(br#"{"known_trip_count":{}}"#), None);
        assert_eq!(known_trip_count(b"known_trip_count"), None);
        assert_eq!(known_trip_count(b""), None);
    }

    #[test]
    fn counting_up_and_down() {
        use Direction::*;
        assert_eq!(Less.trips(0, 1, 5), Some(5));
        assert_eq!(Less.trips(0, 2, 5), Some(3));
        assert_eq!(Less.trips(5, 1, 5), Some(0));
        assert_eq!(Less.trips(7, 1, 5), Some(0));
        assert_eq!(LessOrEqual.trips(0, 2, 4), Some(3));
        assert_eq!(Greater.trips(5, -1, 0), Some(5));
        assert_eq!(GreaterOrEqual.trips(5, -1, 0), Some(6));
        assert_eq!(NotEqual.trips(0, 3, 9), Some(3));
        assert_eq!(NotEqual.trips(4, 3, 4), Some(0));
        // These end only by wrapping around, or never.
        assert_eq!(NotEqual.trips(0, 3, 10), None);
        assert_eq!(NotEqual.trips(0, -3, 9), None);
        assert_eq!(Less.trips(0, 0, 5), None);
        assert_eq!(Less.trips(0, -1, 5), None);
    }
}
