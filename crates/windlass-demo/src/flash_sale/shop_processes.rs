//! Starts the processes of the shops, reads their events, restarts them after a crash, and stops them.

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
use windlass_term::Failure;

use crate::args::{FaultKind, Guard, Ports, value_name};
use crate::invalid_run;

/// Time for a process to start, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The settings of all shops of a sale.
#[derive(Clone, Debug)]
pub(super) struct ShopSettings<'a> {
    pub(super) store: &'a str,
    pub(super) namespace: Option<&'a str>,
    pub(super) sale: String,
    pub(super) guard: Guard,
    pub(super) poll: Option<Duration>,
    /// Whether the shops ask for faults.
    pub(super) faults: bool,
    pub(super) ttl: Duration,
    pub(super) warehouse: SocketAddr,
    /// The file for the keys of SETNX and SET NX PX, if the store is not Redis.
    pub(super) key_file: Option<&'a Path>,
    pub(super) ports: Option<Ports>,
}

/// What happened to a shop.
#[derive(Debug)]
pub(super) enum ShopEventKind {
    Listening(SocketAddr),
    /// A buyer has connected and waits for the sale to open.
    BuyerWaiting,
    Fault(FaultKind),
    Ended,
}

/// An event of a shop.
#[derive(Debug)]
pub(super) struct ShopEvent {
    pub(super) shop: usize,
    pub(super) at: Instant,
    pub(super) kind: ShopEventKind,
}

/// The processes of all shops. They end when this is dropped, and also when this process is killed.
#[derive(Debug)]
pub(super) struct ShopProcesses<'a> {
    settings: ShopSettings<'a>,
    shops: Vec<ShopProcess>,
    events: mpsc::UnboundedReceiver<ShopEvent>,
    sender: mpsc::UnboundedSender<ShopEvent>,
}

#[derive(Debug)]
struct ShopProcess {
    child: Child,
    /// Kept open: the shop exits when it is closed.
    stdin: ChildStdin,
    stderr: Arc<Mutex<String>>,
}

impl<'a> ShopProcesses<'a> {
    /// Starts the shops, and waits until all listen.
    pub(super) async fn start(
        settings: ShopSettings<'a>,
        count: u32,
    ) -> Result<(ShopProcesses<'a>, Vec<SocketAddr>), Failure> {
        let (sender, events) = mpsc::unbounded_channel();
        let mut shops = ShopProcesses {
            settings,
            shops: Vec::new(),
            events,
            sender,
        };
        for number in 0..count as usize {
            let shop = shops.spawn(number)?;
            shops.shops.push(shop);
        }
        let mut addrs = vec![None; count as usize];
        while addrs.iter().any(Option::is_none) {
            let event = timeout(START_TIMEOUT, shops.next()).await.map_err(|_| {
                invalid_run(format!("a shop did not start within {START_TIMEOUT:?}"))
            })?;
            match event.kind {
                ShopEventKind::Listening(addr) => addrs[event.shop] = Some(addr),
                ShopEventKind::Ended => return Err(shops.start_failure(event.shop).await),
                ShopEventKind::BuyerWaiting | ShopEventKind::Fault(_) => {}
            }
        }
        Ok((shops, addrs.into_iter().flatten().collect()))
    }

    /// The next event.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> ShopEvent {
        let event = self.events.recv().await;
        event.expect("this value holds a sender")
    }

    /// Tells all shops to start selling.
    pub(super) async fn open_sale(&mut self) -> Result<(), Failure> {
        for shop in &mut self.shops {
            let written = shop.stdin.write_all(b"open\n").await;
            written
                .map_err(|e| invalid_run(format!("a shop ended before the sale opened: {e}")))?;
        }
        Ok(())
    }

    /// Restarts a crashed shop, as any supervisor would, and opens it at once. It listens on another port.
    pub(super) async fn restart(&mut self, number: usize) -> Result<(), Failure> {
        let mut shop = self.spawn(number)?;
        let written = shop.stdin.write_all(b"open\n").await;
        written.map_err(|e| invalid_run(format!("cannot restart a shop: {e}")))?;
        self.shops[number] = shop;
        Ok(())
    }

    /// Kills all shops, and returns when they have ended.
    pub(super) async fn stop(mut self) {
        for shop in &mut self.shops {
            // It may have ended already.
            let _ = shop.child.kill().await;
        }
    }

    fn spawn(&self, number: usize) -> Result<ShopProcess, Failure> {
        let failed = |e| Failure::internal(format!("cannot start a process of this program: {e}"));
        let ShopSettings {
            sale, guard, ttl, ..
        } = &self.settings;
        let port = match self.settings.ports {
            // The first is that of the balancer; `prepare` has checked that there are enough.
            Some(ports) => ports.from + 1 + number as u16,
            None => 0,
        };
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["demo", "shop", "--wait-for-open"]);
        command.args(["--guard", &value_name(guard), "--sale", sale]);
        command.args(["--listen", &listen.to_string()]);
        command.args(["--warehouse", &self.settings.warehouse.to_string()]);
        command.args(["--ttl", &millis(*ttl)]);
        if let Some(pause) = self.settings.poll {
            command.args(["--poll", &millis(pause)]);
        }
        if self.settings.faults {
            command.arg("--faults");
        }
        if let Some(path) = self.settings.key_file {
            command.arg("--keys").arg(path);
        }
        // In the environment: a URL may hold a password, and other users can read arguments.
        command.env("WINDLASS_STORE", self.settings.store);
        // Set even if it is empty: it replaces that of the config file.
        let namespace = self.settings.namespace.unwrap_or_default();
        command.env("WINDLASS_NAMESPACE", namespace);
        // A group of its own, so that Ctrl-C reaches only the demo, which stops the shops.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let missing = || Failure::internal("a pipe to a shop is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let mut stderr = child.stderr.take().ok_or_else(missing)?;
        let stderr_text = Arc::new(Mutex::new(String::new()));
        let note = Arc::clone(&stderr_text);
        tokio::spawn(async move {
            let mut text = String::new();
            // Output that is not text is no message.
            let _ = stderr.read_to_string(&mut text).await;
            *note.lock().unwrap_or_else(PoisonError::into_inner) = text;
        });
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let send = |kind| {
                let (shop, at) = (number, Instant::now());
                // The receiver is gone once the sale is over.
                let _ = sender.send(ShopEvent { shop, at, kind });
            };
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(kind) = parse_event(&line) {
                    send(kind);
                }
            }
            send(ShopEventKind::Ended);
        });
        Ok(ShopProcess {
            child,
            stdin,
            stderr: stderr_text,
        })
    }

    /// The failure of a shop that did not start, with its own message.
    async fn start_failure(&mut self, number: usize) -> Failure {
        let shop = &mut self.shops[number];
        let _ = shop.child.wait().await;
        // Its stderr is closed with it, and read within this time.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let said = shop.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.lines().next().unwrap_or("no error message");
        let said = said.trim_start_matches("windlass: error: ");
        Failure::usage(
            format!("shop {} did not start: {said}", number + 1),
            windlass_term::Advice::Hint(
                "omit --ports for free ports, or use -v for details".into(),
            ),
        )
    }
}

fn parse_event(line: &str) -> Option<ShopEventKind> {
    let (word, rest) = line.split_once(' ')?;
    match word {
        "listening" => rest.parse().ok().map(ShopEventKind::Listening),
        "buyer-waiting" => Some(ShopEventKind::BuyerWaiting),
        "fault" => FaultKind::from_str(rest, false)
            .ok()
            .map(ShopEventKind::Fault),
        _ => None,
    }
}

fn millis(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}
