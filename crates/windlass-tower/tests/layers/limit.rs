//! `LimitLayer`: what is counted, and what clients see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as route;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use sfv::{BareItem, ListEntry, Parser};
use windlass::{Decision, Quota};
use windlass_tower::{
    ClientIp, Everyone, Header, LimitLayer, MatchedPath, OnMissingKey, Path, Policies, Policy,
    ProxyHeader, async_key_fn, key_fn,
};

use crate::fixture::{Reply, Server, Store, ask, client, get, send};

fn app(layer: LimitLayer) -> Router {
    let hello = || async { "hello" };
    Router::new()
        .route("/", route(hello))
        .route("/users/{id}", route(hello))
        .layer(layer)
}

/// The items of a structured field: names and integer parameters.
pub(crate) fn items(reply: &Reply, header: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let values: Vec<&str> = reply
        .headers
        .get_all(header)
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    let list: sfv::List = Parser::new(&values.join(", ")).parse().unwrap();
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else {
            panic!("{entry:?}");
        };
        let BareItem::String(name) = &item.bare_item else {
            panic!("{item:?}");
        };
        let number = |value: &BareItem| i64::from(value.as_integer().unwrap());
        let params = item.params.iter();
        let params = params.map(|(key, value)| (key.as_str().to_owned(), number(value)));
        (name.as_str().to_owned(), params.collect())
    };
    list.iter().map(item).collect()
}

fn item(name: &str, params: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    let params = params
        .iter()
        .map(|(key, value)| ((*key).to_owned(), *value));
    (name.to_owned(), params.collect())
}

#[tokio::test]
async fn denied_request_gets_429_with_headers_and_a_problem() {
    for store in Store::each().await {
        let policy = Policy::new("hourly", Quota::per_hour(3).fixed_window());
        let app = app(LimitLayer::new(&store.w, "api", policy));
        for left in [2, 1, 0] {
            let reply = ask(&app, get("/")).await;
            assert_eq!(reply.status, StatusCode::OK);
            let policies = items(&reply, "ratelimit-policy");
            assert_eq!(policies, [item("hourly", &[("q", 3), ("w", 3_600)])]);
            let state = items(&reply, "ratelimit");
            assert_eq!(state[0].0, "hourly");
            assert_eq!(state[0].1[0], ("r".to_owned(), left));
            let (t, reset) = &state[0].1[1];
            assert!(t == "t" && (3_590..=3_600).contains(reset), "{state:?}");
            assert_eq!(reply.header("retry-after"), None);
            assert_eq!(reply.header("x-ratelimit-limit"), None);
        }
        let reply = ask(&app, get("/")).await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((3_590..=3_600).contains(&wait), "{wait}");
        assert_eq!(items(&reply, "ratelimit")[0].1[0], ("r".to_owned(), 0));
        let problem = reply.problem();
        let quota_exceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded";
        assert_eq!(problem["type"], quota_exceeded);
        assert_eq!(problem["violated-policies"], serde_json::json!(["hourly"]));
        assert_eq!(problem["code"], "rate-limited");
    }
}

#[tokio::test]
async fn several_policies_are_decided_together() {
    for store in Store::each().await {
        // Both have the same limit: only the position tells them apart.
        let policies = [
            Policy::new("burst", Quota::per_hour(4)),
            Policy::new("daily", Quota::per_day(4).fixed_window()),
        ];
        let layer = LimitLayer::new(&store.w, "api", policies);
        let heavy = layer.clone().cost(|_| 3);
        let reply = ask(&app(heavy.clone()), get("/")).await;
        let shown = items(&reply, "ratelimit-policy");
        assert_eq!(shown[0], item("burst", &[("q", 4), ("w", 3_600)]));
        assert_eq!(shown[1], item("daily", &[("q", 4), ("w", 86_400)]));
        // Neither is charged for the denied request.
        assert_eq!(
            ask(&app(heavy), get("/")).await.status,
            StatusCode::TOO_MANY_REQUESTS
        );
        let reply = ask(&app(layer), get("/")).await;
        assert_eq!(reply.status, StatusCode::OK);
        let state = items(&reply, "ratelimit");
        assert_eq!(state[0].1[0], ("r".to_owned(), 0));
        assert!(
            state[0].1[1].1 <= 3_600,
            "the time of the policy it names: {state:?}"
        );
    }
}

