//! What the compiler says of mistakes: the outputs that `tests/macros/` holds it to.

/// The programs of `tests/macros/` that sections show, with what the compiler says.
const OUTPUTS: [(&str, &str); 2] = [
    (
        "tests/macros/traced.rs",
        include_str!("../macros/traced.stderr"),
    ),
    (
        "tests/macros/shard_alone.rs",
        include_str!("../macros/shard_alone.stderr"),
    ),
];

/// Title, what the message begins with, and remedy.
const MISTAKES: [(&str, &str, &str); 10] = [
    (
        "A module without its leaf",
        "evaluation panicked: field `inner`",
        "A field whose type does not mention the leaf is configuration, which holds no tensors: write `inner: Inner<L>`.",
    ),
    (
        "Configuration that cannot be compared",
        "`Config` is configuration",
        "The structure of a module, with its configuration, is cloned and compared: derive both for the field's type.",
    ),
    (
        "An array that a traced function captures",
        "`shardax::Array` is neither",
        "The function is traced once, and its program runs with what each call gives it.",
    ),
    (
        "A struct that is no module",
        "`Plain` is not a tree",
        "Derive `Module` for it, with the leaf as its parameter: `struct Plain<L = Tensor> { weight: L }`.",
    ),
    (
        "A result that is no tree of tensors",
        "`shardax::Array` is not a tree",
        "A traced function returns tensors; what is known before it is called need not go through it.",
    ),
    (
        "More arguments than twelve",
        "`{closure",
        "Put them into tuples, or into a struct that derives `Module`.",
    ),
    (
        "An annotated `let` in a function without `#[shard]`",
        "the function around this `let`",
        "The `#[shard]` above the function is the macro that reads those within it.",
    ),
    (
        "An annotated statement, as the compiler sees it",
        "custom attributes cannot be applied to statements",
        "It comes with the message above, and has the same remedy: `#[shard]` above the function, or above its `impl`.",
    ),
    (
        "An annotated argument or field that no macro reads",
        "expected non-macro attribute, found attribute macro `shard`",
        "Above the function, or its `impl` block, `#[shard]` is missing; above a struct, `#[derive(Module)]`. The compiler \
         refuses the attribute before a macro could say so.",
    ),
    (
        "An annotated expression",
        "`#[shard]` annotates function arguments, results and `let` statements",
        "Annotate a `let` of it.",
    ),
];

/// The chapter of the document.
pub(super) fn chapter() -> String {
    let mut chapter = "\n## What the compiler says\n\nThese mistakes do not compile. Their lines are those of a longer file.\n".to_owned();
    for (title, begins, remedy) in MISTAKES {
        let shown = OUTPUTS.iter().find_map(|(file, output)| {
            let blocks = output.split("\n\n");
            let message = |block: &&str| {
                let first = block.lines().next().unwrap_or_default();
                first.starts_with("error") && first.contains(&format!(": {begins}"))
            };
            let block = blocks.into_iter().find(message)?;
            Some(
                shortened(block)
                    .replace("$DIR/", "")
                    .replace(file, "src/model.rs"),
            )
        });
        let shown = shown.unwrap_or_else(|| panic!("no output has {begins:?}"));
        chapter += &format!("\n### {title}\n\n```text\n{shown}\n```\n\n{remedy}\n");
    }
    chapter
}

/// The message with the code that it is about, and its notes; without what the compiler knows of other types.
fn shortened(block: &str) -> String {
    let is_further = |line: &str| {
        line.starts_with("help:")
            || line.starts_with("note:")
            || line.trim_start().starts_with("= ")
    };
    let mut lines: Vec<&str> = block.lines().take_while(|l| !is_further(l)).collect();
    let notes = block.lines().skip(lines.len());
    // The compiler's own.
    let others = ["required", "see issue", "this error", "`#[warn"];
    let is_ours = |line: &&str| {
        let note = line.trim_start().strip_prefix("= note: ");
        note.is_some_and(|note| !others.iter().any(|other| note.starts_with(other)))
    };
    lines.extend(notes.filter(is_ours));
    if lines.last().is_some_and(|line| line.trim() == "|") {
        lines.pop();
    }
    lines.join("\n")
}
