//! Rules for single tensors: parameters by their path, other values by the name given to them.

use std::fmt;

use crate::dim::Dim;
use crate::fault::SpecFault;
use crate::layout::Layout;
use crate::resolve::{Resolved, Role};
use crate::spec::PartitionSpec;

/// Where the leaves at certain paths lie, whatever their dimensions are called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Override {
    /// The pattern of paths.
    pub(crate) path: String,
    /// As what; `None` is parameters at rest, gradients and state alike.
    pub(crate) role: Option<Role>,
    pub(crate) spec: PartitionSpec,
}

impl Override {
    fn is_for(&self, role: Role) -> bool {
        self.role.map_or(role.is_stored(), |own| own == role)
    }

    /// A fault of its spec, with its path where the fault is in how many entries there are.
    fn blamed(&self, fault: SpecFault) -> SpecFault {
        match fault {
            SpecFault::Rank { entries, shape, .. } => SpecFault::Rank {
                rule: Some(self.path.clone()),
                entries,
                shape,
            },
            fault => fault,
        }
    }
}

/// `blocks.*.wqkv as state`
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        match self.role {
            Some(role) => write!(f, " as {role}"),
            None => Ok(()),
        }
    }
}

/// Where a value that the program gives a name to lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Constrained {
    pub(crate) name: String,
    pub(crate) spec: PartitionSpec,
}

impl Layout {
    /// Splits the parameters at a path, their gradients and their optimizer state as `spec` says, instead
    /// of as the rules for the names of their dimensions do.
    ///
    /// A path is a pattern: `*` stands for any part of a segment, `**` for any number of segments, and
    /// what comes before is left away, so that `blocks.*.wqkv`, `ln*.gain` and `wte` match
    /// `state.model.blocks.3.wqkv`, `state.model.ln1.gain` and `state.model.wte`. Of several overrides
    /// that match, the last one holds. How a parameter lies where it is used is not changed by this;
    /// [`Layout::override_as`] changes it.
    ///
    /// ```
    /// use shardax_sharding::{Dim, Layout, Mesh, Role};
    ///
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let layout = Layout::megatron(mesh)?.override_spec("lnf.*", ["data"]);
    /// let gain = [Dim::Logical("embed")];
    /// let resolved = layout.resolve_leaf(Role::Parameter, "model.lnf.gain", Some(&gain), &[64]);
    /// assert_eq!(resolved.unwrap().spec.to_string(), r#"P("data")"#);
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    #[must_use]
    pub fn override_spec(
        mut self,
        path: impl Into<String>,
        spec: impl Into<PartitionSpec>,
    ) -> Self {
        self.set_override(path.into(), None, spec.into());
        self
    }

    /// [`Layout::override_spec`] for one role: parameters at rest, where they are used, gradients or
    /// state.
    ///
    /// Of a stack of layers the spec has an entry for the dimension of layers in every role. Values
    /// computed on the way have no path, and are constrained by [`Layout::constrain`].
    #[must_use]
    pub fn override_as(
        mut self,
        path: impl Into<String>,
        role: Role,
        spec: impl Into<PartitionSpec>,
    ) -> Self {
        self.set_override(path.into(), Some(role), spec.into());
        self
    }

    /// Splits the values that the program calls `name`, by `Tensor::named`, as `spec` says.
    ///
    /// The spec has an entry for each dimension where the value is named. A `vmap` around it, such as that of gradient
    /// accumulation, puts in its own dimension, which is split as its name says or left to the partitioner; axes that split
    /// that one are left out of the others.
    ///
    /// ```
    /// use shardax_sharding::{Layout, Mesh};
    ///
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let layout = Layout::new(mesh).constrain("scores", ("data", "model", (), "?"));
    /// assert!(layout.to_string().contains("scores -> P(\"data\", \"model\", _, ?)"));
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    #[must_use]
    pub fn constrain(mut self, name: impl Into<String>, spec: impl Into<PartitionSpec>) -> Self {
        let (name, spec) = (name.into(), spec.into());
        let constrained = self.constrained_mut();
        constrained.retain(|other| other.name != name);
        constrained.push(Constrained { name, spec });
        self
    }

