//! Where the values of an optimized module come from, and what becomes of them.
//!
//! A compiled program carries a parameter through loops, fusions and copies before a collective moves it.
//! To tell which argument that is, values are followed backward through whatever leaves the data what it
//! is; to tell what a collective is for, forward. Both are bounded, and where they end without an answer
//! the answer is that it is not known.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::hlo::{Computation, HloModule, Instruction};

/// Instructions looked at for one question.
const BUDGET: usize = 4096;

/// Instructions between a collective and what its data was or becomes.
const CHAIN: usize = 32;

/// An instruction of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Site {
    pub(super) computation: usize,
    pub(super) instruction: usize,
}

/// A value: the result of an instruction, or an element of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Value {
    /// The instructions that call the computation, outermost first.
    pub(super) callers: Vec<Site>,
    pub(super) site: Site,
    /// Positions in nested tuples, the outermost last.
    pub(super) element: Vec<usize>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// An argument of the program, or a part of it.
    Argument(usize),
    /// What an iteration hands to the next: the element `index` of the loop that is the last of `callers`
    /// callers.
    Carried { callers: usize, index: usize },
    /// Anything else.
    Computed,
}

/// Who uses a value.
pub(super) enum Use<'a> {
    /// An instruction that computes something of it, as operand `position`.
    By {
        user: &'a Value,
        position: usize,
        opcode: &'a str,
    },
    /// The next iteration, as element `index` of the loop that is the last of `callers` callers.
    Carried { callers: usize, index: usize },
    /// The program's caller, or a use that is not followed.
    Elsewhere,
}

pub(super) struct Flow<'a> {
    module: &'a HloModule,
    users: RefCell<HashMap<usize, Rc<Users>>>,
}

/// By instruction, its users and at which position they have it.
type Users = Vec<Vec<(usize, usize)>>;

