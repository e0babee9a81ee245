//! ZooKeeper.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "a renewal is confirmed by a majority (ZooKeeper)",
        file: "backend/zookeeper/session.rs",
        from: "match check.commit().await.map_err(ZkError::from) {\n            Ok(_) => Ok(true),",
        to: "drop(check);\n        match self.client.check_stat(path).await {\n            Ok(there) => Ok(there.is_some()),",
        caught_by: &["--test", "zookeeper_faults", "a_server_that_is_cut_off"],
    },
    Mutant {
        breaks: "a session outlives its claims (ZooKeeper)",
        file: "backend/zookeeper/session.rs",
        from: "((ttl + HALF_TICK) * 100 / (100 - PING_GAP)).min(LONGEST)",
        to: "(ttl / 2).min(LONGEST)",
        caught_by: &["--lib", "a_session_outlives_what_it_keeps"],
    },
    Mutant {
        breaks: "the order survives the end of all numbers (ZooKeeper)",
        file: "backend/zookeeper/line.rs",
        from: "node.sequence.0 == i32::MAX || node.sequence.0 < 0;",
        to: "node.sequence.0 == i32::MAX && node.sequence.0 < 0;",
        caught_by: &["--test", "zookeeper_faults", "turns_go_on_when_the_numbers"],
    },
    Mutant {
        breaks: "other layouts are refused (ZooKeeper)",
        file: "backend/zookeeper/acquire.rs",
        from: "if let Some(foreign) = &view.foreign {",
        to: "if let Some(foreign) = view.foreign.as_ref().filter(|_| false) {",
        caught_by: &["--test", "zookeeper_access", "another_layout_is_refused"],
    },
    Mutant {
        breaks: "one who waits watches one claim (ZooKeeper)",
        file: "backend/zookeeper/wait.rs",
        from: "let path = format!(\"{parent}/{}\", blocker.name);",
        to: "let path = format!(\"{parent}/{}\", view.nodes.first().unwrap_or(blocker).name);",
        caught_by: &["--test", "zookeeper_faults", "two_hundred_who_wait"],
    },
    Mutant {
        breaks: "a move that went unanswered is found again (ZooKeeper)",
        file: "backend/zookeeper/release.rs",
        from: "            && delete(&entry.session, &node.path).await?\n        {\n            return Ok(true);",
        to: "        {\n            return delete(&entry.session, &node.path).await;",
        caught_by: &["--test", "zookeeper_faults", "a_move_whose_answer_was_lost"],
    },
    Mutant {
        breaks: "why TLS failed is told (ZooKeeper)",
        file: "backend/zookeeper/dial.rs",
        from: "for host in hosts {\n        #[cfg",
        to: "for host in hosts.iter().take(0) {\n        #[cfg",
        caught_by: &["--test", "zookeeper_tls"],
    },
];
