//! Runs clients of a store under random faults, and reports what their history shows:
//! `cargo xtask chaos [--minutes N] [--store NAME]…`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use windlass_testkit::chaos::{ChaosReport, FaultScenario, NAMES, run_if_worker, start_store};

const USAGE: &str = "\
usage: chaos [--minutes N] [--store NAME]… --windlass PATH

  --minutes N      how long each store is under faults (default 10; fractions are possible)
  --store NAME     only this store, can be repeated (default: all)
  --windlass PATH  the program `windlass`, which runs commands under the lock
";

struct ChaosArgs {
    minutes: f64,
    stores: Vec<String>,
    windlass: PathBuf,
}

/// `None` if help is asked for.
fn parse() -> Result<Option<ChaosArgs>, String> {
    let (mut minutes, mut stores, mut windlass) = (10.0, Vec::new(), None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--help" || arg == "-h" {
            return Ok(None);
        }
        let value = args.next().ok_or(format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--minutes" => {
                let number = value
                    .parse()
                    .ok()
                    .filter(|n: &f64| *n > 0.0 && *n <= 1440.0);
                minutes = number.ok_or("--minutes takes a number up to 1440")?;
            }
            "--store" if NAMES.contains(&value.as_str()) => stores.push(value),
            "--store" => return Err(format!("no store {value}: one of {}", NAMES.join(", "))),
            "--windlass" => windlass = Some(PathBuf::from(value)),
            _ => return Err(format!("{arg} is not an option")),
        }
    }
    if stores.is_empty() {
        stores = NAMES.map(str::to_owned).to_vec();
    }
    Ok(Some(ChaosArgs {
        minutes,
        stores,
        windlass: windlass.ok_or("--windlass is missing")?,
    }))
}

fn main() -> ExitCode {
    if std::env::var_os("WINDLASS_TEST_ROLE").is_some() {
        run_if_worker();
        return ExitCode::SUCCESS;
    }
    let args = match parse() {
        Ok(Some(args)) => args,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprint!("chaos: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let lasts = Duration::from_secs_f64(args.minutes * 60.0);
    let folder = std::env::temp_dir();
    let mut reports = Vec::new();
    for name in &args.stores {
        eprintln!("chaos: {name}, {} minutes", args.minutes);
        let store = start_store(name).expect("the name was checked");
        let scenario = FaultScenario::new(name, &*store, lasts, &folder)
            .with_severe_faults()
            .with_commands(args.windlass.clone());
        reports.push(scenario.report());
    }
    println!("\n{}", ChaosReport::HEADER);
    for report in &reports {
        println!("{report}");
    }
    let fine = reports.iter().all(ChaosReport::is_fine);
    ExitCode::from(u8::from(!fine))
}
