//! Errors and clean-up when a step fails.

use std::sync::Arc;
use std::time::Duration;

use windlass_testkit::{Direction, FaultProxy, ZooKeeperServers, eventually};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use super::{open, server};
use crate::acquire::ClaimAcquisition;
use crate::claim_table::LocalClaimState;
use crate::claims::ZooKeeperClaims;
use crate::paths;
use crate::replace::replace_node;
use windlass_core::DEFAULT_TTL;
use windlass_core::error::{ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, ClaimStore as _, Kind, Released, Renewal, Renewed, Share,
};

async fn claims(url: &str, call_timeout: Duration) -> Arc<ZooKeeperClaims> {
    Arc::clone(&open(url, call_timeout).await.claims)
}

fn server_with_proxy() -> (ZooKeeperServers, FaultProxy) {
    let server = server();
    let proxy = FaultProxy::start(server.addrs()[0]).unwrap();
    (server, proxy)
}

fn url_of(proxy: &FaultProxy) -> String {
    format!("zookeeper://{}/app?chroot=create", proxy.addr())
}

fn request(name: &str, claim: u64) -> AcquireRequest {
    let name = Name::new("test", None, name).unwrap();
    super::request(Kind::Lock, &name, "owner", claim, Share::ONLY)
}

/// Breaks the connections, and waits until the client has noticed: it answers a request that it sends
/// before that only when the session ends.
async fn cut_off(claims: &ZooKeeperClaims, proxy: &FaultProxy) {
    let session = claims.sessions.for_ttl(DEFAULT_TTL).await.unwrap();
    proxy.refuse(true);
    proxy.reset_all();
    let noticed = eventually(Duration::from_secs(60), || async {
        session.wait_connected().await.is_err()
    });
    assert!(noticed.await);
}

/// Creates the parent so that clients may create and delete claims, but not list them.
async fn make_unreadable(claims: &ZooKeeperClaims, request: &AcquireRequest) {
    let session = claims.sessions.default_session().await.unwrap();
    let parent = paths::queue(request.kind, &request.name);
    session.create_containers(&parent, b"").await.unwrap();
    let no_read = [Acl::new(
        Permission::CREATE | Permission::DELETE | Permission::ADMIN,
        AuthId::anyone(),
    )];
    let client = session.client();
    client.delete(&parent, None).await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::from(no_read.as_slice()));
    client.create(&parent, b"", &options).await.unwrap();
}

