//! The toolchains that other libraries need, and what is installed with them.
//!
//! Installed files go below `target/interop`, in the versions of the lock files; each tool keeps
//! its downloads in its own cache.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A toolchain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Toolchain {
    Python,
    Node,
    Go,
    Rust,
    Java,
}

impl Toolchain {
    /// Its programs, and what to install if they are missing.
    fn programs(self) -> (&'static [&'static str], &'static str) {
        match self {
            Toolchain::Python => (&["python3"], "Python 3.9 or later, with venv"),
            Toolchain::Node => (&["node", "npm"], "Node.js 18 or later, with npm"),
            Toolchain::Go => (&["go"], "Go 1.26 or later"),
            Toolchain::Rust => (&["cargo"], "Rust"),
            Toolchain::Java => (
                &["java", "javac", "mvn"],
                "a Java development kit, 17 or later, and Maven",
            ),
        }
    }

    fn install(self) -> Result<(), String> {
        match self {
            Toolchain::Python => python(),
            Toolchain::Node => node(),
            Toolchain::Go => go(),
            Toolchain::Rust => rust(),
            Toolchain::Java => java(),
        }
    }
}

/// The folder with the programs of other libraries.
pub(crate) fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder for installed files.
pub(crate) fn home() -> PathBuf {
    match std::env::var_os("WINDLASS_INTEROP_HOME") {
        Some(folder) => folder.into(),
        None => sources().join("../target/interop"),
    }
}

/// Installs what is needed, one toolchain after the other. Returns the failures.
pub(crate) fn install_all(
    toolchains: impl Iterator<Item = Toolchain>,
) -> BTreeMap<Toolchain, Result<(), String>> {
    let mut ready = BTreeMap::new();
    for toolchain in toolchains {
        ready.entry(toolchain).or_insert_with(|| {
            let (programs, advice) = toolchain.programs();
            if let Some(missing) = programs.iter().find(|program| !on_path(program)) {
                return Err(format!("{missing} is not on the PATH: install {advice}"));
            }
            toolchain.install()
        });
    }
    ready
}

fn python() -> Result<(), String> {
    let venv = home().join("python");
    let wanted = sources().join("python/requirements.txt");
    unless_done(&venv.join("installed"), &[&wanted], || {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        run(Command::new(venv.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .args(["--require-hashes", "--requirement"])
            .arg(&wanted))
    })
}

fn node() -> Result<(), String> {
    let (from, to) = (sources().join("node"), home().join("node"));
    fs::create_dir_all(&to).map_err(|e| e.to_string())?;
    // Node looks for modules beside the script.
    for file in fs::read_dir(&from).map_err(|e| e.to_string())?.flatten() {
        fs::copy(file.path(), to.join(file.file_name())).map_err(|e| e.to_string())?;
    }
    let wanted = from.join("package-lock.json");
    unless_done(&to.join("installed"), &[&wanted], || {
        run(Command::new("npm")
            .args([
                "ci",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
            ])
            .current_dir(&to))
    })
}

fn go() -> Result<(), String> {
    let bin = home().join("bin");
    fs::create_dir_all(&bin).map_err(|e| e.to_string())?;
    // Go builds only what has changed.
    run(Command::new("go")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&bin)
        .arg("./...")
        .current_dir(sources().join("go")))
}

fn rust() -> Result<(), String> {
    run(Command::new("cargo")
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg(sources().join("rust/Cargo.toml"))
        .arg("--target-dir")
        .arg(home().join("rust")))
}

fn java() -> Result<(), String> {
    let (from, to) = (sources().join("java"), home().join("java"));
    let (pom, program) = (from.join("pom.xml"), from.join("CuratorLock.java"));
    unless_done(&to.join("installed"), &[&pom, &program], || {
        let jars = to.join("jars");
        run(Command::new("mvn")
            .args(["--batch-mode", "--quiet", "--file"])
            .arg(&pom)
            .arg("dependency:copy-dependencies")
            .arg(format!("-DoutputDirectory={}", jars.display())))?;
        run(Command::new("javac")
            .arg("-cp")
            .arg(jars.join("*"))
            .arg("-d")
            .arg(&to)
            .arg(&program))
    })
}

/// Runs `install`, unless it ran before for the same files.
fn unless_done(
    stamp: &Path,
    wanted: &[&Path],
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let mut wants = Vec::new();
    for path in wanted {
        let text = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        wants.extend(text);
    }
    if fs::read(stamp).is_ok_and(|done| done == wants) {
        return Ok(());
    }
    install()?;
    fs::write(stamp, wants).map_err(|e| e.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let shown = words.join(" ");
    eprintln!("interop: {shown}");
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(e) => Err(format!("{shown}: {e}")),
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
