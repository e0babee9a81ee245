//! Checks of an etcd cluster that stores locks, for `windlass doctor`.

use super::connection::EtcdConnection;
use super::errors::{LostReply, is_compacted};
use super::proto::{
    AlarmRequest, AlarmResponse, MemberListRequest, MemberListResponse, RangeRequest,
    StatusResponse,
};
use windlass_core::error::{ErrorKind, Result};
use windlass_core::store::Finding;
use windlass_core::store::Severity::{Fine, Problem, Warning};

const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
/// etcd's default quota for its database, in bytes.
const DEFAULT_QUOTA: i64 = 2 * 1024 * 1024 * 1024;
/// More revisions than compaction every few minutes leaves, even in a busy cluster.
const LONG_HISTORY: i64 = 1_000_000;

/// `key` is one that the user may read.
pub(super) async fn diagnose(connection: &EtcdConnection, key: &str) -> Result<Vec<Finding>> {
    let list: MemberListResponse = connection
        .call(MEMBERS, MemberListRequest {}, LostReply::Harmless)
        .await?;
    let mut findings = Vec::new();
    let mut replied = Vec::new();
    for (at, host) in connection.hosts().iter().enumerate() {
        match connection.status_of(at).await {
            Ok(status) => replied.push((host, status)),
            Err(e) => findings.push(Finding::new(
                Warning,
                "host",
                format!("{host} is not usable ({e}): clients cannot fail over to it"),
            )),
        }
    }
    findings.splice(0..0, replied.first().map(|(_, status)| version(status)));
    findings.push(members(&list));
    findings.push(leader(&replied, &list));
    findings.push(alarms(connection).await?);
    findings.extend(replied.first().map(|(_, status)| space(status)));
    let revisions = replied.iter().filter_map(|(_, status)| status.header);
    let revisions = revisions.map(|header| header.revision.unsigned_abs());
    findings.extend(revisions.max().map(last_fence));
    findings.push(history(
        has_more_revisions_than(connection, key, LONG_HISTORY).await,
    ));
    let message = "not measured: leases are timed by the leader alone, and revisions need no clock, so skew \
                   between members affects no lock";
    findings.push(Finding::new(Fine, "clock skew", message));
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

/// A fence is a revision. etcd reaches the highest exact one after 28,000 years of 10,000 writes per
/// second, unless a restore raises the revision (`etcdutl snapshot restore --bump-revision`).
fn last_fence(revision: u64) -> Finding {
    let advice = "Restore the data into a new cluster, without raising the revision";
    Finding::of_exhausted_fences(revision, advice).unwrap_or_else(|| {
        let message =
            format!("at most {revision}, the revision of the cluster: fences grow with it");
        Finding::new(Fine, "last fence", message)
    })
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
            "1 member: locks survive its restart, but cannot be acquired while it is down",
        ),
        n if n % 2 == 0 => Finding::new(
            Warning,
            "members",
            format!(
                "{n} members, of which {spare} may fail: an odd number with one less tolerates as many failures"
            ),
        ),
        n => Finding::new(
            Fine,
            "members",
            format!("{n} members, of which {spare} may fail"),
        ),
    }
}

fn leader(replied: &[(&String, StatusResponse)], list: &MemberListResponse) -> Finding {
    let mut leaders: Vec<u64> = replied.iter().map(|(_, status)| status.leader).collect();
    leaders.dedup();
    match leaders.as_slice() {
        [leader] if *leader != 0 => {
            let known = list.members.iter().find(|member| member.id == *leader);
            let name = known.map_or("", |member| member.name.as_str());
            let urls = known
                .map(|member| member.client_urls.join(" "))
                .unwrap_or_default();
            let message = format!("{name} {urls} leads, and all members that replied agree");
            Finding::new(Fine, "leader", message)
        }
        [] => Finding::new(Problem, "leader", "no member replied"),
        _ => Finding::new(
            Problem,
            "leader",
            "members name different leaders, or none: locks cannot be acquired until they agree",
        ),
    }
}

