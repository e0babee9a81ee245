//! Topics: publish and subscribe.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use tokio::time::timeout;
use windlass::{ErrorKind, Event, Overflow, Subscription};

use super::{SOON, TestStore};

async fn next<T>(subscription: &mut Subscription<T>) -> Event<T> {
    let event = timeout(SOON, subscription.next()).await;
    event.expect("something comes").unwrap()
}

/// Every subscriber receives what is published after it subscribed, in order.
pub async fn every_subscriber_receives_messages_in_order(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let topic = a.topic::<u32>("numbers");
    topic.publish(&0).await.unwrap();
    let mut here = topic.subscribe().await.unwrap();
    let mut there = b.topic::<u32>("numbers").subscribe().await.unwrap();
    let mut twice = b.topic::<u32>("numbers").subscribe().await.unwrap();
    let mut other = b.topic::<u32>("number").subscribe().await.unwrap();
    for n in 1..=500 {
        topic.publish(&n).await.unwrap();
    }
    a.topic::<u32>("number").publish(&7).await.unwrap();
    for subscription in [&mut here, &mut there, &mut twice] {
        for n in 1..=500 {
            assert_eq!(next(subscription).await, Event::Message(n));
        }
    }
    assert_eq!(next(&mut other).await, Event::Message(7), "another topic");
    drop(twice);
    b.topic::<u32>("numbers").publish(&501).await.unwrap();
    assert_eq!(next(&mut here).await, Event::Message(501));
    assert_eq!(next(&mut there).await, Event::Message(501));
    // A cancelled `next` loses nothing.
    let waiting = timeout(Duration::from_millis(20), there.next()).await;
    assert!(waiting.is_err());
    topic.publish(&502).await.unwrap();
    assert_eq!(next(&mut there).await, Event::Message(502));
}

/// A subscription is also a stream: it yields the same events, and wakes its task.
pub async fn subscription_is_a_stream(store: &TestStore) {
    let w = store.connect().await;
    let topic = w.topic::<u32>("numbers");
    let mut subscription = topic.subscribe().await.unwrap();
    let publisher = tokio::spawn(async move {
        for n in 1..=100 {
            topic.publish(&n).await.unwrap();
        }
    });
    for n in 1..=100 {
        let item = poll_fn(|cx| Pin::new(&mut subscription).poll_next(cx));
        let item = timeout(SOON, item).await.expect("the task is woken");
        let event = item.expect("the stream does not end").unwrap();
        assert_eq!(event, Event::Message(n));
    }
    publisher.await.unwrap();
}

/// Messages beyond the buffer are dropped as configured, and counted.
pub async fn full_buffer_reports_dropped_messages(store: &TestStore) {
    let w = store.connect().await;
    let topic = w.topic::<u32>("numbers").buffer(10);
    let mut latest = topic.subscribe().await.unwrap();
    let first = topic.clone().overflow(Overflow::DropNewest);
    let mut first = first.subscribe().await.unwrap();
    for n in 0..100 {
        topic.publish(&n).await.unwrap();
    }
    // Until all have arrived: a marker on another topic would not tell.
    let mut all = w.topic::<u32>("numbers").subscribe().await.unwrap();
    topic.publish(&100).await.unwrap();
    // The last ones before it may still arrive.
    while next(&mut all).await != Event::Message(100) {}
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(next(&mut latest).await, Event::Gap { missed: Some(91) });
    for n in 91..=100 {
        assert_eq!(next(&mut latest).await, Event::Message(n));
    }
    for n in 0..10 {
        assert_eq!(next(&mut first).await, Event::Message(n));
    }
    assert_eq!(next(&mut first).await, Event::Gap { missed: Some(91) });
    topic.publish(&101).await.unwrap();
    assert_eq!(
        next(&mut first).await,
        Event::Message(101),
        "there is room again"
    );
}

/// Any message up to the size limit; one of another type is reported and skipped.
pub async fn messages_are_typed(store: &TestStore) {
    let w = store.connect().await;
    let (numbers, texts) = (w.topic::<u32>("t"), w.topic::<String>("t"));
    let mut subscription = numbers.subscribe().await.unwrap();
    let mut raw = numbers.subscribe_bytes().await.unwrap();
    texts.publish(&"seven".to_owned()).await.unwrap();
    numbers.publish(&8).await.unwrap();
    let wrong = timeout(SOON, subscription.next())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongType, "{wrong}");
    assert_eq!(next(&mut subscription).await, Event::Message(8));
    assert_eq!(next(&mut raw).await, Event::Message(b"\"seven\"".to_vec()));
    assert_eq!(next(&mut raw).await, Event::Message(b"8".to_vec()));
    for message in [
        &b""[..],
        b"\0\xff\n",
        &vec![b'x'; windlass::Topic::MAX_MESSAGE_BYTES],
    ] {
        numbers.publish_bytes(message).await.unwrap();
        assert_eq!(next(&mut raw).await, Event::Message(message.to_vec()));
    }
    let large = vec![b'x'; windlass::Topic::MAX_MESSAGE_BYTES + 1];
    let refused = numbers.publish_bytes(&large).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let refused = numbers.clone().buffer(0).subscribe().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(w.topic::<u32>("").publish(&1).await.is_err());
    // A lock and a topic may share a name.
    for name in ["{b}", "c}", "a b"] {
        let topic = w.topic::<u32>(name);
        let mut subscription = topic.subscribe().await.unwrap();
        let guard = w.lock(name).acquire().await.unwrap();
        topic.publish(&1).await.unwrap();
        assert_eq!(next(&mut subscription).await, Event::Message(1));
        assert!(guard.release().await.unwrap().was_held());
    }
}
