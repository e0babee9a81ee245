//! An HTTP API behind a rate limit, idempotency keys, a lock and a concurrency limit: see README.md.

mod app;

use std::error::Error;
use std::net::SocketAddr;

use windlass::OnStoreError;
use windlass_tower::ClientIp;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or("127.0.0.1:8080".to_owned());
    let store = args.next().unwrap_or("memory:".to_owned());
    let w = windlass::connect(&store).await?;
    // Only a proxy on this machine may say who the client is.
    let client = ClientIp::new().trust(["127.0.0.0/8".parse()?, "::1/128".parse()?]);
    // If the store cannot be reached, each instance limits on its own.
    let limit = app::limit(&w, client, 10).on_store_error(OnStoreError::Local);
    let app = app::router(&w, limit);
    let listener = tokio::net::TcpListener::bind(&address).await?;
    // Without the store: its URL may have a password.
    println!("http://{}", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
