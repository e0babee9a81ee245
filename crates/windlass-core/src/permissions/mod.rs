//! The schema of a permission space: names, levels and where their bits are.

mod level;
mod schema;

pub use level::Level;
pub use schema::{Scale, Schema};
