//! Names of locks and other primitives.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The prefix of the keys that stores keep beside locks.
const RESERVED: &str = "windlass:";

/// A valid name: not empty, at most [`Name::MAX_BYTES`] long, without control characters.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes, namespace included.
    pub const MAX_BYTES: usize = 1024;

    /// Validates `text`, and prefixes it with `namespace` and a colon if there is one.
    ///
    /// # Errors
    ///
    /// If the name is empty, too long, reserved, or has control characters.
    pub fn new(operation: &'static str, namespace: Option<&str>, text: &str) -> Result<Name> {
        let name: Arc<str> = match namespace {
            Some(ns) => format!("{ns}:{text}").into(),
            None => text.into(),
        };
        let problem = if text.is_empty() {
            let hint = "is the variable set that the name comes from?";
            Some(("the name is empty".to_owned(), hint))
        } else if name.len() > Name::MAX_BYTES {
            let message = format!(
                "the name is {} bytes long; the limit is {}",
                name.len(),
                Name::MAX_BYTES
            );
            Some((message, "use a hash of what the name is made of"))
        } else if name.chars().any(char::is_control) {
            let message = "the name contains a control character".to_owned();
            let hint = "remove line ends and tabs; in a shell, $(command) does so at the end";
            Some((message, hint))
        } else if name.starts_with(RESERVED) {
            let message = format!("names that begin with {RESERVED} are reserved");
            Some((message, "choose a name that begins with something else"))
        } else {
            None
        };
        match problem {
            None => Ok(Name(name)),
            Some((message, hint)) => {
                let shown: String = text.chars().take(40).collect();
                let error = Error::invalid(operation, message).with_hint(hint);
                Err(error.with_name(&shown))
            }
        }
    }

    /// A name that is known to be valid, such as one read from the store.
    pub fn checked(text: &str) -> Name {
        Name(text.into())
    }

    /// The name as text, with its namespace.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::ops::Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn invalid_names_are_rejected() {
        for bad in ["", "a\nb", "a\u{0}b", "\u{7f}", &"x".repeat(1025)] {
            let e = Name::new("acquire", None, bad).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
        // The lock's key would be the fence counter.
        assert!(Name::new("acquire", None, "windlass:fence").is_err());
        assert!(Name::new("acquire", Some("windlass"), "fence").is_err());
        assert!(Name::new("acquire", None, "windlass-fence").is_ok());
        assert!(Name::new("acquire", None, &"x".repeat(1024)).is_ok());
        assert!(Name::new("acquire", None, "lagerhaus/Ä {b} c:d").is_ok());
    }

    #[test]
    fn a_namespace_comes_first() {
        let name = Name::new("acquire", Some("shop"), "stock").unwrap();
        assert_eq!(name.as_str(), "shop:stock");
        assert!(Name::new("acquire", Some("shop"), "").is_err());
    }
}
