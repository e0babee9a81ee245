//! Which store a command uses, and how it is opened.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass::{Coordinator, Options};
use windlass_core::redact::redact;

use crate::args::GlobalArgs;
use crate::failure::{Advice, Failure, quoted};

/// A busy disk or a distant server can need this long for one call.
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(250);

/// Opens the store for single calls.
pub async fn open(global: &GlobalArgs) -> Result<Coordinator, Failure> {
    connect(global, Options::DEFAULT_CALL_TIMEOUT).await
}

/// Opens the store to hold a lease of `ttl` in it.
///
/// A call that hangs must time out while there is still time for another renewal, so a short lease gets a shorter
/// call timeout.
pub async fn open_for(global: &GlobalArgs, ttl: Duration) -> Result<Coordinator, Failure> {
    let limit = (ttl / 6).clamp(MIN_CALL_TIMEOUT, Options::DEFAULT_CALL_TIMEOUT);
    connect(global, limit).await
}

async fn connect(global: &GlobalArgs, call_timeout: Duration) -> Result<Coordinator, Failure> {
    let mut options = Options::new().call_timeout(call_timeout);
    if let Some(namespace) = given(&global.namespace) {
        options = options.namespace(namespace);
    }
    Ok(options.connect(&url(global)?).await?)
}

/// The URL of the store in use.
pub fn url(global: &GlobalArgs) -> Result<String, Failure> {
    match source(global)? {
        StoreSource::Url(url) => Ok(url.to_owned()),
        StoreSource::File(path) => read_url(path),
        StoreSource::Default => default_url(),
    }
}

/// The URL of the store in use, without secrets; `None` if it cannot be told.
pub(crate) fn shown_url(global: &GlobalArgs) -> Option<String> {
    match source(global).ok()? {
        StoreSource::Url(url) => Some(redact(url)),
        StoreSource::File(path) => Some(redact(&read_url(path).ok()?)),
        StoreSource::Default => {
            let file = default_folder()?.join("windlass.db");
            Some(format!("file:{}", file.display()))
        }
    }
}

/// Whether a store was given, in whatever way.
pub fn is_given(global: &GlobalArgs) -> bool {
    global.store.is_some() || global.store_file.is_some()
}

/// Where the URL of the store comes from.
enum StoreSource<'a> {
    Url(&'a str),
    File(&'a Path),
    Default,
}

/// An empty URL or path is an error: most often it is a secret that is missing, and the default store, a local file,
/// would keep nobody out.
fn source(global: &GlobalArgs) -> Result<StoreSource<'_>, Failure> {
    let (url, path) = (
        global.store.as_deref(),
        global.store_file.as_deref().map(Path::new),
    );
    let empty = |what: &str| {
        Failure::usage(
            format!("{what} is empty, so there is no store to use"),
            Advice::Hint(
                "give the URL of a store, such as redis://HOST, or unset the variable to use the file in your state \
                 directory"
                    .into(),
            ),
        )
    };
    // An option replaces the variable of the other one.
    let from = |name, value: &OsStr| std::env::var_os(name).is_some_and(|var| var == value);
    let url_is_variable = url.is_some_and(|url| from("WINDLASS_STORE", OsStr::new(url)));
    let file_is_variable = path.is_some_and(|path| from("WINDLASS_STORE_FILE", path.as_os_str()));
    match (url, path) {
        (Some(_), Some(_)) if url_is_variable == file_is_variable => Err(Failure::usage(
            "two stores are given, by a URL and by a file",
            Advice::Hint("use one of --store and --store-file, or one of their variables".into()),
        )),
        (_, Some(path)) if url.is_none() || url_is_variable => match path.as_os_str().is_empty() {
            true => Err(empty("--store-file or WINDLASS_STORE_FILE")),
            false => Ok(StoreSource::File(path)),
        },
        (Some(url), _) if url.trim().is_empty() => Err(empty("--store or WINDLASS_STORE")),
        (Some(url), _) => Ok(StoreSource::Url(url)),
        (None, _) => Ok(StoreSource::Default),
    }
}

/// Reads a URL. Its text is in no error.
fn read_url(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let hint = || Advice::Hint("the file contains the URL of a store, on one line".into());
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(
            format!("cannot read the store's URL from {shown}: {error}"),
            hint(),
        )
    })?;
    match text.trim() {
        "" => Err(Failure::usage(
            format!("{shown} is empty, so there is no store to use"),
            hint(),
        )),
        url if url.contains('\n') => Err(Failure::usage(
            format!("{shown} has more than one line"),
            hint(),
        )),
        url => Ok(url.to_owned()),
    }
}

