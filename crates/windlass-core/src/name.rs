//! Names of locks and other primitives.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;

/// What stores keep beside locks goes by such names.
const RESERVED: &str = "windlass:";

/// A checked name: not empty, at most [`MAX_NAME_BYTES`], no control characters.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks `text` and makes it a name, behind `namespace` if there is one.
    pub fn new(operation: &'static str, namespace: Option<&str>, text: &str) -> Result<Name> {
        let name: Arc<str> = match namespace {
            Some(ns) => format!("{ns}:{text}").into(),
            None => text.into(),
        };
        let problem = if text.is_empty() {
            Some("the name is empty".to_owned())
        } else if name.len() > MAX_NAME_BYTES {
            Some(format!(
                "the name is {} bytes long; the limit is {MAX_NAME_BYTES}",
                name.len()
            ))
        } else if name.chars().any(char::is_control) {
            Some("the name contains a control character".to_owned())
        } else if name.starts_with(RESERVED) {
            Some(format!(
                "names that begin with {RESERVED} are Windlass's own"
            ))
        } else {
            None
        };
        match problem {
            None => Ok(Name(name)),
            Some(message) => {
                let shown: String = text.chars().take(40).collect();
                Err(Error::invalid(operation, message).with_name(&shown))
            }
        }
    }

    /// A text that has been checked before.
    pub fn checked(text: &str) -> Name {
        Name(text.into())
    }

    /// The name as text, namespace included.
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
    fn refuses_what_no_store_should_see() {
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
