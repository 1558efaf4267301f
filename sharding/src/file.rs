//! Layouts as TOML files.

use std::borrow::Cow;
use std::fmt::Write;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::axes::Axes;
use crate::error::{Error, FileFault};
use crate::fault::did_you_mean;
use crate::layout::{Every, Layout, Partitioner};
use crate::mesh::Mesh;
use crate::resolve::Role;
use crate::spec::PartitionSpec;

/// The keys of a file.
const KEYS: [&str; 9] = [
    "mesh",
    "partitioner",
    "shard",
    "shard_where_free",
    "shard_parameters",
    "every",
    "priority",
    "override",
    "constrain",
];

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
    /// Only `mesh` must be there. Axes are a name or a list of names, as in [`Axes`]; `[]` is not split.
    /// A spec is a list with an entry for each dimension, in which `"_"` is not split either.
    ///
    /// ```
    /// use shardax_sharding::{Layout, Mesh, Role};
    ///
    /// let text = r#"
    /// mesh = { data = 2, model = 4 }
    /// partitioner = "shardy"
    ///
    /// [shard]
    /// batch = "data"
    /// mlp = ["model"]
    ///
    /// [shard_where_free]
    /// seq = "model"
    ///
    /// [every]
    /// state = "data"
    ///
    /// [[override]]
    /// path = "blocks.*.wqkv"
    /// role = "state"
    /// spec = ["_", ["data", "model"]]
    ///
    /// [constrain]
    /// scores = ["data", "?"]
    /// "#;
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let layout = Layout::new(mesh)
    ///     .shard("batch", "data")
    ///     .shard("mlp", "model")
    ///     .shard_where_free("seq", "model")
    ///     .shard_every_state("data")
    ///     .override_as("blocks.*.wqkv", Role::State, ((), ("data", "model")))
    ///     .constrain("scores", ("data", "?"));
    /// assert_eq!(Layout::from_toml(text)?, layout);
    /// assert_eq!(Layout::from_toml(&layout.to_toml())?, layout);
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::File`] with everything that is wrong, each with its line and key.
    pub fn from_toml(text: &str) -> Result<Layout, Error> {
        let (table, mistakes) = DeTable::parse_recoverable(text);
        let mut reader = Reader {
            text,
            faults: Vec::new(),
        };
        for mistake in mistakes {
            let at = mistake.span().map_or(0, |span| span.start);
            reader.fault(at, "", mistake.message());
        }
        if !reader.faults.is_empty() {
            return Err(reader.error());
        }
        let layout = reader.layout(table.get_ref());
        match layout {
            Some(layout) if reader.faults.is_empty() => layout.validate().map(|()| layout),
            _ => Err(reader.error()),
        }
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
        let plain = self.rules().iter();
        let plain =
            plain.filter_map(|rule| Some((rule.name.clone(), entries(rule.axes.as_ref()?))));
        table(&mut out, "shard", plain);
        let free = self.rules().iter();
        let free = free.filter_map(|rule| Some((rule.name.clone(), entries(rule.free.as_ref()?))));
        table(&mut out, "shard_where_free", free);
        let stored = self.storage_rules().iter();
        let stored =
            stored.filter_map(|rule| Some((rule.name.clone(), entries(rule.axes.as_ref()?))));
        table(&mut out, "shard_parameters", stored);
        let every = EVERY.into_iter().zip(self.every());
        let every = every.filter(|(_, (_, axes))| !axes.is_empty());
        let every = every.map(|((name, _), (_, axes))| (name.to_owned(), entries(axes)));
        table(&mut out, "every", every);
        let priorities = self.rules().iter();
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

type Value<'i> = Spanned<DeValue<'i>>;

/// Reads a file and keeps what is wrong with it.
struct Reader<'t> {
    text: &'t str,
    faults: Vec<FileFault>,
}

impl Reader<'_> {
    fn error(self) -> Error {
        Error::File {
            faults: self.faults,
        }
    }

    /// A fault at a byte of the text.
    fn fault(&mut self, at: usize, key: &str, problem: impl ToString) {
        let before = self.text.get(..at).unwrap_or(self.text);
        self.faults.push(FileFault {
            line: before.matches('\n').count() + 1,
            key: key.to_owned(),
            problem: problem.to_string(),
        });
    }

    fn layout(&mut self, file: &DeTable) -> Option<Layout> {
        for (name, _) in in_order(file) {
            self.check_key(name, "", &KEYS);
        }
        let mesh = match file.get("mesh") {
            Some(mesh) => self.mesh(mesh),
            None => {
                self.fault(0, "mesh", "it is missing: write `mesh = { data = 8 }`");
                None
            }
        };
        // What is wrong beside the mesh is told all the same; axes are not looked for then.
        let has_mesh = mesh.is_some();
        let mut layout = Layout::new(mesh.unwrap_or_else(Mesh::single));
        if let Some(value) = file.get("partitioner") {
            let read = self.string("partitioner", value);
            match read.as_deref().map(str::parse::<Partitioner>) {
                Some(Ok(partitioner)) => layout = layout.partitioner(partitioner),
                Some(Err(error)) => self.fault(value.span().start, "partitioner", error),
                None => {}
            }
        }
        let checked = has_mesh.then(|| layout.clone());
        let checked = checked.as_ref();
        for (name, axes) in self.axes_of("shard", file, checked) {
            layout = layout.shard(name, axes);
        }
        for (name, axes) in self.axes_of("shard_where_free", file, checked) {
            layout = layout.shard_where_free(name, axes);
        }
        for (name, axes) in self.axes_of("shard_parameters", file, checked) {
            layout = layout.shard_parameters(name, axes);
        }
        for (name, axes) in self.axes_of("every", file, checked) {
            layout = match EVERY.iter().find(|(known, _)| *known == name) {
                Some((_, Every::Parameter)) => layout.shard_every_parameter(axes),
                Some((_, Every::Gradient)) => layout.shard_every_gradient(axes),
                Some((_, Every::State)) => layout.shard_every_state(axes),
                None => layout,
            };
        }
        for (name, value) in self.table("priority", file) {
            let key = format!("priority.{}", name.get_ref());
            let read = match value.get_ref() {
                DeValue::Integer(number) => {
                    u32::from_str_radix(number.as_str(), number.radix()).ok()
                }
                _ => None,
            };
            match read {
                Some(priority) => layout = layout.priority(name.get_ref().as_ref(), priority),
                None => self.fault(
                    value.span().start,
                    &key,
                    "a priority is a whole number from 0",
                ),
            }
        }
        for (path, role, spec) in self.overrides(file, checked) {
            layout = match role {
                Some(role) => layout.override_as(path, role, spec),
                None => layout.override_spec(path, spec),
            };
        }
        for (name, value) in self.table("constrain", file) {
            let key = format!("constrain.{}", name.get_ref());
            if let Some(spec) = self.spec(&key, value, checked) {
                layout = layout.constrain(name.get_ref().as_ref(), spec);
            }
        }
        has_mesh.then_some(layout)
    }

    fn mesh(&mut self, value: &Value) -> Option<Mesh> {
        let at = value.span().start;
        let DeValue::Table(table) = value.get_ref() else {
            let problem = "a mesh is a table of axes and sizes: `mesh = { data = 2, model = 4 }`";
            self.fault(at, "mesh", problem);
            return None;
        };
        let before = self.faults.len();
        let mut axes = Vec::new();
        for (name, size) in in_order(table) {
            let read = match size.get_ref() {
                DeValue::Integer(number) => {
                    usize::from_str_radix(number.as_str(), number.radix()).ok()
                }
                _ => None,
            };
            let key = format!("mesh.{}", name.get_ref());
            match read {
                Some(size) => axes.push((name.get_ref().to_string(), size)),
                None => self.fault(size.span().start, &key, "a size is a whole number from 1"),
            }
        }
        match Mesh::new(axes) {
            Ok(mesh) => (self.faults.len() == before).then_some(mesh),
            Err(Error::Mesh { faults }) => {
                for fault in faults {
                    self.fault(at, "mesh", fault);
                }
                None
            }
            Err(other) => {
                self.fault(at, "mesh", other);
                None
            }
        }
    }

    /// The entries of a table of the file, none if it is not there.
    fn table<'f, 'i>(
        &mut self,
        name: &str,
        file: &'f DeTable<'i>,
    ) -> Vec<(&'f Spanned<Cow<'i, str>>, &'f Value<'i>)> {
        match file.get(name) {
            None => Vec::new(),
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => in_order(table),
                _ => {
                    let problem = format!("this is a table: write `[{name}]`");
                    self.fault(value.span().start, name, problem);
                    Vec::new()
                }
            },
        }
    }

    /// A table of names and axes.
    fn axes_of(
        &mut self,
        table: &str,
        file: &DeTable,
        checked: Option<&Layout>,
    ) -> Vec<(String, Axes)> {
        let mut read = Vec::new();
        for (name, value) in self.table(table, file) {
            if table == "every" && !self.check_key(name, "every.", &EVERY.map(|(name, _)| name)) {
                continue;
            }
            let key = format!("{table}.{}", name.get_ref());
            if let Some(axes) = self.axes(&key, value) {
                self.check_axes(&key, value, &axes, checked);
                read.push((name.get_ref().to_string(), axes));
            }
        }
        read
    }

    fn overrides(
        &mut self,
        file: &DeTable,
        checked: Option<&Layout>,
    ) -> Vec<(String, Option<Role>, PartitionSpec)> {
        let Some(value) = file.get("override") else {
            return Vec::new();
        };
        let DeValue::Array(tables) = value.get_ref() else {
            let problem = "overrides are a list of tables: write `[[override]]`";
            self.fault(value.span().start, "override", problem);
            return Vec::new();
        };
        let mut read = Vec::new();
        for (i, value) in tables.iter().enumerate() {
            let (at, name) = (value.span().start, format!("override {i}"));
            let DeValue::Table(table) = value.get_ref() else {
                self.fault(at, &name, "an override is a table: write `[[override]]`");
                continue;
            };
            for (key, _) in in_order(table) {
                self.check_key(key, &format!("{name}."), &["path", "role", "spec"]);
            }
            let mut part = |key: &str| match table.get(key) {
                Some(value) => Some((format!("{name}.{key}"), value)),
                None => {
                    self.fault(at, &name, format!("it has no `{key}`"));
                    None
                }
            };
            let (path, spec) = (part("path"), part("spec"));
            let path = path.and_then(|(key, value)| self.string(&key, value));
            let spec = spec.and_then(|(key, value)| self.spec(&key, value, checked));
            let role = match table.get("role") {
                Some(value) => self.role(&format!("{name}.role"), value).map(Some),
                None => Some(None),
            };
            if let (Some(path), Some(role), Some(spec)) = (path, role, spec) {
                read.push((path, role, spec));
            }
        }
        read
    }

    fn role(&mut self, key: &str, value: &Value) -> Option<Role> {
        let text = self.string(key, value)?;
        let found = ROLES.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let known = ROLES.map(|(name, _)| name);
            let problem = format!("there is no role `{text}`{}", near(&text, &known));
            self.fault(value.span().start, key, problem);
        }
        found.map(|(_, role)| *role)
    }

    /// A list with an entry for each dimension.
    fn spec(
        &mut self,
        key: &str,
        value: &Value,
        checked: Option<&Layout>,
    ) -> Option<PartitionSpec> {
        let DeValue::Array(entries) = value.get_ref() else {
            let problem = "a spec is a list with an entry for each dimension: `[\"data\", \"_\"]`";
            self.fault(value.span().start, key, problem);
            return None;
        };
        let entries: Vec<Option<Axes>> = entries
            .iter()
            .map(|entry| match entry.get_ref() {
                DeValue::String(text) if text == "_" => Some(Axes::default()),
                _ => self.axes(key, entry),
            })
            .collect();
        let entries: Option<Vec<Axes>> = entries.into_iter().collect();
        let spec = PartitionSpec::from_iter(entries?);
        self.check_axes(key, value, &spec.all_axes(), checked);
        Some(spec)
    }

    /// A name or a list of names.
    fn axes(&mut self, key: &str, value: &Value) -> Option<Axes> {
        match value.get_ref() {
            DeValue::String(name) => Some(Axes::from(name.as_ref())),
            DeValue::Array(names) => {
                let names: Vec<Option<String>> =
                    names.iter().map(|name| self.string(key, name)).collect();
                let names: Option<Vec<String>> = names.into_iter().collect();
                names.map(Axes::from)
            }
            _ => {
                let problem =
                    "axes are a name or a list of names: `\"data\"`, `[\"data\", \"model\"]`";
                self.fault(value.span().start, key, problem);
                None
            }
        }
    }

    fn string(&mut self, key: &str, value: &Value) -> Option<String> {
        match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => {
                self.fault(
                    value.span().start,
                    key,
                    "this is a text: write it in quotes",
                );
                None
            }
        }
    }

    /// Tells of axes that the mesh does not have, if there is one.
    fn check_axes(&mut self, key: &str, value: &Value, axes: &Axes, checked: Option<&Layout>) {
        let faults = checked.map(|layout| layout.faults_of(key, axes));
        for fault in faults.into_iter().flatten() {
            self.fault(value.span().start, key, fault.fault);
        }
    }

    /// Whether a key is one of those that there are.
    fn check_key(&mut self, key: &Spanned<Cow<'_, str>>, before: &str, known: &[&str]) -> bool {
        let name = key.get_ref().as_ref();
        let is_known = known.contains(&name);
        if !is_known {
            let problem = format!("there is no such key{}", near(name, known));
            self.fault(key.span().start, &format!("{before}{name}"), problem);
        }
        is_known
    }
}

