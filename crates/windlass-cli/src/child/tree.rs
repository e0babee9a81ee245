//! Finds and kills the descendants of a process.
//!
//! On Linux the process tree is read from `/proc`. Processes fork while it is read, so killing repeats until no new
//! process appears, and callers repeat that until none is left.
//!
//! In a PID namespace, `/proc` may still be that of the host (`unshare --pid` without `--mount-proc`), which has other
//! ids for the same processes. `NSpid` in `/proc/PID/status` translates them.

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, wait, waitid,
};

/// Limit for the walks of one [`kill`], after which the caller reaps: enough to catch up with a program that starts
/// others, without racing a fork bomb forever.
const MAX_WALKS: usize = 64;

/// The processes that a [`kill`] found.
#[derive(Debug, Default)]
pub(super) struct KillSweep {
    /// Processes that were alive when found. They die soon after, not necessarily before `kill` returns.
    pub(super) found: Vec<Pid>,
    /// Those of them that belong to another user (`sudo`) and cannot be signalled.
    denied: Vec<Pid>,
}

impl KillSweep {
    /// A process that is left, if none of those left can be killed.
    pub(super) fn only_denied(&self) -> Option<Pid> {
        (self.denied.len() == self.found.len())
            .then(|| self.denied.first().copied())
            .flatten()
    }
}

/// From now on, orphaned descendants become children of this process, not of init.
///
/// Only where they can be found again: waiting for adopted processes that cannot be killed would take forever.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if shows_descendants() {
        rustix::process::set_child_subreaper(Some(getpid()))?;
    }
    Ok(())
}

/// Kills what `find` finds, repeatedly until it finds no new process.
pub(super) fn kill(find: impl Fn() -> Vec<Pid>) -> KillSweep {
    let mut seen = HashSet::new();
    let mut swept = KillSweep::default();
    for _ in 0..MAX_WALKS {
        let fresh: Vec<Pid> = find().into_iter().filter(|pid| seen.insert(*pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            swept.found.push(pid);
            if kill_process(pid, Signal::KILL) == Err(Errno::PERM) {
                swept.denied.push(pid);
            }
        }
    }
    swept
}

/// Reaps dead children, including adopted ones. Returns whether no child is left.
pub(super) fn reap(mut on_exit: impl FnMut(Pid, WaitStatus)) -> io::Result<bool> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => on_exit(pid, status),
            Ok(None) => return Ok(false),
            Err(Errno::CHILD) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The present children of this process.
///
/// Some may not belong to the next command: a shell can fork and then become windlass (`sh -c 'server & exec windlass
/// …'`), and an earlier command may have left a server behind.
pub(super) fn children() -> Vec<Pid> {
    // Usually there are none, and this finds out without a walk through /proc.
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if matches!(waitid(WaitId::All, peek), Err(Errno::CHILD)) {
        return Vec::new();
    }
    let me = getpid().as_raw_pid();
    processes()
        .into_iter()
        .filter(|process| process.parent == me)
        .filter_map(|process| Pid::from_raw(process.pid))
        .collect()
}

/// All living descendants of this process, parents before children, except the processes in `except` and their
/// descendants.
///
/// The order matters for signals: a shell whose child dies first would continue with its next line.
pub(super) fn descendants(except: &[Pid]) -> Vec<Pid> {
    below(getpid().as_raw_pid(), &processes(), except)
}

/// Whether a child is in the process group of this process. Not `getpgid`: in a namespace, a group from outside has the
/// id 0, which is no valid group for `rustix`.
pub(super) fn shares_group(child: Pid) -> bool {
    let found = match namespace_level() {
        Some(0) => process(child.as_raw_pid()),
        _ => processes()
            .into_iter()
            .find(|process| process.pid == child.as_raw_pid()),
    };
    let group = |process: Process| process.group;
    // Without /proc: it was started in this group, and few programs leave it.
    found.map(group) == process_in("/proc/self", 0).map(group)
}

fn below(root: i32, processes: &[Process], except: &[Pid]) -> Vec<Pid> {
    let mut found: Vec<Pid> = Vec::new();
    // Guards against cycles: an id reused during the walk can make a process its own ancestor.
    let mut visited = HashSet::from([root]);
    let mut parents = vec![root];
    while !parents.is_empty() {
        let generation: Vec<&Process> = processes
            .iter()
            .filter(|process| parents.contains(&process.parent) && visited.insert(process.pid))
            .collect();
        parents.clear();
        for process in generation {
            let Some(pid) = Pid::from_raw(process.pid) else {
                continue;
            };
            if !except.contains(&pid) {
                parents.push(process.pid);
                found.extend(process.alive.then_some(pid));
            }
        }
    }
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    /// The process group, in the numbering of `/proc`.
    group: i32,
    alive: bool,
}

/// Whether the descendants of this process can be found: `/proc` is mounted and shows this process.
pub(super) fn shows_descendants() -> bool {
    namespace_level().is_some()
}

/// The position of the ids of this process namespace in the `NSpid` lines of `/proc`: 0 if `/proc` belongs to this
/// namespace, more if it belongs to an outer one. `None` if `/proc` does not show this process.
fn namespace_level() -> Option<usize> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let link = std::fs::read_link("/proc/self").ok()?;
    let ids = namespace_ids(link.to_str()?.parse().ok()?)?;
    let level = ids.len().checked_sub(1)?;
    (ids[level] == getpid().as_raw_pid()).then_some(level)
}

