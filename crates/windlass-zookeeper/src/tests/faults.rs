//! Errors and clean-up when a step fails.

use std::sync::Arc;
use std::time::Duration;

use windlass_testkit::{Direction, FaultProxy, ZooKeeperServers, eventually};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use super::{open, server};
use crate::acquire::ClaimAcquisition;
use crate::claims::ZooKeeperClaims;
use crate::paths;
use windlass_core::DEFAULT_TTL;
use windlass_core::error::{ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, ClaimStore as _, Kind, Released, Share};

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
