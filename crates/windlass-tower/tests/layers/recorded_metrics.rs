//! What the layers record as metrics.

use axum::Router;
use axum::routing::{get as route, post};
use http::{Request, StatusCode};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use windlass::Quota;
use windlass_testkit::{PrometheusServer, eventually, eventually_blocking};
use windlass_tower::{
    ClientIp, ConcurrencyLayer, Everyone, IdempotencyLayer, LimitLayer, LockLayer,
};

use crate::axum_api;
use crate::fixture::{SOON, Server, Store, ask, client, get, send};

/// Where the metrics of one test go, which runs in one thread.
struct Recorded {
    handle: PrometheusHandle,
    _installed: metrics::LocalRecorderGuard<'static>,
}

impl Recorded {
    fn start() -> Recorded {
        let recorder = PrometheusBuilder::new().build_recorder();
        // Handles outlive the guard, and the guard borrows the recorder.
        let recorder: &'static PrometheusRecorder = Box::leak(Box::new(recorder));
        Recorded {
            handle: recorder.handle(),
            _installed: metrics::set_default_local_recorder(recorder),
        }
    }

    /// The sum of all series of this name that have this value of a label.
    fn sum(&self, name: &str, value: &str) -> f64 {
        let text = self.handle.render();
        let series = text.lines().filter_map(|line| {
            let (series, number) = line.rsplit_once(' ')?;
            let (found, labels) = series.split_once('{')?;
            let is_wanted = found == name && labels.contains(&format!("=\"{value}\""));
            is_wanted.then(|| number.parse::<f64>().unwrap())
        });
        series.sum()
    }

    fn decided(&self, value: &str) -> f64 {
        self.sum("windlass_limit_decisions_total", value)
    }
}

/// Charges are no decisions; that a unit is left is one, though it is not taken.
#[tokio::test]
async fn each_request_is_one_decision_whatever_it_is_charged() {
    for quota in [
        Quota::per_hour(3).fixed_window(),
        Quota::per_hour(3).sliding_log(),
        Quota::per_hour(3),
    ] {
        let recorded = Recorded::start();
        let store = Store::memory().await;
        let layer = LimitLayer::new(&store.w, "login", quota);
        let layer = layer.cost(|_| 0).charge_status(|_| 2);
        let app = Router::new().route("/", route(|| async {})).layer(layer);
        let limiter = store.w.limiter("login", quota);
        for left in [1, 0] {
            assert_eq!(ask(&app, get("/")).await.status, StatusCode::OK);
            let charged = eventually(SOON, || async {
                limiter.peek("").await.unwrap().remaining() == left
            });
            assert!(charged.await);
        }
        for _ in 0..3 {
            let reply = ask(&app, get("/")).await;
            assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        }
        assert_eq!(recorded.decided("allowed"), 2.0, "{quota:?}");
        assert_eq!(recorded.decided("denied"), 3.0, "{quota:?}");
        assert_eq!(recorded.decided("error"), 0.0, "{quota:?}");
        assert_eq!(recorded.decided("login"), 5.0, "{quota:?}");
    }
}

/// An alert on denials is about requests that were refused.
#[tokio::test]
async fn shadow_mode_has_decisions_of_its_own() {
    let recorded = Recorded::start();
    let store = Store::memory().await;
    for leased in [false, true] {
        let layer = LimitLayer::new(&store.w, &format!("api-{leased}"), Quota::per_hour(2));
        let layer = if leased { layer.leased() } else { layer }.shadow();
        let app = Router::new().route("/", route(|| async {})).layer(layer);
        for _ in 0..5 {
            assert_eq!(ask(&app, get("/")).await.status, StatusCode::OK);
        }
    }
    assert_eq!(recorded.decided("denied"), 0.0);
    assert_eq!(recorded.decided("allowed"), 0.0);
    assert_eq!(recorded.decided("shadow_denied"), 6.0);
    assert_eq!(recorded.decided("shadow_allowed"), 4.0);
    // An enforced limit of the same name counts as before.
    let layer = LimitLayer::new(&store.w, "api-false", Quota::per_hour(2));
    let app = Router::new().route("/", route(|| async {})).layer(layer);
    let reply = ask(&app, get("/")).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(recorded.decided("denied"), 1.0);
}

#[tokio::test]
async fn each_layer_is_recorded() {
    let recorded = Recorded::start();
    let store = Store::memory().await;
    let app = Router::new()
        .route("/", post(|| async { "done" }))
        .layer(ConcurrencyLayer::new(&store.w, "reports", 1))
        .layer(LockLayer::new(&store.w, "documents", Everyone))
        .layer(IdempotencyLayer::new(&store.w, "payments", Everyone))
        .layer(LimitLayer::new(&store.w, "api", Quota::per_hour(10)));
    for _ in 0..2 {
        let request = Request::post("/").header("idempotency-key", "secret");
        let request = request.body(axum::body::Body::empty()).unwrap();
        assert_eq!(ask(&app, request).await.body, "done");
    }
    assert_eq!(recorded.decided("allowed"), 2.0);
    assert_eq!(recorded.sum("windlass_once_total", "done"), 1.0);
    assert_eq!(recorded.sum("windlass_once_total", "replayed"), 1.0);
    for kind in ["sem", "lock"] {
        assert_eq!(recorded.sum("windlass_acquire_total", kind), 1.0, "{kind}");
        assert_eq!(recorded.sum("windlass_held", kind), 0.0, "{kind}");
    }
    assert!(!recorded.handle.render().contains("secret"));
}

#[tokio::test]
async fn prometheus_scrapes_a_service_with_the_layers() {
    let recorded = Recorded::start();
    let store = Store::memory().await;
    let handle = recorded.handle.clone();
    let app = axum_api::router(&store.w, axum_api::limit(&store.w, ClientIp::new(), 3));
    // Outside the layers.
    let app = app.route("/metrics", route(move || async move { handle.render() }));
    let server = Server::start(app).await;
    let client = client();
    for _ in 0..2 {
        let request = Request::post("/payments")
            .header("x-account", "ann")
            .header("idempotency-key", "key");
        let reply = send(&client, server.address, request, "order").await;
        assert!(reply.status.is_success(), "{reply:?}");
    }
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let reply = send(&client, server.address, Request::get("/"), "").await;
        assert_eq!(reply.status, status);
    }
    let address = server.address;
    let scraped = tokio::task::spawn_blocking(move || {
        let alerts = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/prometheus/alerts.yml"
        );
        let alerts = std::path::Path::new(alerts).canonicalize().unwrap();
        let prometheus = PrometheusServer::start(address, &alerts).unwrap();
        for query in [
            "windlass_limit_decisions_total{limiter=\"api\",decision=\"allowed\"} == 3",
            "windlass_limit_decisions_total{limiter=\"api\",decision=\"denied\"} == 1",
            "windlass_once_total{outcome=\"done\"} == 1",
            "windlass_once_total{outcome=\"replayed\"} == 1",
            "windlass_acquire_total{kind=\"once\",outcome=\"granted\"} == 1",
        ] {
            let found = || !prometheus.query(query).unwrap().is_empty();
            assert!(eventually_blocking(SOON, found), "{query}");
        }
    });
    scraped.await.unwrap();
}
