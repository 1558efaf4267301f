//! Clusters of accelerators, as a program is planned and compiled for: which chip, how many of them in
//! a node, how many nodes, and how fast they talk.
//!
//! A mesh is laid over a cluster in order: position 0 of the mesh is the first GPU of the first node,
//! and the last axis varies fastest. So the last axes of a mesh stay inside of a node as long as their
//! sizes multiply to a divisor of the GPUs there, and the first axes cross the network.

use std::fmt;
use std::str::FromStr;

use crate::error::{ClusterFault, Error};
use crate::mesh::{MAX_DEVICES, Mesh};

/// A kind of accelerator, with the figures that its maker publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Chip {
    /// NVIDIA H100 SXM5 with 80 GB of HBM3.
    H100,
    /// NVIDIA H200 SXM5 with 141 GB of HBM3e.
    H200,
}

impl Chip {
    /// Every chip.
    pub const ALL: [Chip; 2] = [Chip::H100, Chip::H200];

    /// The short name: `h100`, `h200`.
    pub fn name(self) -> &'static str {
        match self {
            Chip::H100 => "h100",
            Chip::H200 => "h200",
        }
    }

    /// The name that the driver gives.
    pub fn full_name(self) -> &'static str {
        match self {
            Chip::H100 => "NVIDIA H100 80GB HBM3",
            Chip::H200 => "NVIDIA H200 141GB HBM3e",
        }
    }

    /// The device memory that the driver reports, in bytes. A program does not get all of it: the CUDA
    /// context and the communicators of NCCL take 1 to 3 GB, depending on the number of groups.
    pub fn memory_bytes(self) -> u64 {
        match self {
            Chip::H100 => 84_942_979_072,
            Chip::H200 => 151_397_597_184,
        }
    }

    /// Bytes per second between device memory and the cores.
    pub fn memory_bandwidth(self) -> u64 {
        match self {
            Chip::H100 => 3_352_320_000_000,
            Chip::H200 => 4_800_000_000_000,
        }
    }

    /// Dense multiply-adds of bf16 or f16 matrices with f32 sums, in floating-point operations per
    /// second (a multiply-add counts as two). Those of 8-bit floats are twice as many.
    pub fn bf16_flops(self) -> u64 {
        match self {
            Chip::H100 | Chip::H200 => 989_400_000_000_000,
        }
    }

    /// Bytes per second that one chip sends over NVLink, and receives at the same time.
    pub fn nvlink_bandwidth(self) -> u64 {
        match self {
            Chip::H100 | Chip::H200 => 450_000_000_000,
        }
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What connects the devices of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// Nothing: the group is one device.
    None,
    /// NVLink: the devices are in one NVLink domain, mostly a node.
    Nvlink,
    /// The network between nodes. Some of the traffic may stay inside of a node all the same.
    Network,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Link::None => "none",
            Link::Nvlink => "NVLink",
            Link::Network => "network",
        })
    }
}

/// Nodes of GPUs: NVLink in the node, a network between nodes. `h100:64x8` in text is 64 nodes of 8
/// GPUs.
///
/// ```
/// use shardax_sharding::{Chip, Cluster, Link, Mesh};
///
/// let cluster = Cluster::new(Chip::H100, 64, 8)?;
/// assert_eq!(cluster.device_count(), 512);
/// assert_eq!(cluster, "h100:64x8".parse()?);
///
/// let mesh = Mesh::new([("data", 64), ("model", 8)])?;
/// assert_eq!(cluster.axis_link(&mesh, "model"), Some(Link::Nvlink));
/// assert_eq!(cluster.axis_link(&mesh, "data"), Some(Link::Network));
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    chip: Chip,
    nodes: usize,
    gpus_per_node: usize,
    nodes_per_domain: usize,
    network_bandwidth: u64,
}

impl Cluster {
    /// The network of a DGX H100: 400 Gbit/s for each GPU, in each direction.
    const NETWORK_BANDWIDTH: u64 = 50_000_000_000;

    /// A cluster in which each node is an NVLink domain, with a network of 50 GB/s for each GPU.
    ///
    /// # Errors
    ///
    /// [`Error::Cluster`] with every fault: no nodes, no GPUs in a node, more devices than a mesh may
    /// have (2^24).
    pub fn new(chip: Chip, nodes: usize, gpus_per_node: usize) -> Result<Self, Error> {
        let cluster = Cluster {
            chip,
            nodes,
            gpus_per_node,
            nodes_per_domain: 1,
            network_bandwidth: Self::NETWORK_BANDWIDTH,
        };
        cluster.checked()
    }