/// The ids of a process, from the namespace of `/proc` down to its own.
fn namespace_ids(pid: i32) -> Option<Vec<i32>> {
    // Bytes, because a program name need not be UTF-8. The process may be gone by now.
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    parse_namespace_ids(&String::from_utf8_lossy(&status))
}

/// Reads the `NSpid` line of a `/proc/PID/status`, see proc_pid_status(5).
fn parse_namespace_ids(status: &str) -> Option<Vec<i32>> {
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace()
        .map(|id| id.parse().ok())
        .collect()
}

/// All processes in `/proc`, with the ids that they have in the namespace of this process; none if that is impossible.
fn processes() -> Vec<Process> {
    let (Some(level), Ok(entries)) = (namespace_level(), std::fs::read_dir("/proc")) else {
        return Vec::new();
    };
    let listed = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .collect();
    if level == 0 {
        return listed;
    }
    let ids = listed
        .iter()
        .filter_map(|process| Some((process.pid, *namespace_ids(process.pid)?.get(level)?)))
        .collect();
    translate(listed, &ids)
}

/// A process with the id that it has in `/proc`; `None` if it is gone.
fn process(pid: i32) -> Option<Process> {
    process_in(&format!("/proc/{pid}"), pid)
}

fn process_in(folder: &str, pid: i32) -> Option<Process> {
    // Bytes, because a program name need not be UTF-8.
    let stat = std::fs::read(format!("{folder}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&stat))
}

/// Replaces ids of the namespace of `/proc` by those of an inner one, and drops processes outside of it.
fn translate(processes: Vec<Process>, ids: &HashMap<i32, i32>) -> Vec<Process> {
    processes
        .into_iter()
        .filter_map(|process| {
            Some(Process {
                pid: *ids.get(&process.pid)?,
                // As the kernel shows it: the parent of the first process of a namespace has no id in it.
                parent: ids.get(&process.parent).copied().unwrap_or(0),
                ..process
            })
        })
        .collect()
}

/// Reads a line of `/proc/PID/stat`, see proc_pid_stat(5).
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    // The name is in parentheses and may contain parentheses: the last one closes it.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // num_threads is field 20; those up to the group are consumed.
    let threads: u32 = fields.nth(14)?.parse().ok()?;
    // A process whose main thread has ended looks like a zombie while its other threads run.
    let dead = matches!(state, "Z" | "X") && threads <= 1;
    Some(Process {
        pid,
        parent,
        group,
        alive: !dead,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER_PARENT: &str = "100 100 0 -1 4194304 98 0 0 0 0 0 0 0 20 0";

    #[test]
    fn name_may_contain_parentheses_and_spaces() {
        let stat = format!("42 (a) S 1 (b) Z) R 7 {AFTER_PARENT} 1 0 176765");
        let process = parse_stat(42, &stat).unwrap();
        assert_eq!(
            process,
            Process {
                pid: 42,
                parent: 7,
                group: 100,
                alive: true
            }
        );
    }

    #[test]
    fn zombie_is_dead_unless_it_still_has_threads() {
        let zombie = format!("42 (x) Z 7 {AFTER_PARENT} 1 0 176765");
        assert!(!parse_stat(42, &zombie).unwrap().alive);
        let headless = format!("42 (x) Z 7 {AFTER_PARENT} 3 0 176765");
        assert!(parse_stat(42, &headless).unwrap().alive);
    }

    #[test]
    fn truncated_line_is_ignored() {
        assert_eq!(parse_stat(42, ""), None);
        assert_eq!(parse_stat(42, "42 (x) S 7"), None);
    }

    #[test]
    fn parents_come_first_and_exceptions_exclude_their_subtree() {
        let process = |pid, parent| Process {
            pid,
            parent,
            group: 1,
            alive: true,
        };
        let all = [
            process(9, 5),
            process(5, 3),
            process(3, 1),
            process(4, 1),
            process(6, 4),
            process(2, 0),
        ];
        let pids = |found: Vec<Pid>| -> Vec<i32> {
            found.into_iter().map(|pid| pid.as_raw_pid()).collect()
        };
        assert_eq!(pids(below(1, &all, &[])), [3, 4, 5, 6, 9]);
        let four = Pid::from_raw(4).unwrap();
        assert_eq!(pids(below(1, &all, &[four])), [3, 5, 9]);
    }

    #[test]
    fn ids_of_an_outer_namespace_are_translated() {
        let ids = |line: &str| parse_namespace_ids(&format!("Name:\tx\nTgid:\t9\n{line}\n"));
        assert_eq!(ids("NSpid:\t417\t3\t1"), Some(vec![417, 3, 1]));
        assert_eq!(ids("NSpgid:\t417"), None);
        let process = |pid, parent| Process {
            pid,
            parent,
            group: 1,
            alive: true,
        };
        let outer = vec![process(1, 0), process(400, 1), process(401, 400)];
        let inner = translate(outer, &HashMap::from([(400, 1), (401, 2)]));
        assert_eq!(inner, [process(1, 0), process(2, 1)]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn real_child_is_found_and_killed() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        assert!(children().contains(&pid));
        assert!(descendants(&[]).contains(&pid));
        assert!(!descendants(&[pid]).contains(&pid));
        // Other tests of this binary have children too: kill only this one.
        let swept = kill(|| {
            descendants(&[])
                .into_iter()
                .filter(|found| *found == pid)
                .collect()
        });
        assert_eq!(swept.found, [pid]);
        assert_eq!(swept.only_denied(), None);
        assert_eq!(child.wait().unwrap().code(), None);
    }
}
