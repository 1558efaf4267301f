//! Forward: what becomes of a value.

use std::collections::HashSet;
use std::rc::Rc;

use super::{BUDGET, Flow, Site, Value, is_call};
use crate::module::Instruction;

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
    /// The program's caller, as this result.
    Returned(usize),
    /// A use that is not followed.
    Elsewhere,
}

/// By instruction, its users and at which position they have it.
pub(super) type Users = Vec<Vec<(usize, usize)>>;

impl Flow<'_> {
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
            follow(Use::Returned(at.element.last().copied().unwrap_or(0)));
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
    pub(super) fn parameter(&self, call: &Instruction, number: usize) -> Option<Site> {
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
}
