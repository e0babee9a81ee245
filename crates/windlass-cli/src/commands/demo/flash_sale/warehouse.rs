//! The stock, on a port of its own: apart from the lock, as it is in earnest.
//!
//! One line is asked, one line is answered:
//!
//! ```text
//! stock                 → 100
//! read [FENCE]          → 97          or: stale
//! write LEFT [FENCE]    → sold        or: stale
//! ship BUYER            → sold
//! turn PROCESS          → calm        or: slow@4=800ms
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::ledger::{Answer, Ledger};
use crate::args::Fault;

/// A warehouse that answers for as long as this lives.
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
        faults: Vec<Fault>,
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
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(answer_all(stream, Arc::clone(&ledger)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer_all(stream: TcpStream, ledger: Arc<Mutex<Ledger>>) -> io::Result<()> {
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
    let number = |word: &str| word.parse().ok();
    let answer = match words[..] {
        ["stock"] => return format!("{}\n", ledger.stock()),
        ["turn", process] => {
            let process = process.parse().ok();
            let fault = process.and_then(|process| ledger.turn(process));
            return fault.map_or_else(|| "calm\n".to_owned(), |fault| format!("{fault}\n"));
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
        Some(Answer::Left(left)) => format!("{left}\n"),
        Some(Answer::Sold) => "sold\n".to_owned(),
        Some(Answer::Stale) => "stale\n".to_owned(),
        None => "what?\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let mut ledger = Ledger::new(3, vec!["slow@2=800ms".parse().unwrap()]);
        for (asked, answered) in [
            ("stock", "3\n"),
            ("read", "3\n"),
            ("write 2", "sold\n"),
            ("read 7", "2\n"),
            ("write 1 6", "stale\n"),
            ("write 1 7", "sold\n"),
            ("ship ann", "sold\n"),
            ("turn 7", "calm\n"),
            ("turn 7", "slow@2=800ms\n"),
            ("write", "what?\n"),
            ("write many", "what?\n"),
            ("", "what?\n"),
        ] {
            assert_eq!(answer(asked, &mut ledger), answered, "{asked:?}");
        }
    }
}
