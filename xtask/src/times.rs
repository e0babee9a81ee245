//! How long each test program takes, and whether models and history checker stay within their
//! budget.
//!
//! Cargo runs each test program through `xtask timed`, which runs it unchanged and records its
//! duration. So every test runs once, in one command.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::servers;

/// Where `timed` writes.
const VARIABLE: &str = "WINDLASS_TEST_TIMES";
/// The limit for models and checker together, on two cores.
const BUDGET: Duration = Duration::from_secs(15 * 60);
/// How many of the slowest programs are printed.
const SHOWN: usize = 10;

/// One test program.
#[derive(Debug, PartialEq)]
struct Program {
    /// The package.
    package: String,
    /// The name of the program in the package.
    name: String,
    took: Duration,
}

/// The variables that make cargo run test programs through `xtask timed`.
pub(crate) fn begin() -> Result<Vec<(String, String)>, String> {
    // Test programs run in the folders of their packages.
    let file = std::path::absolute(servers::target().join("test-times"))
        .map_err(|e| format!("where is the target folder? {e}"))?;
    File::create(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let exe = std::env::current_exe().map_err(|e| format!("where is xtask? {e}"))?;
    let exe = exe.display().to_string();
    if exe.contains(char::is_whitespace) {
        return Err(format!("cargo cannot run {exe}: its path has blanks"));
    }
    let runner = format!("CARGO_TARGET_{}_RUNNER", host()?);
    Ok(vec![
        (runner, format!("{exe} timed")),
        (VARIABLE.to_owned(), file.display().to_string()),
    ])
}

/// The target triple, in the spelling of cargo's variables.
fn host() -> Result<String, String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(&rustc).arg("-vV").output();
    let output = output.map_err(|e| format!("{rustc} -vV: {e}"))?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| format!("{rustc} -vV does not tell the host"))?;
    Ok(host.to_uppercase().replace(['-', '.'], "_"))
}

/// Runs a test program unchanged, and records its duration.
pub(crate) fn timed(args: &[String]) -> ExitCode {
    let [program, rest @ ..] = args else {
        return ExitCode::from(2);
    };
    let began = Instant::now();
    let status = Command::new(program).args(rest).status();
    let took = began.elapsed();
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let line = format!("{package}\t{}\t{}\n", name_of(program), took.as_millis());
    if let Ok(file) = std::env::var(VARIABLE)
        && let Ok(mut file) = OpenOptions::new().append(true).open(file)
    {
        // A missing record is an error in the end.
        let _ = file.write_all(line.as_bytes());
    }
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("xtask: {program}: {status}");
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            ExitCode::from(code.unwrap_or(1))
        }
        Err(e) => {
            eprintln!("xtask: {program}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The file name without the hash that cargo appends.
fn name_of(program: &str) -> &str {
    let stem = Path::new(program)
        .file_stem()
        .and_then(|stem| stem.to_str());
    let stem = stem.unwrap_or(program);
    stem.rsplit_once('-').map_or(stem, |(name, _)| name)
}

/// Prints the durations; an error if models and checker took too long, or did not run.
pub(crate) fn end(variables: &[(String, String)]) -> Result<(), String> {
    let file = variables.iter().find(|(name, _)| name == VARIABLE);
    let (_, file) = file.ok_or("nobody wrote down how long tests take")?;
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let (report, verdict) = judge(&read(&text));
    eprintln!("{report}");
    verdict
}

fn read(text: &str) -> Vec<Program> {
    let program = |line: &str| {
        let mut parts = line.split('\t');
        Some(Program {
            package: parts.next()?.to_owned(),
            name: parts.next()?.to_owned(),
            took: Duration::from_millis(parts.next()?.parse().ok()?),
        })
    };
    text.lines().filter_map(program).collect()
}

fn judge(programs: &[Program]) -> (String, Result<(), String>) {
    let sum = |what: &dyn Fn(&Program) -> bool| {
        let of_these = || programs.iter().filter(|program| what(program));
        let took: Duration = of_these().map(|program| program.took).sum();
        (of_these().next().is_some(), took)
    };
    let (modelled, models) = sum(&|p| p.package == "windlass-model");
    let (checked, checker) = sum(&|p| p.package == "windlass" && p.name == "histories");
    let mut slowest: Vec<&Program> = programs.iter().collect();
    slowest.sort_by_key(|program| std::cmp::Reverse(program.took));
    let mut report = "xtask: the slowest test programs:\n".to_owned();
    for Program {
        package,
        name,
        took,
    } in slowest.into_iter().take(SHOWN)
    {
        let took = took.as_secs_f64();
        report.push_str(&format!("xtask: {took:8.1} s  {package}::{name}\n"));
    }
    let seconds = |time: Duration| time.as_secs();
    report.push_str(&format!(
        "xtask: models {} s, checker {} s, of {} s together",
        seconds(models),
        seconds(checker),
        seconds(BUDGET)
    ));
    let verdict = match (modelled && checked, models + checker <= BUDGET) {
        (true, true) => Ok(()),
        (false, _) => Err("models or checker were not run, or not timed".to_owned()),
        (true, false) => Err(format!(
            "models and checker took {} s together, and {} s is all they may: narrow what CI searches, and leave the \
             rest to WINDLASS_MODEL=long and WINDLASS_TEST_HISTORY_SECONDS",
            seconds(models + checker),
            seconds(BUDGET)
        )),
    };
    (report, verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "windlass-model\tquorum\t60000\nwindlass-model\treduction\t40000\n\
                       windlass\thistories\t200000\nwindlass\tprocesses\t999000\n";

    #[test]
    fn models_and_checker_are_summed_up_and_the_slowest_are_told() {
        let (report, verdict) = judge(&read(RUN));
        assert_eq!(verdict, Ok(()));
        assert!(report.contains("models 100 s, checker 200 s"), "{report}");
        assert!(report.contains("999.0 s  windlass::processes"), "{report}");
    }

    #[test]
    fn too_long_is_an_error() {
        let long = RUN.replace("200000", "800001");
        let (_, verdict) = judge(&read(&long));
        let words = verdict.unwrap_err();
        assert!(words.contains("took 900 s"), "{words}");
        let just = RUN.replace("200000", "800000");
        assert_eq!(judge(&read(&just)).1, Ok(()));
    }

    #[test]
    fn what_was_not_timed_is_an_error() {
        for missing in ["windlass-model", "histories"] {
            let run = RUN.replace(missing, "other");
            assert!(judge(&read(&run)).1.is_err(), "without {missing}");
        }
        assert!(judge(&read("")).1.is_err());
    }

    #[test]
    fn programs_go_by_their_names() {
        let path = "/some/where/target/debug/deps/etcd_faults-0123456789abcdef";
        assert_eq!(name_of(path), "etcd_faults");
    }
}
