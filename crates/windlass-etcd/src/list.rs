//! Reading all keys under a prefix.

use super::connection::EtcdConnection;
use super::proto::{KeyValue, RangeRequest};
use super::txn::range_end;
use windlass_core::error::Result;

/// How many keys one call reads.
const PAGE: i64 = 1000;

/// All keys under the prefix, read page by page.
pub(super) async fn scan(connection: &EtcdConnection, prefix: &str) -> Result<Vec<KeyValue>> {
    let mut found = Vec::new();
    let mut key = prefix.as_bytes().to_vec();
    if key.is_empty() {
        key.push(0);
    }
    loop {
        let page = RangeRequest {
            key: key.clone(),
            range_end: range_end(prefix),
            limit: PAGE,
            ..RangeRequest::default()
        };
        let page = connection.range(page).await?;
        let Some(last) = page.kvs.last() else {
            return Ok(found);
        };
        key = last.key.clone();
        key.push(0);
        found.extend(page.kvs);
        if !page.more {
            return Ok(found);
        }
    }
}
