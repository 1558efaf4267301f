//! How many collectives of a program a device may be in at once.
//!
//! XLA's CPU runtime computes whatever is ready, and devices may get to two collectives in different
//! orders: each then holds a thread in one and waits for a device that waits in the other. If no
//! thread is left, after 40 s the process is aborted. A program that was just compiled has an order among
//! its collectives beside its data; one that was serialized and loaded again has lost it, and only
//! its data orders them. (Seen with the pinned plugin: one program of many independent collectives hung
//! in four of five runs from the cache, and in none that compiled it.)

use super::kind::CollectiveKind;
use super::module::{Computation, HloModule};

impl HloModule {
    /// A bound on the number of collectives that a device is in at once, if nothing but data orders them.
    pub fn concurrent_collectives(&self) -> usize {
        let mut known = vec![None; self.computations().len()];
        self.concurrent_in(self.entry(), &mut known)
    }

    fn concurrent_in(&self, index: usize, known: &mut Vec<Option<usize>>) -> usize {
        if let Some(known) = known[index] {
            return known;
        }
        // HLO has no recursion; a malformed one ends here.
        known[index] = Some(0);
        let computation = &self.computations()[index];
        let mut telling: Vec<(usize, usize)> = Vec::new();
        for (position, instruction) in computation.instructions().iter().enumerate() {
            let own = usize::from(CollectiveKind::of_opcode(instruction.opcode()).is_some());
            let called = instruction.called().iter();
            // A loop or a branch is in one of its computations at a time.
            let inside = called.map(|&inner| self.concurrent_in(inner, known)).max();
            let all = own + inside.unwrap_or(0);
            if all > 0 {
                telling.push((position, all));
            }
        }
        let depends: Vec<Vec<bool>> = telling
            .iter()
            .map(|(first, _)| dependents(computation, *first))
            .collect();
        let beside = |i: usize| {
            let others = telling
                .iter()
                .enumerate()
                .filter(|&(j, (position, _))| !depends[i][*position] && !depends[j][telling[i].0]);
            others.map(|(_, (_, count))| count).sum::<usize>()
        };
        let most = (0..telling.len()).map(|i| telling[i].1 + beside(i)).max();
        known[index] = most;
        most.unwrap_or(0)
    }
}

/// The instructions that depend on one, itself included. Operands stand before what reads them.
fn dependents(computation: &Computation, first: usize) -> Vec<bool> {
    let mut depends = vec![false; computation.instructions().len()];
    depends[first] = true;
    for index in first + 1..depends.len() {
        let operands = computation.instructions()[index].operands();
        depends[index] = operands.iter().any(|&operand| depends[operand]);
    }
    depends
}

#[cfg(test)]
mod tests {
    use crate::HloModule;
    use crate::tests::{DDP, KINDS};

    #[test]
    fn independent_collectives_are_counted() {
        let concurrent = |bytes: &[u8]| HloModule::decode(bytes).unwrap().concurrent_collectives();
        // The gradients of layers are reduced in the loop, and others beside it.
        assert_eq!(concurrent(DDP), 2);
        // Each kind once, most of them of the same argument.
        assert!(concurrent(KINDS) > 4);
    }
}
