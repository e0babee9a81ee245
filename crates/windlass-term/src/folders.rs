//! The folders of the XDG base directory specification.

use std::path::PathBuf;

/// The folder of this user for state.
pub(crate) fn state() -> Option<PathBuf> {
    below("XDG_STATE_HOME", ".local/state")
}

/// The folder of this user for the config file.
pub(crate) fn config() -> Option<PathBuf> {
    below("XDG_CONFIG_HOME", ".config")
}

fn below(variable: &str, default: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(variable).map(PathBuf::from);
    folder_of(folder, std::env::home_dir(), default)
}

/// Relative paths are ignored, as the specification asks.
fn folder_of(folder: Option<PathBuf>, home: Option<PathBuf>, default: &str) -> Option<PathBuf> {
    let folder = folder
        .filter(|path| path.is_absolute())
        .or_else(|| Some(home.filter(|home| home.is_absolute())?.join(default)))?;
    Some(folder.join("windlass"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_comes_before_the_home_directory() {
        let path = |text: &str| Some(PathBuf::from(text));
        let state_folder = |folder, home| folder_of(folder, home, ".local/state");
        assert_eq!(
            state_folder(path("/s"), path("/home/ann")),
            path("/s/windlass")
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
