//! Every test that the docs name exists.
//!
//! In a table whose last column is headed `test`, each code span in that column must be a test, a
//! module or program of tests, a file, or a task of `cargo xtask`:
//!
//! - `redis::faults::every_key_expires`: a test of `crates/*/tests/redis/faults.rs`;
//! - `etcd::faults::members::*`: at least one, in that module;
//! - `etcd::conformance_34::lock::one_holder_at_a_time`: a conformance case that this store runs;
//!   `conformance_*::…`: all stores do; `conformance::…`: some store does;
//! - `windlass_zookeeper::tests::faults::*`: tests in a crate's sources;
//! - `xtask/src/named.rs`: a file, below the root, `crates/` or the sources of a crate;
//! - `windlass_model::quorum::three_clients`: tests of the models;
//! - `a::{b, c}`: both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn packages() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates")).expect("the folder of crates");
    let entries = entries.map(|entry| entry.expect("a folder that can be read").path());
    entries.collect()
}

/// Whether there is a file of this name below the root, `crates/`, or the sources of a crate.
fn is_a_file(name: &str) -> bool {
    let sources = packages().into_iter().map(|package| package.join("src"));
    let mut folders = sources.chain([root(), root().join("crates")]);
    folders.any(|folder| folder.join(name).is_file())
}

/// All Rust files below a folder, or the file itself.
fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let entries = entries.map(|entry| entry.expect("a folder that can be read").path());
    let deeper = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false if path.extension().is_some_and(|e| e == "rs") => vec![path],
        false => Vec::new(),
    };
    entries.flat_map(deeper).collect()
}

/// The module of a file below a folder: `a/b.rs`, `a/b/mod.rs` and `a/b/main.rs` are `a::b::`.
fn module_of(file: &Path, below: &Path) -> String {
    let parts = file.strip_prefix(below).unwrap_or(file).with_extension("");
    let parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
    let parts = parts.filter(|part| !["mod", "main", "lib"].contains(&part.as_str()));
    parts.map(|part| part + "::").collect()
}

/// The test functions in a file.
fn tests_in(text: &str) -> impl Iterator<Item = String> {
    let mut marked = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let rest = line.strip_prefix("async ").unwrap_or(line);
        let name = rest.strip_prefix("fn ").filter(|_| marked)?;
        marked = false;
        name.split(['(', '<']).next().map(str::to_owned)
    })
}

/// All tests, by their full names.
struct Tests {
    names: BTreeSet<String>,
    programs: BTreeSet<String>,
}

impl Tests {
    fn find() -> Tests {
        let (mut names, mut programs) = (BTreeSet::new(), BTreeSet::new());
        let cases = suites();
        for package in packages() {
            let folder = package.join("tests");
            let prefix = match package.ends_with("windlass-model") {
                true => "windlass_model::",
                false => "",
            };
            for file in sources(&folder) {
                let module = prefix.to_owned() + &module_of(&file, &folder);
                let text = read(&file);
                programs.insert(module.trim_end_matches("::").to_owned());
                names.extend(tests_in(&text).map(|test| format!("{module}{test}")));
                let ran = cases.iter().filter(|(suite, _)| {
                    let call = format!("windlass_testkit::{suite}!");
                    text.contains(&call)
                });
                let cases = ran.flat_map(|(_, cases)| cases.iter().cloned());
                let own = listed(&text);
                names.extend(cases.chain(own).map(|case| format!("{module}{case}")));
            }
            let folder = package.join("src");
            for file in sources(&folder) {
                let name = package.file_name().expect("a package").to_string_lossy();
                let module = name.replace('-', "_") + "::" + &module_of(&file, &folder);
                let text = read(&file);
                names.extend(tests_in(&text).map(|test| format!("{module}{test}")));
                if text.contains("mod tests {") {
                    let inner = |test| format!("{module}tests::{test}");
                    names.extend(tests_in(&text).map(inner));
                }
            }
        }
        Tests { names, programs }
    }

    /// The problem with a name, if there is one.
    fn complaint(&self, named: &str) -> Option<String> {
        if named.starts_with("cargo xtask ") {
            return None;
        }
        let missing = |name: &String| !self.has(name);
        let all = expand(named)
            .into_iter()
            .flat_map(|name| self.everywhere(name));
        all.into_iter()
            .find(missing)
            .map(|name| format!("`{named}`: there is no test {name}"))
    }

