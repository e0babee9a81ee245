//! Batches of claim commands, on a real server.

use windlass_testkit::RedisServer;

use super::*;

fn run(server: &RedisServer, batch: &[ClaimCommand]) {
    let (script, keys) = (&script::QUORUM_NODE_LOCK, Keys::default());
    let command = ClaimCommand::command(script, batch.iter(), &keys, keys.fence());
    let words = command.args_iter().map(|word| match word {
        redis::Arg::Simple(word) => String::from_utf8(word.to_vec()).unwrap(),
        _ => unreachable!("all words are plain"),
    });
    let mut words: Vec<String> = words.collect();
    words[0] = "EVAL".to_owned();
    words[1] = script::QUORUM_NODE_LOCK.source().to_owned();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    server.command(&words).unwrap();
}

/// An owner that requested it twice and gave up must not keep what the second request got.
#[test]
fn release_does_not_overtake_a_request_of_its_owner_in_one_batch() {
    let server = RedisServer::start().unwrap();
    let name = Name::new("test", None, "stock").unwrap();
    let owner = Owner::new("host:1:00000000000000000000000000000007").unwrap();
    let acquire = || {
        let mut request = AcquireRequest::new(Kind::Lock, name.clone(), owner.clone());
        request.on_busy = OnBusy::Enqueue;
        ClaimCommand::acquire(request, &"channel".into(), Some(Fence::new(5)))
    };
    let claim = ReleasedClaim::Only;
    let release = ClaimCommand::release(Kind::Lock, name.clone(), owner.clone(), claim);
    run(&server, &[acquire()]);
    assert_eq!(server.command(&["GET", "stock"]).unwrap(), owner.as_str());
    run(&server, &[acquire(), release]);
    assert_eq!(server.command(&["EXISTS", "stock"]).unwrap(), "0");
    let queue = Keys::default().queue(&name);
    assert_eq!(server.command(&["EXISTS", &queue]).unwrap(), "0");
}
