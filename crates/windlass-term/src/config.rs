//! The config file: values for global options, and named profiles of them.
//!
//! ```toml
//! namespace = "shop"
//!
//! [profile.prod]
//! store-file = "prod.url"
//! ```
//!
//! No error repeats a value of the file: a store's URL may hold a password, and may be in the wrong place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ColorChoice, ValueEnum as _};
use toml::de::{DeTable, DeValue};

use crate::duration;
use crate::failure::{Advice, Failure};
use crate::folders;

const KEYS: &str = "store, store-file, namespace, call-timeout, color";

/// Where the config file is, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigPath {
    pub path: PathBuf,
    /// Named by `WINDLASS_CONFIG`, so that it must exist.
    pub is_named: bool,
}

impl ConfigPath {
    /// `WINDLASS_CONFIG`, or `windlass/config.toml` in the user's config directory. `None` without a home directory.
    pub fn find() -> Result<Option<ConfigPath>, Failure> {
        match std::env::var_os("WINDLASS_CONFIG") {
            Some(path) if path.is_empty() => Err(Failure::usage(
                "WINDLASS_CONFIG is empty",
                Advice::Hint("give the path of a config file, or unset the variable".into()),
            )),
            Some(path) => Ok(Some(ConfigPath {
                path: path.into(),
                is_named: true,
            })),
            None => Ok(folders::config().map(|folder| ConfigPath {
                path: folder.join("config.toml"),
                is_named: false,
            })),
        }
    }

    /// Reads the file. `None` if there is none and none is needed.
    pub(crate) fn read(&self) -> Result<Option<Config>, Failure> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => Config::parse(&self.path, &text).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !self.is_named => {
                Ok(None)
            }
            Err(error) => Err(Failure::usage(
                format!(
                    "cannot read the config file {}: {error}",
                    self.path.display()
                ),
                Advice::Hint(match self.is_named {
                    true => "WINDLASS_CONFIG names a TOML file; unset it to use none".into(),
                    false => "make it a TOML file that you can read, or remove it".into(),
                }),
            )),
        }
    }
}

/// A parsed config file.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Config {
    pub(crate) top: Section,
    pub(crate) profiles: BTreeMap<String, Section>,
}

/// The values of the top level or of one profile.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Section {
    pub(crate) store: Option<Entry<String>>,
    pub(crate) store_file: Option<Entry<PathBuf>>,
    pub(crate) namespace: Option<Entry<String>>,
    pub(crate) call_timeout: Option<Entry<Duration>>,
    pub(crate) color: Option<Entry<ColorChoice>>,
}

/// A value, and the line that it is in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry<T> {
    pub(crate) value: T,
    pub(crate) line: usize,
}

impl Config {
    fn parse(path: &Path, text: &str) -> Result<Config, Failure> {
        let file = Source { path, text };
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().unwrap_or_default();
            let hint = "the file is TOML: lines such as store = \"redis://HOST\"";
            file.failure(&at, error.message(), hint)
        })?;
        let mut config = Config::default();
        for (key, value) in table.get_ref() {
            if key.get_ref() != "profile" {
                config
                    .top
                    .set(&file, key.get_ref(), &key.span(), value.get_ref())?;
                continue;
            }
            let not_a_profile = "a profile is a table: [profile.NAME], and its keys below it";
            let Some(profiles) = value.get_ref().as_table() else {
                return Err(file.wrong_type("profile", "a table", &key.span(), not_a_profile));
            };
            for (name, values) in profiles {
                let Some(values) = values.get_ref().as_table() else {
                    let key = format!("profile.{}", name.get_ref());
                    return Err(file.wrong_type(&key, "a table", &name.span(), not_a_profile));
                };
                let mut section = Section::default();
                for (key, value) in values {
                    section.set(&file, key.get_ref(), &key.span(), value.get_ref())?;
                }
                config.profiles.insert(name.get_ref().to_string(), section);
            }
        }
        Ok(config)
    }
}

