//! A resource that many processes write to, and that checks fences as a database would.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Accepted.
    Accepted,
    /// Rejected: a higher fence has written before.
    Stale,
}

/// A register on a loopback port: `R` reads it, `R fence` reads it under a fence, `W fence value` writes
/// it.
///
/// A write with a fence lower than the highest seen is rejected. An accepted write must be exactly
/// one more than the value before; anything else counts as a lost update.
///
/// A read under a fence keeps lower fences from writing afterwards. Only then is an update never
/// lost, even if a stale write arrives before the reader's own.
#[derive(Debug)]
pub struct FencedRegister {
    addr: SocketAddr,
    state: Arc<Mutex<RegisterState>>,
}

#[derive(Debug, Default)]
struct RegisterState {
    value: u64,
    highest: u64,
    accepted: u64,
    stale: u64,
    lost_updates: u64,
    /// Accepts every fence.
    open: bool,
}

impl FencedRegister {
    /// Starts an empty register. It lives as long as the process.
    pub fn start() -> io::Result<FencedRegister> {
        FencedRegister::start_with(RegisterState::default())
    }

    /// Starts a register that ignores fences, to show what a check must find.
    pub fn start_open() -> io::Result<FencedRegister> {
        FencedRegister::start_with(RegisterState {
            open: true,
            ..RegisterState::default()
        })
    }

    fn start_with(state: RegisterState) -> io::Result<FencedRegister> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &state));
            }
        });
        Ok(FencedRegister { addr, state })
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The current value.
    pub fn value(&self) -> u64 {
        self.state.lock().unwrap().value
    }

    /// How many writes were accepted, and how many rejected as stale.
    pub fn writes(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap();
        (state.accepted, state.stale)
    }

    /// How many accepted writes overwrote another client's: must be zero.
    pub fn lost_updates(&self) -> u64 {
        self.state.lock().unwrap().lost_updates
    }
}

fn serve(stream: TcpStream, state: &Mutex<RegisterState>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut out = stream.try_clone().ok()?;
    for line in BufReader::new(stream).lines() {
        let line = line.ok()?;
        let answer = answer(&line, &mut state.lock().unwrap());
        out.write_all(format!("{answer}\n").as_bytes()).ok()?;
    }
    Some(())
}

fn answer(line: &str, state: &mut RegisterState) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["R"] => state.value.to_string(),
        ["R", fence] => match fence.parse::<u64>() {
            Ok(fence) if fence < state.highest && !state.open => "stale".to_owned(),
            Ok(fence) => {
                state.highest = state.highest.max(fence);
                state.value.to_string()
            }
            Err(_) => "bad".to_owned(),
        },
        ["W", fence, value] => {
            let (Ok(fence), Ok(value)) = (fence.parse::<u64>(), value.parse::<u64>()) else {
                return "bad".to_owned();
            };
            if fence < state.highest && !state.open {
                state.stale += 1;
                return "stale".to_owned();
            }
            if value != state.value + 1 {
                state.lost_updates += 1;
            }
            state.highest = fence;
            state.value = value;
            state.accepted += 1;
            "ok".to_owned()
        }
        _ => "bad".to_owned(),
    }
}

/// A client of a [`FencedRegister`].
#[derive(Debug)]
pub struct RegisterClient {
    reader: BufReader<TcpStream>,
}

impl RegisterClient {
    /// Connects to a register.
    pub fn connect(addr: SocketAddr) -> io::Result<RegisterClient> {
        let stream = TcpStream::connect(addr)?;
        // Small requests, each waiting for its reply: Nagle's algorithm would delay them.
        stream.set_nodelay(true)?;
        Ok(RegisterClient {
            reader: BufReader::new(stream),
        })
    }

    /// Reads the value.
    pub fn read(&mut self) -> io::Result<u64> {
        let answer = self.ask("R")?;
        answer.parse().map_err(|_| io::Error::other(answer))
    }

    /// Reads the value under a fence, after which no lower fence can write; `None` if a higher
    /// fence was seen before.
    pub fn read_as(&mut self, fence: u64) -> io::Result<Option<u64>> {
        match self.ask(&format!("R {fence}"))?.as_str() {
            "stale" => Ok(None),
            answer => match answer.parse() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(io::Error::other(answer.to_owned())),
            },
        }
    }

    /// Writes a value under a fence.
    pub fn write(&mut self, fence: u64, value: u64) -> io::Result<Written> {
        match self.ask(&format!("W {fence} {value}"))?.as_str() {
            "ok" => Ok(Written::Accepted),
            "stale" => Ok(Written::Stale),
            other => Err(io::Error::other(other.to_owned())),
        }
    }

    fn ask(&mut self, line: &str) -> io::Result<String> {
        self.reader
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        self.reader.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_stale_fences_and_counts_lost_updates() {
        let register = FencedRegister::start().unwrap();
        let mut client = RegisterClient::connect(register.addr()).unwrap();
        assert_eq!(client.read().unwrap(), 0);
        assert_eq!(client.write(5, 1).unwrap(), Written::Accepted);
        assert_eq!(client.write(4, 2).unwrap(), Written::Stale);
        assert_eq!(client.write(5, 2).unwrap(), Written::Accepted);
        assert_eq!(register.lost_updates(), 0);
        assert_eq!(client.write(6, 2).unwrap(), Written::Accepted);
        assert_eq!(register.lost_updates(), 1);
        assert_eq!(register.writes(), (3, 1));
        assert_eq!(client.read_as(9).unwrap(), Some(2));
        assert_eq!(client.write(8, 3).unwrap(), Written::Stale, "9 has read");
        assert_eq!(client.read_as(8).unwrap(), None);
    }

    #[test]
    fn open_register_accepts_everything() {
        let register = FencedRegister::start_open().unwrap();
        let mut client = RegisterClient::connect(register.addr()).unwrap();
        assert_eq!(client.write(5, 1).unwrap(), Written::Accepted);
        assert_eq!(client.read_as(4).unwrap(), Some(1));
        assert_eq!(client.write(4, 2).unwrap(), Written::Accepted);
    }
}