/// Whether the result holds the data of operand 0, in another order or element type at most.
pub(super) fn is_transparent(opcode: &str) -> bool {
    matches!(
        opcode,
        "copy"
            | "bitcast"
            | "reshape"
            | "transpose"
            | "convert"
            | "reduce-precision"
            | "optimization-barrier"
            | "copy-start"
            | "copy-done"
            | "all-gather-done"
            | "all-reduce-done"
            | "collective-permute-done"
    )
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

fn is_slice(opcode: &str) -> bool {
    matches!(opcode, "slice" | "dynamic-slice")
}

/// Runs another computation in its own place.
fn is_call(opcode: &str) -> bool {
    matches!(opcode, "fusion" | "call" | "async-start")
}

impl<'a> Flow<'a> {
    pub(super) fn new(module: &'a HloModule) -> Self {
        Flow {
            module,
            users: RefCell::default(),
        }
    }

    fn computation(&self, site: Site) -> &'a Computation {
        &self.module.computations()[site.computation]
    }

    pub(super) fn instruction(&self, site: Site) -> &'a Instruction {
        &self.computation(site).instructions()[site.instruction]
    }

    /// Where the data of a value comes from, if nothing is computed on the way.
    pub(super) fn origin(&self, value: &Value) -> Origin {
        self.follow_back(value.clone(), &mut BUDGET.clone())
            .unwrap_or(Origin::Computed)
    }

    /// `None` where something is computed.
    fn follow_back(&self, mut at: Value, budget: &mut usize) -> Option<Origin> {
        loop {
            *budget = budget.checked_sub(1)?;
            let instruction = self.instruction(at.site);
            let operand = match instruction.opcode() {
                "parameter" => {
                    let number = usize::try_from(instruction.parameter).ok()?;
                    let Some(caller) = at.callers.last().copied() else {
                        return Some(Origin::Argument(number));
                    };
                    if self.instruction(caller).opcode() == "while" {
                        let index = *at.element.last()?;
                        let callers = at.callers.len();
                        if !self.is_invariant(&at.callers, index, budget) {
                            return Some(Origin::Carried { callers, index });
                        }
                    }
                    self.leave(&mut at, caller, number)?;
                    continue;
                }
                "get-tuple-element" => {
                    at.element
                        .push(usize::try_from(instruction.tuple_index).ok()?);
                    0
                }
                "tuple" => at.element.pop()?,
                "while" => {
                    let index = *at.element.last()?;
                    at.callers.push(at.site);
                    let invariant = self.is_invariant(&at.callers, index, budget);
                    at.callers.pop();
                    invariant.then_some(0)?
                }
                "all-gather" | "all-gather-start" => at.element.pop().unwrap_or(0),
                "async-done" => {
                    // What the start has called gives the result.
                    at.site.instruction = *instruction.operands().first()?;
                    self.enter_root(&mut at)?;
                    continue;
                }
                opcode if is_call(opcode) => {
                    self.enter_root(&mut at)?;
                    continue;
                }
                opcode if is_slice(opcode) || is_transparent(opcode) => 0,
                _ => return None,
            };
            at.site.instruction = *instruction.operands().get(operand)?;
        }
    }

    /// From a computation's parameter to what its caller gives for it.
    fn leave(&self, at: &mut Value, caller: Site, number: usize) -> Option<()> {
        let instruction = self.instruction(caller);
        let operand = match instruction.opcode() {
            "while" => 0,
            "conditional" => {
                let is_branch = |&called: &usize| called == at.site.computation;
                1 + instruction.called().iter().position(is_branch)?
            }
            _ => number,
        };
        at.callers.pop();
        at.site = Site {
            computation: caller.computation,
            instruction: *instruction.operands().get(operand)?,
        };
        Some(())
    }

    /// From a call to the result of what it calls.
    fn enter_root(&self, at: &mut Value) -> Option<()> {
        let called = *self.instruction(at.site).called().first()?;
        at.callers.push(at.site);
        at.site = Site {
            computation: called,
            instruction: self.module.computations()[called].root(),
        };
        Some(())
    }

    /// Whether a loop, the last of the callers, hands on an element as it got it.
    fn is_invariant(&self, callers: &[Site], index: usize, budget: &mut usize) -> bool {
        let Some(&caller) = callers.last() else {
            return false;
        };
        let Some(&body) = self.instruction(caller).called().first() else {
            return false;
        };
        let mut at = Value {
            callers: callers.to_vec(),
            site: Site {
                computation: body,
                instruction: self.module.computations()[body].root(),
            },
            element: vec![index],
        };
        // As `follow_back`, without leaving the body and without slices.
        loop {
            let Some(left) = budget.checked_sub(1) else {
                return false;
            };
            *budget = left;
            let instruction = self.instruction(at.site);
            let operand = match instruction.opcode() {
                "parameter" if at.callers.len() == callers.len() => {
                    return at.element.last() == Some(&index);
                }
                "parameter" => {
                    let number = usize::try_from(instruction.parameter).unwrap_or(usize::MAX);
                    let Some(inner) = at.callers.last().copied() else {
                        return false;
                    };
                    let is_loop = self.instruction(inner).opcode() == "while";
                    if is_loop || self.leave(&mut at, inner, number).is_none() {
                        return false;
                    }
                    continue;
                }
                "get-tuple-element" => {
                    at.element
                        .push(usize::try_from(instruction.tuple_index).unwrap_or(usize::MAX));
                    Some(0)
                }
                "tuple" => at.element.pop(),
                "while" => {
                    at.callers.push(at.site);
                    let element = at.element.last().copied();
                    let is_same =
                        element.is_some_and(|i| self.is_invariant(&at.callers, i, budget));
                    at.callers.pop();
                    is_same.then_some(0)
                }
                "copy" | "bitcast" | "optimization-barrier" => Some(0),
                opcode if is_call(opcode) => match self.enter_root(&mut at) {
                    Some(()) => continue,
                    None => None,
                },
                _ => None,
            };
            match operand.and_then(|operand| instruction.operands().get(operand)) {
                Some(&next) => at.site.instruction = next,
                None => return false,
            }
        }
    }

    /// Shows every use of a value to `follow`, and then the uses of those users for which it says so.
    pub(super) fn uses(&self, from: Value, follow: &mut dyn FnMut(Use) -> bool) {
        let mut seen: HashSet<Value> = HashSet::from([from.clone()]);
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            if seen.len() > BUDGET {
                follow(Use::Elsewhere);
                return;
            }
            for next in self.next(&at, follow) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }

    fn next(&self, at: &Value, follow: &mut dyn FnMut(Use) -> bool) -> Vec<Value> {
        let mut next = vec![];
        let users = self.users_in(at.site.computation);
        for &(user, position) in &users[at.site.instruction] {
            let site = Site {
                instruction: user,
                ..at.site
            };
            let instruction = self.instruction(site);
            let mut value = Value { site, ..at.clone() };
            match instruction.opcode() {
                "get-tuple-element" => {
                    let index = usize::try_from(instruction.tuple_index).ok();
                    if value.element.is_empty() || value.element.pop() == index {
                        next.push(value);
                    }
                }
                "tuple" => {
                    value.element.push(position);
                    next.push(value);
                }
                "async-done" | "async-update" => next.push(value),
                opcode if is_call(opcode) => match self.parameter(instruction, position) {
                    Some(inner) => {
                        value.callers.push(site);
                        value.site = inner;
                        next.push(value);
                    }
                    None => {
                        follow(Use::Elsewhere);
                    }
                },
                opcode => {
                    let by = Use::By {
                        user: &value,
                        position,
                        opcode,
                    };
                    if follow(by) {
                        next.push(value);
                    }
                }
            }
        }
        if self.computation(at.site).root() == at.site.instruction {
            next.extend(self.beyond_root(at, follow));
        }
        next
    }

    /// The value in the caller that a computation's result is.
    fn beyond_root(&self, at: &Value, follow: &mut dyn FnMut(Use) -> bool) -> Option<Value> {
        let Some(&site) = at.callers.last() else {
            follow(Use::Elsewhere);
            return None;
        };
        let mut value = at.clone();
        value.callers.pop();
        value.site = site;
        match self.instruction(site).opcode() {
            "while" => {
                let index = *at.element.last()?;
                let callers = at.callers.len();
                follow(Use::Carried { callers, index }).then_some(value)
            }
            "conditional" => Some(value),
            opcode if is_call(opcode) => Some(value),
            _ => {
                follow(Use::Elsewhere);
                None
            }
        }
    }

    /// The parameter of the computation that is called.
    fn parameter(&self, call: &Instruction, number: usize) -> Option<Site> {
        let computation = *call.called().first()?;
        let instructions = self.module.computations()[computation].instructions();
        let is_it = |i: &Instruction| i.opcode() == "parameter" && i.parameter == number as i64;
        let instruction = instructions.iter().position(is_it)?;
        Some(Site {
            computation,
            instruction,
        })
    }

    fn users_in(&self, computation: usize) -> Rc<Users> {
        let mut known = self.users.borrow_mut();
        let users = known.entry(computation).or_insert_with(|| {
            let instructions = self.module.computations()[computation].instructions();
            let mut users: Users = vec![vec![]; instructions.len()];
            for (user, instruction) in instructions.iter().enumerate() {
                for (position, &operand) in instruction.operands().iter().enumerate() {
                    users[operand].push((user, position));
                }
            }
            Rc::new(users)
        });
        users.clone()
    }

    /// The shapes of what a value is a part of, or the same data as, nearest first.
    pub(super) fn shapes_before(&self, value: &Value) -> Vec<Vec<u64>> {
        let mut shapes: Vec<Vec<u64>> = vec![];
        let mut at = value.clone();
        for _ in 0..CHAIN {
            let instruction = self.instruction(at.site);
            let operand = match instruction.opcode() {
                "parameter" => {
                    let number = usize::try_from(instruction.parameter).unwrap_or(usize::MAX);
                    let inner = at.callers.last().copied();
                    let Some(call) = inner.filter(|&c| is_call(self.instruction(c).opcode()))
                    else {
                        break;
                    };
                    match self.leave(&mut at, call, number) {
                        Some(()) => None,
                        None => break,
                    }
                }
                opcode if is_call(opcode) => match self.enter_root(&mut at) {
                    Some(()) => None,
                    None => break,
                },
                opcode if is_transparent(opcode) || is_slice(opcode) => {
                    instruction.operands().first().copied()
                }
                _ => break,
            };
            if let Some(operand) = operand {
                at.site.instruction = operand;
            }
            if let [array] = self.instruction(at.site).shape().arrays()[..] {
                shapes.push(array.dims.clone());
            }
        }
        shapes
    }

    /// The shapes of what a value becomes a part of, or is the same data as, nearest first.
    pub(super) fn shapes_after(&self, value: Value) -> Vec<Vec<u64>> {
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

    /// The name of the first operation that computes something of a value, if one has a name.
    pub(super) fn reader(&self, value: Value) -> String {
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
    pub(super) fn is_only_split_again(&self, value: Value) -> bool {
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
                Use::By { .. } | Use::Carried { .. } | Use::Elsewhere => others += 1,
            }
            false
        });
        parts > 0 && others == 0
    }

    /// The loop, as a number of callers, in which a value is added to what an iteration hands to the
    /// next and which nothing else reads: a sum that could be reduced once after the loop.
    pub(super) fn accumulated_in(&self, value: Value) -> Option<usize> {
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
            Use::Elsewhere => false,
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
            Use::Elsewhere => false,
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

#[cfg(test)]
mod tests;
