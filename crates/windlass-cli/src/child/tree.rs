//! Finding and killing everything below a process.
//!
//! On Linux the tree is read from `/proc`. The picture is never quite fresh: processes fork while it is being taken.
//! Therefore killing repeats until nobody new appears, and the callers repeat that until nobody is left.

use std::collections::HashSet;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};

/// How often one [`kill`] looks again before it lets its caller reap what died: enough to catch up with a program that
/// starts others, and an end to racing a fork bomb.
const MOST_WALKS: usize = 64;

/// What a [`kill`] met.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// Processes that were alive when found. They die soon, but not before `kill` returns.
    pub(super) found: Vec<Pid>,
    /// Those among them that belong to somebody else (`sudo`): we may not signal them.
    denied: Vec<Pid>,
}

impl Swept {
    /// One of those left, when none of them will ever die by our hand.
    pub(super) fn only_denied(&self) -> Option<Pid> {
        (self.denied.len() == self.found.len())
            .then(|| self.denied.first().copied())
            .flatten()
    }
}

/// From now on, orphans among our descendants become our children, not those of init.
///
/// Only where we could find them again: to wait for adopted processes without being able to kill them is to wait for ever.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if proc_is_ours() {
        rustix::process::set_child_subreaper(Some(getpid()))?;
    }
    Ok(())
}

/// Kills whatever `find` finds, again and again until it finds nobody new.
pub(super) fn kill(find: impl Fn() -> Vec<Pid>) -> Swept {
    let mut seen = HashSet::new();
    let mut swept = Swept::default();
    for _ in 0..MOST_WALKS {
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

/// The children this process has now, whoever started them.
///
/// A shell can fork and then become us (`sh -c 'server & exec windlass …'`), and a command may have left a server
/// behind: these are none of the next command's business.
pub(super) fn children() -> Vec<Pid> {
    // Almost nobody has any, and this answers so without a walk through /proc.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if matches!(waitid(WaitId::All, look), Err(Errno::CHILD)) {
        return Vec::new();
    }
    let me = getpid().as_raw_pid();
    processes()
        .into_iter()
        .filter(|process| process.parent == me)
        .filter_map(|process| Pid::from_raw(process.pid))
        .collect()
}

/// Every living process below this one, parents before their children, without those below (and in) `except`.
///
/// The order matters to whoever signals them: a shell whose child dies first would go on to its next line.
pub(super) fn descendants(except: &[Pid]) -> Vec<Pid> {
    below(getpid().as_raw_pid(), &processes(), except)
}

fn below(root: i32, processes: &[Process], except: &[Pid]) -> Vec<Pid> {
    let mut found: Vec<Pid> = Vec::new();
    // Guards against going round in circles: a number reused during the walk can make a process its own ancestor.
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

/// Whether `/proc` exists and calls processes by the numbers we know them by. In a fresh process namespace it may
/// still be that of the host, where our own number is somebody else.
fn proc_is_ours() -> bool {
    let me = getpid().as_raw_pid().to_string();
    cfg!(target_os = "linux")
        && std::fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == me.as_str())
}

/// Everything that `/proc` shows; nothing where there is no such thing.
fn processes() -> Vec<Process> {
    if !proc_is_ours() {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            // Bytes, because a program may call itself anything. It may also be gone by now.
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            parse_stat(pid, &String::from_utf8_lossy(&stat))
        })
        .collect()
}

/// Reads a line of `/proc/PID/stat`, see proc_pid_stat(5).
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    // The name is in parentheses and may contain any of them: only the last one closes it.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // Two fields of twenty are consumed besides pid and name; num_threads is the twentieth.
    let threads: u32 = fields.nth(15)?.parse().ok()?;
    // A process whose first thread has ended looks like a zombie as long as its other threads run.
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
    fn a_name_may_contain_parentheses_and_spaces() {
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
    fn a_zombie_is_dead_unless_it_still_has_threads() {
        let zombie = format!("42 (x) Z 7 {AFTER_PARENT} 1 0 176765");
        assert!(!parse_stat(42, &zombie).unwrap().alive);
        let headless = format!("42 (x) Z 7 {AFTER_PARENT} 3 0 176765");
        assert!(parse_stat(42, &headless).unwrap().alive);
    }

    #[test]
    fn a_truncated_line_is_nobody() {
        assert_eq!(parse_stat(42, ""), None);
        assert_eq!(parse_stat(42, "42 (x) S 7"), None);
    }

    #[test]
    fn parents_come_before_children_and_exceptions_take_their_subtree_along() {
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
    fn a_real_child_is_found_and_killed() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        assert!(children().contains(&pid));
        assert!(descendants(&[]).contains(&pid));
        assert!(!descendants(&[pid]).contains(&pid));
        // Other tests of this binary have children too; only this one is ours to kill.
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
