//! Which store a command uses, and how it is opened.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass::{Coordinator, Lease, Options};
use windlass_core::redact::redact;

use crate::args::GlobalArgs;
use crate::failure::{Advice, Failure, quoted};
use crate::folders;
use crate::printer::Printer;
use crate::settings::Origin;

/// A busy disk or a distant server can need this long for one call.
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(250);

/// Opens the store for single calls.
pub async fn open(global: &GlobalArgs) -> Result<Coordinator, Failure> {
    connect(global, Options::DEFAULT_CALL_TIMEOUT).await
}

/// Opens the store to hold a lease of `ttl` in it, or of the default TTL.
///
/// A call that hangs must time out while there is still time for another renewal, so a short lease gets a shorter
/// call timeout. A store that other processes do not see gets a warning.
pub async fn open_for(
    global: &GlobalArgs,
    ttl: Option<Duration>,
    printer: &Printer,
) -> Result<Coordinator, Failure> {
    let ttl = ttl.unwrap_or(Lease::DEFAULT_TTL);
    let limit = (ttl / 6).clamp(MIN_CALL_TIMEOUT, Options::DEFAULT_CALL_TIMEOUT);
    let store = connect(global, limit).await?;
    warn_about_memory(&store, printer);
    Ok(store)
}

/// Warns that other processes do not see a memory store.
pub fn warn_about_memory(store: &Coordinator, printer: &Printer) {
    if store.capabilities().kind == "memory" {
        printer.warn(
            "memory: is private to this process, so it excludes no other process; use file:PATH or redis://HOST",
        );
    }
}

async fn connect(global: &GlobalArgs, call_timeout: Duration) -> Result<Coordinator, Failure> {
    let call_timeout = global.call_timeout.unwrap_or(call_timeout);
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

/// The URL of the store in use, without secrets; `None` if it is unknown.
pub fn shown_url(global: &GlobalArgs) -> Option<String> {
    match source(global).ok()? {
        StoreSource::Url(url) => Some(redact(url)),
        StoreSource::File(path) => Some(redact(&read_url(path).ok()?)),
        StoreSource::Default => {
            let file = folders::state()?.join("windlass.db");
            Some(format!("file:{}", file.display()))
        }
    }
}

/// Whether the URL of the store is read from a file of its own.
pub fn uses_file(global: &GlobalArgs) -> bool {
    matches!(source(global), Ok(StoreSource::File(_)))
}

/// Fails if it is not clear which store is meant.
pub fn check(global: &GlobalArgs) -> Result<(), Failure> {
    source(global).map(drop)
}

/// Whether the store can be opened without creating it: false for a file that is not there.
pub fn exists(global: &GlobalArgs) -> bool {
    let url = match source(global) {
        Ok(StoreSource::Url(url)) => Some(url.to_owned()),
        Ok(StoreSource::File(path)) => read_url(path).ok(),
        Ok(StoreSource::Default) => {
            let folder = folders::state();
            return folder.is_some_and(|folder| folder.join("windlass.db").exists());
        }
        Err(_) => None,
    };
    url.is_some_and(|url| match url.strip_prefix("file:") {
        Some(path) => Path::new(path.strip_prefix("//").unwrap_or(path)).exists(),
        None => true,
    })
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
    // An option replaces the variable of the other one. The config file is used only if neither is given.
    let origins = &global.origins;
    let url_is_variable = origins.store == Origin::Environment;
    match (url, path) {
        (Some(_), Some(_)) if origins.store == origins.store_file => Err(Failure::usage(
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
    // An empty one replaces an inherited one, and that of the config file.
    let replaces =
        std::env::var_os("WINDLASS_NAMESPACE").is_some() || global.origins.config.is_some();
    if !namespace.is_empty() || replaces {
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
    if let Some(profile) = &global.profile
        && matches!(
            (global.origins.store, global.origins.store_file),
            (Origin::Profile(_), _) | (_, Origin::Profile(_))
        )
    {
        return format!("windlass doctor --profile {}", quoted(profile));
    }
    if let Ok(StoreSource::File(path)) = source(global) {
        return format!(
            "windlass doctor --store-file {}",
            quoted(&path.to_string_lossy())
        );
    }
    match given(&global.store) {
        Some(_) if global.origins.store != Origin::Option => "windlass doctor".into(),
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
    let folder = folders::state().ok_or_else(|| {
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

/// The folder of this user for state that is not worth a store, created if it is missing.
pub fn state_directory() -> io::Result<PathBuf> {
    let folder = folders::state().ok_or_else(|| io::Error::other("there is no home directory"))?;
    create_private(&folder)?;
    Ok(folder)
}

/// The namespace of all names, empty if there is none.
pub fn namespace(global: &GlobalArgs) -> &str {
    given(&global.namespace).unwrap_or_default()
}

/// Private to the user, as the XDG base directory specification asks: write access here means access to every lock.
fn create_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
