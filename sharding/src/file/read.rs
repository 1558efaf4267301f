//! Reading: every value with its line, and everything that is wrong together.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{EVERY, ROLES};
use crate::axes::Axes;
use crate::error::{Error, FileFault};
use crate::fault::did_you_mean;
use crate::layout::{Every, Layout, Partitioner};
use crate::mesh::Mesh;
use crate::reduction::{ReductionType, Summed};
use crate::resolve::Role;
use crate::spec::PartitionSpec;

/// The keys of a file.
const KEYS: [&str; 11] = [
    "mesh",
    "partitioner",
    "shard",
    "shard_where_free",
    "shard_where_divides",
    "shard_parameters",
    "every",
    "priority",
    "override",
    "constrain",
    "reduce",
];

/// How many mistakes of a text that is no TOML are told.
const MISTAKES: usize = 20;

type Value<'i> = Spanned<DeValue<'i>>;

/// The layout of a text, its axes checked.
///
/// # Errors
///
/// [`Error::File`] with everything that is wrong.
pub(super) fn layout(text: &str) -> Result<Layout, Error> {
    let (table, mistakes) = DeTable::parse_recoverable(text);
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let mut reader = Reader {
        ends: ends.map(|(at, _)| at).collect(),
        faults: Vec::new(),
    };
    // What follows from the first ones is legion, where brackets are not closed.
    for mistake in mistakes.into_iter().take(MISTAKES) {
        let at = mistake.span().map_or(0, |span| span.start);
        reader.fault(at, "", mistake.message());
    }
    if !reader.faults.is_empty() {
        return Err(reader.error());
    }
    match reader.layout(table.get_ref()) {
        Some(layout) if reader.faults.is_empty() => Ok(layout),
        _ => Err(reader.error()),
    }
}

/// Reads a file and keeps what is wrong with it.
struct Reader {
    /// The bytes at which the lines end.
    ends: Vec<usize>,
    faults: Vec<FileFault>,
}

impl Reader {
    fn error(self) -> Error {
        Error::File {
            faults: self.faults,
        }
    }

    /// A fault at a byte of the text.
    fn fault(&mut self, at: usize, key: &str, problem: impl ToString) {
        self.faults.push(FileFault {
            line: self.ends.partition_point(|end| *end < at) + 1,
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
        for (name, value) in self.table("shard_where_divides", file) {
            let known = layout.rules().get(name.get_ref());
            if known.is_some_and(|rule| rule.axes.is_some()) {
                let key = format!("shard_where_divides.{}", name.get_ref());
                let problem = "`shard` has a rule for this name too: one of them holds";
                self.fault(value.span().start, &key, problem);
            }
        }
        for (name, axes) in self.axes_of("shard_where_divides", file, checked) {
            layout = layout.shard_where_divides(name, axes);
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
                    "a priority is a whole number from 0 to 4294967295",
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
        for (name, value) in self.table("reduce", file) {
            if !self.check_key(name, "reduce.", &Summed::ALL.map(Summed::name)) {
                continue;
            }
            let key = format!("reduce.{}", name.get_ref());
            let read = self.string(&key, value);
            let of = Summed::ALL
                .into_iter()
                .find(|of| of.name() == name.get_ref());
            match (of, read.as_deref().map(str::parse::<ReductionType>)) {
                (Some(Summed::Gradients), Some(Ok(ty))) => layout = layout.reduce_gradients_in(ty),
                (Some(Summed::Activations), Some(Ok(ty))) => {
                    layout = layout.reduce_activations_in(ty);
                }
                (_, Some(Err(error))) => self.fault(value.span().start, &key, error),
                (None, _) | (_, None) => {}
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
