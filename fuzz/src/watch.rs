//! A worker process and the one who watches it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::check::{Failure, Kind, Outcome};
use crate::program::Program;
use crate::worker::{Answer, Request};

/// The hidden argument that makes a process a worker.
pub const WORKER: &str = "--worker";

/// A worker, which is started again when it has ended.
pub struct Worker {
    command: Box<dyn Fn() -> Command>,
    limit: Duration,
    running: Option<Running>,
}

struct Running {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
    /// The last of what it wrote on standard error.
    said: Arc<Mutex<Vec<u8>>>,
}

impl Worker {
    /// One that is this program, and may take so long for a program.
    ///
    /// # Errors
    ///
    /// When the system does not say which program this is.
    pub fn new(limit: Duration) -> io::Result<Self> {
        let this = std::env::current_exe()?;
        let command = move || {
            let mut command = Command::new(&this);
            command.arg(WORKER).env("TF_CPP_MIN_LOG_LEVEL", "2");
            command
        };
        Ok(Self::of(command, limit))
    }

    /// One that another command starts.
    pub fn of(command: impl Fn() -> Command + 'static, limit: Duration) -> Self {
        Worker {
            command: Box::new(command),
            limit,
            running: None,
        }
    }

    /// Checks a program.
    ///
    /// # Errors
    ///
    /// When no process can be started.
    pub fn check(&mut self, program: &Program) -> io::Result<Outcome> {
        let request = Request::Check(Box::new(program.clone()));
        let answer = self.ask(&request)?;
        Ok(answer.unwrap_or_else(failed).outcome)
    }

    /// Makes the program of a seed and checks it. Where it ended the process, another one makes it
    /// again.
    ///
    /// # Errors
    ///
    /// When no process can be started.
    pub fn seed(&mut self, seed: u64, only: Option<&str>) -> io::Result<Answer> {
        match self.ask(&Request::Seed(seed, only.map(str::to_owned)))? {
            Ok(answer) => Ok(answer),
            Err(failure) => {
                let made = self.ask(&Request::Make(seed))?;
                Ok(Answer {
                    program: made.ok().and_then(|made| made.program),
                    ..failed(failure)
                })
            }
        }
    }

    fn ask(&mut self, request: &Request) -> io::Result<Result<Answer, Failure>> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start((self.command)())?,
        };
        let line = serde_json::to_string(request)?;
        // A process that has ended answers nothing.
        let _ = writeln!(running.requests, "{line}").and_then(|()| running.requests.flush());
        match running.answers.recv_timeout(self.limit) {
            Ok(line) => {
                let answer = serde_json::from_str(&line)?;
                self.running = Some(running);
                Ok(Ok(answer))
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = self.limit.as_secs();
                let said = running.end();
                Ok(Err(Failure {
                    kind: Kind::Hang,
                    message: format!("no answer within {seconds} s\n{said}"),
                }))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = running.child.wait()?;
                let said = running.end();
                Ok(Err(Failure {
                    kind: Kind::Abort,
                    message: format!("the process ended: {status}\n{said}"),
                }))
            }
        }
    }
}

fn failed(failure: Failure) -> Answer {
    Answer {
        program: None,
        outcome: Outcome {
            failure: Some(failure),
            seen: Vec::new(),
        },
    }
}

impl Running {
    fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("a pipe of the worker is missing");
        let requests = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let mut errors = child.stderr.take().ok_or_else(missing)?;
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = said.clone();
        thread::spawn(move || {
            let mut part = [0; 1024];
            while let Ok(count @ 1..) = errors.read(&mut part) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&part[..count]);
                let more = kept.len().saturating_sub(4000);
                kept.drain(..more);
            }
        });
        Ok(Running {
            child,
            requests,
            answers,
            said,
        })
    }

    /// Ends the process; what it said last.
    fn end(mut self) -> String {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}
