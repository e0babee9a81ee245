//! A service that uses locks, semaphores, limiters and idempotent execution, and serves its metrics at `/metrics`:
//! `monitored_service STORE`. Prints its address. The dashboard and the alerts are tested against it.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::sleep;
use windlass::{Coordinator, OnStoreError, Options, Quota, RetryPolicy};

type Error = Box<dyn std::error::Error + Send + Sync>;

const SHORT: Duration = Duration::from_millis(5);

#[tokio::main]
async fn main() -> Result<(), Error> {
    // Before connecting: handles are registered then.
    let metrics = PrometheusBuilder::new()
        .set_buckets(&windlass::SECONDS_BUCKETS)?
        .install_recorder()?;
    let url = std::env::args()
        .nth(1)
        .ok_or("usage: monitored_service STORE")?;
    let options = Options::new()
        .call_timeout(Duration::from_millis(500))
        .metric_name_label(10, |name| name.split('/').next().unwrap_or_default());
    let w = options.connect(&url).await?;
    for task in 0..3 {
        tokio::spawn(forever(w.clone(), async move |w| locks(w, task).await));
    }
    tokio::spawn(forever(w.clone(), semaphore));
    tokio::spawn(forever(w.clone(), limiters));
    tokio::spawn(forever(w.clone(), once));
    tokio::spawn(forever(w, long_hold));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    serve(listener, metrics).await
}

/// Repeats the work, also after errors: the store may be down.
async fn forever(w: Coordinator, work: impl AsyncFn(&Coordinator) -> Result<(), Error>) {
    loop {
        if work(&w).await.is_err() {
            sleep(SHORT).await;
        }
    }
}

async fn locks(w: &Coordinator, task: u32) -> Result<(), Error> {
    let guard = w.lock("invoice/42").acquire().await?;
    sleep(SHORT).await;
    let _ = guard.release().await?;
    drop(w.lock(&format!("report/{task}")).try_acquire().await?);
    let capped = w.lock("capped/1").max_hold(Duration::from_millis(20));
    if let Some(guard) = capped.try_acquire().await?.acquired() {
        guard.lost().await;
    }
    Ok(())
}

async fn semaphore(w: &Coordinator) -> Result<(), Error> {
    let permit = w.semaphore("downloads", 2).acquire().await?;
    sleep(SHORT).await;
    drop(permit);
    Ok(())
}

async fn limiters(w: &Coordinator) -> Result<(), Error> {
    let strict = w.limiter("login", Quota::per_second(20));
    let strict = strict.on_store_error(OnStoreError::Local);
    let leased = w.limiter("events", Quota::per_second(1_000)).leased();
    loop {
        let _ = strict.check("ann").await?;
        for _ in 0..10 {
            let _ = leased.check("ann").await?;
        }
        sleep(SHORT).await;
    }
}

async fn once(w: &Coordinator) -> Result<(), Error> {
    let key = format!("charge/{}", rand::random_range(0..1_000_000));
    for _ in 0..2 {
        let work = |_| async { Ok::<_, String>(b"receipt".to_vec()) };
        w.once(&key).run(work).await?;
    }
    sleep(SHORT).await;
    Ok(())
}

/// Held until it is lost: an outage of the store shows as failed renewals and a loss.
async fn long_hold(w: &Coordinator) -> Result<(), Error> {
    let lock = w.lock("leader").ttl(Duration::from_secs(2));
    let guard = lock.retry(RetryPolicy::none()).acquire().await?;
    guard.lost().await;
    Ok(())
}

async fn serve(listener: TcpListener, metrics: PrometheusHandle) -> Result<(), Error> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let body = metrics.render();
        tokio::spawn(async move {
            let _ = stream.read(&mut [0; 4096]).await;
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(body.as_bytes()).await;
            let _ = stream.shutdown().await;
        });
    }
}
