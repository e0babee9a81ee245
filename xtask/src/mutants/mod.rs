//! Tests that cannot fail prove nothing: here each safety promise is broken on purpose, in a copy of
//! the sources, and the test that guards it must notice.

mod bloom;
mod claims;
mod copy;
mod counters;
mod etcd;
mod limits;
mod permissions;
mod quorum;
mod replicated;
mod traces;
mod zookeeper;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use self::copy::copy_sources;

/// One broken variant.
struct Mutant {
    /// Which promise it breaks.
    breaks: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// Arguments of `cargo test` that must fail.
    caught_by: &'static [&'static str],
}

/// Where the files of variants are looked for.
const CRATES: &str = "crates";

/// The variants by what they are about: a word that chooses them.
const AREAS: &[(&str, &[Mutant])] = &[
    ("bloom", bloom::MUTANTS),
    ("claims", claims::MUTANTS),
    ("counters", counters::MUTANTS),
    ("etcd", etcd::MUTANTS),
    ("limits", limits::MUTANTS),
    ("permissions", permissions::MUTANTS),
    ("quorum", quorum::MUTANTS),
    ("replicated", replicated::MUTANTS),
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

/// Runs each broken variant against its test, and reports those that went unnoticed.
pub(crate) fn hunt(variables: &[(String, String)], only: Option<&str>) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = crate::servers::target().join("mutants/tree");
    let text = |e: std::io::Error| e.to_string();
    copy_sources(&root, &tree).map_err(text)?;
    let mut survivors = Vec::new();
    let chosen: Vec<_> = AREAS
        .iter()
        .flat_map(|(area, mutants)| mutants.iter().map(move |mutant| (area, mutant)))
        .filter(|(area, m)| only.is_none_or(|word| **area == word || m.breaks.contains(word)))
        .collect();
    for (_, mutant) in &chosen {
        let path = tree.join(CRATES).join(mutant.file);
        let original = fs::read_to_string(&path).map_err(text)?;
        fs::write(&path, mutant.apply(&original)?).map_err(text)?;
        let caught = !tests_pass(&tree, mutant.caught_by, variables)?;
        fs::write(&path, original).map_err(text)?;
        println!(
            "{}  {}",
            if caught { "caught  " } else { "SURVIVED" },
            mutant.breaks
        );
        if !caught {
            survivors.push(mutant.breaks);
        }
    }
    println!(
        "{} passed, {} failed",
        chosen.len() - survivors.len(),
        survivors.len()
    );
    match survivors.is_empty() {
        true => Ok(()),
        false => Err(format!("not noticed by any test: {}", survivors.join("; "))),
    }
}

/// Whether the tests pass. A variant that does not compile, or that no test is meant for, is a mistake
/// in its list.
fn tests_pass(tree: &Path, args: &[&str], variables: &[(String, String)]) -> Result<bool, String> {
    let cargo = |more: &[&str]| {
        Command::new("cargo")
            .args(["test", "--quiet"])
            .args(args)
            .args(more)
            .current_dir(tree)
            .env("CARGO_TARGET_DIR", tree.join("../target"))
            .envs(variables.iter().map(|(key, value)| (key, value)))
            .stderr(Stdio::null())
            .output()
            .map_err(|e| e.to_string())
    };
    let shown = args.join(" ");
    if !cargo(&["--no-run"])?.status.success() {
        return Err(format!("a mutant does not compile: cargo test {shown}"));
    }
    let run = cargo(&[])?;
    if String::from_utf8_lossy(&run.stdout).contains(" 0 passed; 0 failed;") {
        return Err(format!("no test matches: cargo test {shown}"));
    }
    Ok(run.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

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
