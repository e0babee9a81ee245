//! What an operator should know about an ensemble that keeps locks.

use crate::backend::Finding;
use crate::backend::Severity::Fine;
use crate::error::Result;

use super::Store;

pub(super) async fn examine(store: &Store) -> Result<Vec<Finding>> {
    let session = store.any_session().await?;
    let timeout = session.client().session_timeout();
    Ok(vec![Finding::new(Fine, "session", format!("{timeout:?}"))])
}
