//! Which server is behind which name.

use std::sync::Weak;

use super::seat::{Seat, client};
use super::tests::Deaf;

/// A name may lead to another server later. What was known of it over an earlier connection bars nobody who has
/// that server now.
#[tokio::test]
async fn a_server_that_went_over_to_another_name_has_its_vote_there() {
    let seats = ["x", "y", "z"].map(Seat::new);
    let deaf: Weak<Deaf> = Weak::new();
    let shared = client(&seats, deaf).await;
    let [first, second, _] = &seats;

    // The first name led to that server, and still does, as far as anybody knows.
    *second.run() = "x".to_owned();
    second.connects_anew();
    let barred = shared.nodes[1].clear(&shared).await.unwrap_err();
    assert!(
        barred.to_string().contains("the same server as node-0"),
        "{barred}"
    );

    // It has broken, and where it leads now nobody has asked yet.
    first.connects_anew();
    let cleared = shared.nodes[1].clear(&shared).await;
    assert_eq!(
        cleared.unwrap(),
        2,
        "the connection over which it has a vote"
    );
}
