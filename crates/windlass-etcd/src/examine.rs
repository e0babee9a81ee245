//! What an operator should know about an etcd cluster that keeps locks.

use super::link::{Changes, Link};
use super::wire::{
    AlarmRequest, AlarmResponse, MemberListRequest, MemberListResponse, RangeRequest,
    StatusResponse,
};
use windlass_core::error::{ErrorKind, Result};
use windlass_core::store::Finding;
use windlass_core::store::Severity::{Fine, Problem, Warning};

const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
/// How large etcd lets its database grow unless told otherwise.
const USUAL_QUOTA: i64 = 2 * 1024 * 1024 * 1024;
/// So many changes are more than a compaction every few minutes leaves, also where many programs write.
const LONG_HISTORY: i64 = 1_000_000;

/// `key` is one that whoever asks may read, if anything.
pub(super) async fn examine(link: &Link, key: &str) -> Result<Vec<Finding>> {
    let list: MemberListResponse = link
        .call(MEMBERS, MemberListRequest {}, Changes::Nothing)
        .await?;
    let mut findings = Vec::new();
    let mut answered = Vec::new();
    for (at, host) in link.hosts().iter().enumerate() {
        match link.status_of(at).await {
            Ok(status) => answered.push((host, status)),
            Err(e) => findings.push(Finding::new(
                Warning,
                "host",
                format!("{host} cannot be used now ({e}): one way less to reach the locks"),
            )),
        }
    }
    findings.splice(0..0, answered.first().map(|(_, status)| version(status)));
    findings.push(members(&list));
    findings.push(leader(&answered, &list));
    findings.push(alarms(link).await?);
    findings.extend(answered.first().map(|(_, status)| space(status)));
    findings.push(history(keeps_more_than(link, key, LONG_HISTORY).await));
    let word = "members do not tell theirs; leases are timed by the leader's ticks, and revisions need no clock: skew \
                between members matters to no lock";
    findings.push(Finding::new(Fine, "clock skew", word));
    Ok(findings)
}

fn version(status: &StatusResponse) -> Finding {
    let mut numbers = status
        .version
        .split('.')
        .map(|n| n.parse::<u32>().unwrap_or(0));
    let old = (numbers.next(), numbers.next()) < (Some(3), Some(4));
    let (severity, meaning) = match old {
        true => (Problem, "older than 3.4: not supported"),
        false => (Fine, "supported"),
    };
    let version = &status.version;
    Finding::new(severity, "version", format!("etcd {version}, {meaning}"))
}

fn members(list: &MemberListResponse) -> Finding {
    let voting = list
        .members
        .iter()
        .filter(|member| !member.is_learner)
        .count();
    let spare = voting.saturating_sub(1) / 2;
    match voting {
        1 => Finding::new(
            Warning,
            "members",
            "1 member: locks survive its restart, and nobody gets any while it is down",
        ),
        n if n % 2 == 0 => Finding::new(
            Warning,
            "members",
            format!(
                "{n} members, of which {spare} may fail: one less would survive as many failures"
            ),
        ),
        n => Finding::new(
            Fine,
            "members",
            format!("{n} members, of which {spare} may fail"),
        ),
    }
}

fn leader(answered: &[(&String, StatusResponse)], list: &MemberListResponse) -> Finding {
    let mut leaders: Vec<u64> = answered.iter().map(|(_, status)| status.leader).collect();
    leaders.dedup();
    match leaders.as_slice() {
        [leader] if *leader != 0 => {
            let known = list.members.iter().find(|member| member.id == *leader);
            let name = known.map_or("", |member| member.name.as_str());
            let urls = known
                .map(|member| member.client_urls.join(" "))
                .unwrap_or_default();
            let told = format!("{name} {urls} leads, and all that answered agree");
            Finding::new(Fine, "leader", told)
        }
        [] => Finding::new(Problem, "leader", "nobody answered who could tell"),
        _ => Finding::new(
            Problem,
            "leader",
            "members name different leaders, or none: locks cannot be taken until they agree",
        ),
    }
}

async fn alarms(link: &Link) -> Result<Finding> {
    let answer: Result<AlarmResponse> = link.call(ALARM, AlarmRequest {}, Changes::Nothing).await;
    let answer = match answer {
        Err(e) if e.kind() == ErrorKind::AccessDenied => {
            let told = "this user may not see them: no word on whether the store takes writes";
            return Ok(Finding::new(Warning, "alarms", told));
        }
        answer => answer?,
    };
    let word = |alarm: i32| match alarm {
        1 => "no space: locks cannot be taken until it is compacted, defragmented and disarmed",
        2 => "corrupt data: members disagree, and locks cannot be relied upon",
        _ => "an alarm that is not known here",
    };
    let told: Vec<&str> = answer
        .alarms
        .iter()
        .map(|member| word(member.alarm))
        .collect();
    Ok(match told.is_empty() {
        true => Finding::new(Fine, "alarms", "none"),
        false => Finding::new(Problem, "alarms", told.join("; ")),
    })
}

/// Whether so many of the last changes can still be read.
async fn keeps_more_than(link: &Link, key: &str, changes: i64) -> Result<bool> {
    let look = |revision: i64| RangeRequest {
        key: key.as_bytes().to_vec(),
        revision,
        keys_only: true,
        ..RangeRequest::default()
    };
    let now = link.range(look(0)).await?.header.unwrap_or_default();
    let then = now.revision - changes;
    if then <= 0 {
        return Ok(false);
    }
    match link.range(look(then)).await {
        Ok(_) => Ok(true),
        Err(e) if e.to_string().contains("compacted") => Ok(false),
        Err(e) => Err(e),
    }
}

/// What was deleted is passed over whenever somebody looks who holds, until etcd compacts it.
fn history(keeps_much: Result<bool>) -> Finding {
    let (severity, told) = match keeps_much {
        Ok(false) => (
            Fine,
            "fewer than a million changes are kept: what was released slows down nobody much".to_owned(),
        ),
        Ok(true) => (
            Warning,
            "more than a million changes are kept: whoever takes a lock passes over all that was released under its \
             name since the last compaction, so see to that (--auto-compaction-retention)"
                .to_owned(),
        ),
        Err(e) => (
            Warning,
            format!("no word on how much of it is kept ({e}): see to compaction"),
        ),
    };
    Finding::new(severity, "history", told)
}

fn space(status: &StatusResponse) -> Finding {
    let quota = match status.db_size_quota {
        0 => USUAL_QUOTA, // before 3.6, etcd does not tell
        quota => quota,
    };
    let percent = status.db_size.saturating_mul(100) / quota.max(1);
    let mib = |bytes: i64| bytes / (1024 * 1024);
    let (size, used, quota) = (mib(status.db_size), mib(status.db_size_in_use), mib(quota));
    let told = format!("{size} MiB of {quota} MiB ({used} MiB in use)");
    match percent {
        0..50 => Finding::new(Fine, "space", told),
        50..80 => Finding::new(
            Warning,
            "space",
            format!("{told}: see to compaction (--auto-compaction-retention)"),
        ),
        _ => Finding::new(
            Problem,
            "space",
            format!("{told}: at the limit no lock can be taken; compact and defragment"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_is_a_reason_to_compact() {
        assert_eq!(history(Ok(false)).severity, Fine);
        let long = history(Ok(true));
        assert_eq!(long.severity, Warning);
        assert!(long.message.contains("--auto-compaction-retention"));
    }
}
