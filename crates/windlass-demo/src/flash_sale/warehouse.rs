//! A server that keeps the stock, separate from the lock store as in a real system.
//!
//! The protocol has one line per request and per reply:
//!
//! ```text
//! stock                 → 100
//! read [FENCE]          → 97          or: stale
//! write LEFT [FENCE]    → sold        or: stale
//! ship BUYER            → sold
//! begin PROCESS         → no-fault    or: slow@4=800ms
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::ledger::{Ledger, WarehouseReply};
use crate::args::PlannedFault;

/// A running warehouse; dropping it stops it.
#[derive(Debug)]
pub(super) struct Warehouse {
    addr: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
    serving: JoinHandle<()>,
}

impl Warehouse {
    pub(super) async fn open(
        listen: SocketAddr,
        stock: u32,
        faults: Vec<PlannedFault>,
    ) -> io::Result<Warehouse> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        let ledger = Arc::new(Mutex::new(Ledger::new(stock, faults)));
        let serving = tokio::spawn(serve(listener, Arc::clone(&ledger)));
        Ok(Warehouse {
            addr,
            ledger,
            serving,
        })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}

impl Drop for Warehouse {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, ledger: Arc<Mutex<Ledger>>) {
    // Dropped with this task, which closes all connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve_connection(stream, Arc::clone(&ledger)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(stream: TcpStream, ledger: Arc<Mutex<Ledger>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let answer = answer(line.trim_end(), &mut lock(&ledger));
        stream.get_mut().write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

fn answer(line: &str, ledger: &mut Ledger) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |text: &str| text.parse().ok();
    let answer = match words[..] {
        ["stock"] => return format!("{}\n", ledger.stock()),
        ["begin", process] => {
            let process = process.parse().ok();
            let fault = process.and_then(|process| ledger.begin_purchase(process));
            return fault.map_or_else(|| "no-fault\n".to_owned(), |fault| format!("{fault}\n"));
        }
        ["read"] => Some(ledger.read(None)),
        ["read", fence] => number(fence).map(|fence| ledger.read(Some(fence))),
        ["write", left] => left.parse().ok().map(|left| ledger.write(left, None)),
        ["write", left, fence] => left
            .parse()
            .ok()
            .zip(number(fence))
            .map(|(left, fence)| ledger.write(left, Some(fence))),
        ["ship", buyer] => Some(ledger.ship(buyer)),
        _ => None,
    };
    match answer {
        Some(WarehouseReply::Left(left)) => format!("{left}\n"),
        Some(WarehouseReply::Sold) => "sold\n".to_owned(),
        Some(WarehouseReply::Stale) => "stale\n".to_owned(),
        None => "unknown request\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered() {
        let mut ledger = Ledger::new(3, vec!["slow@2=800ms".parse().unwrap()]);
        for (asked, answered) in [
            ("stock", "3\n"),
            ("read", "3\n"),
            ("write 2", "sold\n"),
            ("read 7", "2\n"),
            ("write 1 6", "stale\n"),
            ("write 1 7", "sold\n"),
            ("ship ann", "sold\n"),
            ("begin 7", "no-fault\n"),
            ("begin 7", "slow@2=800ms\n"),
            ("write", "unknown request\n"),
            ("write many", "unknown request\n"),
            ("", "unknown request\n"),
        ] {
            assert_eq!(answer(asked, &mut ledger), answered, "{asked:?}");
        }
    }
}
