//! A minimal blocking RESP2 client: one command, one reply as text.
//!
//! Fixtures inspect servers with this instead of the client library under test.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A frozen server must fail a test, not hang it.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct RespClient {
    stream: BufReader<UnixStream>,
}

impl RespClient {
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends one command and renders its reply as text; an error reply is an error.
    pub(super) fn command(&mut self, words: &[&str]) -> io::Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        match self.reply()? {
            RespReply::Text(text) => Ok(text),
            RespReply::Error(text) => Err(io::Error::other(text)),
        }
    }

    fn reply(&mut self) -> io::Result<RespReply> {
        let head = self.line()?;
        let (kind, rest) = head.split_at_checked(1).ok_or_else(|| nonsense(&head))?;
        match kind {
            "+" | ":" => Ok(RespReply::Text(rest.to_owned())),
            "-" => Ok(RespReply::Error(rest.to_owned())),
            "$" => self.bulk(length(rest)?),
            "*" => self.array(length(rest)?),
            _ => Err(nonsense(&head)),
        }
    }

    fn bulk(&mut self, length: Option<usize>) -> io::Result<RespReply> {
        let Some(length) = length else {
            return Ok(RespReply::nil());
        };
        let mut bytes = vec![0; length + "\r\n".len()];
        self.stream.read_exact(&mut bytes)?;
        Ok(RespReply::Text(
            String::from_utf8_lossy(&bytes[..length]).into_owned(),
        ))
    }

    fn array(&mut self, length: Option<usize>) -> io::Result<RespReply> {
        let Some(length) = length else {
            return Ok(RespReply::nil());
        };
        let elements = (0..length)
            .map(|_| {
                self.reply().map(|reply| match reply {
                    RespReply::Text(text) => text,
                    // One failed command of a transaction does not make the whole reply an error.
                    RespReply::Error(text) => format!("(error) {text}"),
                })
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(RespReply::Text(elements.join("\n")))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection before it had replied",
            )),
        }
    }
}

enum RespReply {
    Text(String),
    Error(String),
}

impl RespReply {
    fn nil() -> Self {
        RespReply::Text("(nil)".to_owned())
    }
}

/// The length of a bulk string or an array, of which -1 means nil.
fn length(digits: &str) -> io::Result<Option<usize>> {
    match digits {
        "-1" => Ok(None),
        _ => digits.parse().map(Some).map_err(|_| nonsense(digits)),
    }
}

fn nonsense(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"))
}
