//! Tenants on one server, each below a prefix of its own.

use windlass::{Attempt, Coordinator, Event, Quota, connect};
use windlass_testkit::conformance::{SOON, TestStore, wait_for_waiters};
use windlass_testkit::{RedisServer, conformance_cases, eventually};

fn store() -> TestStore {
    let server = RedisServer::start().unwrap();
    TestStore::new(format!("{}?prefix=acme", server.url()), server)
}

// Names that come back from keys, and channels that scripts name.
conformance_cases! { store;
    lock: list_matches_patterns, namespaces_are_isolated, any_name_works, break_frees_the_lock;
    queue: first_come_first_served, waiter_of_another_client_is_woken_immediately;
    locks: all_or_none;
    semaphore: waiters_that_fit_of_other_clients_are_woken;
    election: observers_see_every_change;
    latch: opens_at_zero, new_generation_wakes_old_waiters;
    barrier: all_parties_enter_and_leave_together;
    limit_survey: limiters_are_found_by_name;
    bloom: growing_filter_exceeds_its_capacity, union_contains_items_of_both;
    permissions: subjects_with_a_level_are_listed;
    topic: every_subscriber_receives_messages_in_order;
}

async fn tenant(server: &RedisServer, prefix: &str) -> Coordinator {
    connect(&format!("{}?prefix={prefix}", server.url()))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_different_prefixes_do_not_meet() {
    let server = RedisServer::start().unwrap();
    let plain = connect(&server.url()).await.unwrap();
    let (acme, umbrella) = (
        tenant(&server, "acme").await,
        tenant(&server, "umbrella").await,
    );
    let mut held = Vec::new();
    let mut heard = Vec::new();
    for client in [&plain, &acme, &umbrella] {
        held.push(client.lock("stock").acquire().await.unwrap());
        let jobs = client.semaphore("jobs", 1);
        assert!(jobs.try_acquire().await.unwrap().acquired().is_some());
        let limiter = client.limiter("login", Quota::per_hour(1));
        assert!(limiter.check("").await.unwrap().is_allowed());
        heard.push(client.topic::<String>("news").subscribe().await.unwrap());
        let again = client.lock("stock").try_acquire().await.unwrap();
        assert!(matches!(again, Attempt::Busy(_)));
        let names = async || -> Vec<String> {
            let listed = client.list_locks("*").await.unwrap();
            listed.into_iter().map(|one| one.name).collect()
        };
        // The record that is listed is written with the first renewal.
        assert!(eventually(SOON, async || !names().await.is_empty()).await);
        assert_eq!(names().await, ["stock"]);
    }
    for (client, word) in [(&plain, "plain"), (&acme, "acme"), (&umbrella, "umbrella")] {
        let topic = client.topic::<String>("news");
        topic.publish(&word.to_owned()).await.unwrap();
    }
    for (messages, word) in heard.iter_mut().zip(["plain", "acme", "umbrella"]) {
        match messages.next().await.unwrap() {
            Event::Message(message) => assert_eq!(message, word),
            other => panic!("{other:?}"),
        }
    }
}

/// A wake-up for the first waiter of a lock, made from what is stored.
struct WakeUpForgery {
    /// The key of the waiter's record.
    claim: String,
    channel: String,
    message: String,
    ticket: String,
}

impl WakeUpForgery {
    fn read(server: &RedisServer, prefix: &str, name: &str) -> WakeUpForgery {
        let queue = format!("{prefix}windlass:lock:line:{{{prefix}{name}}}");
        let first = ["ZRANGE", &queue, "0", "0", "WITHSCORES"];
        let queued = server.command(&first).unwrap();
        let (owner, ticket) = queued.split_once('\n').unwrap();
        let claim = format!("{prefix}windlass:lock:claim:{{{prefix}{name}}} {owner}");
        let record = server.command(&["GET", &claim]).unwrap();
        let words: Vec<&str> = record.split(' ').collect();
        WakeUpForgery {
            channel: words[3].to_owned(),
            message: format!("{} {ticket}", words[4]),
            ticket: ticket.to_owned(),
            claim,
        }
    }
}

/// Another user of the server reads everything and publishes on every channel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_wake_up_grants_nothing_where_wake_ups_are_confirmed() {
    let server = RedisServer::start().unwrap();
    for (parameter, believed) in [("?wake_ups=confirm", false), ("", true)] {
        let w = connect(&format!("{}{parameter}", server.url())).await;
        let w = w.unwrap();
        let name = format!("stock{believed}");
        let holder = w.lock(&name).acquire().await.unwrap();
        let mut waiting = tokio::spawn({
            let (w, name) = (w.clone(), name.clone());
            async move { w.lock(&name).acquire().await.unwrap() }
        });
        wait_for_waiters(&w, &name, 1).await;
        let forgery = WakeUpForgery::read(&server, "", &name);
        let asked = renewals(&server);
        let publish = ["PUBLISH", &forgery.channel, &forgery.message];
        assert_eq!(server.command(&publish).unwrap(), "1", "it is received");
        if believed {
            let forged = tokio::time::timeout(SOON, &mut waiting).await;
            assert_eq!(forged.unwrap().unwrap().fence().to_string(), forgery.ticket);
            continue;
        }
        // The client asks the store, and goes on waiting.
        assert!(eventually(SOON, async || renewals(&server) > asked).await);
        let shown = w.lock(&name).inspect().await.unwrap();
        assert_eq!(shown.holder.unwrap().fence, Some(holder.fence()));
        assert!(!waiting.is_finished(), "the lock is held");
        assert!(holder.release().await.unwrap().was_held());
        let next = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
        assert!(next.release().await.unwrap().was_held());
    }
}

