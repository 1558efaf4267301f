//! The plugin packages that Shardax fetches by itself, each pinned by version and checksum.
//!
//! A fetched library runs inside the user's process, so its exact bytes are part of the program: a package is taken
//! only when both the wheel and the library in it have the sums written here.

/// A Python package that carries a PJRT plugin, pinned by version and SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// The kind of device that the plugin drives, as PJRT names platforms: `cpu`, `cuda`.
    pub backend: &'static str,
    /// The machine that the library runs on, as in [`Environment::platform`](super::Environment::platform).
    pub platform: &'static str,
    /// The name of the package.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The path of the library in the wheel, and so below `site-packages` when the package is installed.
    pub library: &'static str,
    /// Size of the wheel in bytes, for the progress bar.
    pub wheel_bytes: u64,
    /// SHA-256 of the wheel, in hexadecimal.
    pub wheel_sha256: &'static str,
    /// SHA-256 of the library, in hexadecimal.
    pub library_sha256: &'static str,
}

impl Package {
    /// `name==version`, as pip writes it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// The folder of this package among the fetched plugins.
    pub(super) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// Every pinned package; a search takes the first that fits the backend and the machine.
pub const PINNED: &[Package] = &[Package {
    backend: "cpu",
    platform: "linux x86_64",
    name: "lammps-jax-pjrt-cpu",
    version: "0.11.2",
    library: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
    wheel_bytes: 62_711_338,
    wheel_sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    library_sha256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
}];
