//! Which devices take part in a collective, from each of the forms in which HLO says so.
//!
//! HLO writes replica groups as a list, as a reshaped and transposed iota, or as axes of a mesh; what
//! the numbers in them mean depends on two more attributes. Here all of that becomes lists of *device
//! positions*, `replica * partitions + partition`, which are the positions of a
//! [`Mesh`](shardax_sharding::Mesh).

use std::collections::BTreeMap;

use super::proto::{self, AxisRef, DeviceMesh, IotaGroups, MeshAxesGroups};

/// Replica groups as the instruction states them.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplicaGroups {
    /// Nothing is stated: one group of all.
    All,
    List(Vec<Vec<i64>>),
    Iota(IotaGroups),
    MeshAxes(MeshAxesGroups),
}

impl ReplicaGroups {
    /// Takes the groups out of whichever field they are in.
    pub(super) fn from_proto(instruction: &mut proto::Instruction) -> Self {
        if let Some(groups) = instruction.mesh_axes.take() {
            return ReplicaGroups::MeshAxes(groups);
        }
        let mut list = instruction.device_list.take().unwrap_or_default();
        if let Some(iota) = instruction.iota_device_list.take().or(list.iota.take()) {
            return ReplicaGroups::Iota(iota);
        }
        if list.groups.is_empty() {
            list.groups = std::mem::take(&mut instruction.replica_groups);
        }
        match list.groups.is_empty() {
            true => ReplicaGroups::All,
            false => ReplicaGroups::List(list.groups.into_iter().map(|group| group.ids).collect()),
        }
    }

    /// The groups with the numbers that are stated, of which there are at most `limit`.
    fn stated(&self, limit: usize) -> Result<Vec<Vec<usize>>, String> {
        match self {
            ReplicaGroups::All => Ok(vec![(0..limit).collect()]),
            ReplicaGroups::List(groups) => groups
                .iter()
                .map(|group| group.iter().map(|&id| index(id)).collect())
                .collect(),
            ReplicaGroups::Iota(list) => {
                let transpose: Vec<i64> = list.transpose.iter().copied().map(i64::from).collect();
                let ids = iota(&list.reshape, &transpose, limit)?;
                let (count, size) = (index(list.group_count)?, index(list.group_size)?);
                if count.checked_mul(size) != Some(ids.len()) || size == 0 {
                    return Err(format!(
                        "{count} replica groups of {size} out of {} devices",
                        ids.len()
                    ));
                }
                Ok(ids.chunks(size).map(<[usize]>::to_vec).collect())
            }
            ReplicaGroups::MeshAxes(groups) => mesh_groups(groups, limit),
        }
    }
}

/// How many devices there are, and what the numbers of a collective count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbering {
    pub(super) replicas: usize,
    pub(super) partitions: usize,
    /// The instruction has a channel, so it reaches across partitions.
    pub(super) has_channel: bool,
    /// The numbers are device positions.
    pub(super) global: bool,
    /// The opcode has the attribute `use_global_device_ids`, so that its absence says something.
    pub(super) knows_global: bool,
}

impl Numbering {
    /// Device positions of the groups.
    pub(super) fn groups(self, groups: &ReplicaGroups) -> Result<Vec<Vec<usize>>, String> {
        let Numbering {
            replicas,
            partitions,
            ..
        } = self;
        let limit = self.limit();
        let stated = groups.stated(limit)?;
        if let Some(id) = stated.iter().flatten().find(|&&id| id >= limit) {
            return Err(format!("a replica group has device {id}, of {limit}"));
        }
        let groups = stated.iter();
        Ok(match (self.has_channel, self.global) {
            (true, true) => stated,
            // Replica numbers; a group for each partition.
            (false, _) => groups
                .flat_map(|group| (0..partitions).map(move |p| spread(group, partitions, p)))
                .collect(),
            // Replica numbers; all partitions of those replicas are one group.
            (true, false) if self.knows_global && replicas > 1 => groups
                .map(|group| {
                    let devices =
                        |replica: &usize| replica * partitions..(replica + 1) * partitions;
                    group.iter().flat_map(devices).collect()
                })
                .collect(),
            // Partition numbers; a group for each replica.
            (true, false) => groups
                .flat_map(|group| (0..replicas).map(move |r| spread(group, 1, r * partitions)))
                .collect(),
        })
    }