    fn set_override(&mut self, path: String, role: Option<Role>, spec: PartitionSpec) {
        let overrides = self.overrides_mut();
        overrides.retain(|other| other.path != path || other.role != role);
        overrides.push(Override { path, role, spec });
    }

    /// The spec of an override for the leaf at a path, if there is one.
    pub fn overridden(&self, role: Role, path: &str) -> Option<&PartitionSpec> {
        self.override_of(role, path).map(|one| &one.spec)
    }

    fn override_of(&self, role: Role, path: &str) -> Option<&Override> {
        let mut overrides = self.overrides().iter().rev();
        overrides.find(|one| one.is_for(role) && matches(&one.path, path))
    }

    /// The patterns of all overrides that match none of these paths, and the role that each is for: every role if it names none.
    pub fn unmatched_overrides(
        &self,
        paths: &[&str],
    ) -> impl Iterator<Item = (&str, Option<Role>)> {
        let overrides = self.overrides().iter();
        overrides
            .filter(|one| !paths.iter().any(|path| matches(&one.path, path)))
            .map(|one| (one.path.as_str(), one.role))
    }

    /// The spec of [`Layout::constrain`] for a name.
    pub fn constraint_of(&self, name: &str) -> Option<&PartitionSpec> {
        let mut constrained = self.constrained().iter();
        constrained
            .find(|one| one.name == name)
            .map(|one| &one.spec)
    }

    /// The names of [`Layout::constrain`].
    pub fn constrained_names(&self) -> impl Iterator<Item = &str> {
        self.constrained().iter().map(|one| one.name.as_str())
    }

    /// The spec of the leaf at a path: that of an override, or what the rules say of its dimensions.
    ///
    /// # Errors
    ///
    /// As of [`Layout::resolve`].
    pub fn resolve_leaf(
        &self,
        role: Role,
        path: &str,
        dims: Option<&[Dim]>,
        shape: &[usize],
    ) -> Result<Resolved, Vec<SpecFault>> {
        match (self.override_of(role, path), dims) {
            (Some(one), _) => {
                let followed = self.follow(&one.spec, role, dims, shape);
                let blamed = |fault| one.blamed(fault);
                followed.map_err(|faults| faults.into_iter().map(blamed).collect())
            }
            // A row or column of a parameter: which of its dimensions are left is not known.
            (None, Some(dims)) if role == Role::State && dims.len() != shape.len() => {
                self.resolve_unannotated(role, 0, shape)
            }
            (None, Some(dims)) => self.resolve(role, dims, shape),
            (None, None) => Ok(Resolved::of(PartitionSpec::replicated(shape.len()))),
        }
    }

    /// A spec that an array is given by itself, checked. As with mesh axes in annotations, there is
    /// nothing to split on a mesh without axes.
    ///
    /// # Errors
    ///
    /// As of [`PartitionSpec::validate`].
    pub fn follow(
        &self,
        spec: &PartitionSpec,
        role: Role,
        dims: Option<&[Dim]>,
        shape: &[usize],
    ) -> Result<Resolved, Vec<SpecFault>> {
        if self.mesh().axes().is_empty() {
            return Ok(Resolved::of(PartitionSpec::replicated(shape.len())));
        }
        let faults = spec.faults(self.mesh(), shape, dims);
        if !faults.is_empty() {
            return Err(faults);
        }
        let spec = spec.clone();
        Ok(Resolved::of(match role.is_stored() {
            true => spec.closed(),
            false => spec,
        }))
    }
}

