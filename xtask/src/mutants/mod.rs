//! A test that cannot fail proves nothing: each mutant breaks one safety promise in a copy of the
//! sources, and the test for that promise must fail.

mod bloom;
mod claims;
mod copy;
mod counters;
mod etcd;
mod file;
mod limits;
mod master_epoch;
mod metrics;
mod middleware;
mod permissions;
mod postgres;
mod quorum;
mod redis_claims;
mod replicated;
mod run;
mod traces;
mod zookeeper;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use self::copy::copy_sources;

/// One mutant: a text replacement in a source file.
struct Mutant {
    /// The promise that it breaks.
    breaks: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// Arguments of `cargo test` that must fail.
    caught_by: &'static [&'static str],
}

/// The folder that `file` is relative to.
const CRATES: &str = "crates";

/// The mutants by area; the name of an area selects its mutants.
const AREAS: &[(&str, &[Mutant])] = &[
    ("bloom", bloom::MUTANTS),
    ("claims", claims::MUTANTS),
    ("counters", counters::MUTANTS),
    ("etcd", etcd::MUTANTS),
    ("file", file::MUTANTS),
    ("limits", limits::MUTANTS),
    ("master_epoch", master_epoch::MUTANTS),
    ("metrics", metrics::MUTANTS),
    ("middleware", middleware::MUTANTS),
    ("permissions", permissions::MUTANTS),
    ("postgres", postgres::MUTANTS),
    ("quorum", quorum::MUTANTS),
    ("redis_claims", redis_claims::MUTANTS),
    ("replicated", replicated::MUTANTS),
    ("run", run::MUTANTS),
    ("traces", traces::MUTANTS),
    ("zookeeper", zookeeper::MUTANTS),
];

impl Mutant {
    /// The source with the promise broken.
    fn apply(&self, original: &str) -> Result<String, String> {
        match original.matches(self.from).count() {
            1 => Ok(original.replace(self.from, self.to)),
            n => Err(format!(
                "the mutant against {:?} fits {} {n} times, not once",
                self.breaks, self.file
            )),
        }
    }
}

/// Runs each mutant against its test in `jobs` trees at once, and reports those that survived.
pub(crate) fn hunt(
    variables: &[(String, String)],
    only: Option<&str>,
    jobs: usize,
) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let home = crate::servers::target().join("mutants");
    let mut chosen: Vec<&Mutant> = AREAS
        .iter()
        .flat_map(|(area, mutants)| mutants.iter().map(move |mutant| (area, mutant)))
        .filter(|(area, m)| only.is_none_or(|word| **area == word || m.breaks.contains(word)))
        .map(|(_, mutant)| mutant)
        .collect();
    // Grouped by test program and file, so that less is compiled in between.
    chosen.sort_by_key(|mutant| (mutant.caught_by, mutant.file));
    let (count, began) = (chosen.len(), Instant::now());
    let per_job = count.div_ceil(jobs.max(1)).max(1);
    let survivors: Result<Vec<Vec<&str>>, String> = std::thread::scope(|scope| {
        let running: Vec<_> = chosen
            .chunks(per_job)
            .enumerate()
            .map(|(job, mutants)| {
                let (root, tree) = (&root, home.join(format!("tree-{job}")));
                scope.spawn(move || work(root, &tree, mutants, variables))
            })
            .collect();
        let ended = running.into_iter().map(|job| job.join());
        ended
            .map(|job| job.unwrap_or_else(|_| Err("a job panicked".to_owned())))
            .collect()
    });
    let survivors = survivors?.concat();
    println!("{} s in {jobs} jobs", began.elapsed().as_secs());
    println!(
        "{} passed, {} failed",
        count - survivors.len(),
        survivors.len()
    );
    match survivors.is_empty() {
        true => Ok(()),
        false => Err(format!("not noticed by any test: {}", survivors.join("; "))),
    }
}

/// Runs the mutants of one job, one after the other, in its own tree. Returns those that survived.
fn work<'a>(
    root: &Path,
    tree: &Path,
    mutants: &[&'a Mutant],
    variables: &[(String, String)],
) -> Result<Vec<&'a str>, String> {
    let text = |e: std::io::Error| e.to_string();
    copy_sources(root, tree).map_err(text)?;
    let job = MutantJob { tree, variables };
    let mut survivors = Vec::new();
    let mut sound = SoundPrograms::default();
    let mut checked: Option<&[&str]> = None;
    for mutant in mutants {
        let (program, filter) = split(mutant.caught_by);
        // A test that fails without a change would catch everything.
        if checked != Some(mutant.caught_by) {
            if !job.passes(sound.get(&job, program)?, program, filter)? {
                let shown = mutant.caught_by.join(" ");
                return Err(format!("fails without a change: cargo test {shown}"));
            }
            checked = Some(mutant.caught_by);
        }
        let path = tree.join(CRATES).join(mutant.file);
        let original = fs::read_to_string(&path).map_err(text)?;
        fs::write(&path, mutant.apply(&original)?).map_err(text)?;
        let passed = job
            .build(program)
            .and_then(|built| job.passes(&built, program, filter));
        fs::write(&path, original).map_err(text)?;
        let caught = !passed?;
        let word = if caught { "caught  " } else { "SURVIVED" };
        println!("{word}  {}", mutant.breaks);
        if !caught {
            survivors.push(mutant.breaks);
        }
    }
    Ok(survivors)
}

