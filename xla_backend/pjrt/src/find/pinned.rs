//! The packages that Shardax fetches by itself, each pinned by version and checksum.
//!
//! A fetched library runs inside the user's process, so its exact bytes are part of the program: a package is taken
//! only when the wheel and the files in it that are used have the sums written here.

/// A Python package that carries a PJRT plugin or a tool that one needs, pinned by version and SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// What it is for: the kind of device that the plugin drives, as PJRT names platforms (`cpu`, `cuda`), or `ptxas` for
    /// the assembler that the plugin for CUDA runs.
    pub backend: &'static str,
    /// The environment variable that names a file to use instead of the library.
    pub variable: &'static str,
    /// The machine that the library runs on, as in [`Environment::platform`](super::Environment::platform).
    pub platform: &'static str,
    /// The name of the package.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The path of the library in the wheel, and so below `site-packages` when the package is installed. For a package of
    /// tools, that of the program.
    pub library: &'static str,
    /// Other files of the wheel that the library needs beside it.
    pub companions: &'static [&'static str],
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

    /// What its variable should name.
    pub(super) fn wanted(&self) -> &'static str {
        match self.library.ends_with(".so") {
            true => "a PJRT plugin library (.so)",
            false => "the program of that name in a CUDA toolkit",
        }
    }

    /// How to bring this package by hand.
    pub(crate) fn by_hand(&self) -> String {
        let package = self.requirement();
        let file = match self.library.ends_with(".so") {
            true => "the .so file",
            false => self.library,
        };
        format!(
            "To bring it by hand, run\n  python3 -m pip install --no-deps {package}\n\
             or, for a machine without a network, run where there is one\n  \
             python3 -m pip download --no-deps --only-binary :all: {package}\n\
             copy the .whl file here, unzip it, and set {} to the path of {file} in it",
            self.variable
        )
    }

    /// The folder of this package among the fetched plugins.
    pub(super) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// Every pinned package; a search takes the first that fits the backend and the machine.
pub const PINNED: &[Package] = &[
    Package {
        backend: "cpu",
        variable: "SHARDAX_PLUGIN",
        platform: "linux x86_64",
        name: "lammps-jax-pjrt-cpu",
        version: "0.11.2",
        library: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        companions: &[],
        wheel_bytes: 62_711_338,
        wheel_sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
        library_sha256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
    },
    Package {
        backend: "cuda",
        variable: "SHARDAX_CUDA_PLUGIN",
        platform: "linux x86_64",
        name: "jax-cuda12-pjrt",
        version: "0.12.0.1",
        library: "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        companions: &[],
        wheel_bytes: 191_846_358,
        wheel_sha256: "5ec28e06198d094031c37590b4ea753ae8cde4879ab4b60baf40f0dffb673286",
        library_sha256: "921aaa9c635255fb7b7a660d11c8f702c78a70e7f7d005d4f377c2dc5f0fede2",
    },
    Package {
        backend: "ptxas",
        variable: "SHARDAX_PTXAS",
        platform: "linux x86_64",
        name: "nvidia-cuda-nvcc-cu12",
        version: "12.9.86",
        library: "nvidia/cuda_nvcc/bin/ptxas",
        companions: &["nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc"],
        wheel_bytes: 40_546_229,
        wheel_sha256: "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
        library_sha256: "983b0e9283855979f42cebfd80d43f9b6e786eb84f03f7570bf941c4d3a3c461",
    },
];