/// The entries of a table as they stand in the file.
fn in_order<'f, 'i>(table: &'f DeTable<'i>) -> Vec<(&'f Spanned<Cow<'i, str>>, &'f Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn near(name: &str, known: &[&str]) -> String {
    match did_you_mean(name, known.iter().copied()) {
        Some(near) => format!(": did you mean `{near}`?"),
        None => format!(": there are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Axes of the mesh below, each at most once, some of them parts, some open.
    fn axes() -> impl Strategy<Value = Axes> {
        let names = ["data", "model", "context:(1)2", "context:(2)4"];
        let chosen = proptest::sample::subsequence(names.to_vec(), 0..=4);
        (chosen.prop_shuffle(), any::<bool>()).prop_map(|(names, open)| {
            let axes = Axes::from_iter(names);
            if open { axes.open() } else { axes }
        })
    }

    fn spec() -> impl Strategy<Value = PartitionSpec> {
        let entry = (0usize..4, any::<bool>());
        proptest::collection::vec(entry, 0..4).prop_map(|entries| {
            let mut left = vec!["data", "model", "context"];
            let entries = entries.into_iter().map(|(count, open)| {
                let count = count.min(left.len());
                let axes = Axes::from_iter(left.drain(..count));
                if open { axes.open() } else { axes }
            });
            PartitionSpec::from_iter(entries.collect::<Vec<_>>())
        })
    }

    fn names() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z_]{1,8}", "\\PC{1,4}", "[\"\\\\ .\n\t\u{7f}]{1,3}"]
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        let rule = (0usize..8, names(), axes(), spec(), 0u32..3);
        (proptest::collection::vec(rule, 0..12), any::<bool>()).prop_map(|(rules, gspmd)| {
            let mesh = Mesh::new([("data", 2), ("model", 4), ("context", 8)]).unwrap();
            let mut layout = Layout::new(mesh);
            if gspmd {
                layout = layout.partitioner(Partitioner::Gspmd);
            }
            for (kind, name, axes, spec, number) in rules {
                layout = match kind {
                    0 => layout.shard(name, axes),
                    1 => layout.shard_where_free(name, axes),
                    2 => layout.shard_parameters(name, axes),
                    3 => match number {
                        0 => layout.shard_every_parameter(axes.closed()),
                        1 => layout.shard_every_gradient(axes.closed()),
                        _ => layout.shard_every_state(axes.closed()),
                    },
                    4 if !gspmd => layout.priority(name, number),
                    5 => layout.override_spec(name, spec),
                    6 => layout.override_as(name, ROLES[number as usize].1, spec),
                    _ => layout.constrain(name, spec),
                };
            }
            layout
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(layout in layouts()) {
            prop_assume!(layout.validate().is_ok());
            let text = layout.to_toml();
            let read = Layout::from_toml(&text);
            prop_assert_eq!(read.as_ref(), Ok(&layout), "{}", text);
            prop_assert_eq!(read.unwrap().to_toml(), text);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = Layout::from_toml(&text);
        }
    }

    #[test]
    fn one_device_is_written_too() {
        let layout = Layout::single();
        assert_eq!(Layout::from_toml(&layout.to_toml()), Ok(layout));
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let error = Layout::from_toml(text).unwrap_err().to_string();
        let lines: Vec<&str> = error
            .lines()
            .map(|line| line.trim_start_matches("  - "))
            .collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn everything_wrong_is_told_with_line_and_key() {
        check(
            r#"
mesh = { data = 2, model = 4 }
partitoner = "shardy"
partitioner = "shardly"

[shard]
batch = "dta"
mlp = ["model", "model"]
seq = 3
embed = ["data", 1]

[every]
states = "data"

[priority]
batch = "first"

[[override]]
path = "wte"
role = "stat"

[[override]]
spec = "data"
paths = "wte"

[constrain]
scores = ["data", "pipe"]
"#,
            &[
                "cannot read the layout:",
                "line 3, `partitoner`: there is no such key: did you mean `partitioner`?",
                "line 4, `partitioner`: unknown partitioner `shardly`: did you mean `shardy`? There \
                 are shardy, gspmd",
                "line 7, `shard.batch`: the mesh has no axis `dta`: did you mean `data`? There are \
                 data, model",
                "line 8, `shard.mlp`: mesh axis `model` is wanted twice, by the same rule: an axis \
                 splits one dimension of an array, once",
                "line 9, `shard.seq`: axes are a name or a list of names: `\"data\"`, `[\"data\", \
                 \"model\"]`",
                "line 10, `shard.embed`: this is a text: write it in quotes",
                "line 13, `every.states`: there is no such key: did you mean `state`?",
                "line 16, `priority.batch`: a priority is a whole number from 0",
                "line 18, `override 0`: it has no `spec`",
                "line 20, `override 0.role`: there is no role `stat`: did you mean `state`?",
                "line 24, `override 1.paths`: there is no such key: did you mean `path`?",
                "line 22, `override 1`: it has no `path`",
                "line 23, `override 1.spec`: a spec is a list with an entry for each dimension: \
                 `[\"data\", \"_\"]`",
                "line 27, `constrain.scores`: the mesh has no axis `pipe`: there are data, model",
            ],
        );
    }

    #[test]
    fn a_mesh_is_needed_and_checked() {
        check(
            "[shard]\nbatch = 1\n",
            &[
                "cannot read the layout:",
                "line 1, `mesh`: it is missing: write `mesh = { data = 8 }`",
                "line 2, `shard.batch`: axes are a name or a list of names: `\"data\"`, `[\"data\", \
                 \"model\"]`",
            ],
        );
        check(
            "mesh = { data = 0, model = -4 }",
            &[
                "cannot read the layout:",
                "line 1, `mesh.model`: a size is a whole number from 1",
                "line 1, `mesh`: axis `data` has size 0: an axis has at least one device",
            ],
        );
        let error = Layout::from_toml("mesh = {\n data = ")
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
