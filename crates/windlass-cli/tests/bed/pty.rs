//! A terminal for a program to run on, and what can be seen there.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use windlass_testkit::{TestProcess, eventually_blocking};

use super::{Bed, LONG};

/// A terminal, and what was written to it.
pub(crate) struct Pty {
    ours: File,
    theirs: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    pub(crate) fn new(columns: u16, rows: u16) -> Pty {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let theirs = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        let mut reader = File::from(ours.try_clone().unwrap());
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&written);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        let pty = Pty {
            ours: File::from(ours),
            theirs,
            written,
        };
        pty.resize(columns, rows);
        pty
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.theirs, size).unwrap();
    }

    /// Starts `windlass top` on it.
    pub(crate) fn top(&self, bed: &Bed, args: &[&str], env: &[(&str, &str)]) -> TestProcess {
        self.start(bed, &[&["top"], args].concat(), env)
    }

    /// Starts windlass on it.
    pub(crate) fn start(&self, bed: &Bed, args: &[&str], env: &[(&str, &str)]) -> TestProcess {
        let command = bed.command(args);
        // Stdout is given back to the terminal by the shell, since a test process captures it.
        let stdin = self.theirs.try_clone().unwrap();
        let stderr = self.theirs.try_clone().unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "exec \"$@\" >&0", "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        shell.envs(env.iter().copied());
        TestProcess::spawn(shell.stdin(stdin).stderr(stderr)).unwrap()
    }

    pub(crate) fn modes(&self) -> Termios {
        tcgetattr(&self.theirs).unwrap()
    }

    pub(crate) fn is_raw(&self) -> bool {
        !self.modes().local_modes.contains(LocalModes::ICANON)
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until these bytes were written.
    pub(crate) fn wait_for_code(&self, code: &str) {
        let met = eventually_blocking(LONG, || self.written().contains(code));
        assert!(met, "no {code:?} in {:?}", self.written());
    }

    /// Waits until this text is on the screen.
    pub(crate) fn wait_for(&self, text: &str) {
        let met = eventually_blocking(LONG, || self.screen().contains(text));
        assert!(met, "no {text:?} on the screen:\n{}", self.screen());
    }

    /// What somebody in front of it would see.
    pub(crate) fn screen(&self) -> String {
        let written = self.written();
        let mut screen = Grid::default();
        let mut rest = written.as_str();
        while let Some(c) = rest.chars().next() {
            rest = match rest.strip_prefix("\x1b[") {
                Some(sequence) => screen.obey(sequence),
                None => {
                    screen.put(c);
                    &rest[c.len_utf8()..]
                }
            };
        }
        screen.to_string()
    }
}

/// As much of a terminal as the tests need: text, moving about, clearing.
#[derive(Default)]
struct Grid {
    cells: BTreeMap<(usize, usize), char>,
    at: (usize, usize),
}

impl Grid {
    /// Obeys a control sequence, and returns what follows it.
    fn obey<'a>(&mut self, sequence: &'a str) -> &'a str {
        let Some(end) = sequence.find(|c: char| ('@'..='~').contains(&c)) else {
            return "";
        };
        let (parameters, rest) = sequence.split_at(end);
        match (parameters, &rest[..1]) {
            (place, "H") => {
                let mut numbers = place.split(';').map(|n| n.parse().unwrap_or(1));
                let mut next = || numbers.next().unwrap_or(1);
                self.at = (next(), next());
            }
            ("2", "J") | ("?1049", "h" | "l") => self.cells.clear(),
            (lines, "A") => self.at.0 = self.at.0.saturating_sub(lines.parse().unwrap_or(1)),
            ("", "K") => {
                let (row, column) = self.at;
                self.cells.retain(|at, _| at.0 != row || at.1 < column);
            }
            ("", "J") => {
                let here = self.at;
                self.cells.retain(|at, _| *at < here);
            }
            _ => {}
        }
        &rest[1..]
    }

    fn put(&mut self, c: char) {
        match c {
            '\n' => self.at.0 += 1,
            '\r' => self.at.1 = 1,
            c => {
                self.cells.insert(self.at, c);
                self.at.1 += 1;
            }
        }
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut place = (1, 1);
        for (&(row, column), &c) in &self.cells {
            while place.0 < row {
                writeln!(f)?;
                place = (place.0 + 1, 1);
            }
            while place.1 < column {
                write!(f, " ")?;
                place.1 += 1;
            }
            write!(f, "{c}")?;
            place.1 += 1;
        }
        Ok(())
    }
}
