//! The closures that programs call, and how the devices of a program share one call.
//!
//! A program that is split over devices makes a call on each of them, with the same operands. The closure runs on the first
//! device that comes; the others wait and get a copy. So an effect happens once, every device goes on with the same
//! values, and an error stops all of them at the same place. A launch is known by its run id, which is one number for all
//! of its devices.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::thread;

use super::array::HostArray;
use crate::error::HostFault;
use crate::event;
use crate::window::Completion;

/// A closure that a program can call: it gets the operands, and returns the results or a message.
pub type HostFunction = Arc<dyn Fn(&[HostArray]) -> Result<Vec<HostArray>, String> + Send + Sync>;

/// One place in a program where a closure is called.
#[derive(Clone)]
pub struct HostCall {
    /// The closure. It runs on a thread of the plugin's, on several at once if it is called in several places or launches.
    /// It must not launch programs or wait for arrays: it would take the thread that they need.
    pub function: HostFunction,
    /// What the closure is called in messages.
    pub name: String,
    /// The line of the call, for messages.
    pub line: String,
    /// On how many devices the program makes the call together; 1 where each device calls for itself.
    pub devices: usize,
    /// Whether the call has a last operand and a last result of one type, which the closure does not see: the result is the
    /// operand, and so calls can be put in an order. The n-th call on one device is the n-th on another then. Calls without
    /// order belong together if their operands are equal.
    pub ordered: bool,
}

impl fmt::Debug for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCall")
            .field("name", &self.name)
            .field("line", &self.line)
            .field("devices", &self.devices)
            .field("ordered", &self.ordered)
            .finish_non_exhaustive()
    }
}

/// The closures that one program calls. They live as long as the program and its launches.
#[derive(Debug, Default)]
pub struct HostCalls {
    ids: Vec<i64>,
    /// Whether a call among them is for its effect.
    ordered: bool,
}

impl HostCalls {
    /// No closures.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a closure, and returns the number for the attribute `id` of its call.
    pub fn add(&mut self, call: HostCall) -> i64 {
        let mut sites = SITES.write().unwrap_or_else(PoisonError::into_inner);
        let id = sites.next;
        sites.next += 1;
        self.ordered |= call.ordered;
        let site = Site {
            call,
            runs: Mutex::default(),
        };
        sites.known.insert(id, Arc::new(site));
        self.ids.push(id);
        id
    }

