//! `windlass doctor` on a file.

use super::File;
use windlass_core::error::Result;
use windlass_core::store::Finding;
use windlass_core::store::Severity::{Fine, Warning};

pub(super) async fn diagnose(file: &File) -> Result<Vec<Finding>> {
    let (version, journal, claims, last): (String, String, i64, i64) = file
        .worker
        .decide(|tx| {
            let database = tx.database;
            let version = database.query_row("SELECT sqlite_version()", [], |row| row.get(0))?;
            let journal = database.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            let claims = database.query_row("SELECT count(*) FROM claims", [], |row| row.get(0))?;
            let last = database.query_row("SELECT last FROM fences", [], |row| row.get(0))?;
            Ok((version, journal, claims, last))
        })
        .await?;
    let bytes = std::fs::metadata(&file.path).map_or(0, |m| m.len());
    let mut findings = vec![
        Finding::new(Fine, "version", format!("SQLite {version}, built in")),
        Finding::new(
            Fine,
            "reach",
            "for processes of this machine; on another machine the same path is another store",
        ),
        Finding::new(
            Fine,
            "size",
            format!("{bytes} bytes, {claims} claims, last fence {last}"),
        ),
    ];
    let advice = "Stop all programs, and start with a new file";
    findings.extend(Finding::of_exhausted_fences(last.unsigned_abs(), advice));
    findings.push(if journal == "wal" {
        Finding::new(
            Fine,
            "durability",
            "write-ahead log; fences survive a power cut, held locks end with a reboot",
        )
    } else {
        Finding::new(
            Warning,
            "durability",
            format!(
                "journal mode is {journal}: the file system does not support WAL, so it is slower"
            ),
        )
    });
    Ok(findings)
}