/// The arguments that select a test program, and those that select tests in it.
fn split<'a>(caught_by: &'a [&'a str]) -> (&'a [&'a str], &'a [&'a str]) {
    let selected = caught_by
        .iter()
        .position(|arg| ["--test", "--bin"].contains(arg));
    let end = match selected {
        Some(at) => at + 2,
        None => {
            1 + caught_by
                .iter()
                .position(|arg| *arg == "--lib")
                .unwrap_or(1)
        }
    };
    let (program, filter) = caught_by.split_at(end.min(caught_by.len()));
    (program, filter.strip_prefix(&["--"]).unwrap_or(filter))
}

/// Test programs without a change, one for each selection of a program: kept aside, so that the
/// tests of many mutants are tried without building it again.
#[derive(Default)]
struct SoundPrograms<'a>(Vec<(&'a [&'a str], PathBuf)>);

impl<'a> SoundPrograms<'a> {
    fn get(&mut self, job: &MutantJob<'_>, program: &'a [&'a str]) -> Result<&Path, String> {
        // The tests of the command line run the binary that was built last.
        let keeps = !program.contains(&"windlass-cli");
        let known = self
            .0
            .iter()
            .position(|(known, _)| keeps && *known == program);
        let index = match known {
            Some(index) => index,
            None => {
                let mut built = job.build(program)?;
                if keeps {
                    let kept = job.tree.with_extension(format!("sound-{}", self.0.len()));
                    fs::copy(&built, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
                    built = kept;
                }
                self.0.push((program, built));
                self.0.len() - 1
            }
        };
        Ok(&self.0[index].1)
    }
}

/// One tree, in which one mutant at a time is built and tested.
struct MutantJob<'a> {
    tree: &'a Path,
    variables: &'a [(String, String)],
}

impl MutantJob<'_> {
    /// Builds a test program. A mutant that does not compile is an error.
    fn build(&self, program: &[&str]) -> Result<PathBuf, String> {
        let built = Command::new("cargo")
            .args(["test", "--quiet", "--no-run", "--message-format=json"])
            .args(program)
            .current_dir(self.tree)
            .env("CARGO_TARGET_DIR", self.tree.with_extension("target"))
            // Less work for the linker; no one reads a backtrace of a mutant.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .envs(self.variables.iter().map(|(key, value)| (key, value)))
            .output()
            .map_err(|e| e.to_string())?;
        let shown = program.join(" ");
        if !built.status.success() {
            let errors = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(format!(
                "a mutant does not compile: cargo test {shown}\n{errors}"
            ));
        }
        let messages = String::from_utf8_lossy(&built.stdout).into_owned();
        let test = messages
            .lines()
            .filter(|line| line.contains("\"test\":true}"))
            .find_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'));
        let (executable, _) = test.ok_or(format!("no test program: cargo test {shown}"))?;
        Ok(PathBuf::from(executable))
    }

    /// Whether the selected tests pass. A filter that matches no test is an error.
    fn passes(&self, built: &Path, program: &[&str], filter: &[&str]) -> Result<bool, String> {
        let package = program.iter().skip_while(|arg| **arg != "-p").nth(1);
        let package = package.ok_or("a mutant names the package of its test with -p")?;
        let folder = self.tree.join(CRATES).join(package);
        let run = Command::new(built)
            .args(filter)
            .current_dir(&folder)
            .env("CARGO_MANIFEST_DIR", &folder)
            .envs(self.variables.iter().map(|(key, value)| (key, value)))
            .output()
            .map_err(|e| format!("{}: {e}", built.display()))?;
        if String::from_utf8_lossy(&run.stdout).contains(" 0 passed; 0 failed;") {
            let shown = [program, filter].concat().join(" ");
            return Err(format!("no test matches: cargo test {shown}"));
        }
        Ok(run.status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_and_filter_are_split() {
        let lib: &[&str] = &["-p", "windlass-redis", "--lib", "batch::"];
        assert_eq!(split(lib), (&lib[..3], &lib[3..]));
        let test: &[&str] = &["-p", "windlass", "--test", "redis", "--", "--exact", "x"];
        assert_eq!(split(test), (&test[..4], &test[5..]));
        let bin: &[&str] = &["-p", "windlass-cli", "--bin", "windlass", "x"];
        assert_eq!(split(bin), (&bin[..4], &bin[4..]));
        for mutant in AREAS.iter().flat_map(|(_, mutants)| mutants.iter()) {
            let (program, filter) = split(mutant.caught_by);
            let is_one = program.len() == 3 && program[2] == "--lib" || program.len() == 4;
            assert!(is_one && !filter.is_empty(), "{:?}", mutant.caught_by);
        }
    }

    #[test]
    fn all_variants_fit_the_sources() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(CRATES);
        let mistakes: Vec<String> = AREAS
            .iter()
            .flat_map(|(_, mutants)| mutants.iter())
            .filter_map(|mutant| {
                let source = fs::read_to_string(crates.join(mutant.file)).unwrap_or_default();
                mutant.apply(&source).err()
            })
            .collect();
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }
}
