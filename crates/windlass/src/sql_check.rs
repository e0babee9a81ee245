//! [`SqlCheck`]: a lock that is checked by the transaction that relies on it.

use std::fmt;

use crate::lock::LockGuard;
use windlass_core::error::Result;
use windlass_core::store::unsupported::not_a_database;

/// A statement that fails unless the lock is held, for a transaction in the database that stores the
/// lock: see [`LockGuard::sql_check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlCheck {
    function: String,
    statement: String,
    name: String,
    fence: i64,
}

impl SqlCheck {
    /// The SQLSTATE with which the statement fails if the lock is not held under this fence.
    pub const NOT_HELD: &'static str = "WL001";

    /// The statement, whose parameters `$1` and `$2` are [name](SqlCheck::name) and
    /// [fence](SqlCheck::fence). The [`Display`](fmt::Display) form has both in place.
    pub fn statement(&self) -> &str {
        &self.statement
    }

    /// The name of the lock, namespace included.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fence.
    pub fn fence(&self) -> i64 {
        self.fence
    }
}

/// The statement with its parameters in place, quoted: for a driver without parameters.
impl fmt::Display for SqlCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A backslash has a meaning in an ordinary string if standard_conforming_strings is off.
        let name = self.name.replace('\\', "\\\\").replace('\'', "''");
        write!(f, "SELECT {}(E'{name}', {})", self.function, self.fence)
    }
}

impl LockGuard {
    /// A statement for a transaction in the PostgreSQL database that stores this lock. It fails with
    /// the SQLSTATE [`WL001`](SqlCheck::NOT_HELD) unless this guard holds the lock at that moment. From
    /// then on until the transaction ends, the lock is granted to no other client, even if its TTL
    /// passes or it is released. So what the transaction writes cannot be overtaken by the next
    /// holder, and no table needs a column for the fence.
    ///
    /// Run it in the transaction, before its first write. The transaction must have the isolation
    /// level `READ COMMITTED`, and should be short.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on every other store: send the
    /// [fence](crate::Lease::fence) with each write instead.
    pub fn sql_check(&self) -> Result<SqlCheck> {
        let spec = &self.claim().spec;
        let function = spec.store.sql_check().ok_or_else(|| {
            let error = not_a_database();
            error.with_name(self.name())
        })?;
        Ok(SqlCheck {
            statement: format!("SELECT {function}($1, $2)"),
            function,
            name: self.name().to_owned(),
            fence: i64::try_from(self.fence().get()).unwrap_or(i64::MAX),
        })
    }
}
