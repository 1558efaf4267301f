//! The child's side: reads a request, compiles, writes an answer.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use prost::Message;

use super::Compiled;
use super::before_main::{WORKER_VARIABLE, exit_now};
use super::protocol::{ANSWER, Answer, Outcome, REQUEST, Request, told};
use crate::client::ClientOption;
use crate::error::{Error, Result};
use crate::plugin::Plugin;
use crate::topology::Topology;

/// Does what a process was started for as a worker; the result is its exit code.
pub(super) fn work(value: &OsStr) -> i32 {
    match serve(value) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("shardax: {reason}");
            1
        }
    }
}

fn serve(value: &OsStr) -> Result<(), String> {
    let folder = value.as_bytes().splitn(2, |&byte| byte == b':').nth(1);
    let folder = Path::new(OsStr::from_bytes(folder.unwrap_or_default()));
    if value != told(std::os::unix::process::parent_id(), folder) {
        return Err(format!(
            "{WORKER_VARIABLE} is set, by which a program tells another process of its own to compile; unset it"
        ));
    }
    end_with_the_parent(folder)?;
    let saying = |doing: &str, error: &dyn std::fmt::Display| {
        format!("cannot {doing} in {}: {error}", folder.display())
    };
    let request = fs::read(folder.join(REQUEST)).map_err(|e| saying("read the request", &e))?;
    let request = Request::decode(&*request).map_err(|e| saying("decode the request", &e))?;
    let outcome = match compile(&request) {
        Ok(compiled) => Outcome::Compiled(compiled.into()),
        Err(error) => Outcome::Refused(refusal(error)),
    };
    let answer = Answer {
        outcome: Some(outcome),
    };
    // Under another name first: what is there is whole.
    let unfinished = folder.join("unfinished");
    fs::write(&unfinished, answer.encode_to_vec())
        .and_then(|()| fs::rename(&unfinished, folder.join(ANSWER)))
        .map_err(|e| saying("write the answer", &e))
}

/// Ends this process when the parent is gone, and removes its folder for it: the other end of the standard input is
/// closed then.
fn end_with_the_parent(folder: &Path) -> Result<(), String> {
    let folder = folder.to_owned();
    std::thread::Builder::new()
        .spawn(move || {
            let mut nothing = [0];
            while let Ok(1..) = io::stdin().read(&mut nothing) {}
            // Nobody is there to be told if it cannot be removed.
            let _ = fs::remove_dir_all(folder);
            exit_now(1);
        })
        .map_err(|error| format!("no thread can be started: {error}"))?;
    Ok(())
}

fn compile(request: &Request) -> Result<Compiled> {
    let plugin = Plugin::load(&request.plugin)?;
    let text = |text: &str| ClientOption::String(text.to_owned());
    let options = [
        ("target_config".to_owned(), text(&request.target)),
        ("topology".to_owned(), text(&request.topology)),
    ];
    let topology = Topology::new(&plugin, "", &options)?;
    let begin = Instant::now();
    let mut outcome = Err(Error::CompileOptions {
        faults: vec!["there are none".to_owned()],
    });
    for options in &request.options {
        outcome = topology.compile(request.module.as_bytes(), options);
        if outcome.is_ok() {
            break;
        }
    }
    let executable = outcome?;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Compiled {
        hlo: executable.optimized_program()?.code,
        memory: executable.memory_stats()?,
        seconds,
    })
}

/// XLA's own words, without the name of the C function that brought them, and no longer than a page: it lists every folder
/// that it has looked at for a tool.
fn refusal(error: Error) -> String {
    const LENGTH: usize = 3000;
    let text = match error {
        Error::Pjrt(error) => format!("{}: {}", error.code, error.message.trim_end()),
        error => error.to_string(),
    };
    // XLA takes the line for one of Python.
    let text = text.replace("Suspected Python Code Location:", "where:");
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
