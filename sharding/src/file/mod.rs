//! Layouts as TOML files.

mod read;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use crate::axes::Axes;
use crate::error::Error;
use crate::layout::{Every, Layout};
use crate::reduction::Summed;
use crate::resolve::Role;
use crate::rule::Rule;
use crate::spec::PartitionSpec;

/// What an override may be for, as it is written.
const ROLES: [(&str, Role); 4] = [
    ("parameter", Role::Parameter),
    ("parameter_at_use", Role::ParameterAtUse),
    ("gradient", Role::Gradient),
    ("state", Role::State),
];

const EVERY: [(&str, Every); 3] = [
    ("parameter", Every::Parameter),
    ("gradient", Every::Gradient),
    ("state", Every::State),
];

impl Layout {
    /// Reads a layout from TOML, the inverse of [`Layout::to_toml`].
    ///
    /// Only `mesh` must be there. These are all keys:
    ///
    /// | key | value | as |
    /// |---|---|---|
    /// | `mesh` | a table of axes, major first, and their sizes | [`Mesh::new`](crate::Mesh::new) |
    /// | `partitioner` | `"shardy"` or `"gspmd"` | [`Layout::partitioner`] |
    /// | `[shard]` | names of dimensions and axes | [`Layout::shard`] |
    /// | `[shard_where_free]` | names of dimensions and axes | [`Layout::shard_where_free`] |
    /// | `[shard_where_divides]` | names of dimensions and axes | [`Layout::shard_where_divides`] |
    /// | `[shard_parameters]` | names of dimensions and axes | [`Layout::shard_parameters`] |
    /// | `[every]` | `parameter`, `gradient`, `state`, and axes | [`Layout::shard_every_parameter`], [`Layout::shard_every_gradient`], [`Layout::shard_every_state`] |
    /// | `[priority]` | names of dimensions and whole numbers from 0 | [`Layout::priority`] |
    /// | `[[override]]` | `path`, a pattern, and `spec` | [`Layout::override_spec`] |
    /// | `[[override]]` with `role` | `parameter`, `parameter_at_use`, `gradient` or `state` | [`Layout::override_as`] |
    /// | `[constrain]` | names of values and specs | [`Layout::constrain`] |
    /// | `[reduce]` | `gradients`, `activations`, and `"own"` or `"f32"` | [`Layout::reduce_gradients_in`], [`Layout::reduce_activations_in`] |
    ///
    /// Axes are a name or a list of names, major first, as in [`Axes`]: `"data:(1)2"` is a part of an
    /// axis, and `"?"` among them leaves the dimension open for the partitioner to split further. `[]` is
    /// not split. A spec is a list with an entry for each dimension, in which `"_"` is not split either.
    /// Of several overrides that match a path, the last one holds.
    ///
    /// ```
    /// use shardax_sharding::{Layout, Mesh, ReductionType, Role};
    ///
    /// let text = r#"
    /// mesh = { data = 4, model = 2 }
    /// partitioner = "shardy"
    ///
    /// [shard]
    /// batch = "data"
    /// mlp = ["model"]
    ///
    /// [shard_where_free]
    /// seq = "model"
    ///
    /// [shard_parameters]
    /// embed = "data:(1)2"
    ///
    /// [every]
    /// state = "data"
    ///
    /// [priority]
    /// mlp = 1
    ///
    /// [[override]]
    /// path = "blocks.*.wqkv"
    /// role = "state"
    /// spec = ["_", ["data", "model"]]
    ///
    /// [constrain]
    /// scores = ["data", "?"]
    ///
    /// [reduce]
    /// gradients = "own"
    /// "#;
    /// let mesh = Mesh::new([("data", 4), ("model", 2)])?;
    /// let layout = Layout::new(mesh)
    ///     .shard("batch", "data")
    ///     .shard("mlp", "model")
    ///     .shard_where_free("seq", "model")
    ///     .shard_parameters("embed", "data:(1)2")
    ///     .shard_every_state("data")
    ///     .priority("mlp", 1)
    ///     .override_as("blocks.*.wqkv", Role::State, ((), ("data", "model")))
    ///     .constrain("scores", ("data", "?"))
    ///     .reduce_gradients_in(ReductionType::Own);
    /// assert_eq!(Layout::from_toml(text)?, layout);
    /// assert_eq!(Layout::from_toml(&layout.to_toml())?, layout);
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::File`] with everything that is wrong, each with its line and key.
    pub fn from_toml(text: &str) -> Result<Layout, Error> {
        let layout = read::layout(text)?;
        layout.validate().map(|()| layout)
    }

    /// The layout as TOML, which [`Layout::from_toml`] reads.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        let axes = self.mesh().axes().iter();
        let axes = axes.map(|axis| format!("{} = {}", key(axis.name()), axis.size()));
        let axes: Vec<String> = axes.collect();
        // Writing to a string does not fail.
        let _ = match axes.is_empty() {
            true => writeln!(out, "mesh = {{}}"),
            false => writeln!(out, "mesh = {{ {} }}", axes.join(", ")),
        };
        let partitioner = self.chosen_partitioner().to_string();
        let _ = writeln!(out, "partitioner = {}", quoted(&partitioner));

        let entries = |axes: &Axes| list_of(&strings(axes));
        // In the order in which they will be read: names of the first table come first.
        let mut rules: Vec<&Rule> = self.rules().iter().collect();
        rules.sort_by_key(|rule| {
            (
                rule.axes.is_none(),
                rule.free.is_none(),
                rule.dividing.is_none(),
            )
        });
        let plain = rules.iter();
        let plain =
            plain.filter_map(|rule| Some((rule.name.clone(), entries(rule.axes.as_ref()?))));
        table(&mut out, "shard", plain);
        let free = rules.iter();
        let free = free.filter_map(|rule| Some((rule.name.clone(), entries(rule.free.as_ref()?))));
        table(&mut out, "shard_where_free", free);
        let dividing = rules.iter();
        let dividing =
            dividing.filter_map(|rule| Some((rule.name.clone(), entries(rule.dividing.as_ref()?))));
        table(&mut out, "shard_where_divides", dividing);
        let stored = self.storage_rules().iter();
        let stored =
            stored.filter_map(|rule| Some((rule.name.clone(), entries(rule.axes.as_ref()?))));
        table(&mut out, "shard_parameters", stored);
        let every = EVERY.into_iter().zip(self.every());
        let every = every.filter(|(_, (_, axes))| !axes.is_empty());
        let every = every.map(|((name, _), (_, axes))| (name.to_owned(), entries(axes)));
        table(&mut out, "every", every);
        let priorities = rules.iter();
        let priorities =
            priorities.filter_map(|rule| Some((rule.name.clone(), rule.priority?.to_string())));
        table(&mut out, "priority", priorities);
        for one in self.overrides() {
            let _ = write!(out, "\n[[override]]\npath = {}\n", quoted(&one.path));
            let role = one.role.map(role_name);
            if let Some(role) = role {
                let _ = writeln!(out, "role = {}", quoted(role));
            }
            let _ = writeln!(out, "spec = {}", spec_of(&one.spec));
        }
        let constrained = self.constrained().iter();
        let constrained = constrained.map(|one| (one.name.clone(), spec_of(&one.spec)));
        table(&mut out, "constrain", constrained);
        let reduced = Summed::ALL.into_iter();
        let reduced = reduced.filter_map(|of| Some((of, self.reductions().said(of)?)));
        let reduced = reduced.map(|(of, ty)| (of.name().to_owned(), quoted(&ty.to_string())));
        table(&mut out, "reduce", reduced);
        out
    }
}

/// The name of a role in a file. An activation has none there, and no valid layout an override for it.
fn role_name(role: Role) -> &'static str {
    let known = ROLES.iter().find(|(_, known)| *known == role);
    known.map_or("activation", |(name, _)| name)
}

/// A table, if there is anything in it.
fn table(out: &mut String, name: &str, entries: impl Iterator<Item = (String, String)>) {
    let mut entries = entries.peekable();
    if entries.peek().is_none() {
        return;
    }
    // Writing to a string does not fail.
    let _ = writeln!(out, "\n[{name}]");
    for (name, value) in entries {
        let _ = writeln!(out, "{} = {value}", key(&name));
    }
}

/// A key, in quotes where it has to be.
fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !name.is_empty() && name.chars().all(is_bare) {
        true => name.to_owned(),
        false => quoted(name),
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The names of axes as they are given to make the axes, each in quotes.
fn strings(axes: &Axes) -> Vec<String> {
    let open = axes.is_open().then(|| quoted("?"));
    axes.names()
        .iter()
        .map(|name| quoted(name))
        .chain(open)
        .collect()
}

/// One name as it is, others as a list.
fn list_of(names: &[String]) -> String {
    match names {
        [name] => name.clone(),
        names => format!("[{}]", names.join(", ")),
    }
}

fn spec_of(spec: &PartitionSpec) -> String {
    let entry = |axes: &Axes| match strings(axes).as_slice() {
        [] => quoted("_"),
        names => list_of(names),
    };
    let entries: Vec<String> = spec.entries().iter().map(entry).collect();
    format!("[{}]", entries.join(", "))
}
