//! Fences increase on one server, whatever it has lost.

use windlass::{Coordinator, ErrorKind, Fence};
use windlass_testkit::{Flavor, RedisServer, exhausted_fences_are_refused};

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

/// The fence of one grant.
async fn fence(w: &Coordinator) -> u64 {
    let guard = w.lock("stock").acquire().await.unwrap();
    let fence = guard.fence().get();
    assert!(guard.release().await.unwrap().was_held());
    fence
}

/// Each start with data raises the counter; a lost counter starts from the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_when_the_counter_is_lost_after_restarts() {
    let server = RedisServer::builder()
        .append_only(true)
        .config("appendfsync", "always")
        .start()
        .unwrap();
    let mut highest = 0;
    for _ in 0..6 {
        let w = connect(&server).await;
        let next = fence(&w).await;
        assert!(next > highest, "{next} after {highest}");
        highest = next;
        server.restart().unwrap();
    }
    let w = connect(&server).await;
    for _ in 0..2 {
        let next = fence(&w).await;
        assert!(next > highest, "{next} after {highest}");
        highest = next;
        server.command(&["FLUSHALL"]).unwrap();
    }
}

/// A counter that is ahead of the clock keeps growing: a little ahead, it waits for the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_when_the_clock_is_set_back() {
    for seconds in [-1, -3600] {
        let server = RedisServer::builder()
            .append_only(true)
            .config("appendfsync", "always")
            .binary(Flavor::Valkey)
            .movable_clock()
            .start()
            .unwrap();
        let w = connect(&server).await;
        let highest = fence(&w).await;
        server.shift_clock(seconds).unwrap();
        server.restart().unwrap();
        let w = connect(&server).await;
        let next = fence(&w).await;
        assert!(next > highest, "{next} after {highest}");
        assert!(fence(&w).await > next);
    }
}

/// The server evicts the counter, its mark, or both, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_while_the_server_evicts_keys() {
    let server = RedisServer::builder()
        .config("maxmemory", "3mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let filler = "x".repeat(50_000);
    let (mut highest, mut evicted) = (0, 0);
    for round in 0..300 {
        for n in 0..8 {
            let key = format!("filler-{round}-{n}");
            server.command(&["SET", &key, &filler]).unwrap();
        }
        let w = connect(&server).await;
        let left = server.command(&["EXISTS", "windlass:fence"]).unwrap();
        evicted += u32::from(left == "0");
        // A lock may be evicted while it is held, so the release is not checked.
        let guard = w.lock("stock").acquire().await.unwrap();
        let next = guard.fence().get();
        assert!(next > highest, "{next} after {highest}, {evicted} lost");
        highest = next;
        let _ = guard.release().await;
    }
    assert!(evicted > 20, "the counter was lost {evicted} times");
}

/// Without the raise, a grant after the restart would have the fence of the lost one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_raise_is_an_error_that_names_the_permission() {
    for (denied, named) in [("-info", "+info"), ("-eval", "+eval"), ("-time", "+time")] {
        let server = RedisServer::start().unwrap();
        let user = [
            "ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", denied,
        ];
        server.command(&user).unwrap();
        let w = windlass::connect(&format!("redis://ann:pw@{}", server.addr()))
            .await
            .unwrap();
        let e = w.lock("stock").acquire().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
        let text = format!("{e} {:?}", e.hint());
        assert!(text.contains(named), "{text}");
        let e = w.semaphore("jobs", 2).acquire().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
        assert_eq!(server.command(&["EXISTS", "stock"]).unwrap(), "0");
    }
}

/// Beyond 2^53 the numbers of a script are not exact, and fences would repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_too_high_to_be_exact_are_refused() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let set = |_, counter: u64| {
        let words = ["SET", "windlass:fence", &counter.to_string()];
        server.command(&words).unwrap();
    };
    let counters = [(1, Fence::MAX.get()), (1, 1 << 53), (1, (1 << 53) + 1)];
    let semaphore = async || w.semaphore("jobs", 2).acquire().await.map(drop);
    exhausted_fences_are_refused(&w, 1, set, &counters, semaphore).await;
}