    /// Device positions of the pairs of a collective-permute.
    pub(super) fn pairs(self, pairs: &[(i64, i64)]) -> Result<Vec<(usize, usize)>, String> {
        let limit = self.limit();
        let mut positions = Vec::with_capacity(pairs.len());
        for &(source, target) in pairs {
            let (source, target) = (index(source)?, index(target)?);
            if source >= limit || target >= limit {
                return Err(format!(
                    "a source-target pair {source} -> {target} of {limit} devices"
                ));
            }
            positions.push((source, target));
        }
        let (copies, scale, step) = match self.has_channel {
            true if self.global => return Ok(positions),
            true => (self.replicas, 1, self.partitions),
            false => (self.partitions, self.partitions, 1),
        };
        let place = |copy, position| position * scale + copy * step;
        Ok((0..copies)
            .flat_map(|copy| {
                positions
                    .iter()
                    .map(move |&(s, t)| (place(copy, s), place(copy, t)))
            })
            .collect())
    }

    /// One more than the largest number that may be stated.
    fn limit(self) -> usize {
        match (self.has_channel, self.global) {
            (true, true) => self.replicas * self.partitions,
            (false, _) => self.replicas,
            (true, false) if self.knows_global && self.replicas > 1 => self.replicas,
            (true, false) => self.partitions,
        }
    }
}

fn spread(group: &[usize], scale: usize, offset: usize) -> Vec<usize> {
    group.iter().map(|id| id * scale + offset).collect()
}

fn index(number: i64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("a replica group with the number {number}"))
}

/// `0..product(reshape)`, reshaped and transposed, in row-major order.
fn iota(reshape: &[i64], transpose: &[i64], limit: usize) -> Result<Vec<usize>, String> {
    let malformed =
        || format!("replica groups {reshape:?} transposed by {transpose:?}, of {limit} devices");
    let sizes = reshape
        .iter()
        .map(|&n| usize::try_from(n))
        .collect::<Result<Vec<_>, _>>();
    let sizes = sizes.map_err(|_| malformed())?;
    let order: Vec<usize> = match transpose {
        [] => (0..sizes.len()).collect(),
        order => order
            .iter()
            .map(|&axis| usize::try_from(axis).unwrap_or(usize::MAX))
            .collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    let count = sizes
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size));
    if !sorted.into_iter().eq(0..sizes.len()) || count.is_none_or(|n| n == 0 || n > limit) {
        return Err(malformed());
    }
    // The stride of each axis before the transposition, then taken in the order after it.
    let mut strides = vec![1; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis];
    }
    let mut ids = vec![0];
    for &axis in &order {
        let steps = |id| (0..sizes[axis]).map(move |at| (id, at));
        ids = ids
            .into_iter()
            .flat_map(steps)
            .map(|(id, at)| id + at * strides[axis])
            .collect();
    }
    Ok(ids)
}

/// The groups of devices that differ only along the axes that are named.
fn mesh_groups(groups: &MeshAxesGroups, limit: usize) -> Result<Vec<Vec<usize>>, String> {
    let mesh = groups
        .mesh
        .as_ref()
        .ok_or("replica groups by mesh axes without a mesh")?;
    let sizes: Vec<i64> = mesh.axes.iter().map(|axis| axis.size).collect();
    let ids = mesh_devices(mesh, &sizes, limit)?;
    let axes = groups.axes.iter().map(|axis| AxisPart::new(axis, &sizes));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;

    // Position in the mesh without the named parts -> (position along those parts, device).
    let mut members: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (position, id) in ids.into_iter().enumerate() {
        let (mut rest, mut along) = (position, 0);
        for axis in &axes {
            let coordinate = position / axis.stride % axis.size;
            rest -= coordinate * axis.stride;
            along = along * axis.size + coordinate;
        }
        members.entry(rest).or_default().push((along, id));
    }
    Ok(members
        .into_values()
        .map(|mut group| {
            group.sort_unstable();
            group.into_iter().map(|(_, id)| id).collect()
        })
        .collect())
}

