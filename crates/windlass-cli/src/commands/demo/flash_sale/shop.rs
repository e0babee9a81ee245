//! A shop: a web server of its own, in a process of its own.

use std::io::{self, BufRead as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use windlass::Options;

use super::selling::{Seller, Told};
use super::weather::say;
use crate::args::{Global, ShopArgs};
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;
use crate::store;

/// Sells until it is ended.
pub(in crate::commands::demo) async fn shop(
    args: ShopArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let (url, namespace) = (store::url(global)?, global.namespace.clone());
    let printer = printer.clone();
    // One thread for all that the shop does: then a pause of that thread is a pause of the shop.
    let open = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|e| Failure::internal(format!("cannot start: {e}")))?;
        runtime.block_on(serve(args, &url, namespace, printer))
    };
    let served = tokio::task::spawn_blocking(open).await;
    served.map_err(|e| Failure::internal(format!("the shop failed: {e}")))?
}

struct Shop {
    seller: Seller,
    doors: watch::Receiver<bool>,
    unnamed: AtomicU64,
    printer: Printer,
}

async fn serve(
    args: ShopArgs,
    url: &str,
    namespace: Option<String>,
    printer: Printer,
) -> Result<Exit, Failure> {
    let mut options = Options::new();
    if let Some(namespace) = namespace.filter(|text| !text.is_empty()) {
        options = options.namespace(namespace);
    }
    let store = options.connect(url).await?;
    let seller = Seller::new(&args, store, url).await?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|e| taken(args.listen, &e))?;
    let addr = listener.local_addr().map_err(|e| taken(args.listen, &e))?;
    let (opening, doors) = watch::channel(!args.doors);
    if args.doors {
        std::thread::spawn(move || mind_the_doors(&opening));
    }
    let shop = Arc::new(Shop {
        seller,
        doors,
        unnamed: AtomicU64::new(0),
        printer,
    });
    let routes = Router::new()
        .route("/buy", get(buy_unnamed).post(buy_unnamed))
        .route("/buy/{buyer}", get(buy).post(buy))
        .with_state(shop);
    say(format_args!("listening {addr}"));
    let served = axum::serve(listener, routes).await;
    served.map_err(|e| Failure::internal(format!("the shop failed: {e}")))?;
    Ok(Exit::SUCCESS)
}

/// Opens when told to, and ends the shop when nobody is there to tell it anything any more: whoever started it has
/// gone, and be it by SIGKILL.
fn mind_the_doors(opening: &watch::Sender<bool>) {
    for line in io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("open") => drop(opening.send(true)),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    std::process::exit(0);
}

/// For a crowd that gives no names, such as `ab`.
async fn buy_unnamed(state: State<Arc<Shop>>) -> (StatusCode, String) {
    let number = state.unnamed.fetch_add(1, Ordering::Relaxed);
    let buyer = format!("{}-{number}", std::process::id());
    buy(state, Path(buyer)).await
}

async fn buy(State(shop): State<Arc<Shop>>, Path(buyer): Path<String>) -> (StatusCode, String) {
    let mut doors = shop.doors.clone();
    if !*doors.borrow() {
        say(format_args!("at-the-door {buyer}"));
    }
    // An error would mean that the shop is about to end.
    let _ = doors.wait_for(|open| *open).await;
    match shop.seller.sell(&buyer).await {
        Ok(Told::Yours) => (StatusCode::OK, "yours\n".to_owned()),
        Ok(Told::SoldOut) => (StatusCode::GONE, "sold out\n".to_owned()),
        Err(failure) => {
            shop.printer
                .detail(format_args!("not sold: {}", failure.message));
            (StatusCode::SERVICE_UNAVAILABLE, failure.message + "\n")
        }
    }
}

/// A port that cannot be had.
pub(super) fn taken(addr: std::net::SocketAddr, error: &io::Error) -> Failure {
    Failure::usage(
        format!("cannot listen on {addr}: {error}"),
        Advice::Hint("name other ports, or none at all for free ones".into()),
    )
}
