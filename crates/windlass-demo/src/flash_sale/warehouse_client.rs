//! A shop's client of the warehouse.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::ledger::WarehouseReply;
use crate::args::PlannedFault;

/// A pool of connections to the warehouse.
#[derive(Debug)]
pub(super) struct WarehouseClient {
    addr: SocketAddr,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
}

impl WarehouseClient {
    pub(super) fn new(addr: SocketAddr) -> WarehouseClient {
        WarehouseClient {
            addr,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// The initial stock.
    pub(super) async fn stock(&self) -> io::Result<i64> {
        number(&self.request("stock\n".to_owned()).await?)
    }

    pub(super) async fn read(&self, fence: Option<u64>) -> io::Result<WarehouseReply> {
        match self
            .request(format!("read{}\n", fence_argument(fence)))
            .await?
            .as_str()
        {
            "stale" => Ok(WarehouseReply::Stale),
            left => number(left).map(WarehouseReply::Left),
        }
    }

    pub(super) async fn write(&self, left: i64, fence: Option<u64>) -> io::Result<WarehouseReply> {
        let line = format!("write {left}{}\n", fence_argument(fence));
        match self.request(line).await?.as_str() {
            "stale" => Ok(WarehouseReply::Stale),
            "sold" => Ok(WarehouseReply::Sold),
            other => Err(unexpected(other)),
        }
    }

    /// Begins a purchase: returns the fault to inject, if any.
    pub(super) async fn begin_purchase(&self) -> io::Result<Option<PlannedFault>> {
        match self
            .request(format!("begin {}\n", std::process::id()))
            .await?
            .as_str()
        {
            "no-fault" => Ok(None),
            fault => fault.parse().map(Some).map_err(io::Error::other),
        }
    }

    pub(super) async fn ship(&self, buyer: &str) -> io::Result<()> {
        self.request(format!("ship {buyer}\n")).await.map(drop)
    }

    /// Sends a line and reads the reply. A connection is reused only after its reply was read.
    async fn request(&self, line: String) -> io::Result<String> {
        let idle = self
            .idle
            .lock()
            .expect("no code panics while holding it")
            .pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.addr).await?;
                stream.set_nodelay(true)?;
                BufReader::new(stream)
            }
        };
        stream.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        if stream.read_line(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.truncate(answer.trim_end().len());
        self.idle
            .lock()
            .expect("no code panics while holding it")
            .push(stream);
        Ok(answer)
    }
}

fn fence_argument(fence: Option<u64>) -> String {
    fence.map_or_else(String::new, |fence| format!(" {fence}"))
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| unexpected(text))
}

fn unexpected(answer: &str) -> io::Error {
    io::Error::other(format!("unexpected reply of the warehouse: {answer:?}"))
}
