//! The search and the fetch, with a script in place of Python and a small wheel in place of the plugin.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;

const LIBRARY: &str = "fake_plugin/plugin.so";
const TOOL: &str = "fake_plugin/bin/tool";
const CONTENT: &[u8] = b"the library";

/// A machine with one interpreter, no packages, and a wheel that pip can fetch.
struct Machine {
    root: TempDir,
    variables: Vec<(&'static str, PathBuf)>,
    package: Package,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| root.path().join(path);
        for folder in ["bin", "site", "home"] {
            fs::create_dir(at(folder)).expect("created");
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/find/fixtures/fake_python.sh");
        symlink(script, at("bin/python3")).expect("linked");
        write_wheel(&at("good.whl"), CONTENT);
        let variables = vec![
            ("HOME", at("home")),
            ("PATH", at("bin")),
            ("SHARDAX_CACHE", at("cache")),
            ("FAKE_CALLS", at("calls")),
            ("FAKE_SITE", at("site")),
            ("FAKE_WHEEL", at("good.whl")),
        ];
        let package = Package {
            backend: "cpu",
            variable: "SHARDAX_PLUGIN",
            platform: "any",
            name: "fake",
            version: "1.0",
            library: LIBRARY,
            companions: &[],
            wheel_bytes: 1000,
            wheel_sha256: sum(&fs::read(at("good.whl")).expect("read")),
            library_sha256: sum(CONTENT),
        };
        Self {
            root,
            variables,
            package,
        }
    }

    /// The same machine with a variable set, or with one taken away by setting it to nothing.
    fn with(mut self, name: &'static str, value: impl Into<PathBuf>) -> Self {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value.into()));
        self
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn environment(&self) -> Environment {
        Environment::from_variables(self.variables.iter().cloned())
    }

    fn find(&self) -> Result<PluginFile> {
        PluginFile::find_in(&self.environment(), &self.package)
    }

    fn fetch(&self) -> Result<PluginFile> {
        PluginFile::find_or_fetch_in(&self.environment(), &self.package, Progress::Silent)
    }

    fn fetch_error(&self) -> String {
        self.fetch().expect_err("must fail").to_string()
    }

    fn calls(&self, of: &str) -> usize {
        let calls = fs::read_to_string(self.at("calls")).unwrap_or_default();
        calls.lines().filter(|call| call.contains(of)).count()
    }

    /// The names in the folder of fetched plugins.
    fn kept(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.at("cache/plugins"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn install(&self, content: &[u8]) {
        let library = self.at("site").join(LIBRARY);
        fs::create_dir_all(library.parent().expect("a folder")).expect("created");
        fs::write(library, content).expect("written");
    }

    /// This test program, running [`fetch_in_child`] on this machine.
    fn child(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "find::tests::fetch_in_child", "--ignored"])
            .env("FAKE_WHEEL_SHA256", self.package.wheel_sha256)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command
    }
}

fn sum(bytes: &[u8]) -> &'static str {
    String::leak(hex(&Sha256::digest(bytes)))
}

fn write_wheel(path: &Path, library: &[u8]) {
    let mut wheel = zip::ZipWriter::new(fs::File::create(path).expect("created"));
    let options = zip::write::SimpleFileOptions::default();
    let runs = options.unix_permissions(0o744);
    wheel.start_file(TOOL, runs).expect("an entry");
    for (name, content) in [
        (LIBRARY, library),
        ("fake_plugin/__init__.py", b"raise SystemExit"),
        ("fake-1.0.dist-info/licenses/LICENSE", b"terms"),
        ("../LICENSE", b"outside"),
    ] {
        wheel.start_file(name, options).expect("an entry");
        wheel.write_all(content).expect("written");
    }
    wheel.finish().expect("finished");
}

#[test]
fn variable_goes_before_everything() {
    let machine = Machine::new();
    let library = machine.at("mine.so");
    fs::write(&library, "any library").expect("written");
    let machine = machine.with("SHARDAX_PLUGIN", &library);
    let found = machine.fetch().expect("found");
    assert_eq!(found.origin(), Origin::Variable("SHARDAX_PLUGIN"));
    assert_eq!(found.path(), library.canonicalize().expect("exists"));
    assert_eq!(hex(&found.sha256()), sum(b"any library"));
    assert_eq!(machine.calls(""), 0);
}

#[test]
fn variable_that_names_no_file() {
    let machine = Machine::new().with("SHARDAX_PLUGIN", "/nowhere/plugin.so");
    let message = "SHARDAX_PLUGIN is set to /nowhere/plugin.so, which cannot be used: no such file\n\
        set it to the path of a PJRT plugin library (.so), or unset it to let Shardax find or fetch one";
    assert_eq!(machine.fetch_error(), message);
    assert_eq!(machine.find().expect_err("no file").to_string(), message);
    let folder = machine.with("SHARDAX_PLUGIN", "/");
    assert!(folder.fetch_error().contains("it is not a file"));
}

#[test]
fn fetched_once_and_then_found_without_python() {
    let machine = Machine::new();
    let found = machine.fetch().expect("fetched");
    assert_eq!(found.origin(), Origin::Cache);
    assert_eq!(fs::read(found.path()).expect("read"), CONTENT);
    assert_eq!(machine.kept(), ["fake-1.0", "lock"]);
    let kept = machine.at("cache/plugins/fake-1.0");
    assert!(kept.join("fake-1.0.dist-info/licenses/LICENSE").is_file());
    assert!(!kept.join("fake_plugin/__init__.py").exists());
    assert!(!machine.at("cache/plugins/LICENSE").exists());
    assert_eq!(machine.calls("pip download"), 1);

    let calls = machine.calls("");
    assert_eq!(machine.fetch().expect("found"), found);
    assert_eq!(machine.find().expect("found"), found);
    assert_eq!(machine.calls(""), calls, "Python ran again");
}

#[test]
fn companions_are_unpacked_and_tools_can_run() {
    let mut machine = Machine::new();
    machine.install(CONTENT);
    machine.package.companions = &[TOOL];
    let found = machine.fetch().expect("fetched");
    assert_eq!(
        found.origin(),
        Origin::Cache,
        "an installed package lacks the tool"
    );
    let tool = machine.at("cache/plugins/fake-1.0").join(TOOL);
    let mode = fs::metadata(tool).expect("unpacked").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[test]
fn each_package_has_a_variable_of_its_own() {
    let machine = Machine::new();
    let library = machine.at("mine.so");
    fs::write(&library, "any library").expect("written");
    let mut machine = machine.with("SHARDAX_PLUGIN", &library);
    machine.package.variable = "SHARDAX_OTHER";
    assert_eq!(machine.fetch().expect("fetched").origin(), Origin::Cache);
    let machine = machine.with("SHARDAX_OTHER", "/nowhere/plugin.so");
    let message = machine.fetch_error();
    assert!(
        message.starts_with("SHARDAX_OTHER is set to /nowhere"),
        "{message}"
    );
    for backend in ["cpu", "cuda", "ptxas"] {
        let variables = PINNED
            .iter()
            .filter(|p| p.backend == backend)
            .map(|p| p.variable);
        assert_eq!(variables.count(), 1);
    }
}

#[test]
fn without_a_network() {
    let message = Machine::new().with("FAKE_PIP", "offline").fetch_error();
    let expected = "  ERROR: No matching distribution found for it
Is there a network?
To bring it by hand, run
  python3 -m pip install --no-deps fake==1.0
or, for a machine without a network, run where there is one
  python3 -m pip download --no-deps --only-binary :all: fake==1.0
copy the .whl file here, unzip it, and set SHARDAX_PLUGIN to the path of the .so file in it";
    let (first, rest) = message.split_once('\n').expect("several lines");
    assert!(
        first.starts_with("fake==1.0 could not be fetched: `"),
        "{first}"
    );
    assert!(
        first.ends_with("/bin/python3 -m pip download` failed:"),
        "{first}"
    );
    assert_eq!(rest, expected);
}

#[test]
fn without_python_or_pip() {
    let none = Machine::new().with("PATH", "");
    let message = none.fetch_error();
    assert!(
        message.contains("no python3 on PATH or in VIRTUAL_ENV"),
        "{message}"
    );

    let machine = Machine::new();
    let venv = machine.at("venv");
    fs::create_dir_all(venv.join("bin")).expect("created");
    symlink(machine.at("bin/python3"), venv.join("bin/python3")).expect("linked");
    let machine = machine
        .with("VIRTUAL_ENV", &venv)
        .with("FAKE_PIP", "missing");
    let message = machine.fetch_error();
    let tried = format!(
        "none of these has it: {}, {}; install it",
        venv.join("bin/python3").display(),
        machine.at("bin/python3").display()
    );
    assert!(message.contains(&tried), "{message}");
    assert_eq!(machine.calls("pip download"), 2);
}

#[test]
fn wrong_checksums_are_refused_with_both_sums() {
    let machine = Machine::new();
    let other = machine.at("other.whl");
    write_wheel(&other, b"another library");
    let other_sum = sum(&fs::read(&other).expect("read"));
    let mut machine = machine.with("FAKE_WHEEL", &other);
    let message = machine.fetch_error();
    assert!(
        message.contains("the wheel of fake==1.0 is refused"),
        "{message}"
    );
    assert!(message.contains(machine.package.wheel_sha256), "{message}");
    assert!(message.contains(other_sum), "{message}");
    assert_eq!(machine.kept(), ["lock"]);

    machine.package.wheel_sha256 = other_sum;
    let message = machine.fetch_error();
    assert!(
        message.contains("fake_plugin/plugin.so in fake==1.0 is refused"),
        "{message}"
    );
    assert!(message.contains(sum(CONTENT)), "{message}");
    assert!(message.contains(sum(b"another library")), "{message}");
    assert_eq!(machine.kept(), ["lock"]);

    let machine = machine.with("FAKE_PIP", "tampered");
    let message = machine.fetch_error();
    assert!(message.contains("found    SHA-256 2222"), "{message}");
}

#[test]
fn wheels_that_cannot_be_unpacked() {
    let mut machine = Machine::new();
    fs::write(machine.at("good.whl"), "no archive").expect("written");
    machine.package.wheel_sha256 = sum(b"no archive");
    let message = machine.fetch_error();
    assert!(
        message.contains("the wheel of fake==1.0 cannot be unpacked"),
        "{message}"
    );

    let mut machine = Machine::new();
    machine.package.library = "elsewhere/plugin.so";
    let message = machine.fetch_error();
    assert!(
        message.contains("it has no elsewhere/plugin.so"),
        "{message}"
    );
}

#[test]
fn installed_package_is_used_and_remembered() {
    let machine = Machine::new();
    machine.install(CONTENT);
    let found = machine.find().expect("found");
    assert_eq!(found.origin(), Origin::Python);
    let installed = machine.at("site").join(LIBRARY);
    assert_eq!(found.path(), installed.canonicalize().expect("exists"));

    let calls = machine.calls("");
    let again = machine.find().expect("found");
    assert_eq!(
        (again.path(), again.origin()),
        (found.path(), Origin::Cache)
    );
    assert_eq!(machine.calls(""), calls, "Python ran again");

    // Uninstalled: what was remembered leads nowhere, and a fetch takes its place.
    fs::remove_dir_all(machine.at("site")).expect("removed");
    let fetched = machine.fetch().expect("fetched");
    assert_eq!(fetched.origin(), Origin::Cache);
    assert_eq!(machine.calls("pip download"), 1);
    assert!(
        fetched
            .path()
            .starts_with(machine.at("cache").canonicalize().expect("exists"))
    );
}

#[test]
fn user_packages_are_seen_from_a_virtual_environment() {
    let machine = Machine::new();
    let packages = machine.at("home/.local/lib/python3.9/site-packages");
    machine.install(CONTENT);
    fs::create_dir_all(packages.parent().expect("a folder")).expect("created");
    fs::rename(machine.at("site"), &packages).expect("moved");
    let found = machine.find().expect("found");
    assert_eq!(
        found.path(),
        packages.join(LIBRARY).canonicalize().expect("exists")
    );
}

#[test]
fn other_versions_are_listed_and_not_used() {
    let machine = Machine::new();
    machine.install(b"another version");
    let message = machine.find().expect_err("nothing usable").to_string();
    let installed = machine.at("site").join(LIBRARY);
    let state = format!(
        "{}: refused, not the pinned library: SHA-256 {} where {} is expected",
        installed.display(),
        sum(b"another version"),
        sum(CONTENT)
    );
    assert!(message.contains(&state), "{message}");
    assert!(
        message.contains("cache/plugins/fake-1.0/fake_plugin/plugin.so: no such file"),
        "{message}"
    );
    let asked = format!(
        "the packages of {}: no other fake_plugin/plugin.so",
        machine.at("bin/python3").display()
    );
    assert!(message.contains(&asked), "{message}");
    assert!(
        message.contains("python3 -m pip install --no-deps fake==1.0"),
        "{message}"
    );

    let states: Vec<bool> = candidates(&machine.environment(), &machine.package)
        .into_iter()
        .map(|candidate| candidate.state == CandidateState::Absent)
        .collect();
    assert_eq!(states, [true, false]);
    assert_eq!(machine.fetch().expect("fetched").origin(), Origin::Cache);
}

#[test]
fn damaged_library_is_fetched_again() {
    let machine = Machine::new();
    let found = machine.fetch().expect("fetched");
    fs::write(found.path(), "cut").expect("written");
    assert!(machine.find().is_err());
    let again = machine.fetch().expect("fetched");
    assert_eq!(fs::read(again.path()).expect("read"), CONTENT);
    assert_eq!(machine.calls("pip download"), 2);
    assert_eq!(machine.kept(), ["fake-1.0", "lock"]);
}

#[test]
fn unusable_cache_folders() {
    let machine = Machine::new().with("SHARDAX_CACHE", "").with("HOME", "");
    let message = machine.fetch_error();
    assert!(
        message.contains("set SHARDAX_CACHE to a folder"),
        "{message}"
    );

    let machine = Machine::new();
    let below_a_file = machine.at("good.whl/cache");
    let machine = machine.with("SHARDAX_CACHE", &below_a_file);
    let message = machine.fetch_error();
    let expected = format!("cannot create {}/plugins: ", below_a_file.display());
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn machines_without_a_pinned_plugin() {
    let environment = Environment::of_process().with_platform("plan9 mips");
    let message = Package::for_backend("cpu", &environment).expect_err("no such plugin");
    assert_eq!(
        message.to_string(),
        "there is no pinned PJRT plugin for cpu on plan9 mips (there is: cpu on linux x86_64); build one for this \
         machine and set SHARDAX_PLUGIN to the path of the library"
    );
    let named =
        Environment::from_variables([("SHARDAX_PLUGIN", "/p.so")]).with_platform("plan9 mips");
    assert!(Package::for_backend("cpu", &named).is_ok());
}

/// Run by other tests in a process of its own.
#[test]
#[ignore = "a part of other tests"]
fn fetch_in_child() {
    let Ok(wheel_sha256) = std::env::var("FAKE_WHEEL_SHA256") else {
        return;
    };
    let package = Package {
        wheel_sha256: String::leak(wheel_sha256),
        ..Machine::new().package
    };
    PluginFile::find_or_fetch_in(&Environment::of_process(), &package, Progress::Silent)
        .expect("fetched");
}

#[test]
fn threads_and_processes_at_once_fetch_once() {
    let machine = Machine::new();
    let mut children: Vec<_> = (0..3)
        .map(|_| machine.child().spawn().expect("started"))
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| machine.fetch().expect("fetched"));
        }
    });
    for child in &mut children {
        assert!(child.wait().expect("ended").success());
    }
    assert_eq!(machine.calls("pip download"), 1);
    assert_eq!(machine.kept(), ["fake-1.0", "lock"]);
}

#[test]
fn killed_fetch_leaves_nothing_that_breaks_the_next() {
    let machine = Machine::new();
    let mut child = machine
        .child()
        .env("FAKE_PIP", "endless")
        .spawn()
        .expect("started");
    let half_done = || {
        let staging = machine
            .kept()
            .into_iter()
            .find(|name| name.starts_with('.'));
        staging.is_some_and(|name| {
            machine
                .at("cache/plugins")
                .join(name)
                .join("wheels/half.whl")
                .exists()
        })
    };
    while !half_done() {
        assert!(
            child.try_wait().expect("known").is_none(),
            "ended too early"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(
        machine.kept().len(),
        2,
        "a lock and a staging folder are left"
    );
    machine.fetch().expect("fetched");
    assert_eq!(machine.kept(), ["fake-1.0", "lock"]);
}
