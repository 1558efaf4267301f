//! The well-known strategies, as short lists of rules.

use std::fmt;
use std::str::FromStr;

use crate::axes::Axes;
use crate::error::Error;
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::strategy::Strategy;

/// A strategy known by name, such as `fsdp` or `megatron-sp`.
///
/// Several are composed by a [`Strategy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// [`Layout::ddp`].
    Ddp,
    /// [`Layout::zero1`].
    Zero1,
    /// [`Layout::zero2`].
    Zero2,
    /// [`Layout::fsdp`], which is called `zero3` too.
    Fsdp,
    /// [`Layout::hsdp`].
    Hsdp,
    /// [`Layout::megatron`].
    Megatron,
    /// [`Layout::megatron_sp`].
    MegatronSp,
    /// [`Layout::megatron_fsdp`].
    MegatronFsdp,
    /// [`Layout::context`].
    Context,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Preset; 9] = [
        Preset::Ddp,
        Preset::Zero1,
        Preset::Zero2,
        Preset::Fsdp,
        Preset::Hsdp,
        Preset::Megatron,
        Preset::MegatronSp,
        Preset::MegatronFsdp,
        Preset::Context,
    ];

    /// What presets are called, `fsdp` by two names.
    const NAMES: [&'static str; 10] = [
        "ddp",
        "zero1",
        "zero2",
        "zero3",
        "fsdp",
        "hsdp",
        "megatron",
        "megatron-sp",
        "megatron-fsdp",
        "context",
    ];

    /// The preset's layout on a mesh.
    ///
    /// # Errors
    ///
    /// [`Error::PresetAxes`] if the mesh lacks an axis that the preset needs.
    pub fn layout(self, mesh: Mesh) -> Result<Layout, Error> {
        Strategy::from(self).layout(mesh)
    }

    /// The axes that a mesh must have for the preset. It may have others.
    pub fn axes(self) -> &'static [&'static str] {
        match self {
            Preset::Ddp | Preset::Zero1 | Preset::Zero2 | Preset::Fsdp => &["data"],
            Preset::Hsdp => &["replica", "data"],
            Preset::Megatron | Preset::MegatronSp => &["model"],
            Preset::MegatronFsdp => &["data", "model"],
            Preset::Context => &["context"],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Preset::Ddp => "ddp",
            Preset::Zero1 => "zero1",
            Preset::Zero2 => "zero2",
            Preset::Fsdp => "fsdp",
            Preset::Hsdp => "hsdp",
            Preset::Megatron => "megatron",
            Preset::MegatronSp => "megatron-sp",
            Preset::MegatronFsdp => "megatron-fsdp",
            Preset::Context => "context",
        }
    }

    /// The rules, on a mesh that has the preset's axes.
    pub(crate) fn rules(self, mesh: Mesh) -> Layout {
        let layout = data_parallel(mesh);
        match self {
            Preset::Ddp => layout,
            Preset::Zero1 => layout.shard_every_state("data"),
            Preset::Zero2 => layout.shard_every_gradient("data"),
            Preset::Fsdp | Preset::Hsdp => layout.shard_every_parameter("data"),
            Preset::Megatron => tensor_parallel(layout),
            Preset::MegatronSp => tensor_parallel(layout).shard_where_free("seq", "model"),
            Preset::MegatronFsdp => tensor_parallel(layout).shard_every_parameter("data"),
            Preset::Context => layout.shard("seq", "context"),
        }
    }
}

/// The batch over those of `replica` and `data` that the mesh has.
fn data_parallel(mesh: Mesh) -> Layout {
    let axes: Axes = ["replica", "data"]
        .into_iter()
        .filter(|axis| mesh.axis_size(axis).is_some())
        .collect();
    match axes.is_empty() {
        true => Layout::new(mesh),
        false => Layout::new(mesh).shard("batch", axes),
    }
}

fn tensor_parallel(layout: Layout) -> Layout {
    layout
        .shard("heads", "model")
        .shard("kv_heads", "model")
        .shard("mlp", "model")
        .shard("vocab", "model")
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Parses what a preset prints, and `zero3`.
impl FromStr for Preset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let name = if text == "zero3" { "fsdp" } else { text };
        let found = Preset::ALL.into_iter().find(|preset| preset.name() == name);
        found.ok_or_else(|| Error::UnknownName {
            what: "layout",
            name: text.to_owned(),
            known: &Preset::NAMES,
        })
    }
}

