//! The loop of a run.

use std::collections::VecDeque;

/// How many steps are launched before the first of them has to be finished. Enough that the devices
/// always have the next step at hand, and few enough that what is shown is what happens.
const AHEAD: usize = 4;

/// Launches `steps` steps one after another without waiting for their results.
///
/// `launch(step, state)` starts a step, which gives up the state and returns the next one and a result
/// that need not be there yet, such as an array with the loss. `finish` is called with the results
/// in order, each after the launch of some steps behind it: there it may be waited for.
///
/// # Errors
///
/// The first error that either of them returns; nothing is launched after it.
///
/// ```
/// use shardax_run::run_ahead;
///
/// let mut losses = Vec::new();
/// let weight = run_ahead(
///     3,
///     8.0,
///     |_step, weight: f64| Ok::<_, String>((weight / 2.0, weight)),
///     |loss| Ok(losses.push(loss)),
/// )?;
/// assert_eq!((weight, losses), (1.0, vec![8.0, 4.0, 2.0]));
/// # Ok::<(), String>(())
/// ```
pub fn run_ahead<S, R, E>(
    steps: usize,
    mut state: S,
    mut launch: impl FnMut(usize, S) -> Result<(S, R), E>,
    mut finish: impl FnMut(R) -> Result<(), E>,
) -> Result<S, E> {
    let mut launched = VecDeque::with_capacity(AHEAD + 1);
    for step in 0..steps {
        let result;
        (state, result) = launch(step, state)?;
        launched.push_back(result);
        if launched.len() > AHEAD {
            launched.pop_front().map_or(Ok(()), &mut finish)?;
        }
    }
    launched.into_iter().try_for_each(finish)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn results_are_read_some_steps_late_and_in_order() {
        let events = RefCell::new(Vec::new());
        let state = run_ahead(
            6,
            0,
            |step, state| {
                events.borrow_mut().push(format!("launch {step}"));
                Ok::<_, ()>((state + 1, step))
            },
            |step| {
                events.borrow_mut().push(format!("finish {step}"));
                Ok(())
            },
        );
        assert_eq!(state, Ok(6));
        let expected = [
            "launch 0", "launch 1", "launch 2", "launch 3", "launch 4", "finish 0", "launch 5",
            "finish 1", "finish 2", "finish 3", "finish 4", "finish 5",
        ];
        assert_eq!(events.into_inner(), expected);
    }

    #[test]
    fn nothing_is_launched_after_an_error() {
        let mut launches = 0;
        let result = run_ahead(
            100,
            (),
            |_, ()| {
                launches += 1;
                Ok(((), ()))
            },
            |()| Err("diverged"),
        );
        assert_eq!((result, launches), (Err("diverged"), AHEAD + 1));
    }
}
