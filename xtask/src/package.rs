//! Packages of the command line: a Debian package, an archive, on request a static binary, and the crates.
//!
//! `target/package/root` is staged first, as the files lie on a machine that has it installed. The Debian package and the
//! archive contain that tree, and so does a package that `cargo deb` makes (`[package.metadata.deb]` of
//! `crates/windlass-cli/Cargo.toml`). Each package is unpacked into an empty folder and its program is used there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{cargo, run};
use crate::servers::target;

/// The size of the binary that a release promises.
const MAX_BINARY: u64 = 20_000_000;
const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `cargo xtask package [--static] [--verify]`, or `--debug`
pub(crate) fn package(args: &[String]) -> Result<(), String> {
    let (mut with_static, mut verify) = (false, false);
    for arg in args {
        match arg.as_str() {
            "--static" => with_static = true,
            "--verify" => verify = true,
            "--debug" => return try_packaging(),
            other => return Err(format!("package has no option {other}")),
        }
    }
    let build = ["--release", "--locked", "--package", "windlass-cli"];
    cargo("build", &build, &[])?;
    let binary = target().join("release/windlass");
    let size = fs::metadata(&binary).map_err(problem(&binary))?.len();
    if size > MAX_BINARY {
        return Err(format!(
            "{} has {size} bytes, more than {MAX_BINARY}",
            binary.display()
        ));
    }
    let mut made = packages_of(&binary, Compression::Best)?;
    if with_static {
        cargo(
            "build",
            &[&build[..], &["--target", STATIC_TARGET]].concat(),
            &[],
        )?;
        made.push(static_archive()?);
    }
    crates(verify)?;
    eprintln!("xtask: the binary has {size} bytes");
    for path in made {
        let size = fs::metadata(&path).map_err(problem(&path))?.len();
        eprintln!("xtask: {} ({size} bytes)", path.display());
    }
    Ok(())
}