#[tokio::test]
async fn token_bucket_is_shown_as_burst_and_refill_time() {
    let store = Store::memory().await;
    let app = app(LimitLayer::new(
        &store.w,
        "api",
        Quota::per_second(20).burst(40),
    ));
    let reply = ask(&app, get("/")).await;
    let policies = items(&reply, "ratelimit-policy");
    assert_eq!(policies, [item("default", &[("q", 40), ("w", 2)])]);
    let state = items(&reply, "ratelimit");
    assert_eq!(state, [item("default", &[("r", 39), ("t", 1)])]);
}

#[tokio::test]
async fn request_that_can_never_be_allowed_gets_no_retry_after() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(3)).cost(|_| 4);
    let reply = ask(&app(layer), get("/")).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(reply.header("retry-after"), None);
}

#[tokio::test]
async fn x_headers_are_sent_on_request_and_others_can_be_left_out() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(1).fixed_window());
    let app = app(layer.x_ratelimit_headers().without_headers());
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let reply = ask(&app, get("/")).await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.header("x-ratelimit-limit"), Some("1"));
        assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
        let reset: u64 = reply.header("x-ratelimit-reset").unwrap().parse().unwrap();
        assert!((3_590..=3_600).contains(&reset), "{reset}");
        assert_eq!(reply.header("ratelimit"), None);
        assert_eq!(reply.header("ratelimit-policy"), None);
    }
}

#[tokio::test]
async fn body_of_a_refusal_can_be_replaced() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(0)).reject_with(|rejection| {
        let text = format!("{:?}: {}", rejection.kind, rejection.detail);
        let mut response = Response::new(Bytes::from(text));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let reply = ask(&app(layer), get("/")).await;
    assert_eq!(reply.status, StatusCode::IM_A_TEAPOT);
    assert!(reply.body.starts_with(b"Limited: "), "{reply:?}");
    assert!(!items(&reply, "ratelimit").is_empty());
}

#[tokio::test]
async fn nested_limits_show_their_policies_in_one_list() {
    let store = Store::memory().await;
    let inner = LimitLayer::new(&store.w, "a", Policy::new("a", Quota::per_hour(5)));
    let outer = LimitLayer::new(&store.w, "b", Policy::new("b", Quota::per_hour(9)));
    let reply = ask(&app(inner).layer(outer), get("/")).await;
    let shown = items(&reply, "ratelimit-policy");
    let names: Vec<&str> = shown.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(items(&reply, "ratelimit").len(), 2);
}

#[tokio::test]
async fn shadow_mode_counts_and_lets_through() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(2)).shadow();
    let app = app(layer.clone());
    for _ in 0..5 {
        let reply = ask(&app, get("/")).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.header("ratelimit"), None);
    }
    assert_eq!(layer.shadow_denied(), 3);
}

#[tokio::test]
async fn handler_sees_the_decision() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(5));
    let show = |axum::Extension(decision): axum::Extension<Decision>| async move {
        decision.remaining().to_string()
    };
    let app = Router::new().route("/", route(show)).layer(layer);
    assert_eq!(ask(&app, get("/")).await.body, "4");
}

fn with_header(values: &[&[u8]]) -> Request<Body> {
    let mut request = get("/");
    for value in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().append("x-api-key", value);
    }
    request
}

#[tokio::test]
async fn header_keys_are_stored_as_digests_and_bad_ones_share_a_key() {
    for store in Store::each().await {
        let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(1));
        let app = app(layer.key(Header::named("x-api-key")));
        let long = vec![b'k'; 8 * 1024];
        for key in [&b"secret-of-ann"[..], &long, b"\xff\xfe not UTF-8", b""] {
            for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
                assert_eq!(ask(&app, with_header(&[key])).await.status, status);
            }
        }
        // Absent and doubled headers are no key: they share one, whatever the values are.
        assert_eq!(ask(&app, with_header(&[])).await.status, StatusCode::OK);
        let bad: [&[&[u8]]; 4] = [&[], &[b"1", b"2"], &[b"3", b"4"], &[b"5", b"5", b"5"]];
        for values in bad {
            let reply = ask(&app, with_header(values)).await;
            assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        }
        let survey = store.w.survey_limiters("*", 100).await.unwrap();
        assert_eq!(survey.limiters.len(), 5);
        for limiter in survey.limiters {
            assert!(!limiter.name.contains("secret"), "{}", limiter.name);
            assert!(limiter.name.len() < 100);
        }
    }
}

#[tokio::test]
async fn missing_key_is_shared_refused_or_skipped() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(1));
    let layer = layer.key(Header::named("x-api-key"));
    let reject = app(layer.clone().on_missing_key(OnMissingKey::Reject));
    let reply = ask(&reject, get("/")).await;
    assert_eq!(
        (reply.status, reply.code()),
        (StatusCode::BAD_REQUEST, "missing-key".into())
    );
    let skip = app(layer.on_missing_key(OnMissingKey::Skip));
    for _ in 0..3 {
        let reply = ask(&skip, get("/")).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.header("ratelimit"), None);
    }
}

