//! Project tasks: `cargo xtask test`, `cargo xtask ci`.

mod book;
mod links;
mod mutants;
#[cfg(test)]
mod named;
mod package;
mod plot;
mod run;
mod servers;
mod times;

use std::process::ExitCode;

use run::{Step, cargo};

const USAGE: &str = "\
usage: cargo xtask <task>

  test   install missing servers, run every test, and print the durations;
         models and history checker may take 15 minutes
  quick  core, memory, file and a smoke test of the command line, without servers, in two minutes
  mutants [WORD] [--jobs N]
         break each safety promise on purpose and check that its test fails, in N copies of the
         sources at once (default 2)
  interop [--only NAME] [--broken] [--list]
         check that Windlass and other libraries' locks exclude each other
  chaos [--minutes N] [--store NAME]...
         clients of each store under random faults for N minutes (default 10); prints grants,
         faults, overlaps, fences that go back, leaks, and the longest time without service
  book   build the pages of docs/ with the command reference into target/book, and check links
  package [--static] [--verify] | --debug
         build and try a Debian package and an archive of the command line, and pack the crates, into
         target/package; --static also a static binary, --verify compiles each crate as published,
         --debug uses the unoptimized binary, in seconds
  ci     formatting, lints, documentation, each feature alone, then `test`, `book`, packaging of an
         unoptimized binary, `interop`
";

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let done = match task.as_str() {
        "test" => test(),
        "quick" => quick(),
        "mutants" => mutants(),
        "interop" => interop(&std::env::args().skip(2).collect::<Vec<_>>()),
        "chaos" => chaos(&std::env::args().skip(2).collect::<Vec<_>>()),
        "book" => book::book(),
        "package" => package::package(&std::env::args().skip(2).collect::<Vec<_>>()),
        "ci" => ci(),
        // Cargo runs test programs through this.
        "timed" => return times::timed(&std::env::args().skip(2).collect::<Vec<_>>()),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Tests wait more than they compute, so more of them run at once than there are cores.
fn test_threads(count: u32) -> (String, String) {
    ("RUST_TEST_THREADS".to_owned(), count.to_string())
}

/// Tests that need no server, for after each change.
fn quick() -> Result<(), String> {
    let threads = [test_threads(8)];
    cargo(
        "test",
        &["-p", "windlass-core", "-p", "windlass-file"],
        &threads,
    )?;
    let library = [
        "-p", "windlass", "--lib", "--test", "memory", "--test", "file",
    ];
    cargo("test", &library, &threads)?;
    // The other tests of the command line need servers.
    let smoke = [
        "-p",
        "windlass-cli",
        "--test",
        "cli",
        "--",
        "--skip",
        "redis",
        "--skip",
        "docs",
    ];
    cargo("test", &smoke, &threads)
}

/// All tests, on real servers.
fn test() -> Result<(), String> {
    test_on(servers::provide()?)
}

/// The same, with the variables that locate the servers.
fn test_on(mut variables: Vec<(String, String)>) -> Result<(), String> {
    let times = times::begin()?;
    variables.extend(times.iter().cloned());
    variables.push(test_threads(4));
    // One program after the other: the suites measure time and start their own servers.
    let tested = cargo("test", &["--workspace", "--no-fail-fast"], &variables);
    let in_time = times::end(&times);
    tested.and(in_time)
}

/// Every mutant must be caught.
fn mutants() -> Result<(), String> {
    let (mut only, mut jobs) = (None, 2);
    let mut args = std::env::args().skip(2);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--jobs" => {
                let number = args.next().and_then(|number| number.parse().ok());
                jobs = number.ok_or("--jobs takes a number")?;
            }
            _ => only = Some(arg),
        }
    }
    mutants::hunt(&servers::provide()?, only.as_deref(), jobs)
}

/// Clients under random faults, for as long as is asked for.
fn chaos(args: &[String]) -> Result<(), String> {
    let variables = servers::provide()?;
    cargo("build", &["--package", "windlass-cli"], &variables)?;
    let windlass = std::path::absolute(servers::target().join("debug/windlass"))
        .map_err(|e| format!("where is the target folder? {e}"))?;
    let windlass = windlass.display().to_string();
    let mut run = vec![
        "--quiet",
        "--package",
        "windlass-testkit",
        "--bin",
        "chaos",
        "--",
    ];
    run.extend(["--windlass", &windlass]);
    run.extend(args.iter().map(String::as_str));
    cargo("run", &run, &variables)
}

/// Windlass and other libraries' locks exclude each other.
fn interop(args: &[String]) -> Result<(), String> {
    let mut variables = servers::provide()?;
    let home = servers::target().join("interop");
    variables.push((
        "WINDLASS_INTEROP_HOME".to_owned(),
        home.display().to_string(),
    ));
    let mut run = vec!["--quiet", "--package", "windlass-interop", "--"];
    run.extend(args.iter().map(String::as_str));
    cargo("run", &run, &variables)
}

/// All checks for a change.
fn ci() -> Result<(), String> {
    cargo("fmt", &["--all", "--check"], &[])?;
    let servers = std::thread::scope(|scope| {
        // Concurrently, as much of it is downloading.
        let servers = scope.spawn(servers::provide);
        let linted = lint();
        let servers = servers.join().map_err(|_| "providing servers panicked")?;
        linted.and(servers)
    })?;
    test_on(servers)?;
    // The program that runs for minutes elsewhere works.
    chaos(&["--minutes", "0.2", "--store", "file"].map(str::to_owned))?;
    // The program that the book describes has just been built.
    book::book()?;
    package::try_packaging()?;
    interop(&[])
}

/// Lints, documentation, each feature alone.
fn lint() -> Result<(), String> {
    let steps: [Step; 2] = [
        (
            "clippy",
            &["--workspace", "--all-targets", "--", "-D", "warnings"],
        ),
        ("doc", &["--workspace", "--no-deps"]),
    ];
    let strict = [("RUSTDOCFLAGS".to_owned(), "-D warnings".to_owned())];
    for (command, args) in steps {
        cargo(command, args, &strict)?;
    }
    // Each feature alone, and none. Tests have metrics, so this is also the check without them.
    for features in [
        "",
        "blocking",
        "file",
        "metrics",
        "redis",
        "redlock",
        "etcd",
        "postgres",
        "zookeeper",
        "zookeeper-tls",
    ] {
        let alone = ["-p", "windlass", "--no-default-features", "--features"];
        cargo("check", &[&alone[..], &[features]].concat(), &[])?;
    }
    // The command line without `bench` and `demo`, and with everything.
    for features in ["--no-default-features", "--all-features"] {
        cargo("check", &["-p", "windlass-cli", features], &[])?;
    }
    // An example with dependencies of its own, which the documentation shows.
    let manifest = "examples/opentelemetry/Cargo.toml";
    let target = servers::target().display().to_string();
    let example = [
        "--locked",
        "--manifest-path",
        manifest,
        "--target-dir",
        &target,
    ];
    cargo("check", &example, &[])
}
