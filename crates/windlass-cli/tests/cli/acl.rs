//! The permissions that `docs/keys.md` lists are enough for every command, on Redis.

use std::path::Path;

use crate::fixture::{Fixture, LONG};
use windlass_testkit::{Flavor, RedisCluster, RedisServer, eventually_blocking};

/// The words of the documented `ACL SETUSER`, and those of each feature.
struct Documented {
    base: Vec<String>,
    features: Vec<(String, Vec<String>)>,
}

fn documented() -> Documented {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/keys.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("### Permissions\n").unwrap();
    let (_, block) = section.split_once("ACL SETUSER billing on").unwrap();
    let (block, rest) = block.split_once("\nOK\n").unwrap();
    let words = |text: &str| -> Vec<String> {
        let words = text.split([' ', '\n', '`', '\'', ',']);
        let words = words.filter(|word| word.starts_with(['+', '~', '&']));
        words.map(|word| word.replace("\\|", "|")).collect()
    };
    let (_, table) = rest.split_once("| feature | ACL |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let feature = |row: &str| {
        let (name, acl) = row[2..].split_once(" | ").unwrap();
        (name.to_owned(), words(acl.trim_matches(['`', '|', ' '])))
    };
    Documented {
        base: words(block),
        features: rows.map(feature).collect(),
    }
}

/// The same commands for a tenant that keeps to a prefix.
fn with_prefix(prefix: &str, permissions: &[String]) -> Vec<String> {
    let commands = permissions.iter().filter(|word| word.starts_with('+'));
    let patterns = [format!("~{prefix}:*"), format!("&{prefix}:*")];
    commands.cloned().chain(patterns).collect()
}

/// A store whose user has these permissions.
fn fixture(permissions: &[String]) -> Fixture {
    let mut fixture = Fixture::redis();
    let server = fixture.server();
    create_user(server, permissions);
    fixture.store = format!("redis://billing:secret@{}", server.addr());
    fixture
}

fn create_user(server: &RedisServer, permissions: &[String]) {
    let mut user = vec!["ACL", "SETUSER", "billing", "on", ">secret"];
    user.extend(permissions.iter().map(String::as_str));
    server.command(&user).unwrap();
}

/// Each command with the exit code that it has if nothing is denied.
fn check(fixture: &Fixture, commands: &[(&str, i32)]) {
    check_on(fixture, &[fixture.server()], commands);
}

/// The same on a store of these servers.
fn check_on(fixture: &Fixture, servers: &[&RedisServer], commands: &[(&str, i32)]) {
    for (command, code) in commands {
        let words: Vec<&str> = command.split(' ').collect();
        let done = fixture.run(&words);
        assert_eq!(done.code, *code, "{command}: {done:?}");
    }
    for server in servers {
        let log = server.command(&["ACL", "LOG"]).unwrap();
        assert_eq!(log.trim(), "", "nothing was denied");
    }
}

const BASE: &[(&str, i32)] = &[
    ("lock acquire invoice/a --owner ann --note n", 0),
    ("lock renew invoice/a --owner ann", 0),
    ("lock show invoice/a", 0),
    ("lock acquire invoice/a --owner bob --wait 50ms", 75),
    ("lock ls", 0),
    ("top", 0),
    ("lock break invoice/a", 0),
    ("lock acquire invoice/a --owner ann", 0),
    ("lock release invoice/a --owner ann", 0),
    ("run invoice/b -- true", 0),
    ("run --shared invoice/b -- true", 0),
    ("run --permits 2 invoice/b -- true", 0),
    (
        "sem acquire invoice/s --permits 3 --weight 2 --owner ann",
        0,
    ),
    ("sem renew invoice/s --permits 3 --owner ann", 0),
    (
        "sem acquire invoice/s --permits 3 --weight 2 --owner bob --wait 50ms",
        75,
    ),
    ("sem show invoice/s", 0),
    ("lock ls", 0),
    ("top", 0),
    ("sem release invoice/s --owner ann", 0),
    ("rw read invoice/r --owner ann", 0),
    ("rw write invoice/r --owner bob --wait 50ms", 75),
    ("elect invoice/e -- true", 0),
    ("elect invoice/e --show", 75),
    ("elect show invoice/e", 75),
    ("barrier invoice/m --parties 1", 0),
    ("latch reset invoice/l 1", 0),
    ("latch count-down invoice/l", 0),
    ("latch wait invoice/l", 0),
    ("gate admit invoice/a 7", 0),
    ("gate admit invoice/a 8999999999999999", 125),
    ("gate show invoice/a", 0),
    ("gate reset invoice/a --yes", 0),
    ("limit take invoice/x --rate 10/h", 0),
    (
        "limit take invoice/y --rate 10/s --algorithm sliding-window",
        0,
    ),
    ("limit peek invoice/x --rate 10/h", 0),
    ("top", 0),
    ("limit reset invoice/x", 0),
    ("seen invoice/d item", 0),
    ("once invoice/o -- true", 0),
    ("once invoice/o -- true", 0),
    ("topic publish invoice/t hello", 0),
    ("limit take invoice/x --rate 10/h", 0),
    ("limit show invoice/x", 0),
    ("ls", 0),
    ("once ls", 0),
];