#[tokio::test]
async fn keys_can_be_paths_routes_functions_and_combinations() {
    let store = Store::memory().await;
    let limit = |name: &str| LimitLayer::new(&store.w, name, Quota::per_hour(1));
    let allowed = async |layer: LimitLayer, paths: &[&str]| {
        let app = app(layer);
        let mut allowed = Vec::new();
        for path in paths {
            allowed.push(ask(&app, get(path)).await.status == StatusCode::OK);
        }
        allowed
    };
    let paths = ["/users/1", "/users/1?x=1", "/users/2", "/"];
    assert_eq!(
        allowed(limit("path").key(Path), &paths).await,
        [true, false, true, true]
    );
    let routes = limit("route").key(MatchedPath);
    assert_eq!(allowed(routes, &paths).await, [true, false, false, true]);
    let queries = limit("query").key(key_fn(|parts| parts.uri.query().map(str::to_owned)));
    let paths = ["/?a", "/?a", "/?b", "/", "/users/1"];
    assert_eq!(
        allowed(queries, &paths).await,
        [true, false, true, true, false]
    );
    let both = limit("both").key((
        MatchedPath,
        async_key_fn(|parts| {
            let query = parts.uri.query().map(str::to_owned);
            async move {
                tokio::task::yield_now().await;
                query
            }
        }),
    ));
    let paths = ["/?a", "/?b", "/users/1?a", "/users/2?a", "/?a"];
    assert_eq!(
        allowed(both, &paths).await,
        [true, true, true, false, false]
    );
    let three = limit("three").key((Everyone, Path, MatchedPath));
    assert_eq!(
        allowed(three, &["/", "/", "/users/1"]).await,
        [true, false, true]
    );
}

#[tokio::test]
async fn policies_can_depend_on_the_request() {
    for leased in [false, true] {
        let store = Store::memory().await;
        let mut layer = LimitLayer::new(&store.w, "api", Quota::per_hour(1));
        layer = layer.key(Path).policies_fn(|parts| {
            let paid = parts.uri.path() == "/users/1";
            async move {
                tokio::task::yield_now().await;
                paid.then(|| Policies::from(Policy::new("paid", Quota::per_hour(3))))
            }
        });
        if leased {
            layer = layer.leased();
        }
        let app = app(layer);
        for (path, limit) in [("/", 1), ("/users/1", 3), ("/users/2", 1)] {
            for n in 0..limit + 2 {
                let reply = ask(&app, get(path)).await;
                assert_eq!(reply.status == StatusCode::OK, n < limit, "{path} {n}");
                let name = &items(&reply, "ratelimit-policy")[0].0;
                assert_eq!(name, if limit == 3 { "paid" } else { "default" });
            }
        }
    }
}

#[tokio::test]
async fn limit_that_cannot_be_used_is_not_made() {
    let store = Store::memory().await;
    let made = |name: &str, policies: Policies| {
        let make = || LimitLayer::new(&store.w, name, policies);
        let make = std::panic::AssertUnwindSafe(make);
        std::panic::catch_unwind(make).is_ok()
    };
    let quota = Quota::per_hour(5);
    assert!(made("api", quota.into()));
    assert!(!made("", quota.into()));
    assert!(!made("api", Policies::from(Vec::<Quota>::new())));
    assert!(!made("api", quota.fixed_window().burst(9).into()));
    assert!(!made("api", Quota::new(5, Duration::ZERO).into()));
}

/// The state of another algorithm cannot be continued.
#[tokio::test]
async fn another_algorithm_gets_503_until_the_state_is_deleted() {
    let store = Store::memory().await;
    let window = app(LimitLayer::new(
        &store.w,
        "api",
        Quota::per_hour(5).fixed_window(),
    ));
    let bucket = app(LimitLayer::new(&store.w, "api", Quota::per_hour(5)));
    assert_eq!(ask(&window, get("/")).await.status, StatusCode::OK);
    let refused = ask(&bucket, get("/")).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    let limiter = store.w.limiter("api", Quota::per_hour(5));
    assert!(limiter.reset("").await.unwrap());
    assert_eq!(ask(&bucket, get("/")).await.status, StatusCode::OK);
}

