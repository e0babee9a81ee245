//! What `windlass doctor` reports about an etcd cluster.

use windlass_testkit::conformance::SOON;
use windlass_testkit::{EtcdCluster, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diagnose_reports_the_cluster() {
    let cluster = EtcdCluster::builder().members(3).start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let findings = w.diagnose().await.unwrap();
    let message_of = |topic: &str| {
        let finding = findings.iter().find(|finding| finding.topic == topic);
        finding
            .unwrap_or_else(|| panic!("{topic} is missing: {findings:?}"))
            .message
            .clone()
    };
    assert!(message_of("version").contains("3.4"), "{findings:?}");
    assert!(
        message_of("members").contains("3 members, of which 1 may fail"),
        "{findings:?}"
    );
    assert!(message_of("leader").contains("leads"), "{findings:?}");
    assert_eq!(message_of("alarms"), "none");
    assert!(message_of("space").contains("MiB"));
    assert!(message_of("last fence").contains("the revision"));
    assert!(
        message_of("history").starts_with("fewer than"),
        "{findings:?}"
    );
    cluster.kill(0).unwrap();
    let host = cluster.addr(0).to_string();
    // Once the others have elected a leader again.
    let noticed = eventually(2 * SOON, || async {
        let findings = w.diagnose().await.unwrap_or_default();
        let about = |f: &windlass::Finding| f.topic == "host" && f.message.contains(&host);
        findings.iter().any(about)
    });
    assert!(noticed.await);
}