/// Variables for the environment of a command, so that a nested windlass uses the same store: a fencing token is
/// meaningless to the gate of another store.
///
/// A password in the URL is passed on. The command runs as the same user, who can read the environment of this
/// process, and every user can read its command line, so the command learns nothing new. Of a URL in a file, only the
/// path is passed on.
pub fn command_env(global: &GlobalArgs) -> Result<Vec<(&'static str, String)>, Failure> {
    let path = match source(global)? {
        StoreSource::File(path) => std::path::absolute(path).ok(),
        _ => None,
    };
    let mut env = vec![match path.as_deref().and_then(Path::to_str) {
        Some(path) => ("WINDLASS_STORE_FILE", path.to_owned()),
        None => ("WINDLASS_STORE", with_absolute_path(url(global)?)),
    }];
    let namespace = given(&global.namespace).unwrap_or_default();
    // An empty one replaces an inherited one.
    if !namespace.is_empty() || std::env::var_os("WINDLASS_NAMESPACE").is_some() {
        env.push(("WINDLASS_NAMESPACE", namespace.to_owned()));
    }
    Ok(env)
}

/// The same store, for a process in another directory.
fn with_absolute_path(url: String) -> String {
    let Some(path) = url.strip_prefix("file:") else {
        return url;
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    match std::path::absolute(path).as_deref().map(Path::to_str) {
        Ok(Some(path)) => format!("file:{path}"),
        _ => url,
    }
}

/// The `windlass doctor` command line for the store in use. A URL that may hold a password is not repeated.
pub fn doctor(global: &GlobalArgs) -> String {
    let inherited = std::env::var("WINDLASS_STORE").ok();
    if let Ok(StoreSource::File(path)) = source(global) {
        return format!(
            "windlass doctor --store-file {}",
            quoted(&path.to_string_lossy())
        );
    }
    match given(&global.store) {
        Some(url) if inherited.as_deref() == Some(url) => "windlass doctor".into(),
        Some(url) if url.contains(['@', '?']) => "windlass doctor, with the same --store".into(),
        Some(url) => format!("windlass doctor --store {}", quoted(url)),
        None => "windlass doctor".into(),
    }
}

/// The text, unless it is empty: shell scripts leave a variable empty to say "not set".
fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// A file in the user's state directory, so that everything works on one machine without a server.
fn default_url() -> Result<String, Failure> {
    let folder = default_folder().ok_or_else(|| {
        Failure::usage(
            "no store was given, and there is no home directory for the default one",
            Advice::Try("windlass --store file:/var/tmp/windlass.db …".into()),
        )
    })?;
    create_private(&folder).map_err(|error| {
        Failure::usage(
            format!(
                "cannot create {} for the default store: {error}",
                folder.display()
            ),
            Advice::Hint("give a store with --store, --store-file or their variables".into()),
        )
    })?;
    let file = folder.join("windlass.db");
    match file.to_str() {
        Some(path) => Ok(format!("file:{path}")),
        None => Err(Failure::usage(
            format!(
                "the path of the default store is not UTF-8: {}",
                file.display()
            ),
            Advice::Hint("give a store with --store, --store-file or their variables".into()),
        )),
    }
}

fn default_folder() -> Option<PathBuf> {
    state_folder(
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
        std::env::home_dir(),
    )
}

/// See the XDG base directory specification: relative paths are ignored.
fn state_folder(state_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let state = state_home
        .filter(|path| path.is_absolute())
        .or_else(|| Some(home.filter(|h| h.is_absolute())?.join(".local/state")))?;
    Some(state.join("windlass"))
}

/// Private to the user, as the same specification asks: write access here means access to every lock.
fn create_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_store_is_in_the_state_directory() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            state_folder(path("/s"), path("/home/ann")),
            path("/s/windlass"),
            "XDG_STATE_HOME"
        );
        for ignored in [None, path(""), path("relative")] {
            assert_eq!(
                state_folder(ignored, path("/home/ann")),
                path("/home/ann/.local/state/windlass")
            );
        }
        assert_eq!(state_folder(None, None), None);
        assert_eq!(state_folder(None, path("")), None);
    }
}
