//! The spans `windlass.acquire` and `windlass.hold`, and the event of a loss.
//!
//! In a program of its own: `tracing` caches for all threads whether one thread's subscriber wants a span.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use windlass::{Clock, Options, Quota};

/// One test at a time, because of that cache.
static SERIAL: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// One closed span, or one event: `name field=value …`, fields in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Fields {
    fn line(&self, name: &str, parent: Option<&str>) -> String {
        let fields = self
            .0
            .iter()
            .map(|(name, value)| format!(" {name}={value}"));
        let parent = parent.map_or(String::new(), |parent| format!(" in {parent}"));
        format!("{name}{}{parent}", fields.collect::<String>())
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let parent = context.event_span(event).map(|span| span.name());
        self.0.lock().unwrap().push(fields.line("event", parent));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let parent = span.parent().map(|parent| parent.name());
        let extensions = span.extensions();
        let line = extensions
            .get::<Fields>()
            .unwrap()
            .line(span.name(), parent);
        self.0.lock().unwrap().push(line);
    }
}

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[tokio::test]
async fn spans_have_name_kind_store_fence_and_outcome() {
    let _serial = SERIAL.lock().await;
    let log = Log::default();
    // Each call to the store is an event below this level.
    let subscriber = tracing_subscriber::registry()
        .with(LevelFilter::DEBUG)
        .with(log.clone());
    let _installed = tracing::subscriber::set_default(subscriber);
    let clock = Clock::manual();
    let options = Options::new().clock(clock.clone());
    let w = options.connect("memory:").await.unwrap();
    let lock = w.lock("stock").ttl(Duration::from_secs(10));

    let request = tracing::info_span!("request").entered();
    let guard = lock.acquire().await.unwrap();
    let fence = guard.fence();
    let granted = format!(
        "windlass.acquire fence={fence} kind=lock name=stock outcome=granted store=memory in request"
    );
    assert_eq!(log.take(), [granted]);
    let _ = lock.try_acquire().await.unwrap();
    let busy = "windlass.acquire kind=lock name=stock outcome=busy store=memory in request";
    assert_eq!(log.take(), [busy]);
    drop(tokio::time::timeout(Duration::from_millis(5), lock.acquire()).await);
    let cancelled =
        "windlass.acquire kind=lock name=stock outcome=cancelled store=memory in request";
    assert_eq!(log.take(), [cancelled]);
    let _ = guard.release().await.unwrap();
    let released = format!(
        "windlass.hold fence={fence} kind=lock name=stock outcome=released store=memory in request"
    );
    assert_eq!(log.take(), [released]);
    drop(request);
    log.take();

    let guard = lock
        .max_hold(Duration::from_secs(4))
        .acquire()
        .await
        .unwrap();
    log.take();
    let fence = guard.fence();
    // Step by step, so that it is renewed in between.
    for _ in 0..10 {
        clock.advance(Duration::from_millis(500));
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    guard.lost().await;
    let event = format!(
        "event fence={fence} kind=lock message=the lease was lost name=stock reason=max_hold in windlass.hold"
    );
    let lost =
        format!("windlass.hold fence={fence} kind=lock name=stock outcome=lost store=memory");
    assert_eq!(log.take(), [event, lost]);
    drop(guard);
    assert_eq!(log.take(), [""; 0], "a loss is reported once");
}

#[tokio::test]
async fn keys_of_limiters_are_not_logged() {
    let _serial = SERIAL.lock().await;
    let log = Log::default();
    let subscriber = tracing_subscriber::registry()
        .with(LevelFilter::TRACE)
        .with(log.clone());
    let _installed = tracing::subscriber::set_default(subscriber);
    // A limiter in memory calls no store.
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().join("store.db").display());
    // The namespace has a slash too.
    for (namespace, name) in [(None, "api%2Fv1"), (Some("a/b"), "a/b:api%2Fv1")] {
        let mut options = Options::new();
        if let Some(namespace) = namespace {
            options = options.namespace(namespace);
        }
        let w = options.connect(&url).await.unwrap();
        let limiter = w.limiter("api/v1", Quota::per_second(5));
        let call = |operation: &str| {
            format!("event message=store call name={name} operation={operation} outcome=answered")
        };
        log.take();
        let _ = limiter.check("ann@example.com").await.unwrap();
        assert_eq!(log.take(), [call("check")]);
        let _ = limiter.check_all(["ann@example.com", "bob"]).await;
        assert_eq!(log.take(), [call("check")]);
        let ttl = Duration::from_secs(60);
        let estimate = limiter.reserve_estimate("ann@example.com", 1, ttl).await;
        let hold = estimate.unwrap().held().unwrap();
        assert_eq!(log.take(), [call("reserve")]);
        hold.settle(1).await.unwrap();
        assert_eq!(log.take(), [call("settle")]);
        limiter.reset("ann@example.com").await.unwrap();
        assert_eq!(log.take(), [call("reset")]);
    }
}
