//! Where the values of an optimized module come from, and what becomes of them.
//!
//! A compiled program carries a parameter through loops, fusions and copies before a collective moves it.
//! To tell which argument that is, values are followed backward through whatever leaves the data what it
//! is; to tell what a collective is for, forward. Both are bounded, and where they end without an answer
//! the answer is that it is not known.

mod questions;
mod uses;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::module::{Computation, HloModule, Instruction};
use uses::Users;

/// Instructions looked at for one question.
const BUDGET: usize = 4096;

/// An instruction of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    pub(crate) computation: usize,
    pub(crate) instruction: usize,
}

/// A value: the result of an instruction, or an element of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Value {
    /// The instructions that call the computation, outermost first.
    pub(crate) callers: Vec<Site>,
    pub(crate) site: Site,
    /// Positions in nested tuples, the outermost last.
    pub(crate) element: Vec<usize>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An argument of the program, or a part of it.
    Argument(usize),
    /// What an iteration hands to the next: the element `index` of the loop that is the last of `callers`
    /// callers.
    Carried { callers: usize, index: usize },
    /// Anything else.
    Computed,
}

pub(crate) struct Flow<'a> {
    module: &'a HloModule,
    users: RefCell<HashMap<usize, Rc<Users>>>,
}

/// Whether the result holds the data of operand 0, in another order or element type at most.
pub(crate) fn is_transparent(opcode: &str) -> bool {
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

fn is_slice(opcode: &str) -> bool {
    matches!(opcode, "slice" | "dynamic-slice")
}

/// Runs another computation in its own place.
fn is_call(opcode: &str) -> bool {
    matches!(opcode, "fusion" | "call" | "async-start")
}

impl<'a> Flow<'a> {
    pub(crate) fn new(module: &'a HloModule) -> Self {
        Flow {
            module,
            users: RefCell::default(),
        }
    }

    fn computation(&self, site: Site) -> &'a Computation {
        &self.module.computations()[site.computation]
    }

    pub(crate) fn instruction(&self, site: Site) -> &'a Instruction {
        &self.computation(site).instructions()[site.instruction]
    }

    /// Where the data of a value comes from, if nothing is computed on the way.
    pub(crate) fn origin(&self, value: &Value) -> Origin {
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
}

#[cfg(test)]
mod tests;