async fn release(claims: &ZooKeeperClaims, request: &AcquireRequest) -> Result<Released> {
    let (name, owner) = (request.name.clone(), request.owner.clone());
    let wake = Some(request.wake);
    claims.release(request.kind, name, owner, wake).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_after_the_create_says_that_a_node_may_exist() {
    let (_server, proxy) = server_with_proxy();
    let claims = claims(&url_of(&proxy), Duration::from_secs(5)).await;
    let request = request("stock", 1);
    let acquisition = ClaimAcquisition::begin(&claims, request.clone())
        .await
        .unwrap();
    acquisition.create_node().await.unwrap();
    cut_off(&claims, &proxy).await;
    let error = claims.acquire(request.clone()).await.unwrap_err();
    assert!(error.may_have_happened(), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    proxy.refuse(false);
    let released = eventually(Duration::from_secs(60), || async {
        release(&claims, &request).await.is_ok()
    });
    assert!(released.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_before_the_create_says_that_nothing_was_written() {
    let (_server, proxy) = server_with_proxy();
    let claims = claims(&url_of(&proxy), Duration::from_secs(5)).await;
    cut_off(&claims, &proxy).await;
    let error = claims.acquire(request("stock", 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_happened());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_a_joint_acquisition_says_that_nodes_may_exist() {
    let (_server, proxy) = server_with_proxy();
    let claims = claims(&url_of(&proxy), Duration::from_secs(20)).await;
    let requests = [request("a", 1), request("b", 2)];
    make_unreadable(&claims, &requests[1]).await;
    let error = claims.acquire_all(requests.to_vec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(error.may_have_happened(), "{error:?}");
    let released = release(&claims, &requests[0]).await.unwrap();
    assert_eq!(released, Released::WasHeld);
}

/// A claim whose renewals failed for one TTL has expired: the client removes its node as soon as it is
/// connected again, and at the same time the caller requests the claim again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_requested_again_outlives_the_removal_of_its_earlier_node() {
    let server = server();
    let claims = claims(&server.url("app"), Duration::from_secs(20)).await;
    let request = request("stock", 1);
    let granted = claims.acquire(request.clone()).await.unwrap();
    assert!(matches!(granted, Acquired::Granted { .. }), "{granted:?}");
    let expired = claims.table.remove(request.wake.claim).unwrap();
    let again = claims.acquire(request.clone()).await.unwrap();
    let Acquired::Granted { fence, .. } = again else {
        panic!("{again:?}")
    };
    claims.remover.remove(&expired).await.unwrap();
    let renewed = claims
        .renew(vec![Renewal::of(&request, fence)])
        .await
        .unwrap();
    let renewed = renewed.into_iter().next().unwrap().unwrap();
    assert!(matches!(renewed, Renewed::Held { .. }), "{renewed:?}");
}

/// The reply to a replacement is lost: the next request finds the node, with the fence that it has taken
/// over, and not a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacement_whose_reply_was_lost_keeps_its_fence() {
    let server = server();
    let url = server.url("app");
    let (one, two) = (
        claims(&url, Duration::from_secs(20)).await,
        claims(&url, Duration::from_secs(20)).await,
    );
    let first = one.acquire(request("stock", 1)).await.unwrap();
    let Acquired::Granted { fence, .. } = first else {
        panic!("{first:?}")
    };
    let again = request("stock", 2);
    two.acquire(again.clone()).await.unwrap();
    two.table.change(2, |claim| {
        claim.node = None;
        claim.data.fence = None;
        claim.state = LocalClaimState::Requested;
    });
    let repeated = two.acquire(again.clone()).await.unwrap();
    let expected = Acquired::Granted {
        fence,
        recorded: true,
    };
    assert_eq!(repeated, expected);
    // Writing its note does not lose the fence either.
    let noted = Renewal {
        note: Some("why".into()),
        ..Renewal::of(&again, fence)
    };
    two.renew(vec![noted]).await.unwrap().remove(0).unwrap();
    let seen = one.inspect(again.kind, again.name, 1).await.unwrap();
    assert_eq!(seen.holders[0].fence, Some(fence));
}

/// A replacement needs a session of the longer TTL, and fails: the claim stays in its own session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_replacement_leaves_the_claim_in_its_session() {
    let server = server();
    let url = server.url("app");
    let (one, two) = (
        claims(&url, Duration::from_secs(20)).await,
        claims(&url, Duration::from_secs(20)).await,
    );
    one.acquire(request("stock", 1)).await.unwrap();
    let short = AcquireRequest {
        ttl: Duration::from_secs(2),
        ..request("stock", 2)
    };
    let acquisition = ClaimAcquisition::begin(&two, short.clone()).await.unwrap();
    acquisition.create_node().await.unwrap();
    let claim = two.table.get(2).unwrap();
    let view = two.queues.read(&claim.session, short.kind, &short.name);
    let view = view.await.unwrap();
    let own = claim.node.as_ref().unwrap();
    assert!(claim.session.delete(&own.path).await.unwrap());
    let other = view.index_of(claim.id).map(|own| 1 - own).unwrap();
    let replaced = replace_node(&two, &claim.session, &claim, &view, other).await;
    assert!(replaced.unwrap().is_none());
    let session = two.table.get(2).unwrap().session;
    assert_eq!(session.id(), claim.session.id());
}

/// A user who may not read the chroot can still release what another process of this owner acquired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_below_an_unreadable_chroot_is_released() {
    let server = server();
    let hosts = server.addrs()[0].to_string();
    let client = zookeeper_client::Client::connect(&hosts).await.unwrap();
    let no_read = [Acl::new(
        Permission::CREATE | Permission::DELETE,
        AuthId::anyone(),
    )];
    let options = CreateMode::Persistent.with_acls(Acls::from(no_read.as_slice()));
    client.create("/app", b"", &options).await.unwrap();
    let claims = claims(&server.url("app"), Duration::from_secs(20)).await;
    let request = request("stock", 1);
    claims.acquire(request.clone()).await.unwrap();
    claims.table.remove(request.wake.claim).unwrap();
    let released = release(&claims, &request).await.unwrap();
    assert_eq!(released, Released::WasHeld);
}

/// The caller counts the validity of the grant from the repeated request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_request_extends_the_claim() {
    let server = server();
    let claims = claims(&server.url("app"), Duration::from_secs(20)).await;
    let request = request("stock", 1);
    claims.acquire(request.clone()).await.unwrap();
    let repeated = tokio::time::Instant::now();
    let again = claims.acquire(request.clone()).await.unwrap();
    assert!(matches!(again, Acquired::Granted { .. }), "{again:?}");
    let expires = claims.table.get(request.wake.claim).unwrap().expires;
    assert!(
        expires >= repeated + request.ttl,
        "its node is removed before"
    );
}

/// The claim expires while the request to create its node is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_claim_that_expired_meanwhile_is_removed() {
    let (server, proxy) = server_with_proxy();
    let far = claims(&url_of(&proxy), Duration::from_secs(20)).await;
    let near = claims(&server.url("app"), Duration::from_secs(20)).await;
    let request = request("stock", 1);
    // The path exists, so that one request creates the node.
    far.acquire(request.clone()).await.unwrap();
    let released = release(&far, &request).await.unwrap();
    assert_eq!(released, Released::WasHeld);
    let acquisition = ClaimAcquisition::begin(&far, request.clone());
    let acquisition = acquisition.await.unwrap();
    let holders = async || {
        let seen = near.inspect(request.kind, request.name.clone(), 1).await;
        seen.unwrap().holders.len()
    };
    proxy.hold(Direction::ToClient);
    let created = async {
        assert!(eventually(Duration::from_secs(20), || async { holders().await == 1 }).await);
        far.table.remove(1).unwrap();
        proxy.heal();
    };
    let (outcome, ()) = tokio::join!(acquisition.create_node(), created);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert!(eventually(Duration::from_secs(20), || async { holders().await == 0 }).await);
}

/// A grant is valid for one TTL from the request that it answers, so a server that is cut off from the
/// majority must not answer a repeated request from what it knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_request_is_confirmed_by_a_majority() {
    // The server that is cut off serves reads for 40 ticks more.
    let servers = ZooKeeperServers::partitionable(&["syncLimit=40"]).unwrap();
    let mut followers = (0..3).filter(|index| Some(*index) != servers.leader());
    let follower = followers.next().unwrap();
    let url = format!(
        "zookeeper://{}/app?chroot=create",
        servers.addrs()[follower]
    );
    let claims = claims(&url, Duration::from_secs(60)).await;
    let request = request("stock", 1);
    let first = claims.acquire(request.clone()).await.unwrap();
    assert!(matches!(first, Acquired::Granted { .. }), "{first:?}");
    // A session answers in order: this one shows that the server serves reads.
    let reader = claims.sessions.for_ttl(Duration::from_secs(60));
    let reader = reader.await.unwrap();
    servers.cut_off(follower);
    let repeated = tokio::time::timeout(Duration::from_secs(2), claims.acquire(request));
    let (repeated, read) = tokio::join!(repeated, reader.client().check_stat("/"));
    assert!(!matches!(repeated, Ok(Ok(_))), "{repeated:?}");
    assert!(read.is_ok(), "{read:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_a_session_does_not_block_the_other_sessions() {
    let (_server, proxy) = server_with_proxy();
    let claims = claims(&url_of(&proxy), Duration::from_secs(40)).await;
    let connections = proxy.connections();
    proxy.hold(Direction::ToClient);
    let opening = tokio::spawn({
        let sessions = Arc::clone(&claims.sessions);
        async move { sessions.for_ttl(Duration::from_secs(2)).await.map(drop) }
    });
    let has_begun = eventually(Duration::from_secs(20), || async {
        proxy.connections() > connections
    });
    assert!(has_begun.await, "the session is being opened");
    let other = claims.sessions.for_ttl(DEFAULT_TTL);
    let other = tokio::time::timeout(Duration::from_secs(10), other);
    other.await.expect("at once").unwrap();
    opening.abort();
}