/// How many scripts the server has run.
fn renewals(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// What a tenant's user may do, on keys and channels of its prefix.
const COMMANDS: [&str; 10] = [
    "+get",
    "+set",
    "+del",
    "+incrby",
    "+publish",
    "+subscribe",
    "+eval",
    "+zrange",
    "+time",
    "+pexpire",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_cannot_read_forge_or_raise_anything_of_another() {
    let server = RedisServer::start().unwrap();
    let mut user = vec!["ACL", "SETUSER", "umbrella", "on", ">pw"];
    user.extend(["~umbrella:*", "resetchannels", "&umbrella:*"]);
    user.extend(COMMANDS);
    server.command(&user).unwrap();
    let w = tenant(&server, "acme").await;
    let holder = w.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    // What a forged wake-up needs, as only an administrator can read it.
    let queue = "acme:windlass:lock:line:{acme:stock}";
    let forgery = WakeUpForgery::read(&server, "acme:", "stock");
    let WakeUpForgery {
        claim,
        channel,
        message: forged,
        ticket,
    } = &forgery;
    assert!(channel.starts_with("acme:windlass:wake:"), "{channel}");

    let publish = format!("return redis.call('PUBLISH', '{channel}', '{forged}')");
    let raise = "return redis.call('INCRBY', 'acme:windlass:fence', 1000000)";
    let attempts: [&[&str]; 11] = [
        &["GET", "acme:stock"],
        &["DEL", "acme:stock"],
        &["SET", "acme:stock", "me"],
        &["GET", claim],
        &["ZRANGE", queue, "0", "-1"],
        &["SET", "acme:windlass:fence", "1"],
        &["INCRBY", "acme:windlass:fence", "1000000"],
        &["EVAL", raise, "0"],
        &["SUBSCRIBE", channel],
        &["PUBLISH", channel, forged],
        &["EVAL", &publish, "0"],
    ];
    for attempt in attempts {
        let denied = server.command_as("umbrella", "pw", attempt).unwrap_err();
        let text = denied.to_string();
        let is_denied = ["NOPERM", "permission", "can't"]
            .iter()
            .any(|word| text.contains(word));
        assert!(is_denied, "{attempt:?}: {text}");
    }
    // The same on its own prefix is allowed, and reaches nobody else.
    for own in [
        &["SET", "umbrella:windlass:fence", "1"][..],
        &["PUBLISH", "umbrella:windlass:wake:1", forged],
    ] {
        server.command_as("umbrella", "pw", own).unwrap();
    }
    let shown = w.lock("stock").inspect().await.unwrap();
    let shown = shown.holder.expect("it is held");
    assert_eq!(shown.fence, Some(holder.fence()));
    assert!(!waiting.is_finished(), "the lock is held");
    let first = holder.fence();
    assert!(holder.release().await.unwrap().was_held());
    let next = waiting.await.unwrap();
    assert!(next.fence() > first && next.fence().to_string() == *ticket);
    assert!(next.release().await.unwrap().was_held());
}