    fn has(&self, name: &str) -> bool {
        if name.contains('/') {
            return is_a_file(name);
        }
        if let Some(case) = name.strip_prefix("conformance::") {
            let name = format!("*::conformance*::{case}");
            return self.names.iter().any(|test| fits(&name, test));
        }
        let inside = format!("{name}::");
        match name.contains('*') {
            true => self.names.iter().any(|test| fits(name, test)),
            false => {
                self.names.contains(name)
                    || self.programs.contains(name)
                    || self.names.iter().any(|test| test.starts_with(&inside))
            }
        }
    }

    /// `conformance_*` stands for all conformance suites.
    fn everywhere(&self, name: String) -> Vec<String> {
        let Some(rest) = name.strip_prefix("conformance_*") else {
            return vec![name];
        };
        let suites = self.programs.iter();
        let suites = suites.filter(|program| program.contains("::conformance"));
        suites.map(|suite| format!("{suite}{rest}")).collect()
    }
}

/// The cases of each macro of the conformance suite.
fn suites() -> BTreeMap<String, BTreeSet<String>> {
    let file = root().join("crates/windlass-testkit/src/conformance/mod.rs");
    let text = read(&file);
    let macros = text.split("macro_rules! ").skip(1);
    let bodies: BTreeMap<&str, &str> = macros.filter_map(|body| body.split_once(" {")).collect();
    fn cases_of(name: &str, bodies: &BTreeMap<&str, &str>) -> BTreeSet<String> {
        let body = bodies[name];
        let mut cases: BTreeSet<String> = listed(body).collect();
        for other in bodies.keys().filter(|other| **other != name) {
            if body.contains(&format!("$crate::{other}! {{")) {
                cases.extend(cases_of(other, bodies));
            }
        }
        cases
    }
    let suites = bodies.keys().filter(|name| **name != "conformance_cases");
    suites
        .map(|name| ((*name).to_owned(), cases_of(name, &bodies)))
        .collect()
}

/// The cases that `conformance_cases! { store; topic: case, case; … }` lists.
fn listed(text: &str) -> impl Iterator<Item = String> {
    let calls = text.split("conformance_cases! {").skip(1);
    let lists = calls.filter_map(|call| call.split('}').next()?.split_once(';'));
    let topics = lists.flat_map(|(_, list)| list.split(';'));
    topics
        .filter_map(|topic| topic.split_once(':'))
        .flat_map(|(topic, cases)| {
            let cases = cases
                .split(',')
                .map(str::trim)
                .filter(|case| !case.is_empty());
            cases.map(move |case| format!("{}::{case}", topic.trim()))
        })
        .collect::<Vec<_>>()
        .into_iter()
}

/// `a{b, c}d` is `abd` and `acd`.
fn expand(named: &str) -> Vec<String> {
    let parts = named.split_once('{').and_then(|(before, rest)| {
        let (inner, after) = rest.split_once('}')?;
        Some((before, inner, after))
    });
    let Some((before, inner, after)) = parts else {
        return vec![named.to_owned()];
    };
    let each = inner.split(',').map(str::trim);
    each.flat_map(|one| expand(&format!("{before}{one}{after}")))
        .collect()
}

/// Whether a name matches a pattern with stars.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let ends = (0..=rest.len()).filter(|end| rest.is_char_boundary(*end));
            ends.into_iter().any(|end| fits(after, &rest[end..]))
        }),
    }
}

/// The code spans in a text.
fn in_code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of tables whose last column names tests, each with that column.
fn backed(page: &str) -> Vec<(&str, &str)> {
    let mut rows = Vec::new();
    let mut names_tests = None;
    for line in page.lines() {
        let cells = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'));
        let Some(last) = cells.and_then(|cells| cells.rsplit('|').next()) else {
            names_tests = None;
            continue;
        };
        match names_tests {
            None => {
                let head = last.trim();
                names_tests = Some(head == "test");
            }
            Some(true) if !line.starts_with("|---") => rows.push((line, last)),
            Some(_) => {}
        }
    }
    rows
}

