//! Strategies put together from presets.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::preset::Preset;

/// One preset or several composed, written `zero1+megatron-sp`.
///
/// ```
/// use shardax_sharding::{Layout, Mesh, Strategy};
///
/// let strategy: Strategy = "fsdp+megatron".parse()?;
/// assert_eq!(strategy.axes(), ["data", "model"]);
/// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
/// assert_eq!(strategy.layout(mesh.clone())?.to_string(), Layout::megatron_fsdp(mesh)?.to_string());
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Strategy(Vec<Preset>);

impl Strategy {
    /// The presets composed, at least one.
    pub fn presets(&self) -> &[Preset] {
        &self.0
    }

    /// The axes that a mesh must have for the strategy, each once. It may have others.
    pub fn axes(&self) -> Vec<&'static str> {
        let mut axes = Vec::new();
        for axis in self.0.iter().flat_map(|preset| preset.axes()) {
            if !axes.contains(axis) {
                axes.push(axis);
            }
        }
        axes
    }

    /// The layout on a mesh: the rules of all presets.
    ///
    /// # Errors
    ///
    /// [`Error::PresetAxes`] with all axes that the mesh lacks, [`Error::Compose`] if presets say
    /// different things of one name.
    pub fn layout(&self, mesh: Mesh) -> Result<Layout, Error> {
        let missing: Vec<String> = self
            .axes()
            .into_iter()
            .filter(|axis| mesh.axis_size(axis).is_none())
            .map(str::to_owned)
            .collect();
        if !missing.is_empty() {
            let strategy = self.clone();
            return Err(Error::PresetAxes {
                strategy,
                missing,
                mesh,
            });
        }
        let mut layout = Layout::new(mesh.clone());
        for preset in &self.0 {
            layout = layout.compose(&preset.rules(mesh.clone()))?;
        }
        Ok(layout)
    }
}

impl From<Preset> for Strategy {
    fn from(preset: Preset) -> Self {
        Strategy(vec![preset])
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(Preset::to_string).collect();
        f.pad(&names.join("+"))
    }
}

/// Parses names of presets with `+` between them.
impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (mut presets, mut faults) = (Vec::new(), Vec::new());
        for name in text.split('+') {
            match name.trim().parse() {
                Ok(preset) => presets.push(preset),
                Err(fault) => faults.push(fault),
            }
        }
        match faults.len() {
            0 => Ok(Strategy(presets)),
            1 => Err(faults.remove(0)),
            _ => Err(Error::Strategy {
                text: text.to_owned(),
                faults,
            }),
        }
    }
}

impl Layout {
    /// The rules of both layouts, with the partitioner of this one.
    ///
    /// What both have a rule for they must agree on: rules are added, and never replace one another as
    /// they do in [`Layout::shard`].
    ///
    /// # Errors
    ///
    /// [`Error::Compose`] with everything that they differ in, [`Error::ComposeMeshes`] if they are for
    /// different meshes.
    ///
    /// ```
    /// use shardax_sharding::{Layout, Mesh};
    ///
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let tensor = Layout::new(mesh.clone()).shard("mlp", "model");
    /// let data = Layout::new(mesh.clone()).shard("batch", "data");
    /// let both = Layout::new(mesh.clone()).shard("mlp", "model").shard("batch", "data");
    /// assert_eq!(tensor.compose(&data)?, both);
    ///
    /// let conflict = both.compose(&Layout::new(mesh).shard("mlp", ("data", "model")));
    /// assert_eq!(
    ///     conflict.unwrap_err().to_string(),
    ///     "layouts cannot be composed: `mlp` -> model by one and data x model by another: take one \
    ///      rule away, or write the one that you mean with `Layout::shard` on one of them"
    /// );
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    pub fn compose(mut self, other: &Layout) -> Result<Layout, Error> {
        if self.mesh() != other.mesh() {
            let meshes = Box::new((self.mesh().clone(), other.mesh().clone()));
            return Err(Error::ComposeMeshes { meshes });
        }
        let conflicts = self.merge(other);
        match conflicts.is_empty() {
            true => Ok(self),
            false => Err(Error::Compose { conflicts }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_read_and_printed() {
        let strategy: Strategy = "zero1+megatron-sp".parse().unwrap();
        assert_eq!(strategy.presets(), [Preset::Zero1, Preset::MegatronSp]);
        assert_eq!(strategy.to_string(), "zero1+megatron-sp");
        assert_eq!("zero3".parse(), Ok(Strategy::from(Preset::Fsdp)));
        let error = "zero9+megatron+cont".parse::<Strategy>().unwrap_err();
        let text = error.to_string();
        for part in ["unknown layout `zero9`", "unknown layout `cont`"] {
            assert!(text.contains(part), "{text}");
        }
        assert!("".parse::<Strategy>().is_err());
    }

    #[test]
    fn all_pairs_of_presets_compose() {
        let axes = ["replica", "data", "context", "model"];
        let mesh = Mesh::new(axes.map(|axis| (axis, 2))).unwrap();
        for first in Preset::ALL {
            for second in Preset::ALL {
                let strategy = Strategy(vec![first, second]);
                let layout = strategy.layout(mesh.clone()).unwrap();
                assert_eq!(layout.validate(), Ok(()));
            }
        }
    }

    #[test]
    fn a_composition_has_both_parts_of_a_rule() {
        let mesh = Mesh::new([("data", 2), ("context", 2), ("model", 2)]).unwrap();
        let strategy: Strategy = "zero2+megatron-sp+context".parse().unwrap();
        assert_eq!(
            strategy.layout(mesh).unwrap().to_string(),
            "mesh data=2 x context=2 x model=2, 8 devices, partitioner shardy\n\
             \x20 batch          -> data\n\
             \x20 heads          -> model\n\
             \x20 kv_heads       -> model\n\
             \x20 mlp            -> model\n\
             \x20 vocab          -> model\n\
             \x20 seq            -> context, and model where free\n\
             \x20 every gradient -> data   (gradients and optimizer state)\n"
        );
    }

    #[test]
    fn conflicts_and_missing_axes_are_told_together() {
        let mesh = Mesh::new([("data", 2), ("model", 4)]).unwrap();
        let one = Layout::new(mesh.clone())
            .shard("mlp", "model")
            .shard_parameters("embed", "data")
            .shard_every_parameter("data");
        let other = Layout::new(mesh.clone())
            .shard("mlp", ())
            .shard_parameters("embed", "model")
            .shard_every_parameter("model");
        assert_eq!(
            one.clone().compose(&other).unwrap_err().to_string(),
            "layouts cannot be composed:\
             \n  - `mlp` -> model by one and not split by another: take one rule away, or write the \
             one that you mean with `Layout::shard` on one of them\
             \n  - `embed` (parameters at rest) -> data by one and model by another: take one rule \
             away, or write the one that you mean with `Layout::shard` on one of them\
             \n  - every parameter -> data by one and model by another: take one rule away, or write \
             the one that you mean with `Layout::shard` on one of them"
        );
        let single = one.compose(&Layout::single()).unwrap_err().to_string();
        assert_eq!(
            single,
            "layouts cannot be composed: one is for mesh data=2 x model=4, the other for mesh (one \
             device)"
        );
        let strategy: Strategy = "hsdp+context".parse().unwrap();
        let error = strategy.layout(mesh).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "layout `hsdp+context` needs a mesh axis `replica` and `context`, and"
            ),
            "{error}"
        );
    }
}