/// The device at each position of the mesh.
fn mesh_devices(mesh: &DeviceMesh, sizes: &[i64], limit: usize) -> Result<Vec<usize>, String> {
    let positions = iota(sizes, &[], limit)?;
    let ids = match &mesh.iota {
        Some(transform) => iota(&transform.reshape, &transform.transpose, limit)?,
        None if mesh.device_ids.is_empty() => return Ok(positions),
        None => mesh
            .device_ids
            .iter()
            .map(|&id| index(id))
            .collect::<Result<_, _>>()?,
    };
    match ids.len() == positions.len() {
        true => Ok(ids),
        false => Err(format!(
            "a mesh of {} positions with {} devices",
            positions.len(),
            ids.len()
        )),
    }
}

/// An axis of a mesh or a part of it, as a stride and a size in row-major positions.
struct AxisPart {
    stride: usize,
    size: usize,
}

impl AxisPart {
    /// `sizes` are those of the mesh, whose product is known to be in bounds.
    fn new(axis: &AxisRef, sizes: &[i64]) -> Result<Self, String> {
        let number = usize::try_from(axis.axis)
            .ok()
            .filter(|&number| number < sizes.len());
        let number = number.ok_or_else(|| format!("axis {} of the mesh {sizes:?}", axis.axis))?;
        let size = index(sizes[number])?;
        let minor = sizes[number + 1..]
            .iter()
            .map(|&size| index(size))
            .product::<Result<usize, _>>()?;
        let Some(part) = axis.sub_axis else {
            return Ok(AxisPart {
                stride: minor,
                size,
            });
        };
        let (before, part) = (index(part.pre_size)?, index(part.size)?);
        match before.checked_mul(part) {
            Some(outer) if outer > 0 && size.is_multiple_of(outer) => Ok(AxisPart {
                stride: minor * (size / outer),
                size: part,
            }),
            _ => Err(format!(
                "the part ({before}){part} of a mesh axis of size {size}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{DeviceMeshAxis, IotaTransform, ReplicaGroup, SubAxis};
    use super::*;

    const FLAT: Numbering = Numbering {
        replicas: 1,
        partitions: 8,
        has_channel: true,
        global: true,
        knows_global: true,
    };

    fn mesh_axes(sizes: &[i64], axes: &[(i64, Option<SubAxis>)]) -> MeshAxesGroups {
        let axes = axes
            .iter()
            .map(|&(axis, sub_axis)| AxisRef { axis, sub_axis });
        MeshAxesGroups {
            mesh: Some(DeviceMesh {
                axes: sizes.iter().map(|&size| DeviceMeshAxis { size }).collect(),
                device_ids: vec![],
                iota: None,
            }),
            axes: axes.collect(),
        }
    }

    fn iota_groups(shape: [i64; 2], reshape: &[i64], transpose: &[i32]) -> ReplicaGroups {
        ReplicaGroups::Iota(IotaGroups {
            group_count: shape[0],
            group_size: shape[1],
            reshape: reshape.to_vec(),
            transpose: transpose.to_vec(),
        })
    }

    #[test]
    fn every_form_gives_the_same_groups() {
        let model = [vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
        let list = ReplicaGroups::List(vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(FLAT.groups(&list).unwrap(), model);
        assert_eq!(FLAT.groups(&iota_groups([2, 4], &[8], &[])).unwrap(), model);
        let axes = ReplicaGroups::MeshAxes(mesh_axes(&[2, 4], &[(1, None)]));
        assert_eq!(FLAT.groups(&axes).unwrap(), model);

        let data = [[0, 4], [1, 5], [2, 6], [3, 7]];
        assert_eq!(
            FLAT.groups(&iota_groups([4, 2], &[2, 4], &[1, 0])).unwrap(),
            data
        );
        let axes = ReplicaGroups::MeshAxes(mesh_axes(&[2, 4], &[(0, None)]));
        assert_eq!(FLAT.groups(&axes).unwrap(), data);

        assert_eq!(
            FLAT.groups(&ReplicaGroups::All).unwrap(),
            [[0, 1, 2, 3, 4, 5, 6, 7]]
        );
    }

    #[test]
    fn the_oldest_field_is_read_when_the_newer_ones_are_absent() {
        let mut instruction = proto::Instruction {
            replica_groups: vec![ReplicaGroup { ids: vec![0, 1] }],
            ..Default::default()
        };
        let groups = ReplicaGroups::from_proto(&mut instruction);
        assert_eq!(groups, ReplicaGroups::List(vec![vec![0, 1]]));
    }

    #[test]
    fn mesh_axes_may_be_parts_reordered_and_over_permuted_devices() {
        // The major half of an axis of eight: devices four apart.
        let major = SubAxis {
            pre_size: 1,
            size: 2,
        };
        let groups = ReplicaGroups::MeshAxes(mesh_axes(&[8], &[(0, Some(major))]));
        assert_eq!(
            FLAT.groups(&groups).unwrap(),
            [[0, 4], [1, 5], [2, 6], [3, 7]]
        );
        let minor = SubAxis {
            pre_size: 4,
            size: 2,
        };
        let groups = ReplicaGroups::MeshAxes(mesh_axes(&[8], &[(0, Some(minor))]));
        assert_eq!(
            FLAT.groups(&groups).unwrap(),
            [[0, 1], [2, 3], [4, 5], [6, 7]]
        );

        let groups = ReplicaGroups::MeshAxes(mesh_axes(&[2, 2], &[(1, None), (0, None)]));
        assert_eq!(FLAT.groups(&groups).unwrap(), [[0, 2, 1, 3]]);

        let mut transposed = mesh_axes(&[2, 4], &[(1, None)]);
        if let Some(mesh) = &mut transposed.mesh {
            mesh.iota = Some(IotaTransform {
                reshape: vec![4, 2],
                transpose: vec![1, 0],
            });
        }
        let groups = FLAT.groups(&ReplicaGroups::MeshAxes(transposed)).unwrap();
        assert_eq!(groups, [[0, 2, 4, 6], [1, 3, 5, 7]]);
    }

    #[test]
    fn replica_and_partition_numbers_become_positions() {
        let grid = Numbering {
            replicas: 2,
            partitions: 2,
            ..FLAT
        };
        let pair = ReplicaGroups::List(vec![vec![0, 1]]);
        let no_channel = Numbering {
            has_channel: false,
            global: false,
            ..grid
        };
        assert_eq!(no_channel.groups(&pair).unwrap(), [[0, 2], [1, 3]]);
        assert_eq!(no_channel.pairs(&[(0, 1)]).unwrap(), [(0, 2), (1, 3)]);
        let partition = Numbering {
            global: false,
            knows_global: false,
            ..grid
        };
        assert_eq!(partition.groups(&pair).unwrap(), [[0, 1], [2, 3]]);
        assert_eq!(partition.pairs(&[(1, 0)]).unwrap(), [(1, 0), (3, 2)]);
        let both = Numbering {
            global: false,
            ..grid
        };
        assert_eq!(both.groups(&pair).unwrap(), [[0, 1, 2, 3]]);
    }

    #[test]
    fn bad_groups_are_errors() {
        let message = |groups| FLAT.groups(&groups).unwrap_err();
        assert_eq!(
            message(ReplicaGroups::List(vec![vec![0, 8]])),
            "a replica group has device 8, of 8"
        );
        assert_eq!(
            message(ReplicaGroups::List(vec![vec![-1]])),
            "a replica group with the number -1"
        );
        let huge = iota_groups([1, 1], &[i64::MAX, i64::MAX], &[]);
        assert!(message(huge).ends_with("of 8 devices"));
        assert!(message(iota_groups([2, 4], &[8], &[1])).contains("transposed by [1]"));
        assert_eq!(
            message(iota_groups([3, 2], &[8], &[])),
            "3 replica groups of 2 out of 8 devices"
        );
        assert_eq!(
            message(ReplicaGroups::MeshAxes(mesh_axes(&[8], &[(1, None)]))),
            "axis 1 of the mesh [8]"
        );
        let part = SubAxis {
            pre_size: 3,
            size: 2,
        };
        assert_eq!(
            message(ReplicaGroups::MeshAxes(mesh_axes(&[8], &[(0, Some(part))]))),
            "the part (3)2 of a mesh axis of size 8"
        );
    }
}
