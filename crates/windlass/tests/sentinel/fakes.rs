//! Sentinels and masters with scripted replies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use windlass_testkit::RedisServer;

/// The reply of a sentinel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptedReply {
    /// The port among the fields of the service.
    pub(crate) field: u16,
    /// The port of the address query.
    pub(crate) address: u16,
    pub(crate) epoch: u64,
}

impl ScriptedReply {
    pub(crate) fn consistent(server: &RedisServer, epoch: u64) -> ScriptedReply {
        ScriptedReply {
            field: server.port(),
            address: server.port(),
            epoch,
        }
    }
}

/// A sentinel that sends no notifications and gives scripted replies.
pub(crate) struct FakeSentinel {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<SentinelState>>,
}

struct SentinelState {
    reply: ScriptedReply,
    /// The reply from the next query but one.
    then: Option<ScriptedReply>,
    /// How often the master was queried.
    queries: u64,
    /// New connections get no reply.
    accepts_no_more: bool,
}

impl FakeSentinel {
    pub(crate) async fn start(reply: ScriptedReply) -> FakeSentinel {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let state = SentinelState {
            reply,
            then: None,
            queries: 0,
            accepts_no_more: false,
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                match shared.lock().unwrap().accepts_no_more {
                    true => unanswered.push(stream),
                    false => drop(tokio::spawn(answer_all(stream, Arc::clone(&shared)))),
                }
            }
        });
        FakeSentinel { addr, state }
    }

    /// Keeps answering open connections, but no new ones.
    pub(crate) fn accept_no_more(&self) {
        self.state.lock().unwrap().accepts_no_more = true;
    }

    pub(crate) fn now(&self, reply: ScriptedReply) {
        self.state.lock().unwrap().reply = reply;
    }

    /// Changes the reply after one more query.
    pub(crate) fn then(&self, reply: ScriptedReply) {
        self.state.lock().unwrap().then = Some(reply);
    }

    pub(crate) fn queries(&self) -> u64 {
        self.state.lock().unwrap().queries
    }
}

/// The next command on the connection, in upper case.
async fn command(stream: &mut BufReader<TcpStream>) -> std::io::Result<Vec<String>> {
    let mut line = String::new();
    let number = async |stream: &mut BufReader<TcpStream>, line: &mut String| {
        line.clear();
        stream.read_line(line).await?;
        let digits = line.trim_end().get(1..).unwrap_or("");
        digits.parse().map_err(std::io::Error::other)
    };
    let count: usize = number(stream, &mut line).await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length: usize = number(stream, &mut line).await?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await?;
        words.push(String::from_utf8_lossy(&word[..length]).to_ascii_uppercase());
    }
    Ok(words)
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn subscribed(channel: &str) -> String {
    let channel = channel.to_ascii_lowercase();
    format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(&channel))
}

async fn answer_all(stream: TcpStream, state: Arc<Mutex<SentinelState>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let words = command(&mut stream).await?;
        let now = {
            let mut state = state.lock().unwrap();
            let now = state.reply;
            if words.first().is_some_and(|word| word == "SENTINEL") {
                state.reply = state.then.take().unwrap_or(now);
                state.queries += 1;
            }
            now
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match words.as_slice() {
            ["HELLO", ..] => format!("%1\r\n{}{}", bulk("mode"), bulk("sentinel")),
            ["SENTINEL", "MASTER", _] => {
                let fields = [
                    ("ip", "127.0.0.1".to_owned()),
                    ("port", now.field.to_string()),
                    ("config-epoch", now.epoch.to_string()),
                ];
                let fields = fields.map(|(key, value)| bulk(key) + &bulk(&value));
                format!("%3\r\n{}", fields.concat())
            }
            ["SENTINEL", ..] => {
                let port = now.address.to_string();
                format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&port))
            }
            ["SUBSCRIBE", channel] => subscribed(channel),
            _ => "+OK\r\n".to_owned(),
        };
        stream.get_mut().write_all(answer.as_bytes()).await?;
    }
}

/// A master that greets immediately, and holds back subscriptions until allowed.
pub(crate) struct FakeMaster {
    pub(crate) addr: SocketAddr,
    /// How many subscriptions are held back.
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) may_subscribe: Arc<Semaphore>,
    /// Other commands it received.
    pub(crate) queries: Arc<Mutex<Vec<String>>>,
}

impl FakeMaster {
    pub(crate) async fn start() -> FakeMaster {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let master = FakeMaster {
            addr: listener.local_addr().unwrap(),
            waiting: Arc::default(),
            may_subscribe: Arc::new(Semaphore::new(0)),
            queries: Arc::default(),
        };
        let (waiting, may_subscribe) = (
            Arc::clone(&master.waiting),
            Arc::clone(&master.may_subscribe),
        );
        let queries = Arc::clone(&master.queries);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (waiting, may_subscribe) = (Arc::clone(&waiting), Arc::clone(&may_subscribe));
                let queries = Arc::clone(&queries);
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    while let Ok(words) = command(&mut stream).await {
                        let words: Vec<&str> = words.iter().map(String::as_str).collect();
                        let answer = match words.as_slice() {
                            ["HELLO", ..] => {
                                let fields = [("mode", "standalone"), ("role", "master")];
                                let fields = fields.map(|(key, value)| bulk(key) + &bulk(value));
                                format!("%2\r\n{}", fields.concat())
                            }
                            ["INFO", ..] => {
                                let id = "0".repeat(40);
                                bulk(&format!("role:master\r\nmaster_replid:{id}\r\n"))
                            }
                            ["SUBSCRIBE", channel] => {
                                waiting.fetch_add(1, Ordering::SeqCst);
                                drop(may_subscribe.acquire().await);
                                subscribed(channel)
                            }
                            ["CLIENT", ..] => "+OK\r\n".to_owned(),
                            other => {
                                queries.lock().unwrap().push(other.join(" "));
                                "-ERR not the master any more\r\n".to_owned()
                            }
                        };
                        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        master
    }
}
