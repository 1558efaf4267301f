//! The parent's side: starts the own executable as a worker, waits for it, and reads its answer or how it ended.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use prost::Message;

use super::before_main::{WORKER_VARIABLE, is_registered};
use super::protocol::{ANSWER, Answer, Outcome, REQUEST, Request, told};
use super::{AheadJob, Compiled};
use crate::error::AheadFault;

/// The running program's file, also after it was replaced or removed.
const OWN_EXECUTABLE: &str = "/proc/self/exe";
/// How often the child is looked at.
const INTERVAL: Duration = Duration::from_millis(10);

/// Compiles in a child process, which is stopped after `limit`.
///
/// The child is this program's own executable, started again and ended before its `main`, so this works on Linux in every
/// program that is linked with this crate.
///
/// # Errors
/// [`AheadFault::Refused`] in XLA's own words, [`AheadFault::Ended`] when it aborts, [`AheadFault::TimeLimit`] and
/// [`AheadFault::NotStarted`].
pub fn compile(job: &AheadJob, limit: Duration) -> Result<Compiled, AheadFault> {
    if let Some(reason) = unable() {
        return Err(AheadFault::NotStarted { reason });
    }
    let failed = |doing: &str, error: io::Error| AheadFault::NotStarted {
        reason: format!("cannot {doing}: {error}"),
    };
    let unkept = |doing: &str, error: io::Error| AheadFault::NotStarted {
        reason: format!(
            "cannot {doing} in {}: {error}; set TMPDIR to a folder with some room",
            std::env::temp_dir().display()
        ),
    };
    let folder = tempfile::Builder::new()
        .prefix("shardax-worker-")
        .tempdir()
        .map_err(|error| unkept("make a folder", error))?;
    let path = folder.path();
    fs::write(path.join(REQUEST), Request::from(job).encode_to_vec())
        .map_err(|error| unkept("write the program", error))?;
    let log = path.join("log");
    let start = || -> io::Result<Child> {
        let output = File::create(&log)?;
        Command::new(OWN_EXECUTABLE)
            .arg0("shardax-worker")
            .env(WORKER_VARIABLE, told(std::process::id(), path))
            // It ends when this is closed, by whatever ends this process.
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
    };
    let mut child = start().map_err(|error| failed("start the program again", error))?;
    let status = wait(&mut child, limit).map_err(|error| failed("wait for the worker", error))?;
    let log = last_words(&fs::read(&log).unwrap_or_default());
    let Some(status) = status else {
        return Err(AheadFault::TimeLimit { limit, log });
    };
    let answer = match fs::read(path.join(ANSWER)) {
        Ok(bytes) if status.success() => Answer::decode(&*bytes).ok(),
        _ => None,
    };
    match answer.and_then(|answer| answer.outcome) {
        Some(Outcome::Compiled(compiled)) => Ok(compiled.into()),
        Some(Outcome::Refused(message)) => Err(AheadFault::Refused { message }),
        None => Err(AheadFault::Ended {
            how: how_it_ended(status),
            log,
        }),
    }
}

/// Waits until the child ends; `None` if it did not in time, and was stopped.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Why this program cannot be started as a worker, if it cannot.
fn unable() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("there is no compiler for clusters but on Linux".to_owned());
    }
    if !is_registered() {
        return Some(
            "this program runs with rights that its user does not have, or was linked without its initializers"
                .to_owned(),
        );
    }
    let code = is_registered as fn() -> bool as usize;
    let own = fs::read_link(OWN_EXECUTABLE).ok();
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let file = own.as_deref().zip(file_of(&maps, code));
    match file {
        // Without /proc there is nothing to start either.
        None => Some("/proc does not tell what this program is".to_owned()),
        Some((own, file)) if own != file => Some(format!(
            "it would be {}, and Shardax is in {}: only a program that is linked with Shardax can compile for a cluster",
            own.display(),
            file.display()
        )),
        Some(_) => None,
    }
}