    /// Name and line of each, as `print` at src/main.rs:12:5.
    pub fn described(&self) -> Vec<String> {
        let sites = SITES.read().unwrap_or_else(PoisonError::into_inner);
        let known = self.ids.iter().filter_map(|id| sites.known.get(id));
        known
            .map(|site| format!("`{}` at {}", site.call.name, site.call.line))
            .collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

impl Drop for HostCalls {
    fn drop(&mut self) {
        let mut sites = SITES.write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = self.ids.iter().map(|id| sites.known.remove(id)).collect();
        // A closure may do anything when it is dropped, also add or remove others.
        drop(sites);
        drop(gone);
    }
}

/// The closures of a program that is loaded.
#[derive(Debug)]
pub(crate) struct Running {
    calls: Arc<HostCalls>,
    launches: Mutex<Vec<Weak<Completion>>>,
}

impl Running {
    pub(crate) fn new(calls: Arc<HostCalls>) -> Self {
        Running {
            calls,
            launches: Mutex::default(),
        }
    }

    /// The place among launches with effects, which happen one after the other: waits for the one before. `None` for a
    /// program without.
    pub(crate) fn turn(&self) -> Option<Turn> {
        if !self.calls.ordered {
            return None;
        }
        let last = lock(&LAST_WITH_EFFECTS);
        if let Some(launch) = last.upgrade() {
            // The error of a launch is told by its results.
            let _ = launch.wait();
        }
        Some(last)
    }

    /// Tells of a launch, which may call the closures until it is complete.
    pub(crate) fn launched(&self, completion: &Arc<Completion>, turn: Option<Turn>) {
        let mut launches = lock(&self.launches);
        launches.retain(|launch| under_way(launch).is_some());
        launches.push(Arc::downgrade(completion));
        if let Some(mut last) = turn {
            *last = Arc::downgrade(completion);
        }
    }
}

/// Held while a program with effects is launched.
pub(crate) type Turn = MutexGuard<'static, Weak<Completion>>;

/// The last launch with effects, of any client.
static LAST_WITH_EFFECTS: Mutex<Weak<Completion>> = Mutex::new(Weak::new());

/// A completion is dropped only after it was waited for.
fn under_way(launch: &Weak<Completion>) -> Option<Arc<Completion>> {
    let completion = launch.upgrade()?;
    (!completion.is_ready().unwrap_or(false)).then_some(completion)
}

impl Drop for Running {
    fn drop(&mut self) {
        let launches: Vec<_> = lock(&self.launches).iter().filter_map(under_way).collect();
        if launches.is_empty() {
            return;
        }
        let calls = self.calls.clone();
        let end = move || {
            for launch in launches {
                // The error of a launch is told by its results.
                let _ = launch.wait();
            }
            drop(calls);
        };
        // Should no thread be had, the closures of launches under way are gone, and calls of them are errors.
        let _ = thread::Builder::new()
            .name("host-calls-end".into())
            .spawn(end);
    }
}

/// All closures of the process, by number.
#[derive(Default)]
struct Sites {
    next: i64,
    known: HashMap<i64, Arc<Site>>,
}

static SITES: LazyLock<RwLock<Sites>> = LazyLock::new(RwLock::default);

/// One place in a program, and the launches that are there.
pub(super) struct Site {
    call: HostCall,
    runs: Mutex<VecDeque<Run>>,
}

/// The calls of one launch that not all devices have made.
struct Run {
    id: i64,
    rounds: Vec<Round>,
}

/// One call, which each device makes.
struct Round {
    operands: Arc<[HostArray]>,
    /// The devices that have made it.
    devices: Vec<i32>,
    outcome: Arc<OnceLock<Outcome>>,
}

/// What a closure returned, for all devices.
pub(super) type Outcome = Result<Arc<[HostArray]>, Arc<str>>;

/// More launches than can be under way at once: what is older was given up by a device that failed elsewhere.
const MAX_RUNS: usize = 64;

impl Site {
    /// The place with this number.
    pub(super) fn of(id: i64) -> Option<Arc<Site>> {
        let sites = SITES.read().unwrap_or_else(PoisonError::into_inner);
        sites.known.get(&id).cloned()
    }

    /// What went wrong with a call.
    pub(super) fn fault(&self, message: String) -> HostFault {
        HostFault {
            name: self.call.name.clone(),
            line: self.call.line.clone(),
            message,
        }
    }

    /// Whether the last operand and result are for the order.
    pub(super) fn is_ordered(&self) -> bool {
        self.call.ordered
    }

    /// Whether devices make the call together.
    pub(super) fn is_shared(&self) -> bool {
        self.call.devices > 1
    }

    /// Runs the closure.
    pub(super) fn run(&self, operands: &[HostArray]) -> Outcome {
        let call = || (self.call.function)(operands);
        match event::callback(|| catch_unwind(AssertUnwindSafe(call))) {
            Ok(Ok(results)) => Ok(results.into()),
            Ok(Err(message)) => Err(message.into()),
            Err(panic) => Err(format!("it panicked: {}", panic_message(&*panic)).into()),
        }
    }

    /// Runs the closure, or waits for what it returned to another device of the same launch.
    pub(super) fn run_shared(&self, run: i64, device: i32, operands: Vec<HostArray>) -> Outcome {
        let (operands, outcome) = self.join(run, device, operands);
        outcome.get_or_init(|| self.run(&operands)).clone()
    }

    /// The call that a device makes: the first of its launch that it has not made.
    fn join(
        &self,
        run: i64,
        device: i32,
        operands: Vec<HostArray>,
    ) -> (Arc<[HostArray]>, Arc<OnceLock<Outcome>>) {
        let mut runs = lock(&self.runs);
        let position = match runs.iter().position(|known| known.id == run) {
            Some(position) => position,
            None => {
                if runs.len() == MAX_RUNS {
                    runs.pop_front();
                }
                runs.push_back(Run {
                    id: run,
                    rounds: Vec::new(),
                });
                runs.len() - 1
            }
        };
        let rounds = &mut runs[position].rounds;
        let fits = |round: &Round| {
            !round.devices.contains(&device) && (self.call.ordered || *round.operands == *operands)
        };
        let index = match rounds.iter().position(fits) {
            Some(index) => index,
            None => {
                rounds.push(Round {
                    operands: operands.into(),
                    devices: Vec::with_capacity(self.call.devices),
                    outcome: Arc::default(),
                });
                rounds.len() - 1
            }
        };
        let round = &mut rounds[index];
        round.devices.push(device);
        let joined = (round.operands.clone(), round.outcome.clone());
        if round.devices.len() == self.call.devices {
            rounds.remove(index);
            if rounds.is_empty() {
                runs.remove(position);
            }
        }
        joined
    }
}

/// The text of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

/// What is locked is whole at every moment, so a panic of another thread does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::element::{ArrayType, ElementType};

    fn numbers(value: f32) -> Vec<HostArray> {
        let ty = ArrayType::new(ElementType::F32, [1]);
        HostArray::new(ty, value.to_le_bytes().to_vec())
            .into_iter()
            .collect()
    }

    /// A place whose closure counts its calls, and returns the count.
    fn counting(devices: usize, ordered: bool) -> (Site, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let function: HostFunction = Arc::new(move |_: &[HostArray]| {
            Ok(numbers(counted.fetch_add(1, Ordering::SeqCst) as f32))
        });
        let call = HostCall {
            function,
            name: "count".into(),
            line: "model.rs:1".into(),
            devices,
            ordered,
        };
        let site = Site {
            call,
            runs: Mutex::default(),
        };
        (site, count)
    }

    #[test]
    fn devices_of_one_launch_share_each_call_in_turn() {
        let (site, count) = counting(2, true);
        let call = |run, device| site.run_shared(run, device, numbers(0.0)).unwrap();
        // Device 0 is two calls ahead, and another launch is between.
        let ahead = [call(7, 0), call(7, 0), call(8, 0)];
        let behind = [call(7, 1), call(7, 1), call(8, 1)];
        assert_eq!(ahead, behind);
        assert_eq!(count.load(Ordering::SeqCst), 3);
        assert!(lock(&site.runs).is_empty());
    }

    #[test]
    fn calls_without_order_belong_together_by_their_operands() {
        let (site, count) = counting(2, false);
        let call = |device, value| site.run_shared(7, device, numbers(value)).unwrap();
        let (a, b) = (call(0, 1.0), call(0, 2.0));
        assert_eq!(call(1, 2.0), b);
        assert_eq!(call(1, 1.0), a);
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn launches_that_were_given_up_are_forgotten() {
        let (site, _) = counting(2, true);
        for run in 0..1000 {
            site.run_shared(run, 0, numbers(0.0)).unwrap();
        }
        assert_eq!(lock(&site.runs).len(), MAX_RUNS);
    }

    #[test]
    fn devices_wait_for_the_one_that_runs_the_closure() {
        let (site, count) = counting(8, true);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|device| {
                    scope.spawn({
                        let site = &site;
                        move || site.run_shared(1, device, numbers(0.0))
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]));
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