const FEATURES: &[(&str, &[(&str, i32)])] = &[
    ("`windlass doctor`", &[("doctor", 0)]),
    (
        "Bloom filters",
        &[
            ("bloom create invoice/f --capacity 1000", 0),
            ("bloom create invoice/g --capacity 1000", 0),
            ("bloom create invoice/grows --capacity 100 --growing", 0),
            ("bloom create invoice/turns --capacity 100 --rotate 1h", 0),
            ("bloom add invoice/f a b c", 0),
            ("bloom add invoice/grows a", 0),
            ("bloom add invoice/turns a", 0),
            ("bloom check invoice/f a z", 75),
            ("bloom check invoice/turns a", 0),
            ("bloom info invoice/f", 0),
            ("bloom info invoice/grows", 0),
            ("bloom union invoice/f invoice/g", 0),
            ("bloom rm invoice/f", 0),
        ],
    ),
    (
        "permissions",
        &[
            (
                "perm define invoice/p --levels no,read,write --resources a,b",
                0,
            ),
            ("perm set invoice/p ann a read", 0),
            ("perm get invoice/p ann a", 0),
            ("perm check invoice/p ann a write", 75),
            ("perm list invoice/p ann", 0),
            ("perm who invoice/p a read", 0),
            ("perm clear invoice/p ann", 0),
            ("perm stats invoice/p", 0),
            ("perm rm invoice/p", 0),
        ],
    ),
    (
        "counters",
        &[
            ("counter add invoice/c 2", 0),
            ("counter add invoice/c 2 --once id", 0),
            ("counter get invoice/c", 0),
            ("counter add invoice/w --window 1h", 0),
            ("counter get invoice/w --window 1h", 0),
            ("counter reset invoice/c", 0),
        ],
    ),
];

#[test]
fn documented_permissions_are_enough() {
    let Documented { base, features } = documented();
    assert!(base.len() > 30 && features.len() == 6, "{features:?}");
    let user = fixture(&base);
    check(&user, BASE);
    let subscriber = user.start(&["topic", "subscribe", "invoice/t", "--count", "1"]);
    let heard = eventually_blocking(LONG, || {
        check(&user, &[("topic publish invoice/t hello", 0)]);
        !subscriber.is_alive()
    });
    assert!(heard, "a message arrives");
    check(&user, &[]);
    for (name, commands) in FEATURES {
        let (_, more) = features.iter().find(|(found, _)| found == name).unwrap();
        let permissions = [base.as_slice(), more].concat();
        check(&fixture(&permissions), commands);
    }
}

#[test]
fn documented_permissions_are_enough_for_replicas() {
    let Documented { base, features } = documented();
    let (_, more) = features
        .iter()
        .find(|(name, _)| name == "replicas")
        .unwrap();
    // It has WAITAOF.
    let durable = || {
        let server = RedisServer::builder().binary(Flavor::Valkey);
        server.append_only(true)
    };
    let master = durable().start().unwrap();
    let port = master.port();
    let replica = durable().config("replicaof", format!("127.0.0.1 {port}"));
    let _replica = replica.start().unwrap();
    // The driver names itself on new servers, and ignores a refusal.
    let driver = ["+client|setinfo".to_owned()];
    create_user(&master, &[base.as_slice(), more, &driver].concat());
    let mut fixture = Fixture::file();
    for replicas in ["replicas=1", "replicas=1&replicas_on_disk=yes"] {
        let addr = master.addr();
        fixture.store = format!("redis://billing:secret@{addr}?{replicas}&replicas_timeout=20s");
        let commands = [
            ("run invoice/a -- true", 0),
            ("lock acquire invoice/b --owner ann", 0),
            ("lock release invoice/b --owner ann", 0),
            ("sem acquire invoice/s --permits 3 --owner ann", 0),
            ("sem release invoice/s --owner ann", 0),
        ];
        check_on(&fixture, &[&master], &commands);
    }
}

/// The restart loses a grant. Its fence must not be granted again.
#[test]
fn fences_of_the_documented_user_increase_over_a_lost_grant() {
    let base = documented().base;
    let fixture = fixture(&base);
    let server = fixture.server();
    let fence = |name: &str| {
        let granted = fixture.json(&["lock", "acquire", name, "--owner", "ann"]);
        assert_eq!(granted.code, 0, "{granted:?}");
        granted.object()["fence"].as_u64().unwrap()
    };
    fence("invoice/saved");
    server.command(&["SAVE"]).unwrap();
    let lost = fence("invoice/lost");
    server.restart().unwrap();
    create_user(server, &base);
    assert_eq!(fixture.show("invoice/saved")["held"], true);
    assert_eq!(fixture.show("invoice/lost")["held"], false);
    let next = fence("invoice/next");
    assert!(next > lost, "{next} after {lost}");
}

