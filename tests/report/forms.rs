//! The report as text, JSON and HTML.

use shardax::prelude::*;
use shardax::xla::report::ReportOptions;

use super::*;

/// Tags that are opened are closed, in order; returns all attributes.
fn check_well_formed(page: &str) -> Vec<String> {
    let (mut open, mut attributes) = (vec![], vec![]);
    let page = page.strip_prefix("<!DOCTYPE html>").unwrap();
    for piece in page.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap();
        assert!(!text.contains('>'), "{text}");
        for reference in text.split('&').skip(1) {
            let (name, _) = reference.split_once(';').unwrap();
            assert!(
                matches!(name, "amp" | "lt" | "gt" | "quot" | "#8595"),
                "{name}"
            );
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{piece}");
            continue;
        }
        let (inner, is_empty) = tag
            .strip_suffix('/')
            .map_or((tag, false), |inner| (inner, true));
        let (name, rest) = inner.split_once(' ').unwrap_or((inner, ""));
        assert_eq!(rest.matches('"').count() % 2, 0, "{tag}");
        attributes.extend(rest.split("\" ").map(str::to_owned));
        if !is_empty {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    attributes
}

#[test]
fn a_page_stands_for_itself_and_has_every_argument_and_collective() {
    let layouts = [
        Layout::single(),
        Layout::ddp(data8()).unwrap(),
        Layout::megatron_fsdp(grid()).unwrap(),
        Layout::fsdp(Mesh::new([("data", 2)]).unwrap()).unwrap(),
    ];
    for layout in layouts {
        let report = compiled(layout)
            .report_with(ReportOptions {
                replicated_bytes: 1,
            })
            .unwrap();
        let page = report.to_html();
        for attribute in check_well_formed(&page) {
            let (name, value) = attribute.split_once('=').unwrap_or((&attribute, ""));
            let loads = matches!(
                name,
                "src" | "href" | "xlink:href" | "srcset" | "data" | "action"
            );
            assert!(!loads, "{attribute}");
            assert!(name == "xmlns" || !value.contains("//"), "{attribute}");
        }
        for word in ["<script", "<link", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
        for argument in &report.arguments {
            assert!(
                page.contains(&format!(">{}</b>", argument.path)),
                "{}",
                argument.path
            );
        }
        for explained in &report.collectives {
            let id = format!("id=\"{}\"", explained.collective.instruction);
            assert_eq!(page.matches(&id).count(), 1, "{id}");
        }
        for warning in &report.warnings {
            assert!(page.contains(&format!("<b>{}</b>", warning.kind)));
        }
    }
}

#[test]
fn json_says_what_the_text_says() {
    let report = compiled(Layout::megatron_fsdp(grid()).unwrap())
        .report()
        .unwrap();
    let json = report.to_json();
    assert_eq!(json["version"], 1);
    assert_eq!(json["module"], "step");
    assert_eq!(json["mesh"][1]["name"], "model");
    assert_eq!(json["mesh"][1]["size"], 4);
    let collectives = json["collectives"].as_array().unwrap();
    assert_eq!(collectives.len(), report.collectives.len());
    for (json, explained) in collectives.iter().zip(&report.collectives) {
        let collective = &explained.collective;
        assert_eq!(json["kind"], collective.kind.name());
        assert_eq!(json["times"], collective.times);
        assert_eq!(json["ring_steps"], collective.ring_steps);
        let tensor = &json["why"]["tensors"][0];
        assert_eq!(tensor["path"], explained.why.tensors[0].path.as_str());
        let from = explained.why.tensors[0]
            .from
            .as_ref()
            .map(ToString::to_string);
        assert_eq!(tensor["from"].as_str(), from.as_deref());
    }
    let sent = |total: &serde_json::Value| total["bytes_sent"].as_u64().unwrap();
    let sums = ["by_axes", "by_kind", "totals"]
        .map(|of| json[of].as_array().unwrap().iter().map(sent).sum::<u64>());
    assert!(
        sums[0] > 0 && sums.iter().all(|sum| *sum == sums[0]),
        "{sums:?}"
    );
    assert_eq!(json["arguments"][0]["role"], "parameter");
    assert_eq!(json["warnings"], serde_json::json!([]));
}

#[test]
fn text_fits_a_terminal_and_reads_the_same_each_time() {
    let report = compiled(Layout::megatron_fsdp(grid()).unwrap())
        .report()
        .unwrap();
    let text = report.to_string();
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    // Without what changes with this file and with XLA's buffers.
    let stable = text.split("\nmemory of one device").next().unwrap();
    let mut lines = String::new();
    for line in stable.lines() {
        match line.split_once("main.rs:") {
            Some((before, after)) => {
                let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
                lines += &format!("{before}main.rs:_{rest}\n");
            }
            None => lines += &format!("{line}\n"),
        }
    }
    assert_eq!(lines, include_str!("report.txt"));
}
