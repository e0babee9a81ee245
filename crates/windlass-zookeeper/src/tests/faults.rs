//! What is said, and what goes on, when a step fails.

use std::sync::{Arc, Weak};
use std::time::Duration;

use windlass_testkit::{Direction, FaultProxy, ZooKeeperServers, eventually};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::claim_table::Entry;
use crate::{Store, ZooKeeper, paths};
use windlass_core::error::{ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, ClaimStore as _, GrantListener, Kind, OnBusy, OnSizeMismatch, Order, Released,
    Share, WakeAddress,
};
use windlass_core::{DEFAULT_TTL, Fence, Owner};

struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _claim: u64, _fence: Option<Fence>) {}
    fn missed(&self) {}
}

async fn store(url: &str, call_timeout: Duration) -> Arc<Store> {
    let opened = ZooKeeper::open(url, call_timeout, Weak::<Deaf>::new()).await;
    Arc::clone(&opened.unwrap().store)
}

fn server_with_proxy() -> (ZooKeeperServers, FaultProxy) {
    let server = ZooKeeperServers::single().expect("a server to test on");
    let proxy = FaultProxy::start(server.addrs()[0]).unwrap();
    (server, proxy)
}

fn through(proxy: &FaultProxy) -> String {
    format!("zookeeper://{}/app?chroot=create", proxy.addr())
}

fn ask(name: &str, claim: u64) -> AcquireRequest {
    AcquireRequest {
        kind: Kind::Lock,
        name: Name::new("test", None, name).unwrap(),
        owner: Owner::new("owner").unwrap(),
        share: Share {
            weight: 1,
            size: 1,
            on_size_mismatch: OnSizeMismatch::Refuse,
            order: Order::Fifo,
        },
        ttl: DEFAULT_TTL,
        on_busy: OnBusy::Enqueue,
        note: None,
        heal_missing_ttl: false,
        record_now: false,
        again: false,
        renewed: true,
        wake: WakeAddress { client: 1, claim },
    }
}

/// Somebody may create and delete below it, and not see what is there.
async fn hide(store: &Store, ask: &AcquireRequest) {
    let session = store.any_session().await.unwrap();
    let parent = paths::of_claims(ask.kind, &ask.name);
    store.make_parents(&session, &parent, b"").await.unwrap();
    let unseen = [Acl::new(
        Permission::CREATE | Permission::DELETE | Permission::ADMIN,
        AuthId::anyone(),
    )];
    let client = session.client();
    client.delete(&parent, None).await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::from(unseen.as_slice()));
    client.create(&parent, b"", &options).await.unwrap();
}

async fn released(store: &Store, ask: &AcquireRequest) -> Result<Released> {
    let (name, owner) = (ask.name.clone(), ask.owner.clone());
    store.release(ask.kind, name, owner, Some(ask.wake)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_written_is_undone_if_the_servers_are_gone_then() {
    let (_server, proxy) = server_with_proxy();
    let store = store(&through(&proxy), Duration::from_secs(5)).await;
    let session = store.session(DEFAULT_TTL).await.unwrap();
    let ask = ask("stock", 1);
    let entry = Entry::new(&ask, Arc::clone(&session));
    store.table.insert(&store, entry);
    store.place(&session, &ask).await.unwrap();
    proxy.refuse(true);
    proxy.reset_all();
    let error = store.acquire(ask.clone()).await.unwrap_err();
    assert!(error.may_have_happened(), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    proxy.refuse(false);
    let undone = eventually(Duration::from_secs(60), || async {
        released(&store, &ask).await.is_ok()
    });
    assert!(undone.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_never_written_is_not_undone() {
    let (_server, proxy) = server_with_proxy();
    let store = store(&through(&proxy), Duration::from_secs(5)).await;
    proxy.refuse(true);
    proxy.reset_all();
    // The client notices by itself that it is cut off.
    let session = store.session(DEFAULT_TTL).await.unwrap();
    let cut_off = eventually(Duration::from_secs(60), || async {
        session.ready().await.is_err()
    });
    assert!(cut_off.await);
    let error = store.acquire(ask("stock", 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_happened());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_those_that_were_written_are_undone() {
    let (_server, proxy) = server_with_proxy();
    let store = store(&through(&proxy), Duration::from_secs(20)).await;
    let asks = [ask("a", 1), ask("b", 2)];
    hide(&store, &asks[1]).await;
    let error = store.acquire_all(asks.to_vec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(error.may_have_happened(), "{error:?}");
    let given_back = released(&store, &asks[0]).await.unwrap();
    assert_eq!(given_back, Released::WasHeld);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_one_session_is_opened_others_are_to_be_had() {
    let (_server, proxy) = server_with_proxy();
    let store = store(&through(&proxy), Duration::from_secs(40)).await;
    let connections = proxy.connections();
    proxy.hold(Direction::ToClient);
    let opening = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.session(Duration::from_secs(2)).await.map(drop) }
    });
    let begun = eventually(Duration::from_secs(20), || async {
        proxy.connections() > connections
    });
    assert!(begun.await, "it is being opened");
    let known = tokio::time::timeout(Duration::from_secs(10), store.session(DEFAULT_TTL));
    known.await.expect("at once").unwrap();
    opening.abort();
}
