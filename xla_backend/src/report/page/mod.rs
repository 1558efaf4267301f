//! A [`Report`] as one page of HTML: nothing is loaded from elsewhere, pictures are inline SVG, and it is
//! well-formed XML, so that other tools can read it too.

mod placement;
mod svg;

use std::fmt::Write;

use shardax_hlo::words::{axes_text, times_text};
use shardax_hlo::{Collective, Total, human_bytes};
use shardax_sharding::Mesh;

use super::summary::{ExplainedCollective, Report, ReportedArgument};
use super::terminal::place;
use super::warning::Warning;
use svg::{Bar, bars};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2024;--soft:#5b6470;--line:#d7dbe0;--back:#ffffff;--card:#f5f7f9;\
--warn:#b45309;--warnback:#fff7ed}\
@media (prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa4b0;--line:#3a4149;--back:#16191d;\
--card:#1f242a;--warn:#fbbf24;--warnback:#2a2211}}\
body{margin:0 auto;max-width:1180px;padding:28px 20px 60px;background:var(--back);color:var(--ink);\
font:15px/1.45 system-ui,sans-serif}\
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:34px 0 10px}\
code,.mono{font-family:ui-monospace,monospace;font-size:13px}\
.soft{color:var(--soft)}\
.figures{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}\
.figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 16px}\
.figure b{display:block;font-size:20px}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;vertical-align:top;padding:5px 8px;border-bottom:1px solid var(--line)}\
th{color:var(--soft);font-weight:600;font-size:13px}\
td.k{white-space:nowrap}td.n,th.n{text-align:right;white-space:nowrap}\
.warning{background:var(--warnback);border-left:4px solid var(--warn);padding:8px 14px;margin:8px 0;\
border-radius:4px}\
.warning b{color:var(--warn)}\
.arguments{display:flex;flex-wrap:wrap;gap:12px}\
.argument{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;\
width:252px;overflow-wrap:anywhere}\
svg text{font-family:ui-monospace,monospace;fill:#1c2024}\
svg text.label{fill:var(--ink)}svg text.axis{fill:var(--soft)}";

impl Report {
    /// The report as a page of HTML that stands for itself: styles and pictures are in it, and it loads
    /// nothing. It shows the mesh, which device holds which block of each argument, every collective with
    /// its reason, what each axis carries, the memory of a device, and the warnings.
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        let title = escape(&self.module);
        page.push_str(
            "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n",
        );
        page.push_str("<meta charset=\"utf-8\"/>\n");
        page.push_str(
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n",
        );
        add(
            &mut page,
            format_args!("<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"),
        );
        add(&mut page, format_args!("<h1><code>{title}</code></h1>\n"));
        let devices = match self.devices {
            1 => "1 device".to_owned(),
            devices => format!("{devices} devices"),
        };
        let mesh = escape(&self.shape.to_string());
        add(
            &mut page,
            format_args!("<p class=\"soft\">mesh {mesh}, {devices}</p>\n"),
        );
        self.figures(&mut page);
        self.warnings_section(&mut page);
        self.remarks_section(&mut page);
        page.push_str("<h2>Mesh</h2>\n");
        page.push_str(&svg::mesh(&self.shape));
        self.traffic(&mut page);
        self.memory_section(&mut page);
        self.collectives_section(&mut page);
        self.arguments_section(&mut page);
        page.push_str("</body>\n</html>\n");
        page
    }

    fn figures(&self, page: &mut String) {
        let sent = self.by_axes.iter().map(|total| total.sum.bytes_sent);
        let times = self.by_axes.iter().map(|total| total.sum.times);
        let mut figures = vec![
            (
                human_bytes(sent.fold(0, u64::saturating_add)),
                "sent by a device in a launch",
            ),
            (
                times.fold(0, u64::saturating_add).to_string(),
                "collectives in a launch",
            ),
        ];
        if let Some(memory) = &self.memory {
            let needed = match memory.peak {
                0 => (
                    memory.argument + memory.output + memory.temp - memory.alias.min(memory.output),
                    "memory of a device at most",
                ),
                peak => (peak, "peak memory of a device"),
            };
            figures.push((human_bytes(needed.0), needed.1));
        }
        let warnings = match self.warnings.len() {
            1 => "warning",
            _ => "warnings",
        };
        figures.push((self.warnings.len().to_string(), warnings));
        page.push_str("<div class=\"figures\">\n");
        for (number, what) in figures {
            add(
                page,
                format_args!("<div class=\"figure\"><b>{number}</b>{what}</div>\n"),
            );
        }
        page.push_str("</div>\n");
    }

    fn remarks_section(&self, page: &mut String) {
        if self.remarks.is_empty() {
            return;
        }
        page.push_str("<h2>Remarks on the layout</h2>\n<ul>\n");
        for remark in &self.remarks {
            add(page, format_args!("<li>{}</li>\n", escape(remark)));
        }
        page.push_str("</ul>\n");
    }

    fn warnings_section(&self, page: &mut String) {
        if self.warnings.is_empty() {
            return;
        }
        page.push_str("<h2>Warnings</h2>\n");
        for warning in &self.warnings {
            let Warning {
                kind,
                message,
                help,
                source,
                ..
            } = warning;
            let line = source.as_ref().map_or(String::new(), |source| {
                format!("<br/><code>{}</code>", escape(&source.to_string()))
            });
            let (message, help) = (escape(message), escape(help));
            add(
                page,
                format_args!(
                    "<div class=\"warning\"><b>{kind}</b>: {message}{line}<br/><span class=\"soft\">{help}\
                 </span></div>\n"
                ),
            );
        }
    }

    /// What each axis carries.
    fn traffic(&self, page: &mut String) {
        page.push_str("<h2>Communication by axis</h2>\n");
        if self.by_axes.is_empty() {
            page.push_str("<p class=\"soft\">No device talks to another.</p>\n");
            return;
        }
        let bar = |axes: &Option<Vec<String>>| {
            let of_axes = |total: &&Total| total.axes == *axes;
            let parts = self.totals.iter().filter(of_axes);
            Bar {
                label: axes_text(axes.as_deref(), &[]),
                parts: parts
                    .map(|total| (total.kind.name(), total.bytes_sent))
                    .collect(),
            }
        };
        let all: Vec<Bar> = self.by_axes.iter().map(|total| bar(&total.axes)).collect();
        page.push_str("<p class=\"soft\">bytes that a device sends in a launch, by rings</p>\n");
        page.push_str(&bars(&all));
        page.push_str("<table><tr><th>axes</th><th>kind</th><th class=\"n\">times</th>");
        page.push_str("<th class=\"n\">bytes</th><th class=\"n\">sent</th></tr>\n");
        for total in &self.totals {
            add(
                page,
                format_args!(
                    "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">\
                 {}</td></tr>\n",
                    escape(&axes_text(total.axes.as_deref(), &[])),
                    total.kind,
                    times_text(total.times, total.times_known),
                    human_bytes(total.payload_bytes),
                    human_bytes(total.bytes_sent),
                ),
            );
        }
        page.push_str("</table>\n");
    }

    fn memory_section(&self, page: &mut String) {
        let mut bar: Vec<(&str, u64)> = self
            .argument_bytes
            .iter()
            .map(|role| (role.role.plural(), role.device_bytes))
            .collect();
        if let Some(memory) = &self.memory {
            let known: u64 = bar
                .iter()
                .map(|(_, bytes)| bytes)
                .fold(0, |a, b| a.saturating_add(*b));
            bar.push(("other arguments", memory.argument.saturating_sub(known)));
            bar.push(("new results", memory.output.saturating_sub(memory.alias)));
            bar.push(("temporary", memory.temp));
            bar.push(("code", memory.generated_code));
            bar.push(("constants", memory.constants));
        }
        bar.retain(|(_, bytes)| *bytes > 0);
        if bar.is_empty() {
            return;
        }
        page.push_str("<h2>Memory of a device</h2>\n");
        page.push_str(&bars(&[Bar {
            label: "device".to_owned(),
            parts: bar.clone(),
        }]));
        page.push_str("<table><tr><th>what</th><th class=\"n\">bytes</th></tr>\n");
        for (name, bytes) in bar {
            let bytes = human_bytes(bytes);
            add(
                page,
                format_args!("<tr><td>{name}</td><td class=\"n\">{bytes}</td></tr>\n"),
            );
        }
        page.push_str("</table>\n");
    }

    fn collectives_section(&self, page: &mut String) {
        if self.collectives.is_empty() {
            return;
        }
        page.push_str("<h2>Collectives</h2>\n<table><tr><th>kind</th><th>axes</th>");
        page.push_str("<th class=\"n\">times</th><th class=\"n\">bytes each</th>");
        page.push_str(
            "<th class=\"n\">sent in all</th><th class=\"n\">steps</th><th>why</th></tr>\n",
        );
        for ExplainedCollective { collective, why } in &self.collectives {
            let Collective {
                kind,
                times,
                times_known,
                payload_bytes,
                bytes_sent,
                ..
            } = collective;
            let mut reasons: Vec<(String, usize)> = vec![];
            for tensor in &why.tensors {
                let reason = format!(
                    "{} <span class=\"mono\">{}</span> <span class=\"mono soft\">{}</span>",
                    escape(&tensor.what()),
                    escape(&tensor.array.to_string()),
                    escape(&tensor.movement()),
                );
                match reasons.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += 1,
                    None => reasons.push((reason, 1)),
                }
            }
            let reasons: String = reasons
                .into_iter()
                .map(|(reason, count)| match count {
                    1 => format!("{reason}<br/>"),
                    several => format!("{several} times {reason}<br/>"),
                })
                .collect();
            let place = escape(&place(collective, why));
            add(
                page,
                format_args!(
                    "<tr id=\"{}\"><td class=\"k\">{kind}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{reasons}<span class=\"soft\">{place}\
                 </span></td></tr>\n",
                    escape(&collective.instruction),
                    escape(&axes_text(collective.axes.as_deref(), &collective.groups)),
                    times_text(*times, *times_known),
                    human_bytes(*payload_bytes),
                    human_bytes(bytes_sent.saturating_mul(*times)),
                    collective.ring_steps,
                ),
            );
        }
        page.push_str("</table>\n");
    }

    fn arguments_section(&self, page: &mut String) {
        if self.arguments.is_empty() {
            return;
        }
        page.push_str("<h2>Arguments</h2>\n");
        page.push_str(
            "<p class=\"soft\">each block of an array with the devices that hold it</p>\n",
        );
        page.push_str("<div class=\"arguments\">\n");
        for (argument, placed) in self.arguments.iter().zip(&self.placed) {
            let ReportedArgument {
                path,
                ty,
                sharding,
                at_use,
                device_bytes,
                role,
                ..
            } = argument;
            let path = match path.as_str() {
                "" => "the argument".to_owned(),
                path => escape(path),
            };
            let at_use = at_use.as_ref().filter(|at_use| *at_use != sharding);
            let at_use = at_use.map_or(String::new(), |at_use| {
                let layer = if argument.layers.is_some() {
                    "a layer "
                } else {
                    ""
                };
                format!(
                    "<br/>{layer}at use <code>{}</code>",
                    escape(&at_use.to_string())
                )
            });
            add(
                page,
                format_args!(
                    "<div class=\"argument\"><b class=\"mono\">{path}</b><br/>{} <code>{}</code><br/><code>{}\
                 </code>{at_use}<br/>{} on a device\n",
                    role.singular(),
                    escape(ty),
                    escape(&sharding.to_string()),
                    human_bytes(*device_bytes),
                ),
            );
            page.push_str(&placement::picture(
                &placed.spec,
                &self.shape,
                &placed.ty.shape,
            ));
            page.push_str("</div>\n");
        }
        page.push_str("</div>\n");
    }
}

/// Text as XML takes it, between tags and in attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            // XML has no other control characters.
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

fn add(page: &mut String, text: std::fmt::Arguments) {
    // Writing to a string does not fail.
    let _ = page.write_fmt(text);
}

/// Devices in words: `0-3, 8`.
fn device_ranges(devices: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = devices.iter().copied().peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while rest.peek() == Some(&(last + 1)) {
            last += 1;
            rest.next();
        }
        let comma = if text.is_empty() { "" } else { "," };
        let range = match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        };
        text += &format!("{comma}{range}");
    }
    text
}

/// A color for one of several parts: light enough for dark text.
fn color(part: usize, of: usize) -> String {
    // Neighbors are told apart by hue, and by lightness where there are very many.
    let hue = part * 360 / of.max(1);
    let lightness = if part.is_multiple_of(2) { 76 } else { 84 };
    format!("hsl({hue},62%,{lightness}%)")
}

fn size_of(mesh: &Mesh, axis: usize) -> usize {
    mesh.axes().get(axis).map_or(1, |axis| axis.size())
}

#[cfg(test)]
mod tests;