/// The file that the code at an address is from, by the system's table of the process's memory.
fn file_of(maps: &[u8], address: usize) -> Option<&Path> {
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        // `55d0c0a00000-55d0c0b00000 r-xp 00001000 fe:00 131 /path/of/file`
        let mut parts = line.splitn(6, |&byte| byte == b' ');
        let (begin, end) = str::from_utf8(parts.next()?).ok()?.split_once('-')?;
        let begin = usize::from_str_radix(begin, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = parts.nth(4)?.trim_ascii_start();
        (begin..end)
            .contains(&address)
            .then(|| Path::new(OsStr::from_bytes(path)))
    })
}

fn how_it_ended(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        let code = status.code().unwrap_or_default();
        return format!("ended with exit code {code} and gave no answer");
    };
    let name = match signal {
        4 => " (SIGILL: an instruction that this CPU does not have)",
        6 => " (SIGABRT: it gave up)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL: somebody stopped it, or the memory ran out)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM: somebody stopped it)",
        _ => "",
    };
    format!("was ended by signal {signal}{name}")
}

/// What is of interest of a log: from shortly before the message of XLA's that it gives up, else the end.
fn last_words(log: &[u8]) -> String {
    const BEFORE: usize = 3;
    const LINES: usize = 10;
    const WIDTH: usize = 1000;
    let log = String::from_utf8_lossy(log);
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    // `F1129 23:34:00.000000 1234 file.cc:12] Check failed: ...`, perhaps after a path of its own.
    let fatal = |line: &&str| {
        let mut start = line.chars();
        start.next() == Some('F') && start.take(4).all(|c| c.is_ascii_digit())
    };
    let begin = match lines.iter().position(fatal) {
        Some(fatal) => fatal.saturating_sub(BEFORE),
        None => lines.len().saturating_sub(LINES),
    };
    let shown = lines[begin..].iter().take(LINES);
    shown
        .map(|line| format!("\n  {}", line.chars().take(WIDTH).collect::<String>()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_an_address() {
        let maps =
            b"1000-2000 r-xp 00000000 fe:00 12                         /usr/bin/a b (deleted)\n\
            2000-3000 rw-p 00000000 00:00 0 \n\
            3000-4000 r-xp 00000000 fe:00 13                         /usr/lib/c.so\n";
        assert_eq!(
            file_of(maps, 0x1fff),
            Some(Path::new("/usr/bin/a b (deleted)"))
        );
        assert_eq!(file_of(maps, 0x2000), Some(Path::new("")));
        assert_eq!(file_of(maps, 0x3000), Some(Path::new("/usr/lib/c.so")));
        assert_eq!(file_of(maps, 0x4000), None);
    }

    #[test]
    fn the_message_before_a_stack_is_what_counts() {
        let noise: String = (0..30).map(|i| format!("noise {i}\n")).collect();
        let fatal =
            "F1129 23:34:00.1 77 a.cc:12] Check failed: x\n*** Check failure stack trace: ***\n";
        let log = noise + fatal;
        assert_eq!(
            last_words(log.as_bytes()),
            "\n  noise 27\n  noise 28\n  noise 29\n  F1129 23:34:00.1 77 a.cc:12] Check failed: x\n  \
             *** Check failure stack trace: ***"
        );
        let many: String = (0..30).map(|i| format!("line {i}\n")).collect();
        let words = last_words(many.as_bytes());
        assert!(words.starts_with("\n  line 20\n") && words.ends_with("line 29"));
        assert_eq!(last_words(b""), "");
    }

    #[test]
    fn this_program_can_be_a_worker() {
        assert_eq!(unable(), None);
    }

    #[test]
    fn a_worker_that_takes_too_long_is_stopped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let status = wait(&mut child, Duration::from_millis(20)).unwrap();
        assert_eq!(status, None);
        assert_eq!(
            child.try_wait().unwrap().and_then(|status| status.signal()),
            Some(9)
        );
    }
}