/// The same with the unoptimized binary that the tests have built: whether packaging works, in seconds.
pub(crate) fn try_packaging() -> Result<(), String> {
    cargo("build", &["--package", "windlass-cli"], &[])?;
    packages_of(&target().join("debug/windlass"), Compression::None)?;
    crates(false)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Compression {
    Best,
    /// An unoptimized binary is a hundred megabytes.
    None,
}

/// The packages of a binary, each of them tried.
fn packages_of(binary: &Path, compression: Compression) -> Result<Vec<PathBuf>, String> {
    let home = absolute(&target().join("package"))?;
    let (root, dist) = (home.join("root"), home.join("dist"));
    for folder in [&root, &dist] {
        empty(folder)?;
    }
    stage(binary, &root)?;
    let mut made = Vec::new();
    // Without its tools there is no Debian package to make; the archive is made everywhere.
    match Command::new("dpkg-deb").arg("--version").output() {
        Ok(_) => made.push(debian(&root, &dist, compression)?),
        Err(_) => eprintln!("xtask: no Debian package: dpkg-deb is missing"),
    }
    let archive = dist.join(format!("windlass-{VERSION}-{}.tar.gz", host()?));
    made.push(archived(&root, &archive)?);
    for package in &made {
        let place = home.join("tried");
        empty(&place)?;
        match package.extension().is_some_and(|end| end == "deb") {
            true => run(Command::new("dpkg-deb")
                .arg("--extract")
                .arg(package)
                .arg(&place))?,
            false => run(Command::new("tar")
                .arg("-xzf")
                .arg(package)
                .arg("-C")
                .arg(&place))?,
        }
        try_installed(&place)?;
        fs::remove_dir_all(&place).map_err(problem(&place))?;
    }
    Ok(made)
}

/// Lays out the files as they are installed.
fn stage(binary: &Path, root: &Path) -> Result<(), String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = |path: &str| {
        let folder = root.join(path);
        fs::create_dir_all(&folder).map_err(problem(&folder))?;
        Ok::<PathBuf, String>(folder)
    };
    let program = folder("usr/bin")?.join("windlass");
    fs::copy(binary, &program).map_err(problem(&program))?;
    let manual = folder("usr/share/man/man1")?;
    run(Command::new(&program)
        .args(["--quiet", "man", "--dir"])
        .arg(&manual))?;
    for page in listed(&manual)? {
        // Without the time, so that the same sources make the same package.
        run_quietly(Command::new("gzip").args(["-9", "--no-name"]).arg(page))?;
    }
    for (shell, path) in [
        ("bash", "usr/share/bash-completion/completions/windlass"),
        ("zsh", "usr/share/zsh/vendor-completions/_windlass"),
        ("fish", "usr/share/fish/vendor_completions.d/windlass.fish"),
    ] {
        let script = output(Command::new(&program).args(["completions", shell]))?;
        let path = root.join(path);
        folder(&path.parent().unwrap_or(root).display().to_string())?;
        fs::write(&path, script).map_err(problem(&path))?;
    }
    let documents = folder("usr/share/doc/windlass")?;
    for (from, to) in [
        ("README.md", "README.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("LICENSE-APACHE", "LICENSE-APACHE"),
        ("LICENSE-MIT", "copyright"),
    ] {
        let (from, to) = (sources.join(from), documents.join(to));
        fs::copy(&from, &to).map_err(problem(&from))?;
    }
    Ok(())
}

fn debian(root: &Path, dist: &Path, compression: Compression) -> Result<PathBuf, String> {
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let control = root.join("DEBIAN");
    fs::create_dir_all(&control).map_err(problem(&control))?;
    let program = root.join("usr/bin/windlass");
    let glibc = oldest_glibc(&fs::read(&program).map_err(problem(&program))?);
    let glibc = glibc.ok_or("the binary is not linked with glibc")?;
    let text = format!(
        "Package: windlass\nVersion: {VERSION}\nArchitecture: {architecture}\nSection: utils\nPriority: optional\n\
         Maintainer: Windlass contributors\nDepends: libc6 (>= 2.{glibc}), libgcc-s1\nRecommends: ca-certificates\n\
         Description: distributed locks, rate limits and leader election for the shell\n \
         Runs a command under a lock with a fencing token, at most once at a time on one machine (no server needed) or\n \
         on many, with Redis, etcd or ZooKeeper. Also semaphores, read-write locks, barriers, rate limits, counters,\n \
         deduplication and idempotent execution.\n"
    );
    let file = control.join("control");
    fs::write(&file, text).map_err(problem(&file))?;
    let package = dist.join(format!("windlass_{VERSION}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]);
    if compression == Compression::None {
        build.arg("-Znone");
    }
    run(build.arg(root).arg(&package))?;
    fs::remove_dir_all(&control).map_err(problem(&control))?;
    Ok(package)
}

/// The second number of the newest glibc version, 2.N, that the binary refers to.
fn oldest_glibc(binary: &[u8]) -> Option<u32> {
    let mark = b"GLIBC_2.";
    let places = binary.windows(mark.len()).enumerate();
    let versions = places.filter(|(_, window)| window == mark).map(|(at, _)| {
        let digits = binary[at + mark.len()..].iter();
        let digits = digits.take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number, byte| number * 10 + u32::from(byte - b'0'))
    });
    versions.max()
}

fn archived(root: &Path, archive: &Path) -> Result<PathBuf, String> {
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--sort=name", "-czf"]);
    run(tar.arg(archive).arg("-C").arg(root).arg("usr"))?;
    Ok(archive.to_owned())
}

fn static_archive() -> Result<PathBuf, String> {
    let binary = target().join(STATIC_TARGET).join("release/windlass");
    let bytes = fs::read(&binary).map_err(problem(&binary))?;
    if is_dynamic(&bytes) {
        return Err(format!("{} is not static", binary.display()));
    }
    let place = absolute(&target().join("package/static"))?;
    empty(&place)?;
    stage(&binary, &place)?;
    try_installed(&place)?;
    let dist = absolute(&target().join("package/dist"))?;
    let archive = dist.join(format!("windlass-{VERSION}-{STATIC_TARGET}.tar.gz"));
    archived(&place, &archive)
}

/// Whether the binary names a dynamic loader.
fn is_dynamic(binary: &[u8]) -> bool {
    let loaders: [&[u8]; 2] = [b"/lib64/ld-linux", b"/lib/ld-"];
    let found = |loader: &[u8]| binary.windows(loader.len()).any(|window| window == loader);
    loaders.iter().any(|loader| found(loader))
}

/// Uses the installed program as a new user would, without any variable of this environment.
fn try_installed(place: &Path) -> Result<(), String> {
    let windlass = || {
        let mut command = Command::new(place.join("usr/bin/windlass"));
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("XDG_STATE_HOME", place.join("state"));
        command
    };
    let expect = |args: &[&str], said: &str| {
        let out = output(windlass().args(args))?;
        match out.contains(said) {
            true => Ok(()),
            false => Err(format!("windlass {}: {out:?}", args.join(" "))),
        }
    };
    expect(&["--version"], &format!("windlass {VERSION}"))?;
    expect(
        &["run", "package", "--", "sh", "-c", "echo $WINDLASS_LOCK"],
        "package",
    )?;
    expect(&["lock", "acquire", "package"], "package acquired")?;
    expect(&["lock", "release", "package"], "package released")?;
    expect(&["doctor"], "file")?;
    for file in [
        "man/man1/windlass.1.gz",
        "man/man1/windlass-run.1.gz",
        "bash-completion/completions/windlass",
        "zsh/vendor-completions/_windlass",
        "fish/vendor_completions.d/windlass.fish",
        "doc/windlass/copyright",
    ] {
        let path = place.join("usr/share").join(file);
        let size = fs::metadata(&path).map_err(problem(&path))?.len();
        if size == 0 {
            return Err(format!("{} is empty", path.display()));
        }
    }
    Ok(())
}

/// Packs the crates that are published; with `verify`, also compiles each as its users get it.
fn crates(verify: bool) -> Result<(), String> {
    let not_published = [
        "windlass-testkit",
        "windlass-model",
        "windlass-examples",
        "windlass-interop",
        "xtask",
    ];
    let mut args = vec!["--workspace", "--allow-dirty", "--quiet"];
    for name in &not_published {
        args.extend(["--exclude", name]);
    }
    match verify {
        true => cargo("publish", &[&args[..], &["--dry-run"]].concat(), &[]),
        false => cargo("package", &[&args[..], &["--no-verify"]].concat(), &[]),
    }
}

fn host() -> Result<String, String> {
    let about = output(Command::new("rustc").arg("-vV"))?;
    let line = about.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned)
        .ok_or_else(|| "rustc names no host".to_owned())
}

fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output();
    let done = done.map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(format!(
            "{command:?}: {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        )),
    }
}

fn run_quietly(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(problem(folder))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn empty(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(problem(folder))?;
    }
    fs::create_dir_all(folder).map_err(problem(folder))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(problem(path))
}

fn problem(path: &Path) -> impl Fn(std::io::Error) -> String {
    let path = path.display().to_string();
    move |e| format!("{path}: {e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_glibc_symbol_decides() {
        assert_eq!(
            oldest_glibc(b"x\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_2.2.5\0"),
            Some(34)
        );
        assert_eq!(oldest_glibc(b"no symbols"), None);
    }

    #[test]
    fn loader_makes_a_binary_dynamic() {
        assert!(is_dynamic(b"\x7fELF..../lib64/ld-linux-x86-64.so.2\0"));
        assert!(is_dynamic(b"\x7fELF..../lib/ld-musl-x86_64.so.1\0"));
        assert!(!is_dynamic(b"\x7fELF....text"));
    }
}
