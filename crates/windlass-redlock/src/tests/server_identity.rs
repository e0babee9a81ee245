//! Which server is reached under which name.

use super::fake_node::{FakeNode, connect};

/// A name may lead to another server later. What an earlier connection showed does not count
/// against the name that leads to the server now.
#[tokio::test]
async fn a_server_that_moved_to_another_name_votes_there() {
    let fakes = ["x", "y", "z"].map(FakeNode::new);
    let nodes = connect(&fakes).await;
    let [first, second, _] = &fakes;

    // As far as the client knows, the first name still leads to that server.
    *second.run_id() = "x".to_owned();
    second.reconnect();
    let refused = nodes.node(1).verify(&nodes).await.unwrap_err();
    assert!(
        refused.to_string().contains("the same server as node-0"),
        "{refused}"
    );

    // The connection of the first name breaks, and nothing is known about the next one.
    first.reconnect();
    let verified = nodes.node(1).verify(&nodes).await;
    assert_eq!(verified.unwrap(), 2, "the second connection");
}
