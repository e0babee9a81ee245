//! The shops' processes: started, listened to, started again after a crash, and ended with us.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::spoilt;
use crate::args::{FaultKind, Guard, Ports, word};
use crate::failure::Failure;

/// For a process to start, on a machine that does other things too.
const STARTING: Duration = Duration::from_secs(20);

/// How all shops of a sale are set up.
#[derive(Clone, Debug)]
pub(super) struct Fittings<'a> {
    pub(super) store: &'a str,
    pub(super) namespace: Option<&'a str>,
    pub(super) sale: String,
    pub(super) guard: Guard,
    pub(super) poll: Option<Duration>,
    /// Whether the shops ask what befalls them.
    pub(super) foul: bool,
    pub(super) ttl: Duration,
    pub(super) warehouse: SocketAddr,
    /// Where SETNX and its kin keep their keys, if not in Redis.
    pub(super) keys: Option<&'a Path>,
    pub(super) ports: Option<Ports>,
}

/// Something that a shop said, or that happened to it.
#[derive(Debug)]
pub(super) enum News {
    Listening(SocketAddr),
    AtTheDoor,
    Fault(FaultKind),
    Ended,
}

/// News of a shop.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) shop: usize,
    pub(super) at: Instant,
    pub(super) news: News,
}

/// All shops. Their processes end with this value, and also when this process is killed.
#[derive(Debug)]
pub(super) struct Staff<'a> {
    fittings: Fittings<'a>,
    shops: Vec<Shop>,
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
}

#[derive(Debug)]
struct Shop {
    child: Child,
    /// Kept open: the shop ends when it closes.
    stdin: ChildStdin,
    said: Arc<Mutex<String>>,
}

impl<'a> Staff<'a> {
    /// Starts so many shops, and waits until all listen.
    pub(super) async fn start(
        fittings: Fittings<'a>,
        count: u32,
    ) -> Result<(Staff<'a>, Vec<SocketAddr>), Failure> {
        let (sender, events) = mpsc::unbounded_channel();
        let mut staff = Staff {
            fittings,
            shops: Vec::new(),
            events,
            sender,
        };
        for number in 0..count as usize {
            let shop = staff.open(number)?;
            staff.shops.push(shop);
        }
        let mut addrs = vec![None; count as usize];
        while addrs.iter().any(Option::is_none) {
            let event = timeout(STARTING, staff.next())
                .await
                .map_err(|_| spoilt(format!("a shop was not open after {STARTING:?}")))?;
            match event.news {
                News::Listening(addr) => addrs[event.shop] = Some(addr),
                News::Ended => return Err(staff.obituary(event.shop).await),
                News::AtTheDoor | News::Fault(_) => {}
            }
        }
        Ok((staff, addrs.into_iter().flatten().collect()))
    }

    /// The next thing to happen.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Event {
        let event = self.events.recv().await;
        event.expect("we hold a sender ourselves")
    }

    /// Tells all shops to let their buyers in.
    pub(super) async fn open_doors(&mut self) -> Result<(), Failure> {
        for shop in &mut self.shops {
            let told = shop.stdin.write_all(b"open\n").await;
            told.map_err(|e| spoilt(format!("a shop ended before the sale began: {e}")))?;
        }
        Ok(())
    }

    /// Starts a shop again that has died, as any supervisor would, and opens it at once. It listens elsewhere.
    pub(super) async fn replace(&mut self, number: usize) -> Result<(), Failure> {
        let mut shop = self.open(number)?;
        let told = shop.stdin.write_all(b"open\n").await;
        told.map_err(|e| spoilt(format!("a shop could not be started again: {e}")))?;
        self.shops[number] = shop;
        Ok(())
    }

    /// Ends all shops, and returns when they are gone.
    pub(super) async fn dismiss(mut self) {
        for shop in &mut self.shops {
            // Gone already, perhaps.
            let _ = shop.child.kill().await;
        }
    }

    fn open(&self, number: usize) -> Result<Shop, Failure> {
        let failed = |e| Failure::internal(format!("cannot start a process of this program: {e}"));
        let Fittings {
            sale, guard, ttl, ..
        } = &self.fittings;
        let port = match self.fittings.ports {
            // The first is the balancer's; that there are enough was seen to before.
            Some(ports) => ports.from + 1 + number as u16,
            None => 0,
        };
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["demo", "shop", "--doors"]);
        command.args(["--guard", &word(guard), "--sale", sale]);
        command.args(["--listen", &listen.to_string()]);
        command.args(["--warehouse", &self.fittings.warehouse.to_string()]);
        command.args(["--ttl", &millis(*ttl)]);
        if let Some(pause) = self.fittings.poll {
            command.args(["--poll", &millis(pause)]);
        }
        if self.fittings.foul {
            command.arg("--foul");
        }
        if let Some(path) = self.fittings.keys {
            command.arg("--keys").arg(path);
        }
        // In the environment: a URL may hold a password, and arguments are for all to see.
        command.env("WINDLASS_STORE", self.fittings.store);
        command.env_remove("WINDLASS_NAMESPACE");
        if let Some(namespace) = self.fittings.namespace {
            command.env("WINDLASS_NAMESPACE", namespace);
        }
        // Ctrl-C is for us; we end them in good order.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let missing = || Failure::internal("a pipe to a shop is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let mut stderr = child.stderr.take().ok_or_else(missing)?;
        let said = Arc::new(Mutex::new(String::new()));
        let note = Arc::clone(&said);
        tokio::spawn(async move {
            let mut text = String::new();
            // What is no text is no message.
            let _ = stderr.read_to_string(&mut text).await;
            *note.lock().unwrap_or_else(PoisonError::into_inner) = text;
        });
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let tell = |news| {
                let (shop, at) = (number, Instant::now());
                // Nobody listens any more once the sale is over.
                let _ = sender.send(Event { shop, at, news });
            };
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(news) = understand(&line) {
                    tell(news);
                }
            }
            tell(News::Ended);
        });
        Ok(Shop { child, stdin, said })
    }

    /// Why a shop did not start, in its own words.
    async fn obituary(&mut self, number: usize) -> Failure {
        let shop = &mut self.shops[number];
        let _ = shop.child.wait().await;
        // Its stderr closes with it, and is read at once.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let said = shop.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.lines().next().unwrap_or("it did not say why");
        let said = said.trim_start_matches("windlass: error: ");
        Failure::usage(
            format!("shop {} did not open: {said}", number + 1),
            crate::failure::Advice::Hint("leave --ports out for free ports, or see -v".into()),
        )
    }
}

fn understand(line: &str) -> Option<News> {
    let (word, rest) = line.split_once(' ')?;
    match word {
        "listening" => rest.parse().ok().map(News::Listening),
        "at-the-door" => Some(News::AtTheDoor),
        "fault" => FaultKind::from_str(rest, false).ok().map(News::Fault),
        _ => None,
    }
}

fn millis(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}