    /// The same cluster with NVLink between this many nodes, where an NVLink switch connects them.
    ///
    /// # Errors
    ///
    /// [`Error::Cluster`] unless the nodes divide into such domains.
    pub fn nvlink_domain(self, nodes: usize) -> Result<Self, Error> {
        let cluster = Cluster {
            nodes_per_domain: nodes,
            ..self
        };
        cluster.checked()
    }

    /// The same cluster with another network: bytes per second that each GPU sends to other nodes, and
    /// receives at the same time.
    #[must_use]
    pub fn network(self, bytes_per_second: u64) -> Self {
        Cluster {
            network_bandwidth: bytes_per_second,
            ..self
        }
    }

    fn checked(self) -> Result<Self, Error> {
        let mut faults = Vec::new();
        if self.nodes == 0 {
            faults.push(ClusterFault::NoNodes);
        }
        if self.gpus_per_node == 0 {
            faults.push(ClusterFault::NoGpus);
        }
        let domain = self.nodes_per_domain;
        if domain == 0 || !self.nodes.is_multiple_of(domain) {
            faults.push(ClusterFault::Domain {
                nodes: self.nodes,
                domain,
            });
        }
        let devices = self.nodes.checked_mul(self.gpus_per_node);
        if devices.is_none_or(|devices| devices > MAX_DEVICES) {
            faults.push(ClusterFault::TooManyDevices { limit: MAX_DEVICES });
        }
        match faults.is_empty() {
            true => Ok(self),
            false => Err(Error::Cluster { faults }),
        }
    }

    /// The kind of its GPUs.
    pub fn chip(&self) -> Chip {
        self.chip
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// GPUs in each node.
    pub fn gpus_per_node(&self) -> usize {
        self.gpus_per_node
    }

    /// Nodes that NVLink connects; 1 where each node is alone.
    pub fn nodes_per_domain(&self) -> usize {
        self.nodes_per_domain
    }

    /// All GPUs.
    pub fn device_count(&self) -> usize {
        self.nodes * self.gpus_per_node
    }

    /// Bytes per second that each GPU sends to other nodes, and receives at the same time.
    pub fn network_bandwidth(&self) -> u64 {
        self.network_bandwidth
    }

    /// Bytes per second that a GPU sends over a link; 0 for [`Link::None`].
    pub fn bandwidth(&self, link: Link) -> u64 {
        match link {
            Link::None => 0,
            Link::Nvlink => self.chip.nvlink_bandwidth(),
            Link::Network => self.network_bandwidth,
        }
    }

    /// What connects these devices, given by their positions in a mesh over the whole cluster.
    pub fn link(&self, positions: &[usize]) -> Link {
        let Some((first, rest)) = positions.split_first() else {
            return Link::None;
        };
        let domain = self.gpus_per_node * self.nodes_per_domain;
        let mut link = Link::None;
        for position in rest {
            if position / domain != first / domain {
                return Link::Network;
            }
            if position != first {
                link = Link::Nvlink;
            }
        }
        link
    }

    /// What connects the devices along an axis of a mesh over the whole cluster, [`Link::Network`] if
    /// any group of them crosses; `None` if the mesh has no such axis.
    pub fn axis_link(&self, mesh: &Mesh, axis: &str) -> Option<Link> {
        let index = mesh.axes().iter().position(|a| a.name() == axis)?;
        let size = mesh.axes()[index].size();
        let stride: usize = mesh.axes()[index + 1..].iter().map(|a| a.size()).product();
        // Groups along the axis lie in blocks of this many positions, each aligned to its size.
        let block = size * stride;
        let domain = self.gpus_per_node * self.nodes_per_domain;
        Some(match size {
            1 => Link::None,
            _ if domain.is_multiple_of(block) => Link::Nvlink,
            _ => self.worst_link(mesh.device_count(), size, stride),
        })
    }

    /// For blocks that do not divide a domain: some may lie inside of one, and all are looked at.
    fn worst_link(&self, devices: usize, size: usize, stride: usize) -> Link {
        let block = size * stride;
        let groups = (0..devices).filter(|position| position % block < stride);
        groups
            .map(|first| self.link(&[first, first + (size - 1) * stride]))
            .max()
            .unwrap_or(Link::None)
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chip, nodes, gpus) = (self.chip, self.nodes, self.gpus_per_node);
        write!(f, "{chip}:{nodes}x{gpus}")?;
        match self.nodes_per_domain {
            1 => Ok(()),
            domain => write!(f, " in NVLink domains of {domain} nodes"),
        }
    }
}

