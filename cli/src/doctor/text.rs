//! The findings of the doctor for a reader: sections of aligned lines, and what is wrong at the end.

use std::fmt::Write;

use shardax::xla::report::human_bytes;

use super::{Cache, Findings, Problem};
use crate::probe::{Device, Probe};

/// Width of the first column.
const LABEL: usize = 25;

/// The whole report.
pub(super) fn write(findings: &Findings) -> String {
    let mut page = Page::default();
    page.text.push_str(&format!(
        "Shardax {} on {}\n",
        findings.version, findings.platform
    ));
    page.section("Plugin");
    for place in &findings.plugins {
        page.line(&place.origin, &place.path.display().to_string());
        page.line("", &place.state);
    }
    match &findings.plugin {
        Some(path) => page.line("used", &path.display().to_string()),
        None => page.line("used", "none"),
    }
    if let Some(probe) = &findings.probe {
        plugin(&mut page, probe);
        page.section("Devices");
        devices(&mut page, probe);
    }
    page.section("Cache");
    cache(&mut page, &findings.cache);
    page.section("Python");
    for python in &findings.pythons {
        let version = python.version.as_deref().unwrap_or("does not run");
        let pip = python.pip.as_deref().unwrap_or("none");
        page.line(version, &format!("{} (pip: {pip})", python.path.display()));
    }
    if findings.pythons.is_empty() {
        page.line("none", "no python3 on PATH");
    }
    page.section("Environment");
    for (name, value) in &findings.variables {
        page.line(name, value);
    }
    if findings.variables.is_empty() {
        page.line("none", "no variable of Shardax or XLA is set");
    }
    page.text.push('\n');
    problems(&mut page, findings);
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn section(&mut self, title: &str) {
        self.text.push_str(&format!("\n{title}\n"));
    }

    /// A label and what it labels; further lines of the latter stand under its first.
    fn line(&mut self, label: &str, content: &str) {
        let indent = format!("\n  {:LABEL$} ", "");
        let content = content.replace('\n', &indent);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "  {label:LABEL$} {content}");
    }
}

fn plugin(page: &mut Page, probe: &Probe) {
    page.line("PJRT API", &probe.api);
    for (name, value) in &probe.attributes {
        page.line(&name.replace('_', " "), value);
    }
    page.line(
        "start",
        &format!("{:.2} s to load it and make a client", probe.start_seconds),
    );
}

/// Devices that differ by their number only share a line.
fn devices(page: &mut Page, probe: &Probe) {
    let version = &probe.platform_version;
    page.line("platform", &probe.platform);
    if *version != probe.platform {
        page.line("", version);
    }
    let alike = |a: &Device, b: &Device| a.kind == b.kind && a.memories == b.memories;
    for group in probe.devices.chunk_by(alike) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let numbers = if group.len() == 1 {
            first.id.to_string()
        } else {
            format!("{} to {}", first.id, last.id)
        };
        let memories = first.memories.join(", ");
        page.line(&numbers, &format!("{}, memories: {memories}", first.kind));
    }
    let count = probe.devices.len();
    page.line(
        "program",
        &format!(
            "a sum over {count} devices is right ({:.2} s)",
            probe.program_seconds
        ),
    );
}

fn cache(page: &mut Page, cache: &Cache) {
    match &cache.folder {
        Some(folder) => {
            let size = human_bytes(cache.bytes);
            page.line("folder", &format!("{} ({size})", folder.display()));
        }
        None => page.line("folder", "none"),
    }
    if cache.enabled {
        let size = human_bytes(cache.compiled_bytes);
        let limit = human_bytes(cache.compiled_limit);
        let entries = cache.compiled_entries;
        page.line(
            "compiled",
            &format!("{entries} programs, {size} of at most {limit}"),
        );
    } else {
        page.line("compiled", "programs are not kept");
    }
}

fn problems(page: &mut Page, findings: &Findings) {
    let describe = |page: &mut Page, problem: &Problem| {
        let kind = if problem.fatal { "problem" } else { "note" };
        page.line(kind, &problem.what);
        if !problem.mend.is_empty() {
            page.line("", &format!("-> {}", problem.mend));
        }
    };
    page.text.push_str(match &findings.probe {
        Some(_) => "Training can run.\n",
        None => "Training cannot run.\n",
    });
    // What must be mended first stands first.
    let (fatal, notes): (Vec<_>, Vec<_>) =
        findings.problems.iter().partition(|problem| problem.fatal);
    for problem in fatal.into_iter().chain(notes) {
        describe(page, problem);
    }
}
