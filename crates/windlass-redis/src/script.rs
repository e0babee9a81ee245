//! The registry of scripts: each is defined, and found again by its digest, in one place.

use std::sync::LazyLock;

/// A Lua script and the digest that Redis knows it by.
#[derive(Debug)]
pub(super) struct Script {
    digest: redis::Script,
    source: &'static str,
}

impl Script {
    fn new(source: &'static str) -> Script {
        Script {
            digest: redis::Script::new(source),
            source,
        }
    }

    pub(super) fn digest(&self) -> &str {
        self.digest.get_hash()
    }

    pub(super) fn source(&self) -> &'static str {
        self.source
    }

    /// Whether it reads keys that a caller cannot declare: the claim records of the waiters that it
    /// finds in a queue. On the importing node of a slot migration such a key may still be missing
    /// although it exists, so the script runs there only after the migration.
    pub(super) fn reads_undeclared_keys(&self) -> bool {
        [&LOCK, &LOCK_ALL, &LOCK_INSPECT]
            .into_iter()
            .any(|script| std::ptr::eq(&**script, self))
    }
}

/// The script of that digest: for a node that answers `NOSCRIPT` to a redirected command.
pub(super) fn by_digest(digest: &[u8]) -> Option<&'static Script> {
    let mut scripts = ALL.iter().map(|script| &***script);
    scripts.find(|script| script.digest().as_bytes() == digest)
}

/// Defines each script as the concatenation of its files, and lists them all in `ALL`.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = [$($file:literal),+ $(,)?];)+) => {
        $(
            $(#[$doc])*
            pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
                Script::new(concat!($(include_str!(concat!("scripts/", $file))),+))
            });
        )+

        static ALL: &[&LazyLock<Script>] = &[$(&$name),+];
    };
}