/// The permissions of a tenant that uses everything, below its prefix.
fn tenant() -> Vec<String> {
    let Documented { base, features } = documented();
    // Not every server has WAITAOF.
    let features = features.into_iter().filter(|(name, _)| name != "replicas");
    let more = features.flat_map(|(_, more)| more);
    let all: Vec<String> = base.into_iter().chain(more).collect();
    with_prefix("acme", &all)
}

fn create_tenant(server: &RedisServer) {
    let permissions = tenant();
    let mut user = vec!["ACL", "SETUSER", "acme", "on", ">secret"];
    user.extend(permissions.iter().map(String::as_str));
    server.command(&user).unwrap();
}

/// Replicated servers are asked for their settings, and may refuse.
fn allow_settings(server: &RedisServer) {
    server
        .command(&["ACL", "SETUSER", "acme", "+config|get"])
        .unwrap();
}

/// Every command, as a user that may use no key and no channel outside its prefix.
fn tenant_keeps_to_its_prefix(fixture: &Fixture, servers: &[&RedisServer]) {
    check_on(fixture, servers, BASE);
    let subscriber = fixture.start(&["topic", "subscribe", "invoice/t", "--count", "1"]);
    let heard = eventually_blocking(LONG, || {
        check_on(fixture, servers, &[("topic publish invoice/t hello", 0)]);
        !subscriber.is_alive()
    });
    assert!(heard, "a message arrives");
    for (_, commands) in FEATURES {
        check_on(fixture, servers, commands);
    }
    let holder = fixture.hold("invoice/held", &[]);
    let listed = fixture.run(&["lock", "ls"]);
    assert!(listed.out.contains("invoice/held"), "{listed:?}");
    assert!(!listed.out.contains("acme"), "{listed:?}");
    let mut found = 0;
    for server in servers {
        let keys = server.command(&["KEYS", "*"]).unwrap();
        let channels = server.command(&["PUBSUB", "CHANNELS"]).unwrap();
        for name in keys.lines().chain(channels.lines()) {
            found += 1;
            assert!(name.starts_with("acme:"), "{name}");
        }
    }
    assert!(found > 10, "{found} keys and channels");
    drop(holder);
}

#[test]
fn tenant_keeps_to_its_prefix_on_one_server() {
    let mut fixture = Fixture::redis();
    create_tenant(fixture.server());
    let address = fixture.server().addr();
    fixture.store = format!("redis://acme:secret@{address}?prefix=acme");
    tenant_keeps_to_its_prefix(&fixture, &[fixture.server()]);
    // The same user without the prefix may do nothing.
    fixture.store = format!("redis://acme:secret@{address}");
    let denied = fixture.run(&["lock", "acquire", "invoice/a"]);
    assert_eq!(denied.code, 69, "{denied:?}");
    assert!(denied.err.contains("refused access"), "{denied:?}");
}

#[test]
fn tenant_keeps_to_its_prefix_on_a_cluster() {
    let cluster = RedisCluster::start().unwrap();
    let servers: Vec<&RedisServer> = cluster.nodes().iter().collect();
    for server in &servers {
        create_tenant(server);
        allow_settings(server);
    }
    let mut fixture = Fixture::file();
    let url = cluster.url().replacen("://", "://acme:secret@", 1);
    fixture.store = format!("{url}?prefix=acme");
    tenant_keeps_to_its_prefix(&fixture, &servers);
}

/// The commands that a quorum has.
const QUORUM: [&str; 7] = ["lock", "top", "run", "rw", "elect", "gate", "doctor"];

#[test]
fn tenant_keeps_to_its_prefix_on_a_quorum() {
    let (mut fixture, nodes) = Fixture::redlock();
    for server in nodes.iter() {
        create_tenant(server);
        allow_settings(server);
    }
    let url = nodes.url("prefix=acme");
    fixture.store = url.replacen("://", "://acme:secret@", 1);
    let servers: Vec<&RedisServer> = nodes.iter().collect();
    let commands = BASE.iter().filter(|(command, _)| {
        let word = command.split(' ').next().unwrap();
        QUORUM.contains(&word) && !command.contains("--permits")
    });
    let commands: Vec<(&str, i32)> = commands.copied().collect();
    check_on(&fixture, &servers, &commands);
    for server in servers {
        let keys = server.command(&["KEYS", "*"]).unwrap();
        assert!(keys.lines().count() > 2, "{keys}");
        assert!(keys.lines().all(|key| key.starts_with("acme:")), "{keys}");
    }
}