impl Layout {
    /// [`Layout::follow`] for an activation into which `mapped` dimensions were put, one after the other: where, and what
    /// annotations call them. The spec, of [`Layout::constrain`], has no entries for those.
    ///
    /// # Errors
    ///
    /// As of [`PartitionSpec::validate`].
    pub fn follow_mapped(
        &self,
        spec: &PartitionSpec,
        mapped: &[(usize, Dim)],
        shape: &[usize],
    ) -> Result<Resolved, Vec<SpecFault>> {
        let role = Role::Activation;
        if mapped.is_empty() || self.mesh().axes().is_empty() {
            return self.follow(spec, role, None, shape);
        }
        let mut own = shape.to_vec();
        for &(at, _) in mapped.iter().rev() {
            own.remove(at);
        }
        let mut entries = spec.entries().to_vec();
        if entries.len() != own.len() {
            return Err(vec![SpecFault::Rank {
                rule: None,
                entries: entries.len(),
                shape: own,
            }]);
        }
        let mut dims = vec![Dim::Unsharded; entries.len()];
        for &(at, dim) in mapped {
            let axes = self.entry(dim);
            for entry in &mut entries {
                entry.retain(|axis| !axes.overlaps(axis));
            }
            entries.insert(at, axes);
            dims.insert(at, dim);
        }
        let mut spec = PartitionSpec::from_iter(entries);
        self.split_where_free(&mut spec, &dims);
        self.follow(&spec, role, None, shape)
    }
}

/// Whether a pattern matches a path or the end of one.
fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<&str>, Vec<&str>) =
        (pattern.split('.').collect(), path.split('.').collect());
    let segment = |one: &&str, segment: &&str| matches_segment(one, segment);
    (0..=path.len()).any(|from| is_match(&pattern, &path[from..], |one| *one == "**", segment))
}

/// Whether a segment of a pattern, in which `*` stands for any characters, matches a segment of a path.
fn matches_segment(pattern: &str, segment: &str) -> bool {
    let (pattern, segment): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), segment.chars().collect());
    is_match(&pattern, &segment, |one| *one == '*', |one, c| one == c)
}

