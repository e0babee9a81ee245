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
    Mutant {
        breaks: "one who barges in counts on those who hold (ZooKeeper)",
        file: "backend/zookeeper/barge.rs",
        from: "let holders = standing().filter(|(_, held)| **held);",
        to: "let holders = standing().filter(|(_, held)| **held).take(0);",
        caught_by: &["--lib", "zookeeper::proof::nobody_barges_into"],
    },
    Mutant {
        breaks: "one who barges in counts on the first who waits (ZooKeeper)",
        file: "backend/zookeeper/barge.rs",
        from: "!**held && node.name != own.name);",
        to: "!**held && node.name != own.name).filter(|_| false);",
        caught_by: &["--lib", "zookeeper::proof::nobody_barges_into"],
    },
    Mutant {
        breaks: "one who barges in counts on the size (ZooKeeper)",
        file: "backend/zookeeper/barge.rs",
        from: "parent: Some((&parent, view.room.bytes(), view.version)),",
        to: "parent: None.filter(|(_, _, _): &(&str, Vec<u8>, i32)| parent.is_empty()),",
        caught_by: &["--lib", "zookeeper::proof::nobody_barges_into"],
    },
    Mutant {
        breaks: "a smaller size takes nothing from one who was let in (ZooKeeper)",
        file: "backend/zookeeper/resize.rs",
        from: ".find(|index| !view.held[*index])",
        to: ".find(|index| !view.held[*index] && view.held.is_empty())",
        caught_by: &["--lib", "zookeeper::proof::a_size_is_not_written"],
    },
    Mutant {
        breaks: "nobody is let in while the size changes (ZooKeeper)",
        file: "backend/zookeeper/resize.rs",
        from: "const ENDLESS: u32 = u32::MAX;",
        to: "const ENDLESS: u32 = 1;",
        caught_by: &["--lib", "zookeeper::proof::nobody_is_let_in_while"],
    },
    Mutant {
        breaks: "a gate that was forgotten does not go back (ZooKeeper)",
        file: "backend/zookeeper/documents.rs",
        from: "client.set_data(&path, b\"\", version).await",
        to: "client.delete(&path, version).await",
        caught_by: &["--lib", "zookeeper::proof::a_gate_that_was_forgotten"],
    },
    Mutant {
        breaks: "fences grow though one was overtaken (ZooKeeper)",
        file: "backend/zookeeper/line.rs",
        from: "self.changed > node.created",
        to: "self.changed < node.created",
        caught_by: &["--lib", "zookeeper::proof::fences_grow_though"],
    },
];
