//! The range of a claim's TTL.

use std::time::Duration;

/// The TTL of a claim by default.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The shortest TTL.
pub const MIN_TTL: Duration = Duration::from_millis(10);
/// The longest TTL.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);
