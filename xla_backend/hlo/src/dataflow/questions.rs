//! What reports ask of the flow of values.

use std::collections::HashSet;

use super::uses::Use;
use super::{BUDGET, Flow, Origin, Value, is_call, is_slice, is_transparent};

/// Instructions between a collective and what its data was or becomes.
const CHAIN: usize = 32;

impl Flow<'_> {
    /// The shapes of what a value is a part of, or the same data as, nearest first.
    pub(crate) fn shapes_before(&self, value: &Value) -> Vec<Vec<u64>> {
        let mut shapes: Vec<Vec<u64>> = vec![];
        let mut at = value.clone();
        for _ in 0..CHAIN {
            if self.step_back(&mut at).is_none() {
                break;
            }
            if let [array] = self.instruction(at.site).shape().arrays()[..] {
                shapes.push(array.dims.clone());
            }
        }
        shapes
    }

    /// The name of the operation that a value is made by, of those that have a location.
    pub(crate) fn name_before(&self, value: &Value) -> Option<&str> {
        let mut at = value.clone();
        let mut of_call = None;
        for _ in 0..CHAIN {
            let instruction = self.instruction(at.site);
            let name = Some(instruction.op_name()).filter(|name| name.contains('#'));
            // A fusion is called after one of its operations, and not always the last.
            match is_call(instruction.opcode()) {
                true => of_call = of_call.or(name),
                false if name.is_some() => return name,
                false => {}
            }
            if self.step_back(&mut at).is_none() {
                break;
            }
        }
        of_call
    }

    /// The values of which another is joined; none if it is not.
    pub(crate) fn pieces(&self, value: &Value) -> Vec<Value> {
        let mut at = value.clone();
        for _ in 0..CHAIN {
            let instruction = self.instruction(at.site);
            if instruction.opcode() == "concatenate" {
                let piece = |&operand: &usize| {
                    let mut piece = at.clone();
                    piece.site.instruction = operand;
                    piece
                };
                return instruction.operands().iter().map(piece).collect();
            }
            if self.step_back(&mut at).is_none() {
                break;
            }
        }
        vec![]
    }

    /// To what a value is a part of or the same data as, loops left out.
    fn step_back(&self, at: &mut Value) -> Option<()> {
        let instruction = self.instruction(at.site);
        let operand = match instruction.opcode() {
            "parameter" => {
                let number = usize::try_from(instruction.parameter).ok()?;
                let call = at.callers.last().copied()?;
                is_call(self.instruction(call).opcode()).then_some(())?;
                return self.leave(at, call, number);
            }
            "get-tuple-element" => {
                at.element
                    .push(usize::try_from(instruction.tuple_index).ok()?);
                0
            }
            "tuple" => at.element.pop()?,
            opcode if is_call(opcode) => return self.enter_root(at),
            opcode if is_transparent(opcode) || is_slice(opcode) => 0,
            _ => return None,
        };
        at.site.instruction = *instruction.operands().get(operand)?;
        Some(())
    }

    /// The shapes of what a value becomes a part of, or is the same data as, nearest first.
    pub(crate) fn shapes_after(&self, value: Value) -> Vec<Vec<u64>> {
        let mut shapes: Vec<Vec<u64>> = vec![];
        self.uses(value, &mut |used| match used {
            Use::By { user, opcode, .. } if shapes.len() < CHAIN => {
                let keeps =
                    is_transparent(opcode) || is_elementwise(opcode) || opcode == "concatenate";
                if let ([array], true) = (&self.instruction(user.site).shape().arrays()[..], keeps)
                {
                    shapes.push(array.dims.clone());
                }
                keeps
            }
            _ => false,
        });
        shapes
    }

    /// The result of the program that a value is, if it is one.
    pub(crate) fn returned_as(&self, value: Value) -> Option<usize> {
        let mut found = None;
        self.uses(value, &mut |used| match used {
            Use::By { opcode, .. } => is_transparent(opcode),
            Use::Returned(result) => {
                found = found.or(Some(result));
                false
            }
            Use::Carried { .. } | Use::Elsewhere => false,
        });
        found
    }

    /// The name of the first operation that computes something of a value, if one has a name.
    pub(crate) fn reader(&self, value: Value) -> String {
        let mut name = String::new();
        self.uses(value, &mut |used| match used {
            Use::By { user, opcode, .. } if name.is_empty() => {
                if is_transparent(opcode) {
                    return true;
                }
                name = self.instruction(user.site).op_name().to_owned();
                false
            }
            _ => false,
        });
        name
    }

    /// Whether a value differs from device to device by the device's own number.
    fn depends_on_device(&self, value: Value) -> bool {
        let mut seen: HashSet<Value> = HashSet::from([value.clone()]);
        let mut open = vec![value];
        while let Some(mut at) = open.pop() {
            if seen.len() > BUDGET {
                return false;
            }
            let instruction = self.instruction(at.site);
            let mut operands = vec![];
            match instruction.opcode() {
                "partition-id" | "replica-id" => return true,
                "parameter" => {
                    let number = usize::try_from(instruction.parameter).unwrap_or(usize::MAX);
                    if let Some(caller) = at.callers.last().copied()
                        && self.leave(&mut at, caller, number).is_some()
                    {
                        operands.push(at);
                    }
                }
                "get-tuple-element" => {
                    at.element
                        .push(usize::try_from(instruction.tuple_index).unwrap_or(usize::MAX));
                    at.site.instruction = instruction.operands().first().copied().unwrap_or(0);
                    operands.push(at);
                }
                "tuple" => {
                    let chosen = at.element.pop().and_then(|i| instruction.operands().get(i));
                    operands.extend(chosen.map(|&operand| {
                        at.site.instruction = operand;
                        at
                    }));
                }
                opcode if is_call(opcode) => {
                    if self.enter_root(&mut at).is_some() {
                        operands.push(at);
                    }
                }
                "while" => {
                    at.site.instruction = instruction.operands().first().copied().unwrap_or(0);
                    operands.push(at);
                }
                _ => operands.extend(instruction.operands().iter().map(|&operand| {
                    let mut operand_of = at.clone();
                    operand_of.site.instruction = operand;
                    operand_of.element.clear();
                    operand_of
                })),
            }
            open.extend(operands.into_iter().filter(|v| seen.insert(v.clone())));
        }
        false
    }

    /// Whether each device takes its own part of the value, and nothing else is done with it: what was
    /// gathered was only to be split in another way.
    pub(crate) fn is_only_split_again(&self, value: Value) -> bool {
        let (mut parts, mut others) = (0usize, 0usize);
        self.uses(value, &mut |used| {
            match used {
                Use::By { opcode, .. } if is_transparent(opcode) => return true,
                Use::By {
                    user,
                    position: 0,
                    opcode: "dynamic-slice",
                } => {
                    let starts = self.instruction(user.site).operands().iter().skip(1);
                    let is_own = starts.into_iter().any(|&start| {
                        let mut start_of = user.clone();
                        start_of.site.instruction = start;
                        start_of.element.clear();
                        self.depends_on_device(start_of)
                    });
                    *if is_own { &mut parts } else { &mut others } += 1;
                }
                Use::By { .. } | Use::Carried { .. } | Use::Returned(_) | Use::Elsewhere => {
                    others += 1;
                }
            }
            false
        });
        parts > 0 && others == 0
    }

    /// The loop, as a number of callers, in which a value is added to what an iteration hands to the
    /// next and which nothing else reads: a sum that could be reduced once after the loop.
    pub(crate) fn accumulated_in(&self, value: Value) -> Option<usize> {
        let mut found = None;
        self.uses(value, &mut |used| match used {
            Use::By {
                opcode: "add",
                user,
                position,
            } => {
                found = found.or_else(|| self.accumulates(user, position));
                found.is_none()
            }
            Use::By {
                opcode: "dynamic-update-slice",
                position,
                ..
            } => position == 1,
            Use::By { opcode, .. } => {
                is_transparent(opcode)
                    || is_slice(opcode)
                    || matches!(opcode, "multiply" | "divide" | "subtract" | "negate")
            }
            Use::Carried { .. } => found.is_none(),
            Use::Returned(_) | Use::Elsewhere => false,
        });
        found
    }

    /// Whether `addition` adds its operand at `position` to a carry that only accumulates.
    fn accumulates(&self, addition: &Value, position: usize) -> Option<usize> {
        let operands = self.instruction(addition.site).operands();
        let mut other = addition.clone();
        other.site.instruction = *operands.get(1 - position.min(1))?;
        let Origin::Carried { callers, index } = self.origin(&other) else {
            return None;
        };
        // The sum is the same element of the next iteration.
        let mut is_handed_on = false;
        self.uses(addition.clone(), &mut |used| match used {
            Use::By { opcode, .. } => is_transparent(opcode),
            Use::Carried {
                callers: c,
                index: i,
            } => {
                is_handed_on |= c == callers && i == index;
                false
            }
            Use::Returned(_) | Use::Elsewhere => false,
        });
        // Nothing else of the body reads the element.
        let site = self.parameter(self.instruction(*addition.callers.get(callers - 1)?), 0)?;
        let carry = Value {
            callers: addition.callers[..callers].to_vec(),
            site,
            element: vec![index],
        };
        let mut is_read = false;
        self.uses(carry, &mut |used| match used {
            Use::By { user, .. } if user.site == addition.site => false,
            Use::By { opcode, .. } if is_transparent(opcode) => true,
            _ => {
                is_read = true;
                false
            }
        });
        (is_handed_on && !is_read).then_some(callers)
    }
}

/// Whether each element of the result is computed from one of each operand.
fn is_elementwise(opcode: &str) -> bool {
    matches!(
        opcode,
        "abs"
            | "add"
            | "cosine"
            | "divide"
            | "exponential"
            | "log"
            | "logistic"
            | "maximum"
            | "minimum"
            | "multiply"
            | "negate"
            | "power"
            | "rsqrt"
            | "select"
            | "sine"
            | "sqrt"
            | "subtract"
            | "tanh"
    )
}
