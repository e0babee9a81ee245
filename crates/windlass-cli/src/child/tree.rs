//! Finds and kills the descendants of a process.
//!
//! On Linux the process tree is read from `/proc`. Processes fork while it is read, so killing repeats until no new
//! process appears, and callers repeat that until none is left.

use std::collections::HashSet;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};

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
    if proc_is_usable() {
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
    alive: bool,
}

/// Whether `/proc` exists and belongs to the process namespace of this process. In a new namespace it may still be that
/// of the host, with other ids.
fn proc_is_usable() -> bool {
    let me = getpid().as_raw_pid().to_string();
    cfg!(target_os = "linux")
        && std::fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == me.as_str())
}

/// All processes in `/proc`; none if it is not usable.
fn processes() -> Vec<Process> {
    if !proc_is_usable() {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            // Bytes, because a program name need not be UTF-8. The process may be gone by now.
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            parse_stat(pid, &String::from_utf8_lossy(&stat))
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
    // num_threads is field 20; pid, name, state and parent are consumed.
    let threads: u32 = fields.nth(15)?.parse().ok()?;
    // A process whose main thread has ended looks like a zombie while its other threads run.
    let dead = matches!(state, "Z" | "X") && threads <= 1;
    Some(Process {
        pid,
        parent,
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
