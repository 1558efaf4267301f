//! What Shardax tells by itself of a program that it compiled.
//!
//! Warnings and remarks are of no use to somebody who does not know that they can be asked for. So each compiled
//! program tells its own once, in a few lines, to standard error or to whoever has asked for them.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

use shardax_hlo::human_bytes;
use shardax_sharding::Layout;

use crate::error::{Error, Result};
use crate::report::{Report, Warning, WarningKind};

/// How many lines are printed of one program.
const LINES: usize = 6;

/// Of how many programs it is remembered what was told.
const REMEMBERED: usize = 4096;

/// What is worth telling of one compiled program: what is probably not meant, and what is good to know.
///
/// Printed, it is a few lines, equal kinds of warnings grouped; all of it is in the fields, and in
/// [`Program::report`](crate::Program::report).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Advice {
    /// The name of the program.
    pub program: String,
    /// The layout that it was compiled for.
    pub layout: Layout,
    /// The warnings of its report; none on one device.
    pub warnings: Vec<Warning>,
    /// As [`Program::remarks`](crate::Program::remarks).
    pub remarks: Vec<String>,
}

impl Advice {
    /// A line or a few for each kind of warning, those about most bytes first.
    fn grouped(&self) -> Vec<String> {
        let mut kinds: BTreeMap<WarningKind, Vec<&Warning>> = BTreeMap::new();
        for warning in &self.warnings {
            kinds.entry(warning.kind).or_default().push(warning);
        }
        let mut groups: Vec<(u64, String)> = Vec::new();
        for mut of_kind in kinds.into_values() {
            of_kind.sort_by_key(|warning| std::cmp::Reverse(warning.bytes));
            let bytes = of_kind.iter().map(|warning| warning.bytes);
            let bytes = bytes.fold(0, u64::saturating_add);
            let mut text = format!("warning: {}", of_kind[0]);
            if of_kind.len() > 1 {
                let (others, all) = (of_kind.len() - 1, human_bytes(bytes));
                text += &format!("\n    and {others} more of this kind, {all} in all");
            }
            groups.push((bytes, text));
        }
        groups.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        groups.into_iter().map(|(_, text)| text).collect()
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.grouped();
        parts.extend(self.remarks.iter().map(|remark| format!("note: {remark}")));
        write!(f, "`{}` on mesh {}", self.program, self.layout.mesh())?;
        for part in parts.iter().take(LINES) {
            write!(f, "\n  {part}")?;
        }
        match parts.len().saturating_sub(LINES) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more: `report()` of the program has all"),
        }
    }
}

type Hook = Arc<dyn Fn(&Advice) + Send + Sync>;

static HOOK: LazyLock<RwLock<Option<Hook>>> = LazyLock::new(|| {
    let is_off = std::env::var("SHARDAX_ADVICE").is_ok_and(|value| value == "off");
    let hook: Hook = Arc::new(to_standard_error);
    RwLock::new((!is_off).then_some(hook))
});

/// Calls `hook` with what there is to tell of every program that is compiled from now on, once a program and from the thread
/// that compiles it. Programs of which there is nothing to tell are silent.
///
/// Without a hook it goes to standard error, or nowhere with `SHARDAX_ADVICE=off` in the environment. A program that logs has
/// a hook of one line, such as `set_advice_hook(|advice| log::warn!("{advice}"))` or the same with `tracing::warn!`.
///
/// ```no_run
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// shardax_xla::set_advice_hook(move |advice| {
///     // Nobody listens any more at the end of the program.
///     let _ = sender.send(advice.to_string());
/// });
/// # drop(receiver);
/// ```
pub fn set_advice_hook(hook: impl Fn(&Advice) + Send + Sync + 'static) {
    let mut current = HOOK.write().unwrap_or_else(PoisonError::into_inner);
    *current = Some(Arc::new(hook));
}

/// Tells nothing from now on.
pub fn silence_advice() {
    let mut current = HOOK.write().unwrap_or_else(PoisonError::into_inner);
    *current = None;
}

/// Programs that are compiled again, for other shapes, have mostly the same to tell.
fn to_standard_error(advice: &Advice) {
    static TOLD: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(Mutex::default);
    let text = advice.to_string();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() < REMEMBERED && told.insert(hasher.finish()) {
        eprintln!("shardax: {text}");
    }
}

/// A program that was compiled just now.
pub(crate) struct Compiled<'a> {
    pub(crate) name: &'a str,
    pub(crate) layout: &'a Layout,
    /// Warnings that are errors.
    pub(crate) strict: &'a [WarningKind],
    /// Whether nothing is told by itself.
    pub(crate) quiet: bool,
}

impl Compiled<'_> {
    /// Tells what there is to tell.
    ///
    /// # Errors
    ///
    /// [`Error::Strict`] with the warnings that the user has made errors.
    pub(crate) fn look_at(
        &self,
        remarks: impl FnOnce() -> Vec<String>,
        report: impl FnOnce() -> Result<Report>,
    ) -> Result<()> {
        let hook = match self.quiet {
            true => None,
            false => HOOK.read().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        if hook.is_none() && self.strict.is_empty() {
            return Ok(());
        }
        let devices = self.layout.mesh().device_count();
        let report = match (self.strict.is_empty(), devices) {
            (false, _) => Some(report()?),
            (true, 1) => None,
            // What cannot be read about is no reason not to run.
            (true, _) => report().ok(),
        };
        let faults = report
            .iter()
            .flat_map(|report| report.warnings_of(self.strict));
        let faults: Vec<Warning> = faults.cloned().collect();
        if !faults.is_empty() {
            return Err(Error::Strict {
                program: self.name.to_owned(),
                warnings: faults,
            });
        }
        if let Some(hook) = hook {
            let (warnings, remarks) = match report {
                Some(report) => (report.warnings, report.remarks),
                None => (Vec::new(), remarks()),
            };
            if !(warnings.is_empty() && remarks.is_empty()) {
                hook(&Advice {
                    program: self.name.to_owned(),
                    layout: self.layout.clone(),
                    warnings,
                    remarks,
                });
            }
        }
        Ok(())
    }
}
