//! Reads items from the command line or from stdin, one per line, in batches.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::vec;

use tokio::sync::mpsc;
use windlass_term::{Advice, Failure, Printer};

/// The argument that stands for stdin.
const STDIN: &str = "-";
/// Bytes per read; also about the size of a batch.
const BUFFER: usize = 256 << 10;

/// A stream of batches of items. A batch has the items that are available, at least one.
pub(crate) struct ItemInput {
    arguments: vec::IntoIter<String>,
    lines: Option<mpsc::Receiver<io::Result<Vec<Vec<u8>>>>>,
    progress: InputProgress,
}

impl ItemInput {
    pub(crate) fn new(items: Vec<String>, printer: &Printer) -> ItemInput {
        ItemInput {
            arguments: items.into_iter(),
            lines: None,
            progress: InputProgress::new(printer),
        }
    }

    /// The next batch, in order; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        if let Some(lines) = &mut self.lines {
            match lines.recv().await {
                Some(Ok(batch)) => {
                    self.progress.more(&batch);
                    return Ok(Some(batch));
                }
                Some(Err(error)) => {
                    return Err(Failure::usage(
                        format!("cannot read items from stdin: {error}"),
                        Advice::Hint("give one item per line".into()),
                    ));
                }
                None => self.lines = None,
            }
        }
        let mut batch = Vec::new();
        while let Some(item) = self.arguments.as_slice().first() {
            if item == STDIN {
                break;
            }
            batch.extend(self.arguments.next().map(String::into_bytes));
        }
        if !batch.is_empty() {
            return Ok(Some(batch));
        }
        if self.arguments.next().is_none() {
            return Ok(None);
        }
        self.lines = Some(read_stdin());
        Box::pin(self.next()).await
    }

    /// Erases the progress line, before output is printed.
    pub(crate) fn clear(&self) {
        self.progress.clear();
    }
}

/// Reads stdin in a thread of its own, which ends with stdin or with the process.
fn read_stdin() -> mpsc::Receiver<io::Result<Vec<Vec<u8>>>> {
    let (sender, receiver) = mpsc::channel(2);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let (mut buffer, mut partial) = (vec![0; BUFFER], Vec::new());
        loop {
            let count = match stdin.read(&mut buffer) {
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    let _ = sender.blocking_send(Err(e));
                    return;
                }
            };
            partial.extend_from_slice(&buffer[..count]);
            let batch = match count {
                0 => lines(std::mem::take(&mut partial)),
                _ => match partial.iter().rposition(|byte| *byte == b'\n') {
                    Some(end) => lines(partial.drain(..=end).collect()),
                    None => continue,
                },
            };
            let receiver_gone = !batch.is_empty() && sender.blocking_send(Ok(batch)).is_err();
            if count == 0 || receiver_gone {
                return;
            }
        }
    });
    receiver
}

/// Splits text into lines without their line ends. An unterminated last line counts.
fn lines(mut text: Vec<u8>) -> Vec<Vec<u8>> {
    if text.last() == Some(&b'\n') {
        text.pop();
    } else if text.is_empty() {
        return Vec::new();
    }
    let split = text.split(|byte| *byte == b'\n');
    split
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec())
        .collect()
}

/// A progress line on the terminal.
struct InputProgress {
    shown: bool,
    /// Size of stdin, if it is a file.
    total: Option<u64>,
    items: u64,
    bytes: u64,
}

impl InputProgress {
    fn new(printer: &Printer) -> InputProgress {
        let stat = rustix::fs::fstat(io::stdin()).ok();
        let file = stat.filter(|s| rustix::fs::FileType::from_raw_mode(s.st_mode).is_file());
        InputProgress {
            // Answers on the same terminal show the progress themselves.
            shown: printer.is_watched()
                && io::stderr().is_terminal()
                && !io::stdout().is_terminal(),
            total: file.map(|stat| stat.st_size as u64),
            items: 0,
            bytes: 0,
        }
    }

    fn more(&mut self, batch: &[Vec<u8>]) {
        self.items += batch.len() as u64;
        self.bytes += batch.iter().map(|line| line.len() as u64 + 1).sum::<u64>();
        let items = self.items;
        match self.total {
            Some(total) => {
                let part = self.bytes as f64 / total.max(1) as f64;
                let full = (part.clamp(0.0, 1.0) * 40.0) as usize;
                let bar = "█".repeat(full) + &"░".repeat(40 - full);
                self.write(format_args!("\r\x1b[K{bar} {items} items"));
            }
            None => self.write(format_args!("\r\x1b[K… {items} items")),
        }
    }

    fn clear(&self) {
        self.write(format_args!("\r\x1b[K"));
    }

    fn write(&self, text: std::fmt::Arguments<'_>) {
        if self.shown {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_fmt(text).and_then(|()| stderr.flush());
        }
    }
}

impl Drop for InputProgress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn lines_are_items() {
        let of = |text: &str| lines(text.as_bytes().to_vec());
        assert_eq!(of("a\nb\n"), [b"a", b"b"]);
        assert_eq!(of("a\r\nb"), [b"a", b"b"]);
        assert_eq!(of(""), Vec::<Vec<u8>>::new());
        assert_eq!(of("\n"), [b""], "an empty line is an empty item");
        assert_eq!(of("a\n\n"), [&b"a"[..], b""]);
    }
}
