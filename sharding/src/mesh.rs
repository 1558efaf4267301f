//! The grid of devices that a program runs on.
//!
//! A mesh gives names to the ways in which devices are grouped. It speaks of *positions* (0 to
//! `device_count`), which a runtime maps to its own devices; the last axis varies fastest.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, MeshFault};

/// Far above any cluster, and low enough that no table of positions grows out of bounds.
pub(crate) const MAX_DEVICES: usize = 1 << 24;

/// A grid of devices with named axes, printed `data=2 x model=4`.
///
/// ```
/// use shardax_sharding::Mesh;
///
/// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
/// assert_eq!(mesh.device_count(), 8);
/// assert_eq!(mesh.coordinates(6), Some(vec![1, 2]));
/// assert_eq!(mesh, "data=2,model=4".parse()?);
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    axes: Arc<[MeshAxis]>,
}

/// One axis of a [`Mesh`], printed `data=2`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeshAxis {
    name: String,
    size: usize,
}

impl MeshAxis {
    /// The name, unique in the mesh.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of devices along it, at least 1.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Mesh {
    /// A mesh of these axes, slowest varying first.
    ///
    /// # Errors
    ///
    /// [`Error::Mesh`] with every fault of every axis: size zero, a name that is empty, ill-formed or
    /// there twice, more devices than a mesh may have (2^24).
    pub fn new<N: Into<String>>(axes: impl IntoIterator<Item = (N, usize)>) -> Result<Self, Error> {
        let axes: Vec<MeshAxis> = axes
            .into_iter()
            .map(|(name, size)| MeshAxis {
                name: name.into(),
                size,
            })
            .collect();
        let faults = faults(&axes);
        match faults.is_empty() {
            true => Ok(Mesh { axes: axes.into() }),
            false => Err(Error::Mesh { faults }),
        }
    }

    /// One device and no axes.
    pub fn single() -> Self {
        Mesh { axes: Arc::new([]) }
    }

    /// The axes, slowest varying first.
    pub fn axes(&self) -> &[MeshAxis] {
        &self.axes
    }

    pub(crate) fn axis_names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(MeshAxis::name)
    }

    /// The number of devices along `axis`, or `None` if the mesh has no such axis.
    pub fn axis_size(&self, axis: &str) -> Option<usize> {
        self.axes.iter().find(|a| a.name == axis).map(|a| a.size)
    }

    /// The number of devices.
    pub fn device_count(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Where the device at `position` stands along each axis; `None` if there is no such device.
    pub fn coordinates(&self, position: usize) -> Option<Vec<usize>> {
        if position >= self.device_count() {
            return None;
        }
        let mut rest = position;
        let mut coordinates = vec![0; self.axes.len()];
        for (coordinate, axis) in coordinates.iter_mut().zip(&*self.axes).rev() {
            *coordinate = rest % axis.size;
            rest /= axis.size;
        }
        Some(coordinates)
    }

    /// The position of the device at these coordinates, one for each axis; `None` if there is none.
    pub fn position(&self, coordinates: &[usize]) -> Option<usize> {
        if coordinates.len() != self.axes.len() {
            return None;
        }
        coordinates
            .iter()
            .zip(&*self.axes)
            .try_fold(0, |position, (&coordinate, axis)| {
                (coordinate < axis.size).then(|| position * axis.size + coordinate)
            })
    }

    /// Checks that the mesh takes up exactly the devices that are there.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceCount`], which proposes a mesh of the same axes that fits, if there is one.
    pub fn check_devices(&self, available: usize) -> Result<(), Error> {
        let needed = self.device_count();
        if needed == available {
            return Ok(());
        }
        let devices = if needed == 1 {
            "1 device".to_owned()
        } else {
            format!("{needed} devices")
        };
        let advice = match self.resized(available) {
            Some(mesh) => format!("use a mesh such as {mesh}, or run with {devices}"),
            None => format!("choose sizes that multiply to {available}, or run with {devices}"),
        };
        let mesh = self.clone();
        Err(Error::DeviceCount {
            mesh,
            available,
            advice,
        })
    }

    /// The mesh with one axis changed so that it has `count` devices; the last axis by preference.
    fn resized(&self, count: usize) -> Option<Mesh> {
        let index = (0..self.axes.len()).rev().find(|&i| {
            let others = self.device_count() / self.axes[i].size;
            count >= others && count.is_multiple_of(others)
        })?;
        let mut axes = self.axes.to_vec();
        axes[index].size = count / (self.device_count() / axes[index].size);
        Some(Mesh { axes: axes.into() })
    }
}