async fn alarms(connection: &EtcdConnection) -> Result<Finding> {
    let reply: Result<AlarmResponse> = connection
        .call(ALARM, AlarmRequest {}, LostReply::Harmless)
        .await;
    let reply = match reply {
        Err(e) if e.kind() == ErrorKind::AccessDenied => {
            let message = "this user may not read alarms: unknown whether the store accepts writes";
            return Ok(Finding::new(Warning, "alarms", message));
        }
        reply => reply?,
    };
    let meaning = |alarm: i32| match alarm {
        1 => {
            "no space: locks cannot be acquired until etcd is compacted, defragmented and disarmed"
        }
        2 => "corrupt data: members disagree, and locks are not reliable",
        _ => "an unknown alarm",
    };
    let alarms = reply.alarms.iter().map(|member| meaning(member.alarm));
    let alarms: Vec<&str> = alarms.collect();
    Ok(match alarms.is_empty() {
        true => Finding::new(Fine, "alarms", "none"),
        false => Finding::new(Problem, "alarms", alarms.join("; ")),
    })
}

/// Whether more than that many of the latest revisions can still be read.
async fn has_more_revisions_than(
    connection: &EtcdConnection,
    key: &str,
    count: i64,
) -> Result<bool> {
    let read = |revision: i64| RangeRequest {
        key: key.as_bytes().to_vec(),
        revision,
        keys_only: true,
        ..RangeRequest::default()
    };
    let now = connection.range(read(0)).await?.header;
    let then = now.unwrap_or_default().revision - count;
    if then <= 0 {
        return Ok(false);
    }
    match connection.range(read(then)).await {
        Ok(_) => Ok(true),
        Err(e) if is_compacted(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Reading a lock's queue takes longer the more deleted keys etcd still keeps.
fn history(is_long: Result<bool>) -> Finding {
    let (severity, message) = match is_long {
        Ok(false) => (
            Fine,
            "fewer than a million revisions are kept".to_owned(),
        ),
        Ok(true) => (
            Warning,
            "more than a million revisions are kept: acquiring a lock reads past all keys that were released under \
             its name since the last compaction; compact more often (--auto-compaction-retention)"
                .to_owned(),
        ),
        Err(e) => (
            Warning,
            format!("unknown ({e}): make sure that etcd compacts its history"),
        ),
    };
    Finding::new(severity, "history", message)
}

fn space(status: &StatusResponse) -> Finding {
    let quota = match status.db_size_quota {
        0 => DEFAULT_QUOTA, // etcd before 3.6 does not report it
        quota => quota,
    };
    let percent = status.db_size.saturating_mul(100) / quota.max(1);
    let mib = |bytes: i64| bytes / (1024 * 1024);
    let (size, used, quota) = (mib(status.db_size), mib(status.db_size_in_use), mib(quota));
    let message = format!("{size} MiB of {quota} MiB ({used} MiB in use)");
    match percent {
        0..50 => Finding::new(Fine, "space", message),
        50..80 => Finding::new(
            Warning,
            "space",
            format!("{message}: compact more often (--auto-compaction-retention)"),
        ),
        _ => Finding::new(
            Problem,
            "space",
            format!("{message}: at the limit no lock can be acquired; compact and defragment"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_above_the_highest_fence_is_a_problem() {
        use windlass_core::Fence;
        assert_eq!(last_fence(7).severity, Fine);
        assert_eq!(last_fence(Fence::MAX.get() - 1).severity, Fine);
        let found = last_fence(Fence::MAX.get());
        assert_eq!((found.severity, found.topic), (Problem, "last fence"));
    }

    #[test]
    fn long_history_suggests_compaction() {
        assert_eq!(history(Ok(false)).severity, Fine);
        let long = history(Ok(true));
        assert_eq!(long.severity, Warning);
        assert!(long.message.contains("--auto-compaction-retention"));
    }
}
