//! What the tests of the command line share: a store of one's own, and the real binary.

#![allow(dead_code, reason = "each test file uses its own part of this")]

pub(crate) mod pty;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use windlass_testkit::{Flavor, RedisServer, RedlockNodes, TestProcess, eventually_blocking};

/// Longer than anything takes on a machine that is merely busy.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A folder, and a store that nobody else uses.
pub(crate) struct Bed {
    pub(crate) folder: TempDir,
    pub(crate) store: String,
    server: Option<RedisServer>,
}

impl Bed {
    pub(crate) fn file() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("file:{}", folder.path().join("locks.db").display());
        Bed {
            folder,
            store,
            server: None,
        }
    }

    pub(crate) fn redis() -> Bed {
        let server = RedisServer::start().unwrap();
        Bed {
            folder: tempfile::tempdir().unwrap(),
            store: server.url(),
            server: Some(server),
        }
    }

    /// A quorum, which lives as long as its nodes.
    pub(crate) fn redlock() -> (Bed, RedlockNodes) {
        let nodes = RedlockNodes::durable(3, Flavor::Redis).unwrap();
        let mut bed = Bed::file();
        bed.store = nodes.url("");
        (bed, nodes)
    }

    /// One of each kind that processes can share.
    pub(crate) fn each() -> [Bed; 2] {
        [Bed::file(), Bed::redis()]
    }

    pub(crate) fn server(&self) -> &RedisServer {
        self.server.as_ref().expect("a bed on Redis")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The binary with these arguments, on this bed's store.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command
            .env("WINDLASS_STORE", &self.store)
            .env("XDG_STATE_HOME", self.folder.path())
            .current_dir(self.folder.path());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        Done::of(&mut self.command(args))
    }

    /// Runs it with `--json` to its end.
    pub(crate) fn json(&self, args: &[&str]) -> Done {
        self.run(&[&["--json"], args].concat())
    }

    /// Starts it and lets it run. Its stderr goes to the file `stderr`.
    pub(crate) fn start(&self, args: &[&str]) -> TestProcess {
        let stderr = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.path("stderr"))
            .unwrap();
        TestProcess::spawn(self.command(args).stderr(stderr)).unwrap()
    }

    /// A `run` that prints a line, and then holds the lock until it is told to go or is killed.
    pub(crate) fn hold(&self, name: &str, options: &[&str]) -> TestProcess {
        let command = ["--", "sh", "-c", "echo ready $$; exec cat"];
        let args = [&["run", name], options, &command].concat();
        let stderr = std::fs::File::create(self.path("holder-stderr")).unwrap();
        let mut command = self.command(&args);
        command.stdin(Stdio::piped()).stderr(stderr);
        let holder = TestProcess::spawn(&mut command).unwrap();
        wait_for(&holder, "ready");
        holder
    }

    /// What `lock show` says.
    pub(crate) fn show(&self, name: &str) -> Value {
        let shown = self.json(&["lock", "show", name]);
        assert_eq!(shown.code, 0, "{shown:?}");
        shown.object()
    }

    /// Waits until so many wait in line for the lock.
    pub(crate) fn wait_for_waiters(&self, name: &str, waiters: u64) {
        let met = eventually_blocking(LONG, || self.show(name)["waiters"] == waiters);
        assert!(met, "{}", self.show(name));
    }

    /// What `lock ls` says of the one thing of that kind and name, if there is one.
    pub(crate) fn listed(&self, kind: &str, name: &str) -> Option<Value> {
        let listed = self.json(&["lock", "ls", name]);
        assert_eq!(listed.code, 0, "{listed:?}");
        let mut found = listed.objects().into_iter();
        found.find(|object| object["kind"] == kind)
    }

    /// Waits until so many wait in line for a thing of that kind.
    pub(crate) fn wait_for_waiters_of(&self, kind: &str, name: &str, waiters: u64) {
        let listed = || self.listed(kind, name);
        let met = eventually_blocking(LONG, || {
            listed().map_or(0, |object| object["waiters"].as_u64().unwrap()) == waiters
        });
        assert!(met, "{:?}", listed());
    }

    /// What was written to stderr of what was started.
    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }
}

/// The binary with these arguments and nothing of ours in its environment.
pub(crate) fn bare(args: &[&str]) -> Command {
    // Tests that a shell runs in the background inherit ignored signals, and windlass would rightly go
    // on ignoring them.
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_windlass")]);
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    command
}

/// What a finished program leaves.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    pub(crate) fn of(command: &mut Command) -> Done {
        let output: Output = command.output().unwrap();
        Done {
            code: output.status.code().expect("windlass exits by itself"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Nothing was done: a quorum does not have these, and the hint names the stores that do.
    pub(crate) fn is_refused(&self, primitive: &str) {
        assert_eq!((self.code, self.out.as_str()), (125, ""), "{self:?}");
        let message = format!("there are no {primitive} on redlock");
        assert!(self.err.contains(&message), "{}", self.err);
        for store in ["memory:", "file:", "redis://", "etcd://", "zookeeper://"] {
            assert!(self.err.contains(store), "{store}: {}", self.err);
        }
    }

    /// The one object printed.
    pub(crate) fn object(&self) -> Value {
        let objects = self.objects();
        assert_eq!(objects.len(), 1, "{self:?}");
        objects.into_iter().next().unwrap()
    }

    pub(crate) fn objects(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap();
        self.out.lines().map(parse).collect()
    }
}

/// The keys of a JSON object, sorted.
pub(crate) fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

/// Waits for a line that starts so, and returns the rest of it.
pub(crate) fn wait_for(process: &TestProcess, start: &str) -> String {
    let line = process.wait_for_line(|line| line.starts_with(start), LONG);
    let line = line.unwrap_or_else(|| panic!("no line {start:?}: {:?}", process.stdout_lines()));
    line[start.len()..].trim().to_owned()
}

/// The exit code of a process that ends within a time that is long on any machine.
pub(crate) fn code(process: &TestProcess) -> i32 {
    let status = process.wait_timeout(LONG).expect("it ends");
    status.code().expect("windlass exits by itself")
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Whether a process still runs. One that nobody has reaped does not.
pub(crate) fn is_alive(pid: &str) -> bool {
    let path = Path::new("/proc").join(pid).join("stat");
    let Ok(stat) = std::fs::read_to_string(path) else {
        return false;
    };
    let after_name = stat.rsplit_once(')').unwrap().1;
    !after_name.trim_start().starts_with(['Z', 'X'])
}

pub(crate) fn assert_dies(pid: &str) {
    assert!(!pid.is_empty());
    assert!(
        eventually_blocking(LONG, || !is_alive(pid)),
        "{pid} still runs"
    );
}