/// The problems with the tests that a page names, and the number of rows.
fn check(tests: &Tests, page: &str) -> (Vec<String>, usize) {
    let mut complaints = Vec::new();
    let rows = backed(page);
    for (row, named) in &rows {
        if in_code(named).next().is_none() {
            complaints.push(format!("no test is named here: {row}"));
        }
        complaints.extend(in_code(named).filter_map(|name| tests.complaint(name)));
    }
    // Outside those tables, every code span that looks like a test.
    let elsewhere = in_code(page).filter(|name| {
        let program = name.split("::").next().unwrap_or_default();
        let tests_in_sources = program.starts_with("windlass_");
        name.contains("::") && (tests_in_sources || tests.programs.contains(program))
    });
    complaints.extend(elsewhere.filter_map(|name| tests.complaint(name)));
    (complaints, rows.len())
}

#[test]
fn every_documented_test_exists() {
    let tests = Tests::find();
    for (page, at_least) in [("choose-a-backend.md", 60), ("reliability.md", 100)] {
        let text = read(&root().join("docs").join(page));
        let (complaints, rows) = check(&tests, &text);
        assert!(rows >= at_least, "{page} has only {rows} rows with tests");
        assert!(complaints.is_empty(), "{page}:\n{}", complaints.join("\n"));
    }
}

/// A path in `ARCHITECTURE.md` that names a crate or `xtask` leads somewhere, and so does each file in the table of
/// the stores' files.
#[test]
fn every_path_in_the_architecture_exists() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let crates = root().join("crates");
    let mut missing: Vec<String> = in_code(&page)
        .filter(|path| path.starts_with("windlass") && path.contains('/'))
        .filter(|path| !crates.join(path).exists())
        .map(str::to_owned)
        .collect();
    let stores = [
        "core",
        "file",
        "redis",
        "redlock",
        "etcd",
        "zookeeper",
        "postgres",
    ];
    let table = page.split("## The same job").nth(1).expect("the table");
    let table = table.split("## ").next().expect("its end");
    let mut rows = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        for (store, cell) in stores.iter().zip(row.split('|').skip(2)) {
            let folder = crates.join(format!("windlass-{store}/src"));
            let absent = in_code(cell).filter(|file| !folder.join(file).exists());
            missing.extend(absent.map(|file| format!("{store}: {file}")));
        }
        rows += 1;
    }
    assert!(rows > 10, "the table has only {rows} rows");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn missing_tests_are_reported() {
    let tests = Tests::find();
    let there = [
        "redis::faults::every_key_expires",
        "sentinel::failover::fences::*",
        "processes::locks::*_on_zookeeper",
        "etcd::conformance_34::lock::one_holder_at_a_time",
        "conformance_*::rwlock::{writers_do_not_starve, writer_downgrades_to_reader}",
        "redlock::conformance::unsound_operations_are_unsupported",
        "{redlock::conformance,etcd::conformance_34}::unsupported::flow_and_data_are_unsupported",
        "redlock::conformance::unsupported::latches_and_barriers_are_unsupported",
        "redlock::conformance",
        "windlass_model::quorum::three_clients",
        "conformance::limit::concurrent_requests_never_exceed_the_quota",
        "windlass_core::rules::claims::tests",
        "xtask/src/named.rs",
        "cargo xtask interop",
    ];
    for name in there {
        assert_eq!(tests.complaint(name), None);
    }
    let missing = [
        "redis::faults::every_key_has_a_beginning",
        "sentinel::failover::fence::*",
        "sentinel::failover::fences_increase_after_a_failover_that_lost_grants",
        "processes::locks::*_on_paper",
        // A quorum has no semaphores, latches or barriers, and etcd no limiters.
        "conformance_*::semaphore::never_exceeds_its_capacity",
        "conformance_*::latch::opens_at_zero",
        "conformance_*::barrier::excess_party_waits_for_the_next_round",
        "etcd::conformance_34::limit::concurrent_requests_never_exceed_the_quota",
        "conformance_*::rwlock::{writers_do_not_starve, readers_do_not_starve}",
        "paper::conformance",
        "conformance::limit::a_crowd_gets_more",
        "windlass_core::rules::paper::tests",
        "backend/paper.rs",
        "quorum::three_clients",
        // A function, but not a test.
        "histories::clients",
    ];
    for name in missing {
        assert!(tests.complaint(name).is_some(), "{name}");
    }
}