scripts! {
    /// All decisions on locks, in batches.
    LOCK = [
        "lock/prelude.lua",
        "lock/single.lua",
        "lock/hand_over.lua",
        "lock/single_recorded.lua",
        "lock/fast_path.lua",
        "fence.lua",
        "lock/decisions.lua",
        "lock/dispatch.lua",
    ];
    LOCK_ALL = ["lock/prelude.lua", "lock/hand_over.lua", "lock/acquire_all.lua"];
    LOCK_INSPECT = ["lock/inspect.lua"];
    /// All decisions on pools, in batches.
    POOL = [
        "pool/prelude.lua",
        "pool/fast_path.lua",
        "fence.lua",
        "notify.lua",
        "pool/transaction.lua",
        "pool/decisions.lua",
        "pool/dispatch.lua",
    ];
    POOL_INSPECT = ["pool/inspect.lua"];
    /// `LOCK` on a node of a quorum.
    QUORUM_NODE_LOCK = [
        "lock/prelude.lua",
        "quorum_node/prelude.lua",
        "lock/single.lua",
        "lock/hand_over.lua",
        "lock/single_recorded.lua",
        "lock/fast_path.lua",
        "fence.lua",
        "lock/decisions.lua",
        "quorum_node/lock.lua",
        "lock/dispatch.lua",
    ];
    /// `POOL` on a node of a quorum.
    QUORUM_NODE_POOL = [
        "pool/prelude.lua",
        "quorum_node/prelude.lua",
        "pool/fast_path.lua",
        "fence.lua",
        "notify.lua",
        "pool/transaction.lua",
        "pool/decisions.lua",
        "quorum_node/pool.lua",
        "pool/dispatch.lua",
    ];
    QUORUM_NODE_JOIN = ["quorum_node/join.lua"];
    LATCH = ["notify.lua", "latch.lua"];
    GATE_ADMIT = ["gate_admit.lua"];
    GATE_RESET = ["gate_reset.lua"];
    MASTER_EPOCH = ["master_epoch.lua"];
    REPLICA_ACK = ["replica_ack.lua"];
    /// All decisions on limiters, in batches.
    LIMIT = ["limit/fast_path.lua", "limit/states.lua", "limit/decide.lua"];
    COUNTER_ADD = ["counter/add.lua"];
    COUNTER_RESET = ["counter/reset.lua"];
    BLOOM_CREATE = ["bloom/create.lua"];
    BLOOM_CREATE_SHARD = ["bloom/create_shard.lua"];
    BLOOM_MERGE = ["bloom/merge.lua"];
    BLOOM_GENERATIONS = ["bloom/generations.lua"];
    BLOOM_UNION = ["bloom/union.lua"];
    BLOOM_REMOVE = ["bloom/remove.lua"];
    PERM_DEFINE = ["permissions/define.lua"];
    PERM_REMOVE = ["permissions/remove.lua"];
    PERM_READ = ["permissions/read.lua"];
    PERM_WRITE = ["permissions/write.lua"];
    ONCE = ["once.lua"];
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, LazyLock};
    use std::time::Duration;

    use windlass_core::name::Name;
    use windlass_core::permissions::{Scale, Schema};
    use windlass_core::store::{Field, FieldRead, FieldWrite, NoListener};
    use windlass_testkit::RedisCluster;

    use super::*;
    use crate::Redis;
    use crate::errors::RAISE_PERMISSIONS;

    fn lua_files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => lua_files(&path, found),
                false => found.push(path),
            }
        }
    }

    #[test]
    fn every_lua_file_belongs_to_a_script_that_its_digest_finds() {
        let mut files = Vec::new();
        lua_files(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts"),
            &mut files,
        );
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let script = ALL.iter().find(|script| script.source().contains(&text));
            let script = script.unwrap_or_else(|| panic!("{} is in no script", file.display()));
            let found = by_digest(script.digest().as_bytes()).unwrap();
            assert!(std::ptr::eq(found, &***script));
        }
    }

    /// The commands that a script calls, as ACL rules.
    fn permissions(source: &str) -> BTreeSet<String> {
        let calls = source.split("call('").skip(1);
        let calls = calls.chain(source.split("pcall_redis('").skip(1));
        let rule = |call: &str| {
            let command = call.split('\'').next().unwrap().to_lowercase();
            match call.strip_prefix("CLUSTER', '") {
                Some(rest) => {
                    let sub = rest.split('\'').next().unwrap().to_lowercase();
                    format!("+{command}|{sub}")
                }
                None => format!("+{command}"),
            }
        };
        calls.map(rule).collect()
    }

    #[test]
    fn the_documented_permissions_cover_the_scripts() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/keys.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, section) = page.split_once("### Permissions\n").unwrap();
        let rules = |text: &str| -> BTreeSet<String> {
            let text = text.replace("\\|", "|");
            let words = text.split([' ', '\n', '`', '\'']);
            let rules = words.filter(|word| word.starts_with('+'));
            rules.map(str::to_owned).collect()
        };
        let (base, rest) = section.split_once("\nOK\n").unwrap();
        let base = rules(base);
        let of_feature = |feature: &str| {
            let row = rest
                .lines()
                .find(|line| line.starts_with(&format!("| {feature} |")));
            rules(row.unwrap())
        };
        for script in ALL {
            let is =
                |part: &[&LazyLock<Script>]| part.iter().any(|one| std::ptr::eq(*one, *script));
            let more = if is(&[
                &BLOOM_CREATE,
                &BLOOM_CREATE_SHARD,
                &BLOOM_MERGE,
                &BLOOM_GENERATIONS,
                &BLOOM_UNION,
                &BLOOM_REMOVE,
            ]) {
                of_feature("Bloom filters")
            } else if is(&[&PERM_DEFINE, &PERM_REMOVE, &PERM_READ, &PERM_WRITE]) {
                of_feature("permissions")
            } else if is(&[&COUNTER_ADD, &COUNTER_RESET]) {
                of_feature("counters")
            } else if is(&[&MASTER_EPOCH]) {
                of_feature("clusters")
            } else {
                BTreeSet::new()
            };
            let needed = permissions(script.source());
            assert!(!needed.is_empty());
            let missing: Vec<_> = needed
                .iter()
                .filter(|rule| !base.contains(*rule) && !more.contains(*rule))
                .collect();
            assert!(
                missing.is_empty(),
                "docs/keys.md lacks {missing:?} of {:.80}",
                script.source()
            );
        }
        let raise = permissions(MASTER_EPOCH.source());
        let told: BTreeSet<String> = RAISE_PERMISSIONS
            .iter()
            .map(|rule| (*rule).to_owned())
            .collect();
        let mut expected = raise;
        expected.remove("+cluster|info");
        expected.insert("+eval".to_owned());
        assert_eq!(told, expected);
    }

    /// A space whose subjects take more bytes than are fetched whole, so that a read runs a script.
    fn long_schema() -> Schema {
        let resources = (0..2_000).map(|n| format!("r{n}")).collect();
        let levels = ["none", "read", "write", "own"].map(str::to_owned).to_vec();
        Schema::new(Scale::Ranked, levels, None, resources).unwrap()
    }

    /// The node that a slot moves to has not run any script yet: it must be sent each one by its
    /// digest.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn permission_scripts_are_loaded_during_an_ask_redirection() {
        let cluster = RedisCluster::start().unwrap();
        let timeout = Duration::from_secs(5);
        let store = Redis::open(&cluster.url(), timeout, 7, NoListener::weak()).await;
        let permissions = store.unwrap().permissions();
        let space = Name::new("test", None, "space").unwrap();
        // Removed once before, so that each key that a removal touches exists and can move.
        let removed = long_schema();
        permissions
            .define(space.clone(), None, removed.clone())
            .await
            .unwrap();
        assert!(permissions.remove(space.clone(), removed.id).await.unwrap());
        let schema = long_schema();
        permissions
            .define(space.clone(), None, schema.clone())
            .await
            .unwrap();
        let field = Field {
            offset: 8,
            width: 2,
        };
        let write = FieldWrite {
            subject: "ann".into(),
            fields: vec![(field, 3)],
        };
        permissions
            .write(space.clone(), schema.id.clone(), vec![write])
            .await
            .unwrap();

        let moving = cluster.begin_move("space").unwrap();
        while moving.move_keys(100).unwrap() > 0 {}
        let read = FieldRead {
            subject: "ann".into(),
            fields: vec![field],
        };
        let found = permissions
            .read(space.clone(), Arc::new(schema.clone()), vec![read])
            .await;
        assert_eq!(found.unwrap(), Some(vec![vec![3]]));
        assert!(permissions.remove(space, schema.id).await.unwrap());
    }
}
