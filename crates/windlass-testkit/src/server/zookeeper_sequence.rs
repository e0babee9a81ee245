//! A ZooKeeper server whose counters can be set.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use super::port::ReservedPort;
use super::zookeeper::{JARS, ZOOKEEPER_TICK, ZooKeeperServers};
use crate::owned_child::OwnedChild;

/// A single server whose next sequence number and transaction id can be set.
///
/// A server counts the children of each node; after 2³¹ the numbers become negative. Transaction ids
/// are exact numbers everywhere up to 2⁵³, which is two million elections of a leader. No test can
/// wait for that, so this one runs the server inside a small program that sets the counters in
/// memory.
#[derive(Debug)]
pub struct SequenceZooKeeper {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    port: ReservedPort,
    _process: OwnedChild,
    _folder: TempDir,
}

impl SequenceZooKeeper {
    /// Starts the server.
    pub fn start() -> io::Result<SequenceZooKeeper> {
        ZooKeeperServers::available()
            .map_err(|text| io::Error::new(io::ErrorKind::NotFound, text))?;
        let folder = tempfile::Builder::new().prefix("wl-zk-").tempdir()?;
        let source = folder.path().join("SequenceServer.java");
        fs::write(&source, include_str!("SequenceServer.java"))?;
        let port = ReservedPort::free()?;
        let mut process = OwnedChild::spawn(
            Command::new("java")
                .args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
                .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
                .args(["-cp", &JARS.join(":")])
                .arg(&source)
                .arg(port.number().to_string())
                .arg(folder.path().join("data"))
                .arg(ZOOKEEPER_TICK.as_millis().to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .process_group(0),
        )?;
        let pipes = process.pipes();
        let (Some(orders), Some(answers)) = (pipes.stdin.take(), pipes.stdout.take()) else {
            return Err(io::Error::other("a child without pipes"));
        };
        let mut server = SequenceZooKeeper {
            orders,
            answers: BufReader::new(answers),
            port,
            _process: process,
            _folder: folder,
        };
        server.expect("ready")?;
        Ok(server)
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()))
    }

    /// Sets the sequence number of the next child of the node at `path`.
    pub fn set_next_sequence(&mut self, path: &str, number: i32) -> io::Result<()> {
        writeln!(self.orders, "{path} {number}")?;
        self.expect("set")
    }

    /// Sets the id of the last transaction.
    pub fn set_last_transaction(&mut self, zxid: u64) -> io::Result<()> {
        writeln!(self.orders, "zxid {zxid}")?;
        self.expect("set")
    }

    fn expect(&mut self, word: &str) -> io::Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim() == word {
            true => Ok(()),
            false => Err(io::Error::other(format!("{line:?} instead of {word}"))),
        }
    }
}
