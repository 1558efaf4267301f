//! The well-known strategies, as short lists of rules.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::layout::Layout;
use crate::mesh::Mesh;

/// A strategy known by name: `ddp`, `fsdp`, `megatron` or `megatron-fsdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// [`Layout::ddp`].
    Ddp,
    /// [`Layout::fsdp`].
    Fsdp,
    /// [`Layout::megatron`].
    Megatron,
    /// [`Layout::megatron_fsdp`].
    MegatronFsdp,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Preset; 4] = [
        Preset::Ddp,
        Preset::Fsdp,
        Preset::Megatron,
        Preset::MegatronFsdp,
    ];

    const NAMES: [&'static str; 4] = ["ddp", "fsdp", "megatron", "megatron-fsdp"];

    /// The preset's layout on a mesh.
    ///
    /// # Errors
    ///
    /// [`Error::PresetAxes`] if the mesh lacks an axis that the preset needs.
    pub fn layout(self, mesh: Mesh) -> Result<Layout, Error> {
        match self {
            Preset::Ddp => Layout::ddp(mesh),
            Preset::Fsdp => Layout::fsdp(mesh),
            Preset::Megatron => Layout::megatron(mesh),
            Preset::MegatronFsdp => Layout::megatron_fsdp(mesh),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Preset::Ddp => "ddp",
            Preset::Fsdp => "fsdp",
            Preset::Megatron => "megatron",
            Preset::MegatronFsdp => "megatron-fsdp",
        }
    }

    fn needs(self, mesh: &Mesh, axes: &[&str]) -> Result<(), Error> {
        let missing: Vec<String> = axes
            .iter()
            .filter(|axis| mesh.axis_size(axis).is_none())
            .map(|axis| (*axis).to_owned())
            .collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Error::PresetAxes {
                preset: self,
                missing,
                mesh: mesh.clone(),
            }),
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Parses what a preset prints.
impl FromStr for Preset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Preset::ALL.into_iter().find(|preset| preset.name() == text);
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
/// Two mesh axes have a meaning here: `data` and `model`.
///
/// # Errors
///
/// Each returns [`Error::PresetAxes`] if the mesh lacks an axis that it needs, `data` or `model`.
impl Layout {
    /// Data parallelism: the batch is split over `data`, every device holds all parameters.
    pub fn ddp(mesh: Mesh) -> Result<Self, Error> {
        Preset::Ddp.needs(&mesh, &["data"])?;
        Ok(Layout::new(mesh).shard("batch", "data"))
    }

    /// Fully sharded data parallelism (ZeRO-3): the batch and every parameter at rest are split over
    /// `data`. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    /// Models", 2020.
    pub fn fsdp(mesh: Mesh) -> Result<Self, Error> {
        Preset::Fsdp.needs(&mesh, &["data"])?;
        Ok(Layout::new(mesh)
            .shard("batch", "data")
            .shard_every_parameter("data"))
    }

    /// Tensor parallelism: heads, feed-forward features and the vocabulary are split over `model`, and
    /// the batch over `data` if the mesh has that axis. Shoeybi et al., "Megatron-LM: Training
    /// Multi-Billion Parameter Language Models Using Model Parallelism", 2019.
    pub fn megatron(mesh: Mesh) -> Result<Self, Error> {
        Preset::Megatron.needs(&mesh, &["model"])?;
        let layout = match mesh.axis_size("data") {
            Some(_) => Layout::new(mesh).shard("batch", "data"),
            None => Layout::new(mesh),
        };
        Ok(layout.tensor_parallel())
    }

    /// Tensor parallelism over `model` and fully sharded data parallelism over `data`.
    pub fn megatron_fsdp(mesh: Mesh) -> Result<Self, Error> {
        Preset::MegatronFsdp.needs(&mesh, &["data", "model"])?;
        let layout = Layout::new(mesh).shard("batch", "data").tensor_parallel();
        Ok(layout.shard_every_parameter("data"))
    }

    fn tensor_parallel(self) -> Self {
        self.shard("heads", "model")
            .shard("kv_heads", "model")
            .shard("mlp", "model")
            .shard("vocab", "model")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_read_by_name() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(preset));
            assert!(Preset::NAMES.contains(&preset.name()));
        }
        assert_eq!(
            "megatronfsdp".parse::<Preset>().unwrap_err().to_string(),
            "unknown layout `megatronfsdp`: did you mean `megatron-fsdp`? There are ddp, fsdp, \
             megatron, megatron-fsdp"
        );
    }

    #[test]
    fn every_preset_fits_a_mesh_of_data_and_model() {
        let mesh = Mesh::new([("data", 2), ("model", 4)]).unwrap();
        for preset in Preset::ALL {
            assert_eq!(preset.layout(mesh.clone()).unwrap().validate(), Ok(()));
        }
    }

    #[test]
    fn megatron_needs_no_data_axis() {
        let layout = Layout::megatron(Mesh::new([("model", 4)]).unwrap()).unwrap();
        assert_eq!(layout.validate(), Ok(()));
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
