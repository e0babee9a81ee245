//! A shop: a web server in a process of its own.

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
use windlass_term::{Advice, Exit, Failure, GlobalArgs, Printer, store};

use super::faults::say;
use super::seller::{BuyerAnswer, Seller};
use crate::args::ShopArgs;

/// Serves buyers until the process is ended.
pub(crate) async fn shop(
    args: ShopArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let (url, namespace) = (store::url(global)?, global.namespace.clone());
    let printer = printer.clone();
    // One thread for everything, so that suspending this thread suspends the whole shop.
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
    is_open: watch::Receiver<bool>,
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
        .map_err(|e| cannot_listen(args.listen, &e))?;
    let addr = listener
        .local_addr()
        .map_err(|e| cannot_listen(args.listen, &e))?;
    let (opening, is_open) = watch::channel(!args.wait_for_open);
    if args.wait_for_open {
        std::thread::spawn(move || read_commands(&opening));
    }
    let shop = Arc::new(Shop {
        seller,
        is_open,
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

/// Opens the sale on the line "open", and exits when stdin is closed: the process that started the shop has ended,
/// perhaps by SIGKILL.
fn read_commands(opening: &watch::Sender<bool>) {
    for line in io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("open") => drop(opening.send(true)),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    std::process::exit(0);
}

/// For load generators that send no buyer name, such as `ab`.
async fn buy_unnamed(state: State<Arc<Shop>>) -> (StatusCode, String) {
    let number = state.unnamed.fetch_add(1, Ordering::Relaxed);
    let buyer = format!("{}-{number}", std::process::id());
    buy(state, Path(buyer)).await
}

async fn buy(State(shop): State<Arc<Shop>>, Path(buyer): Path<String>) -> (StatusCode, String) {
    let mut is_open = shop.is_open.clone();
    if !*is_open.borrow() {
        say(format_args!("buyer-waiting {buyer}"));
    }
    // An error means that the shop is about to exit.
    let _ = is_open.wait_for(|open| *open).await;
    match shop.seller.sell(&buyer).await {
        Ok(BuyerAnswer::Yours) => (StatusCode::OK, "yours\n".to_owned()),
        Ok(BuyerAnswer::SoldOut) => (StatusCode::GONE, "sold out\n".to_owned()),
        Err(failure) => {
            shop.printer
                .detail(format_args!("not sold: {}", failure.message));
            (StatusCode::SERVICE_UNAVAILABLE, failure.message + "\n")
        }
    }
}

/// The failure for an address that cannot be used.
pub(super) fn cannot_listen(addr: std::net::SocketAddr, error: &io::Error) -> Failure {
    Failure::usage(
        format!("cannot listen on {addr}: {error}"),
        Advice::Hint("choose other ports, or omit the option for free ones".into()),
    )
}