/// A layer keeps some plans. Those that it makes for each request prefetch no tokens.
#[tokio::test]
async fn plans_beyond_the_bound_are_strict() {
    let store = Store::redis().await;
    let quota = |n: u64| Quota::per_hour(100 + n).fixed_window();
    let layer = LimitLayer::new(&store.w, "plans", Quota::per_hour(1)).key(Path);
    let layer = layer.leased().policies_fn(move |parts| {
        let n = parts.uri.path()["/users/".len()..].parse().unwrap();
        async move { Some(Policies::from(quota(n))) }
    });
    let app = app(layer);
    for n in 0..80 {
        let path = format!("/users/{n}");
        for _ in 0..5 {
            assert_eq!(ask(&app, get(&path)).await.status, StatusCode::OK);
        }
        let limiter = store.w.limiter("plans", quota(n));
        let left = limiter.peek(&path).await.unwrap().remaining();
        // Less than that if tokens were prefetched.
        assert!(n < 64 || left == 95 + n, "{left} left of plan {n}");
    }
}

/// Over a real connection, whose address the client cannot choose.
#[tokio::test]
async fn forged_forwarding_headers_do_not_avoid_the_limit() {
    let store = Store::memory().await;
    let direct = LimitLayer::new(&store.w, "direct", Quota::per_hour(1)).key(ClientIp::new());
    let server = Server::start(app(direct)).await;
    let client = client();
    let forged = |n: u8| {
        Request::get("/")
            .header("x-forwarded-for", format!("203.0.113.{n}"))
            .header("forwarded", format!("for=203.0.113.{n}"))
            .header("x-real-ip", format!("203.0.113.{n}"))
    };
    for n in 0..3 {
        let reply = send(&client, server.address, forged(n), "").await;
        assert_eq!(reply.status == StatusCode::OK, n == 0, "{n}");
    }
    // Behind a trusted proxy, only the address that the proxy appended counts.
    let trusted = ClientIp::new().trust(["127.0.0.1/32".parse().unwrap()]);
    for header in [ProxyHeader::XForwardedFor, ProxyHeader::Forwarded] {
        let name = format!("{header:?}");
        let layer = LimitLayer::new(&store.w, &name, Quota::per_hour(1));
        let server = Server::start(app(layer.key(trusted.clone().header(header)))).await;
        let through = |forged: u8, client: u8| {
            let (x, f) = match header {
                ProxyHeader::XForwardedFor => (client, forged),
                _ => (forged, client),
            };
            Request::get("/")
                .header("x-forwarded-for", format!("10.0.0.{forged}, 203.0.113.{x}"))
                .header("forwarded", format!("for=10.0.0.{forged}"))
                .header("forwarded", format!("for=203.0.113.{f};proto=https"))
        };
        for (forged, client_number, allowed) in [(1, 7, true), (2, 7, false), (2, 8, true)] {
            let request = through(forged, client_number);
            let reply = send(&client, server.address, request, "").await;
            assert_eq!(
                reply.status == StatusCode::OK,
                allowed,
                "{name} {client_number}"
            );
        }
    }
}

/// The handler's own log says how many requests were let through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_concurrent_requests_never_exceed_the_quota() {
    const REQUESTS: u64 = 10_000;
    const QUOTA: u64 = 1_000;
    for store in Store::each().await {
        for leased in [false, true] {
            let handled = Arc::new(AtomicU64::new(0));
            let mut services = Vec::new();
            // Two instances of the service.
            for w in [store.patient().await, store.patient().await] {
                let name = format!("api-{leased}");
                let mut layer = LimitLayer::new(&w, &name, Quota::per_day(QUOTA).fixed_window());
                if leased {
                    layer = layer.leased();
                }
                let handled = Arc::clone(&handled);
                let handler = move || {
                    handled.fetch_add(1, Ordering::Relaxed);
                    async { "done" }
                };
                services.push(Router::new().route("/", route(handler)).layer(layer));
            }
            let mut tasks = tokio::task::JoinSet::new();
            for n in 0..REQUESTS {
                let service = services[usize::from(n % 2 == 0)].clone();
                tasks.spawn(async move { ask(&service, get("/")).await.status });
            }
            let statuses = tokio::time::timeout(Duration::from_secs(100), tasks.join_all());
            let statuses = statuses.await.unwrap();
            let allowed = statuses.iter().filter(|status| status.is_success()).count();
            let handled = handled.load(Ordering::Relaxed);
            assert_eq!(handled, allowed as u64);
            let denied = statuses
                .iter()
                .filter(|s| **s == StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(denied.count() as u64, REQUESTS - handled);
            match leased {
                false => assert_eq!(handled, QUOTA, "{}", store.url),
                // A leased limiter may leave tokens in the other process.
                true => assert!((1..=QUOTA).contains(&handled), "{}: {handled}", store.url),
            }
        }
    }
}