/// Whether a pattern matches all of a text. What `is_any` holds for stands for any run of elements, other elements for one.
///
/// If what follows the last such element does not match, that element takes one more of the text, and those
/// before it are left as they are: no choice of theirs could match what this one cannot. So a pattern of
/// many takes no longer than the product of both lengths.
fn is_match<P, T>(
    pattern: &[P],
    text: &[T],
    is_any: impl Fn(&P) -> bool,
    is_same: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last that stands for any run, and where what follows it begins in the text.
    let mut last: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(any) if is_any(any) => {
                last = Some((p, t));
                p += 1;
            }
            Some(one) if is_same(one, &text[t]) => {
                p += 1;
                t += 1;
            }
            _ => match &mut last {
                Some((any, begin)) => {
                    *begin += 1;
                    (p, t) = (*any + 1, *begin);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(is_any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Mesh;

    const DIMS: [Dim; 2] = [Dim::Logical("embed"), Dim::Logical("mlp")];

    fn layout() -> Layout {
        let mesh = Mesh::new([("data", 2), ("model", 4)]).unwrap();
        Layout::new(mesh).shard("mlp", "model")
    }

    #[test]
    fn patterns_match_the_ends_of_paths() {
        for (pattern, path, expected) in [
            ("wqkv", "state.blocks.wqkv", true),
            ("wqkv", "state.blocks.wqkvb", false),
            ("blocks.*.wqkv", "0.blocks.3.wqkv", true),
            ("blocks.*.wqkv", "0.blocks.wqkv", false),
            ("blocks.**.wqkv", "0.blocks.wqkv", true),
            ("blocks.**.wqkv", "0.blocks.3.attention.wqkv", true),
            ("ln*.gain", "blocks.ln12.gain", true),
            ("ln*.gain", "blocks.mln.gain", false),
            ("w*v*", "blocks.wqkv", true),
            ("blocks", "blocks.wqkv", false),
            ("blocks.**", "blocks.wqkv", true),
            ("*", "", true),
            ("a.**.c.**.d", "a.b.c.b.c.d", true),
            ("a.**.c.**.d", "a.b.c.b.c.e", false),
            ("**", "a.b", true),
            ("*é*", "größé", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_longer() {
        let path = format!("blocks.{}", "a".repeat(60));
        assert!(!matches(&format!("{}b", "*a".repeat(30)), &path));
        let path = ["a"; 60].join(".");
        assert!(!matches(&format!("{}b", "**.a.".repeat(30)), &path));
    }

    #[test]
    fn an_override_is_for_what_is_stored_or_for_one_role() {
        let layout = layout()
            .override_spec("up", ("data", ()))
            .override_as("up", Role::State, ("data", "model"))
            .override_as("up", Role::ParameterAtUse, ((), ()));
        let spec = |role| {
            let resolved = layout.resolve_leaf(role, "mlp.up", Some(&DIMS), &[8, 8]);
            resolved.unwrap().spec.to_string()
        };
        assert_eq!(spec(Role::Parameter), r#"P("data", _)"#);
        assert_eq!(spec(Role::Gradient), r#"P("data", _)"#);
        assert_eq!(spec(Role::State), r#"P("data", "model")"#);
        assert_eq!(spec(Role::ParameterAtUse), "P(_, _)");
        assert_eq!(spec(Role::Activation), r#"P(_, "model")"#);
        let other = layout.resolve_leaf(Role::Parameter, "mlp.down", Some(&DIMS), &[8, 8]);
        assert_eq!(other.unwrap().spec.to_string(), r#"P(_, "model")"#);
    }

    /// Rows and columns of a parameter, which an optimizer may keep in place of all of it.
    #[test]
    fn state_may_have_fewer_numbers_than_its_parameter() {
        let spec = |role, shape: &[usize]| {
            let resolved = layout().resolve_leaf(role, "mlp.down", Some(&DIMS), shape);
            resolved.map(|resolved| resolved.spec.to_string())
        };
        assert_eq!(spec(Role::State, &[8, 8]).unwrap(), r#"P(_, "model")"#);
        assert_eq!(spec(Role::State, &[8, 1]).unwrap(), "P(_, _)");
        assert_eq!(spec(Role::State, &[8]).unwrap(), "P(_)");
        for shape in [&[8, 1][..], &[8]] {
            assert!(spec(Role::Parameter, shape).is_err());
        }
    }

    #[test]
    fn an_override_is_checked_like_any_spec() {
        let faults = |layout: &Layout, shape: &[usize]| {
            let resolved = layout.resolve_leaf(Role::State, "up", Some(&DIMS), shape);
            let faults = resolved.unwrap_err().into_iter();
            faults.map(|fault| fault.to_string()).collect::<Vec<_>>()
        };
        let wrong = layout().override_spec("up", ["data"]);
        let told = "the layout's override for `up` has 1 entry for an array of shape [8, 8]";
        assert!(faults(&wrong, &[8, 8])[0].starts_with(told));
        let wrong = layout().override_spec("up", ("data", "model"));
        assert_eq!(faults(&wrong, &[7, 7]).len(), 2);
        let single = Layout::single().override_spec("up", ("data", "model"));
        let resolved = single.resolve_leaf(Role::State, "up", Some(&DIMS), &[7, 7]);
        assert_eq!(resolved.unwrap().spec.to_string(), "P(_, _)");
    }

    #[test]
    fn the_last_override_holds_and_one_without_a_match_is_told() {
        let layout = layout()
            .override_spec("up", ("data", ()))
            .override_spec("*", ((), "data"))
            .override_spec("upp", ((), ()));
        let spec = layout.overridden(Role::Parameter, "mlp.up").unwrap();
        assert_eq!(spec.to_string(), r#"P(_, "data")"#);
        let unmatched = layout.unmatched_overrides(&["mlp.up"]);
        let unmatched: Vec<_> = unmatched.map(|(pattern, _)| pattern).collect();
        assert_eq!(unmatched, ["upp"]);
    }

    #[test]
    fn overrides_and_constraints_are_checked_against_the_mesh() {
        let wrong = layout()
            .override_spec("up", ("dta", ()))
            .override_as("down", Role::Activation, ("data", ()))
            .constrain("scores", ("model", "model"));
        assert_eq!(
            wrong.validate().unwrap_err().to_string(),
            "the layout does not fit mesh data=2 x model=4:\
             \n  - rule for `up`: the mesh has no axis `dta`: did you mean `data`? There are data, \
             model\
             \n  - rule for `down as activation`: values computed on the way have no path: name them \
             in the program with `.named(..)`, and write `Layout::constrain`\
             \n  - rule for the value `scores`: mesh axis `model` is wanted twice, by the same rule: \
             an axis splits one dimension of an array, once"
        );
    }

    #[test]
    fn what_a_manual_region_has_is_said_of_nothing() {
        let layout = layout()
            .shard("batch", ("data:(1)2", "model"))
            .override_spec("up", ("data", "model"))
            .constrain("scores", ["data"]);
        let inside = layout.without_axes(&["data"]);
        let printed = inside.to_string();
        let rules: Vec<&str> = printed.lines().skip(1).map(str::trim_start).collect();
        assert_eq!(
            rules,
            [
                "mlp    -> model",
                "batch  -> model",
                "up     -> P(_, \"model\")   (by path)",
                "scores -> P(_)   (values of that name)",
            ]
        );
        let dims = [Dim::Mesh(&["data", "model"]), Dim::Mesh(&["data"])];
        let annotated = inside.resolve(Role::Activation, &dims, &[8, 3]).unwrap();
        assert_eq!(annotated.spec.to_string(), r#"P("model", _)"#);
    }

    #[test]
    fn stored_arrays_are_closed() {
        let layout = layout().override_as("up", Role::State, ("?", "model"));
        let state = layout.resolve_leaf(Role::State, "up", None, &[8, 8]);
        assert_eq!(state.unwrap().spec.to_string(), r#"P(_, "model")"#);
    }

    #[test]
    fn dimensions_put_into_a_named_value_keep_their_own_axes() {
        let mesh = Mesh::new([("data", 2), ("model", 4)]).unwrap();
        let layout = Layout::new(mesh).shard("batch", "data");
        let spec = PartitionSpec::new(("data", "model"));
        let follow = |mapped: &[(usize, Dim)], shape: &[usize]| {
            let resolved = layout.follow_mapped(&spec, mapped, shape);
            resolved.map(|resolved| resolved.spec.to_string())
        };
        let batch = Dim::Logical("batch");
        let told = follow(&[(0, batch)], &[2, 3, 8]);
        assert_eq!(told.as_deref(), Ok(r#"P("data", _, "model")"#));
        let told = follow(&[(0, Dim::Open), (1, batch)], &[5, 2, 3, 8]);
        assert_eq!(told.as_deref(), Ok(r#"P(?, "data", _, "model")"#));
        let told = follow(&[(2, Dim::Open)], &[4, 8, 5]);
        assert_eq!(told.as_deref(), Ok(r#"P("data", "model", ?)"#));
        let faults = follow(&[(0, batch)], &[2, 3]).unwrap_err();
        let shape = vec![3];
        assert_eq!(
            faults,
            [SpecFault::Rank {
                rule: None,
                entries: 2,
                shape
            }]
        );
        let free = layout
            .clone()
            .shard("batch", ())
            .shard_where_free("batch", ["data", "model"]);
        let own = PartitionSpec::new(((), "model"));
        let told = free.follow_mapped(&own, &[(0, batch)], &[2, 3, 8]).unwrap();
        assert_eq!(told.spec.to_string(), r#"P("data", _, "model")"#);
    }
}
