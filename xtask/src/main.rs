//! The project's own chores: `cargo xtask test`, `cargo xtask ci`.

mod mutants;
#[cfg(test)]
mod named;
mod run;
mod servers;
mod times;

use std::process::ExitCode;

use run::{Step, cargo};

const USAGE: &str = "\
usage: cargo xtask <chore>

  test   install what servers are missing, then run every test, and tell how long they took:
         models and history checker may take 15 minutes
  quick  core, memory, file and a smoke test of the command line: no server, under two minutes
  mutants [WORD] [--jobs N]
         break each safety promise on purpose, and see its test fail; in N copies of the sources
         at once (2)
  interop [--only NAME] [--broken] [--list]
         count together with other libraries, under locks of one name
  ci     formatting, lints, documentation, each feature alone, then `test` and `interop`
";

fn main() -> ExitCode {
    let chore = std::env::args().nth(1).unwrap_or_default();
    let done = match chore.as_str() {
        "test" => test(),
        "quick" => quick(),
        "mutants" => mutants(),
        "interop" => interop(&std::env::args().skip(2).collect::<Vec<_>>()),
        "ci" => ci(),
        // For cargo, which runs test programs through it.
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

/// What can be tested without a server, after each change.
fn quick() -> Result<(), String> {
    cargo("test", &["-p", "windlass-core", "-p", "windlass-file"], &[])?;
    let library = [
        "-p", "windlass", "--lib", "--test", "memory", "--test", "file",
    ];
    cargo("test", &library, &[])?;
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
    cargo("test", &smoke, &[])
}

/// Every test there is, on real servers.
fn test() -> Result<(), String> {
    test_on(servers::provide()?)
}

/// The same, with variables that say where the servers are.
fn test_on(mut variables: Vec<(String, String)>) -> Result<(), String> {
    let times = times::begin()?;
    variables.extend(times.iter().cloned());
    // One after the other: the suites measure time, and start servers of their own.
    let tested = cargo("test", &["--workspace", "--no-fail-fast"], &variables);
    let in_time = times::end(&times);
    tested.and(in_time)
}

/// Every broken variant must be caught.
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

/// Other libraries' locks and ours keep each other out.
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

/// All that must hold before a change lands.
fn ci() -> Result<(), String> {
    cargo("fmt", &["--all", "--check"], &[])?;
    let servers = std::thread::scope(|scope| {
        // Meanwhile, as much of it is downloading.
        let servers = scope.spawn(servers::provide);
        let linted = lint();
        let servers = servers.join().map_err(|_| "providing servers panicked")?;
        linted.and(servers)
    })?;
    test_on(servers)?;
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
    // Each backend alone, and none.
    for features in [
        "",
        "file",
        "redis",
        "redlock",
        "etcd",
        "zookeeper",
        "zookeeper-tls",
    ] {
        let alone = ["-p", "windlass", "--no-default-features", "--features"];
        cargo("check", &[&alone[..], &[features]].concat(), &[])?;
    }
    // The command line without `bench` and `demo`.
    let alone = ["-p", "windlass-cli", "--no-default-features"];
    cargo("check", &alone, &[])?;
    Ok(())
}