impl Section {
    /// Sets the value of one key.
    fn set(
        &mut self,
        file: &Source<'_>,
        key: &str,
        at: &Range<usize>,
        value: &DeValue<'_>,
    ) -> Result<(), Failure> {
        let example = match key {
            "store" => "store = \"redis://HOST\"",
            "store-file" => "store-file = \"PATH\"",
            "namespace" => "namespace = \"NS\"",
            "call-timeout" => "call-timeout = \"2s\"",
            "color" => "color = \"auto\", \"always\" or \"never\"",
            _ => {
                let hint =
                    format!("the keys are {KEYS}; those of a profile are below [profile.NAME]");
                return Err(file.failure(at, &format!("unknown key {key:?}"), &hint));
            }
        };
        let hint = format!("write {example}");
        let Some(value) = value.as_str() else {
            return Err(file.wrong_type(key, "a string", at, &hint));
        };
        let invalid = |problem: &str| file.failure(at, &format!("{key}: {problem}"), &hint);
        // As for the options: most often, an empty store is a secret that is missing.
        if value.trim().is_empty() && key != "namespace" {
            return Err(invalid("it is empty"));
        }
        let line = file.line(at);
        match key {
            "store" => {
                if is_relative(value) {
                    return Err(invalid(
                        "a relative path would be another store in every directory; write the whole path",
                    ));
                }
                let value = value.to_owned();
                self.store = Some(Entry { value, line });
            }
            "store-file" => {
                let value = file.resolve(value);
                self.store_file = Some(Entry { value, line });
            }
            "namespace" => {
                let value = value.to_owned();
                self.namespace = Some(Entry { value, line });
            }
            "call-timeout" => {
                let value = duration::parse_nonzero(value).map_err(|problem| invalid(&problem))?;
                self.call_timeout = Some(Entry { value, line });
            }
            _ => {
                let value = ColorChoice::from_str(value, false)
                    .map_err(|_| invalid("it is none of auto, always and never"))?;
                self.color = Some(Entry { value, line });
            }
        }
        if self.store.is_some() && self.store_file.is_some() {
            return Err(file.failure(
                at,
                "two stores are given, by a URL and by a file",
                "keep one of store and store-file",
            ));
        }
        Ok(())
    }
}

/// A file whose text is being parsed.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn line(&self, at: &Range<usize>) -> usize {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn failure(&self, at: &Range<usize>, problem: &str, hint: &str) -> Failure {
        let (path, line) = (self.path.display(), self.line(at));
        // A message of the parser may have several lines.
        let problem = problem.replace('\n', ", ");
        Failure::usage(
            format!("{path}, line {line}: {problem}"),
            Advice::Hint(hint.to_owned()),
        )
    }

    fn wrong_type(&self, key: &str, expected: &str, at: &Range<usize>, hint: &str) -> Failure {
        self.failure(at, &format!("{key} is not {expected}"), hint)
    }

    /// A path as written in the file: relative to the folder of the file, `~/` for the home directory.
    fn resolve(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), std::env::home_dir()) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => self.path.parent().unwrap_or(Path::new("")).join(path),
        }
    }
}

/// Whether the URL names a file relative to the current directory. The library explains `~`.
fn is_relative(url: &str) -> bool {
    let path = url.strip_prefix("file:");
    let path = path.map(|path| path.strip_prefix("//").unwrap_or(path));
    path.is_some_and(|path| !path.starts_with(['/', '~']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let parsed = Config::parse(Path::new("/etc/w.toml"), text);
        parsed.map_err(|failure| failure.message)
    }

    #[test]
    fn values_have_their_lines() {
        let text = "# comment\nnamespace = \"a\"\n\n[profile.prod]\nstore = \"redis://h\"\nstore-file = \"x\"\n";
        assert_eq!(
            parse(text).unwrap_err(),
            "/etc/w.toml, line 6: two stores are given, by a URL and by a file"
        );
        let text = "[profile.prod]\nstore-file = \"x\"\ncall-timeout = \"1.5s\"\n";
        let config = parse(text).unwrap();
        let prod = &config.profiles["prod"];
        let value = PathBuf::from("/etc/x");
        assert_eq!(prod.store_file, Some(Entry { value, line: 2 }));
        let value = Duration::from_millis(1500);
        assert_eq!(prod.call_timeout, Some(Entry { value, line: 3 }));
        assert_eq!(config.top, Section::default());
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn no_error_repeats_a_value() {
        let secret = "redis://:XQZ@h";
        for text in [
            format!("profile = \"{secret}\""),
            format!("profile.prod = \"{secret}\""),
            format!("[profile]\nprod = \"{secret}\""),
            format!("store = [\"{secret}\"]"),
            format!("store = {{ url = \"{secret}\" }}"),
            format!("store = \"{secret}"),
            format!("store = {secret}"),
            format!("store = \"{secret}\" more"),
            format!("store = \"{secret}\"\nstore = \"{secret}\""),
            format!("call-timeout = \"{secret}\""),
            format!("color = \"{secret}\""),
            format!("url = \"{secret}\""),
            secret.to_string(),
            format!("store '{secret}'"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(!error.contains("XQZ"), "{text}: {error}");
            assert!(error.contains(", line "), "{text}: {error}");
        }
    }

    #[test]
    fn relative_stores_are_refused() {
        for (url, relative) in [
            ("file:locks.db", true),
            ("file://locks.db", true),
            ("file:/var/locks.db", false),
            ("file:///var/locks.db", false),
            ("file:~/locks.db", false),
            ("redis://h", false),
        ] {
            assert_eq!(is_relative(url), relative, "{url}");
            assert_eq!(parse(&format!("store = \"{url}\"")).is_err(), relative);
        }
    }
}