fn faults(axes: &[MeshAxis]) -> Vec<MeshFault> {
    let mut faults = Vec::new();
    for (index, MeshAxis { name, size }) in axes.iter().enumerate() {
        let axis = name.clone();
        if name.is_empty() {
            faults.push(MeshFault::EmptyName { index });
        } else if !is_well_formed(name) {
            faults.push(MeshFault::IllFormedName { axis: axis.clone() });
        } else if axes[..index].iter().filter(|a| a.name == *name).count() == 1 {
            faults.push(MeshFault::Repeated { axis: axis.clone() });
        }
        if *size == 0 {
            faults.push(MeshFault::ZeroSize { axis });
        }
    }
    let count = axes
        .iter()
        .try_fold(1usize, |count, axis| count.checked_mul(axis.size.max(1)));
    if count.is_none_or(|count| count > MAX_DEVICES) {
        faults.push(MeshFault::TooManyDevices { limit: MAX_DEVICES });
    }
    faults
}

fn is_well_formed(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_inner)
}

impl fmt::Display for MeshAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.size)
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.axes.is_empty() {
            return f.write_str("(one device)");
        }
        for (i, axis) in self.axes.iter().enumerate() {
            let times = if i == 0 { "" } else { " x " };
            write!(f, "{times}{axis}")?;
        }
        Ok(())
    }
}

/// Parses `data=2,model=4`, and what a mesh with axes prints.
impl FromStr for Mesh {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut axes = Vec::new();
        let mut unread = Vec::new();
        for part in text.replace(" x ", ",").split(',') {
            let Some((name, size)) = part.split_once('=') else {
                unread.push(MeshFault::NotNameAndSize {
                    text: part.trim().to_owned(),
                });
                continue;
            };
            let (axis, size) = (name.trim().to_owned(), size.trim());
            match size.parse() {
                Ok(size) => axes.push((axis, size)),
                Err(_) => unread.push(MeshFault::NotASize {
                    axis,
                    size: size.to_owned(),
                }),
            }
        }
        match Mesh::new(axes) {
            result if unread.is_empty() => result,
            Ok(_) => Err(Error::Mesh { faults: unread }),
            Err(Error::Mesh { faults }) => {
                unread.extend(faults);
                Err(Error::Mesh { faults: unread })
            }
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_every_fault_of_the_axes() {
        let error = Mesh::new([
            ("data", 0),
            ("data", 2),
            ("", 1),
            ("a b", 2),
            ("x", usize::MAX),
        ]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "cannot make a mesh:\
             \n  - axis `data` has size 0: an axis has at least one device\
             \n  - axis `data` is there more than once: give each axis a name of its own\
             \n  - axis 2 has an empty name: name it, for example `data`\
             \n  - `a b` cannot name an axis: a name is a letter, then letters, digits, `_` or `-`, all ASCII\
             \n  - the sizes multiply to more than 16777216 devices: make the axes smaller"
        );
    }

    #[test]
    fn reads_what_it_prints() {
        let mesh = Mesh::new([("data", 2), ("model", 4)]).unwrap();
        assert_eq!(mesh.to_string().parse(), Ok(mesh));
        assert_eq!(Mesh::single().to_string(), "(one device)");
    }

    #[test]
    fn reports_every_fault_of_a_text() {
        let error = "data,model=four,x=-1, =3".parse::<Mesh>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot make a mesh:\
             \n  - `data` is not NAME=SIZE: write a mesh as in `data=2,model=4`\
             \n  - size `four` of axis `model` is not a whole number that fits\
             \n  - size `-1` of axis `x` is not a whole number that fits\
             \n  - axis 0 has an empty name: name it, for example `data`"
        );
        let error = "".parse::<Mesh>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot make a mesh: `` is not NAME=SIZE")
        );
    }

    #[test]
    fn the_last_axis_varies_fastest() {
        let mesh = Mesh::new([("data", 2), ("model", 4)]).unwrap();
        assert_eq!(mesh.coordinates(5), Some(vec![1, 1]));
        assert_eq!(mesh.position(&[1, 1]), Some(5));
        assert_eq!(mesh.coordinates(8), None);
        assert_eq!(mesh.position(&[2, 0]), None);
        assert_eq!(mesh.position(&[0]), None);
        assert_eq!(Mesh::single().coordinates(0), Some(vec![]));
    }

    #[test]
    fn a_mesh_that_does_not_fit_the_devices_says_what_would() {
        let mesh = Mesh::new([("data", 2), ("model", 3)]).unwrap();
        assert_eq!(mesh.check_devices(6), Ok(()));
        assert_eq!(
            mesh.check_devices(8).unwrap_err().to_string(),
            "mesh data=2 x model=3 needs 6 devices, 8 are there: use a mesh such as \
             data=2 x model=4, or run with 6 devices"
        );
        assert_eq!(
            mesh.check_devices(1).unwrap_err().to_string(),
            "mesh data=2 x model=3 needs 6 devices, 1 is there: choose sizes that multiply to 1, or \
             run with 6 devices"
        );
        assert!(mesh.check_devices(0).is_err());
    }
}