/// Parses `h100:64x8`.
impl FromStr for Cluster {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unread = || Error::Cluster {
            faults: vec![ClusterFault::Unread {
                text: text.to_owned(),
            }],
        };
        let (chip, sizes) = text.trim().split_once(':').ok_or_else(unread)?;
        let (nodes, gpus) = sizes.split_once('x').ok_or_else(unread)?;
        let chip = Chip::ALL.into_iter().find(|c| c.name() == chip);
        let (Some(chip), Ok(nodes), Ok(gpus)) = (chip, nodes.parse(), gpus.parse()) else {
            return Err(unread());
        };
        Cluster::new(chip, nodes, gpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(text: &str) -> Mesh {
        text.parse().unwrap()
    }

    #[test]
    fn the_last_axes_stay_in_the_node() {
        let cluster = Cluster::new(Chip::H100, 2, 8).unwrap();
        let links = |text: &str| {
            let mesh = mesh(text);
            let axes = mesh.axes().iter();
            let links = axes.map(|axis| cluster.axis_link(&mesh, axis.name()));
            links.map(Option::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(links("data=2,model=8"), [Link::Network, Link::Nvlink]);
        assert_eq!(links("data=8,model=2"), [Link::Network, Link::Nvlink]);
        assert_eq!(
            links("data=2,fsdp=4,model=2"),
            [Link::Network, Link::Nvlink, Link::Nvlink]
        );
        assert_eq!(links("model=16"), [Link::Network]);
        assert_eq!(links("data=1,model=16"), [Link::None, Link::Network]);
        let other = mesh("data=16");
        assert_eq!(cluster.axis_link(&other, "model"), None);
    }

    #[test]
    fn groups_across_the_border_of_a_node_are_found() {
        // Groups of 3 over nodes of 4: 0 1 2 are in one node, 3 4 5 are not.
        let cluster = Cluster::new(Chip::H200, 3, 4).unwrap();
        let mesh = mesh("data=4,model=3");
        assert_eq!(cluster.axis_link(&mesh, "model"), Some(Link::Network));
        assert_eq!(cluster.link(&[0, 1, 2]), Link::Nvlink);
        assert_eq!(cluster.link(&[3, 4, 5]), Link::Network);
        assert_eq!(cluster.link(&[7]), Link::None);
        assert_eq!(cluster.link(&[]), Link::None);
    }

    #[test]
    fn an_nvlink_switch_joins_nodes() {
        let cluster = Cluster::new(Chip::H100, 4, 8).unwrap();
        let joined = cluster.clone().nvlink_domain(2).unwrap();
        let mesh = mesh("data=2,model=16");
        assert_eq!(cluster.axis_link(&mesh, "model"), Some(Link::Network));
        assert_eq!(joined.axis_link(&mesh, "model"), Some(Link::Nvlink));
        assert_eq!(joined.bandwidth(Link::Nvlink), 450_000_000_000);
        assert_eq!(joined.network(7).bandwidth(Link::Network), 7);
        assert_eq!(
            cluster.nvlink_domain(3).unwrap_err().to_string(),
            "cannot describe a cluster: 4 nodes do not divide into NVLink domains of 3"
        );
    }

    #[test]
    fn every_fault_is_told() {
        assert_eq!(
            Cluster::new(Chip::H100, 0, 0).unwrap_err().to_string(),
            "cannot describe a cluster:\n  - it has no nodes: give at least 1\n  \
             - its nodes have no GPUs: give at least 1"
        );
        let many = Cluster::new(Chip::H100, usize::MAX, 8).unwrap_err();
        assert!(many.to_string().contains("more than 16777216 devices"));
    }

    #[test]
    fn text_and_back() {
        for text in ["h100:1x8", "h200:64x8"] {
            assert_eq!(text.parse::<Cluster>().unwrap().to_string(), text);
        }
        for text in ["", "h100", "h100:8", "a100:1x8", "h100:ax8", "h100:1x-8"] {
            let error = text.parse::<Cluster>().unwrap_err().to_string();
            assert!(error.contains("CHIP:NODESxGPUS"), "{error}");
        }
    }
}
