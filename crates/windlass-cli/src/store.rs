//! Which store is meant, and opening it.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass::{Coordinator, DEFAULT_CALL_TIMEOUT, Options};

use crate::args::Global;
use crate::failure::{Advice, Failure, quoted};

/// No shorter: a busy disk or a connection over some distance needs that long at times.
const SHORTEST_CALL: Duration = Duration::from_millis(250);

/// Opens the store for something short: look, take, give back.
pub(crate) async fn open(global: &Global) -> Result<Coordinator, Failure> {
    connect(global, DEFAULT_CALL_TIMEOUT).await
}

/// Opens the store to keep a lease of `ttl` in it.
///
/// A call that hangs must be given up while there is time to renew by another one, so calls for a
/// short lease have less time than usual.
pub(crate) async fn open_for(global: &Global, ttl: Duration) -> Result<Coordinator, Failure> {
    let limit = (ttl / 6).clamp(SHORTEST_CALL, DEFAULT_CALL_TIMEOUT);
    connect(global, limit).await
}

async fn connect(global: &Global, call_timeout: Duration) -> Result<Coordinator, Failure> {
    let mut options = Options::new().call_timeout(call_timeout);
    if let Some(namespace) = given(&global.namespace) {
        options = options.namespace(namespace);
    }
    Ok(options.connect(&url(global)?).await?)
}

/// The store that is meant.
pub(crate) fn url(global: &Global) -> Result<String, Failure> {
    match given(&global.store) {
        Some(url) => Ok(url.to_owned()),
        None => default_url(),
    }
}

/// What commands find in their environment, so that a windlass that they call means the same store: a fence says
/// nothing to the gate of another one.
///
/// A password in the URL goes along. The command runs as the same user, who can read our environment, and anybody
/// can read our command line: it learns nothing that was kept from it.
pub(crate) fn for_commands(global: &Global) -> Result<Vec<(&'static str, String)>, Failure> {
    let mut said = vec![("WINDLASS_STORE", anywhere(url(global)?))];
    let namespace = given(&global.namespace).unwrap_or_default();
    // An empty one stands in place of one that is inherited.
    if !namespace.is_empty() || std::env::var_os("WINDLASS_NAMESPACE").is_some() {
        said.push(("WINDLASS_NAMESPACE", namespace.to_owned()));
    }
    Ok(said)
}

/// The same store, for somebody in another folder.
fn anywhere(url: String) -> String {
    let Some(path) = url.strip_prefix("file:") else {
        return url;
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    match std::path::absolute(path).as_deref().map(Path::to_str) {
        Ok(Some(path)) => format!("file:{path}"),
        // No way to say it better.
        _ => url,
    }
}

/// What to type to have a look at the store that is meant. A URL that may hold a password is not repeated.
pub(crate) fn doctor(global: &Global) -> String {
    let inherited = std::env::var("WINDLASS_STORE").ok();
    match given(&global.store) {
        Some(url) if inherited.as_deref() == Some(url) => "windlass doctor".into(),
        Some(url) if url.contains(['@', '?']) => "windlass doctor, with the same --store".into(),
        Some(url) => format!("windlass doctor --store {}", quoted(url)),
        None => "windlass doctor".into(),
    }
}

/// An empty variable is how a shell script says "not set".
fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// A file in the user's state directory, so that everything works on one machine with no server.
fn default_url() -> Result<String, Failure> {
    let folder = folder(
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
        std::env::home_dir(),
    )
    .ok_or_else(|| {
        Failure::usage(
            "no store was named, and there is no home directory to keep one in",
            Advice::Try("windlass --store file:/var/tmp/windlass.db …".into()),
        )
    })?;
    create(&folder).map_err(|error| {
        Failure::usage(
            format!(
                "cannot create {} for the default store: {error}",
                folder.display()
            ),
            Advice::Hint("name a store with --store or WINDLASS_STORE".into()),
        )
    })?;
    let file = folder.join("windlass.db");
    match file.to_str() {
        Some(path) => Ok(format!("file:{path}")),
        None => Err(Failure::usage(
            format!("the default store {} is not named in UTF-8", file.display()),
            Advice::Hint("name a store with --store or WINDLASS_STORE".into()),
        )),
    }
}

/// See the XDG base directory specification: a relative path there is to be ignored.
fn folder(state_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let state = state_home
        .filter(|path| path.is_absolute())
        .or_else(|| Some(home.filter(|h| h.is_absolute())?.join(".local/state")))?;
    Some(state.join("windlass"))
}

/// For the user alone, as the same specification asks: whoever may write here can take any lock.
fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_in_the_state_directory() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            folder(path("/s"), path("/home/ann")),
            path("/s/windlass"),
            "as told"
        );
        for ignored in [None, path(""), path("relative")] {
            assert_eq!(
                folder(ignored, path("/home/ann")),
                path("/home/ann/.local/state/windlass")
            );
        }
        assert_eq!(folder(None, None), None);
        assert_eq!(folder(None, path("")), None);
    }
}