/// The presets.
///
/// They speak this vocabulary of logical names. Any other identifier may be used in a model too; a
/// preset has no rule for it.
///
/// | name | dimension |
/// |---|---|
/// | `batch` | examples |
/// | `seq` | positions of a sequence |
/// | `embed` | features of the residual stream |
/// | `mlp` | features of the hidden layer of a feed-forward block |
/// | `heads` | attention heads, of queries |
/// | `kv_heads` | attention heads, of keys and values |
/// | `head_dim` | features of one head |
/// | `vocab` | tokens of the vocabulary |
/// | `layers` | layers of a stack |
/// | `stage` | stages of a pipeline |
/// | `expert` | experts of a mixture |
///
/// Four mesh axes have a meaning here: `data`, `model`, `context`, and `replica`, along which groups of
/// `data` are repeated. Every preset splits the batch over those of `replica` and `data` that the mesh
/// has, so that presets can be composed ([`Layout::compose`], [`Strategy`]).
///
/// # Errors
///
/// Each returns [`Error::PresetAxes`] if the mesh lacks an axis that it needs ([`Preset::axes`]).
impl Layout {
    /// Data parallelism: the batch is split over `data`, every device holds all parameters.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 8)])?;
    /// assert_eq!(Layout::ddp(mesh.clone())?, Layout::new(mesh).shard("batch", "data"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ddp(mesh: Mesh) -> Result<Self, Error> {
        Preset::Ddp.layout(mesh)
    }

    /// Data parallelism that splits the optimizer's state over `data`. Gradients are reduced into shards
    /// once a step, each device updates its shard of the parameters, and these are gathered afterwards.
    /// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 8)])?;
    /// let rules = Layout::new(mesh.clone()).shard("batch", "data").shard_every_state("data");
    /// assert_eq!(Layout::zero1(mesh)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    pub fn zero1(mesh: Mesh) -> Result<Self, Error> {
        Preset::Zero1.layout(mesh)
    }

    /// Data parallelism that splits gradients and the optimizer's state over `data`: [`Layout::zero1`] in
    /// which what gradient accumulation adds up is a shard too.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 8)])?;
    /// let rules = Layout::new(mesh.clone()).shard("batch", "data").shard_every_gradient("data");
    /// assert_eq!(Layout::zero2(mesh)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    pub fn zero2(mesh: Mesh) -> Result<Self, Error> {
        Preset::Zero2.layout(mesh)
    }

    /// Fully sharded data parallelism (ZeRO-3): the batch is split over `data`, and so is every parameter
    /// at rest, with its gradient and optimizer state.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 8)])?;
    /// let rules = Layout::new(mesh.clone()).shard("batch", "data").shard_every_parameter("data");
    /// assert_eq!(Layout::fsdp(mesh)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fsdp(mesh: Mesh) -> Result<Self, Error> {
        Preset::Fsdp.layout(mesh)
    }

    /// Hybrid sharded data parallelism: fully sharded over `data`, the devices of a node, and repeated
    /// over `replica`, the nodes. The batch is split over both. Gradients are summed in the node, into shards, and
    /// the shards across nodes. Zhao et al., "PyTorch FSDP: Experiences on
    /// Scaling Fully Sharded Data Parallel", 2023.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("replica", 2), ("data", 4)])?;
    /// let rules = Layout::new(mesh.clone())
    ///     .shard("batch", ("replica", "data"))
    ///     .shard_every_parameter("data");
    /// assert_eq!(Layout::hsdp(mesh)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hsdp(mesh: Mesh) -> Result<Self, Error> {
        Preset::Hsdp.layout(mesh)
    }

    /// Tensor parallelism: heads, feed-forward features and the vocabulary are split over `model`, and
    /// the batch over `data` if the mesh has that axis. Shoeybi et al., "Megatron-LM: Training
    /// Multi-Billion Parameter Language Models Using Model Parallelism", 2019.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let rules = Layout::new(mesh.clone())
    ///     .shard("batch", "data")
    ///     .shard("heads", "model")
    ///     .shard("kv_heads", "model")
    ///     .shard("mlp", "model")
    ///     .shard("vocab", "model");
    /// assert_eq!(Layout::megatron(mesh)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    pub fn megatron(mesh: Mesh) -> Result<Self, Error> {
        Preset::Megatron.layout(mesh)
    }

    /// Tensor parallelism with sequence parallelism: what `model` does not split otherwise, the residual
    /// stream and the norms, is split along `seq`. Korthikanti et al., "Reducing Activation
    /// Recomputation in Large Transformer Models", 2022.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let rules = Layout::megatron(mesh.clone())?.shard_where_free("seq", "model");
    /// assert_eq!(Layout::megatron_sp(mesh)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    pub fn megatron_sp(mesh: Mesh) -> Result<Self, Error> {
        Preset::MegatronSp.layout(mesh)
    }

    /// Tensor parallelism over `model` and fully sharded data parallelism over `data`.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// let composed = Layout::megatron(mesh.clone())?.compose(&Layout::fsdp(mesh.clone())?)?;
    /// assert_eq!(Layout::megatron_fsdp(mesh)?, composed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn megatron_fsdp(mesh: Mesh) -> Result<Self, Error> {
        Preset::MegatronFsdp.layout(mesh)
    }

    /// Context parallelism: sequences are split over `context`, and the batch over `data` if the mesh has
    /// that axis. Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context",
    /// 2023.
    ///
    /// ```
    /// # use shardax_sharding::{Error, Layout, Mesh};
    /// # fn main() -> Result<(), Error> {
    /// let mesh = Mesh::new([("data", 2), ("context", 4)])?;
    /// let rules = Layout::new(mesh.clone()).shard("batch", "data").shard("seq", "context");
    /// assert_eq!(Layout::context(mesh)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    pub fn context(mesh: Mesh) -> Result<Self, Error> {
        Preset::Context.layout(mesh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dim, Role};

    #[test]
    fn presets_are_read_by_name() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(preset));
            assert!(Preset::NAMES.contains(&preset.name()));
        }
        assert_eq!("zero3".parse(), Ok(Preset::Fsdp));
        assert_eq!(
            "megatronfsdp".parse::<Preset>().unwrap_err().to_string(),
            "unknown layout `megatronfsdp`: did you mean `megatron-fsdp`? There are ddp, zero1, \
             zero2, zero3, fsdp, hsdp, megatron, megatron-sp, megatron-fsdp, context"
        );
    }

    #[test]
    fn every_preset_fits_a_mesh_of_its_axes() {
        for preset in Preset::ALL {
            let mesh = Mesh::new(preset.axes().iter().map(|axis| (*axis, 2))).unwrap();
            assert_eq!(preset.layout(mesh).unwrap().validate(), Ok(()));
        }
    }

    #[test]
    fn every_preset_splits_the_batch_over_all_that_there_is() {
        let axes = ["replica", "data", "context", "model"];
        let mesh = Mesh::new(axes.map(|axis| (axis, 2))).unwrap();
        for preset in Preset::ALL {
            let layout = preset.layout(mesh.clone()).unwrap();
            let batch = layout.resolve(Role::Activation, &[Dim::Logical("batch")], &[8]);
            let spec = batch.unwrap().spec.to_string();
            assert_eq!(spec, r#"P(("replica", "data"))"#, "{preset}");
        }
    }

    #[test]
    fn a_preset_names_the_axes_that_it_misses() {
        let mesh = Mesh::new([("dp", 8)]).unwrap();
        assert_eq!(
            Layout::ddp(mesh.clone()).unwrap_err().to_string(),
            "layout `ddp` needs a mesh axis `data`, and mesh dp=8 has none of that name: rename an \
             axis, add `data=1`, or write your own rules with `Layout::new(mesh).shard(..)`"
        );
        assert_eq!(
            Layout::megatron_fsdp(mesh).unwrap_err().to_string(),
            "layout `megatron-fsdp` needs a mesh axis `data` and `model`, and mesh dp=8 has none of \
             that name: rename an axis, add `data=1,model=1`, or write your own rules with \
             `Layout::new(mesh).shard(..)`"
        );
    }
}
