//! The warehouse as a shop sees it.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::ledger::Answer;
use crate::args::Fault;

/// Connections to the warehouse, as many as are needed at once.
#[derive(Debug)]
pub(super) struct Stock {
    addr: SocketAddr,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
}

impl Stock {
    pub(super) fn at(addr: SocketAddr) -> Stock {
        Stock {
            addr,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// How many there were to sell.
    pub(super) async fn size(&self) -> io::Result<i64> {
        number(&self.ask("stock\n".to_owned()).await?)
    }

    pub(super) async fn read(&self, fence: Option<u64>) -> io::Result<Answer> {
        match self.ask(format!("read{}\n", shown(fence))).await?.as_str() {
            "stale" => Ok(Answer::Stale),
            left => number(left).map(Answer::Left),
        }
    }

    pub(super) async fn write(&self, left: i64, fence: Option<u64>) -> io::Result<Answer> {
        let line = format!("write {left}{}\n", shown(fence));
        match self.ask(line).await?.as_str() {
            "stale" => Ok(Answer::Stale),
            "sold" => Ok(Answer::Sold),
            other => Err(strange(other)),
        }
    }

    /// What befalls the shop in this turn of its.
    pub(super) async fn turn(&self) -> io::Result<Option<Fault>> {
        match self
            .ask(format!("turn {}\n", std::process::id()))
            .await?
            .as_str()
        {
            "calm" => Ok(None),
            fault => fault.parse().map(Some).map_err(io::Error::other),
        }
    }

    pub(super) async fn ship(&self, buyer: &str) -> io::Result<()> {
        self.ask(format!("ship {buyer}\n")).await.map(drop)
    }

    /// A connection whose answer was not awaited is not used again.
    async fn ask(&self, line: String) -> io::Result<String> {
        let idle = self.idle.lock().expect("nobody panics with it").pop();
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
            .expect("nobody panics with it")
            .push(stream);
        Ok(answer)
    }
}

fn shown(fence: Option<u64>) -> String {
    fence.map_or_else(String::new, |fence| format!(" {fence}"))
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| strange(text))
}

fn strange(answer: &str) -> io::Error {
    io::Error::other(format!("the warehouse said {answer:?}"))
}
