//! Which devices communicate along which axes, and back from the groups to the axes.
//!
//! A collective in a compiled program lists device positions; a report wants to say "over `model`".

use std::collections::{BTreeMap, HashSet};

use crate::error::Error;
use crate::mesh::Mesh;

impl Mesh {
    /// The groups of devices that communicate in a collective over `axes`.
    ///
    /// Canonical: positions rise within a group, and groups are sorted by their first position. No
    /// axes give each device a group of its own.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAxis`] for an axis that the mesh does not have.
    ///
    /// ```
    /// # use shardax_sharding::Mesh;
    /// let mesh = Mesh::new([("data", 2), ("model", 2)])?;
    /// assert_eq!(mesh.groups(&["data"])?, [[0, 2], [1, 3]]);
    /// # Ok::<(), shardax_sharding::Error>(())
    /// ```
    pub fn groups(&self, axes: &[&str]) -> Result<Vec<Vec<usize>>, Error> {
        if let Some(&axis) = axes.iter().find(|axis| self.axis_size(axis).is_none()) {
            return Err(Error::UnknownAxis {
                axis: axis.to_owned(),
                mesh: self.clone(),
            });
        }
        let mut groups: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for position in 0..self.device_count() {
            let coordinates = self.coordinates(position).unwrap_or_default();
            let kept = self.axes().iter().zip(coordinates);
            let fixed = kept
                .filter(|(axis, _)| !axes.contains(&axis.name()))
                .map(|(_, at)| at);
            groups.entry(fixed.collect()).or_default().push(position);
        }
        Ok(groups.into_values().collect())
    }

    /// The axes that replica groups span: those along which two devices of a group differ, in mesh
    /// order. Axes of size 1 are never among them.
    ///
    /// The inverse of [`Mesh::groups`]; groups that cover only part of an axis span it too. An empty
    /// list of groups means all devices, as in HLO. `None` if the mesh has no such device or a device
    /// is there twice.
    pub fn axes_of_groups(&self, groups: &[Vec<usize>]) -> Option<Vec<String>> {
        let everything = [(0..self.device_count()).collect()];
        let groups = if groups.is_empty() {
            &everything
        } else {
            groups
        };
        let mut seen = HashSet::new();
        if !groups
            .iter()
            .flatten()
            .all(|position| seen.insert(*position))
        {
            return None;
        }
        let pairs = groups.iter().flat_map(|group| {
            let first = group.first().copied().unwrap_or_default();
            group.iter().map(move |&other| (first, other))
        });
        self.axes_between(pairs)
    }

    /// The axes along which the sources and targets of a collective-permute differ, in mesh order.
    ///
    /// `None` if the mesh has no such device.
    pub fn axes_of_pairs(&self, pairs: &[(usize, usize)]) -> Option<Vec<String>> {
        self.axes_between(pairs.iter().copied())
    }

    fn axes_between(&self, pairs: impl Iterator<Item = (usize, usize)>) -> Option<Vec<String>> {
        let mut differs = vec![false; self.axes().len()];
        for (from, to) in pairs {
            let (from, to) = (self.coordinates(from)?, self.coordinates(to)?);
            for (differs, (from, to)) in differs.iter_mut().zip(from.iter().zip(&to)) {
                *differs |= from != to;
            }
        }
        let spanned = self
            .axis_names()
            .zip(differs)
            .filter(|(_, differs)| *differs);
        Some(spanned.map(|(name, _)| name.to_owned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spec::tests::meshes;

    fn mesh() -> Mesh {
        Mesh::new([("data", 2), ("one", 1), ("model", 2)]).unwrap()
    }

    #[test]
    fn groups_vary_the_axes_named() {
        assert_eq!(mesh().groups(&["model"]).unwrap(), [[0, 1], [2, 3]]);
        assert_eq!(mesh().groups(&["model", "data"]).unwrap(), [[0, 1, 2, 3]]);
        assert_eq!(mesh().groups(&[]).unwrap(), [[0], [1], [2], [3]]);
        assert_eq!(
            mesh().groups(&["modle"]).unwrap_err().to_string(),
            "mesh data=2 x one=1 x model=2 has no axis `modle`: did you mean `model`? There are \
             data, one, model"
        );
    }

    #[test]
    fn axes_are_those_that_groups_span() {
        assert_eq!(
            mesh().axes_of_groups(&[]),
            Some(vec!["data".into(), "model".into()])
        );
        assert_eq!(
            mesh().axes_of_groups(&[vec![0, 3]]),
            Some(vec!["data".into(), "model".into()])
        );
        assert_eq!(mesh().axes_of_groups(&[vec![0], vec![1]]), Some(vec![]));
        assert_eq!(mesh().axes_of_groups(&[vec![0, 4]]), None);
        assert_eq!(mesh().axes_of_groups(&[vec![0, 1], vec![1, 2]]), None);
    }

    #[test]
    fn axes_of_a_permute_are_those_it_moves_along() {
        assert_eq!(
            mesh().axes_of_pairs(&[(0, 2), (1, 3)]),
            Some(vec!["data".into()])
        );
        assert_eq!(mesh().axes_of_pairs(&[(0, 0)]), Some(vec![]));
        assert_eq!(mesh().axes_of_pairs(&[(0, 9)]), None);
    }

    proptest! {
        #[test]
        fn groups_partition_the_devices((mesh, chosen) in meshes()) {
            let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
            let groups = mesh.groups(&chosen).unwrap();
            let mut all: Vec<usize> = groups.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..mesh.device_count()).collect::<Vec<_>>());
            prop_assert!(groups.is_sorted_by_key(|group| group[0]));
            prop_assert!(groups.iter().all(|group| group.is_sorted()));
        }

        #[test]
        fn axes_of_groups_inverts_groups((mesh, chosen) in meshes()) {
            let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
            let spanned = mesh.axes_of_groups(&mesh.groups(&chosen).unwrap()).unwrap();
            let expected: Vec<_> = mesh
                .axes()
                .iter()
                .filter(|axis| axis.size() > 1 && chosen.contains(&axis.name()))
                .map(|axis| axis.name().to_owned())
                .collect();
            prop_assert_eq!(spanned, expected);
        }
    }
}
