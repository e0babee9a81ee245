//! Where each setting comes from. An option is stronger than its variable, that one than the profile, and the profile
//! than the top level of the config file.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use windlass_core::redact::redact;

use crate::args::GlobalArgs;
use crate::config::{Config, ConfigPath, Entry, Section};
use crate::failure::{Advice, Failure};

/// Where the value of a setting comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    Option,
    Environment,
    /// This line of the profile.
    Profile(usize),
    /// This line of the top level of the config file.
    File(usize),
    #[default]
    Default,
}

/// Where all settings come from.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// The config file, if there is one.
    pub config: Option<PathBuf>,
    pub profile: Origin,
    pub store: Origin,
    pub store_file: Origin,
    pub namespace: Origin,
    pub call_timeout: Origin,
    pub color: Origin,
}

impl Origins {
    fn of(matches: &ArgMatches) -> Origins {
        let origin = |id| match matches.value_source(id) {
            Some(ValueSource::CommandLine) => Origin::Option,
            Some(ValueSource::EnvVariable) => Origin::Environment,
            _ => Origin::Default,
        };
        Origins {
            config: None,
            profile: origin("profile"),
            store: origin("store"),
            store_file: origin("store_file"),
            namespace: origin("namespace"),
            call_timeout: origin("call_timeout"),
            color: origin("color"),
        }
    }
}

impl GlobalArgs {
    /// Notes which values were given, by an option or a variable.
    pub fn note_origins(&mut self, matches: &ArgMatches) {
        self.origins = Origins::of(matches);
    }

    /// Takes values that were not given from the config file. Returns warnings.
    pub fn apply_config(&mut self) -> Result<Vec<String>, Failure> {
        if self.profile.as_deref() == Some("") {
            return Err(Failure::usage(
                "--profile or WINDLASS_PROFILE is empty",
                Advice::Hint("give the name of a profile, or unset the variable".into()),
            ));
        }
        let place = ConfigPath::find()?;
        let config = match &place {
            Some(place) => place.read()?,
            None => None,
        };
        let (Some(place), Some(config)) = (&place, config) else {
            return match &self.profile {
                Some(name) => Err(no_file(name, place.as_ref())),
                None => Ok(Vec::new()),
            };
        };
        let path = place.path.as_path();
        let empty = Section::default();
        let profile = match &self.profile {
            Some(name) => config
                .profiles
                .get(name)
                .ok_or_else(|| unknown_profile(name, &config, path))?,
            None => &empty,
        };
        let mut warnings = self.overridden(profile);
        self.take(profile, Origin::Profile);
        self.take(&config.top, Origin::File);
        self.origins.config = Some(path.to_owned());
        warnings.extend(self.readable_secret(path));
        Ok(warnings)
    }

    /// Takes what is not set yet from a section.
    fn take(&mut self, from: &Section, origin: fn(usize) -> Origin) {
        let GlobalArgs { origins, .. } = self;
        fn fill<T: Clone>(
            entry: Option<&Entry<T>>,
            origin: fn(usize) -> Origin,
            to: &mut Origin,
            set: impl FnOnce(T),
        ) {
            if let (Some(entry), Origin::Default) = (entry, *to) {
                *to = origin(entry.line);
                set(entry.value.clone());
            }
        }
        // A store replaces a store file, and the other way round.
        if (origins.store, origins.store_file) == (Origin::Default, Origin::Default) {
            fill(from.store.as_ref(), origin, &mut origins.store, |url| {
                self.store = Some(url);
            });
            let file = from.store_file.as_ref();
            fill(file, origin, &mut origins.store_file, |path| {
                self.store_file = Some(path.into());
            });
        }
        let namespace = from.namespace.as_ref();
        fill(namespace, origin, &mut origins.namespace, |namespace| {
            self.namespace = Some(namespace);
        });
        let timeout = from.call_timeout.as_ref();
        fill(timeout, origin, &mut origins.call_timeout, |time| {
            self.call_timeout = Some(time);
        });
        fill(from.color.as_ref(), origin, &mut origins.color, |color| {
            self.color = color;
        });
    }

    /// A profile that was asked for by an option must not lose silently against a variable.
    fn overridden(&self, profile: &Section) -> Vec<String> {
        let Some(name) = &self.profile else {
            return Vec::new();
        };
        let Origins {
            profile: Origin::Option,
            store,
            store_file,
            namespace,
            ..
        } = self.origins
        else {
            return Vec::new();
        };
        let url = profile.store.as_ref().map(|entry| &entry.value);
        let file = profile.store_file.as_ref().map(|entry| &entry.value);
        let has_store = url.is_some() || file.is_some();
        let same_file =
            file.is_some_and(|file| self.store_file.as_deref() == Some(file.as_os_str()));
        let in_profile = profile.namespace.as_ref().map(|entry| &entry.value);
        let replaced = [
            (
                "WINDLASS_STORE",
                "store",
                store == Origin::Environment && has_store && self.store.as_ref() != url,
            ),
            (
                "WINDLASS_STORE_FILE",
                "store",
                store_file == Origin::Environment && has_store && !same_file,
            ),
            (
                "WINDLASS_NAMESPACE",
                "namespace",
                namespace == Origin::Environment
                    && in_profile.is_some()
                    && self.namespace.as_ref() != in_profile,
            ),
        ];
        let replaced = replaced.into_iter().filter(|(.., replaced)| *replaced);
        replaced
            .map(|(variable, setting, _)| {
                format!("{variable} replaces the {setting} of the profile {name}; unset it to use the profile")
            })
            .collect()
    }

    /// A warning if other users can read the password of the store in the config file, or in a file that it names.
    fn readable_secret(&self, config: &Path) -> Option<String> {
        let is_configured = |origin| matches!(origin, Origin::Profile(_) | Origin::File(_));
        let (path, url) = match (&self.store, &self.store_file) {
            (Some(url), _) if is_configured(self.origins.store) => (config, url.clone()),
            (_, Some(file)) if is_configured(self.origins.store_file) => {
                let path = Path::new(file);
                (path, std::fs::read_to_string(path).ok()?.trim().to_owned())
            }
            _ => return None,
        };
        let mode = std::fs::metadata(path).ok()?.permissions().mode();
        let path = path.display();
        (mode & 0o044 != 0 && redact(&url) != url).then(|| {
            format!("other users can read the password of the store in {path}; use chmod 600")
        })
    }
}

fn no_file(profile: &str, place: Option<&ConfigPath>) -> Failure {
    let there = match place {
        Some(place) => format!("there is no config file {}", place.path.display()),
        None => "there is no home directory for the config file".to_owned(),
    };
    Failure::usage(
        format!("the profile {profile:?} is not known: {there}"),
        Advice::Hint(format!(
            "write the file, with a table [profile.{profile}], or name another one with WINDLASS_CONFIG"
        )),
    )
}

fn unknown_profile(profile: &str, config: &Config, path: &Path) -> Failure {
    let known: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
    Failure::usage(
        format!("{} has no profile {profile:?}", path.display()),
        Advice::Hint(match known.is_empty() {
            true => format!("it has none; write a table [profile.{profile}]"),
            false => format!("it has {}", known.join(", ")),
        }),
    )
}
