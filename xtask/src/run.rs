//! Runs other programs and prints their command lines.

use std::process::Command;

/// A cargo command and its arguments.
pub(crate) type Step = (&'static str, &'static [&'static str]);

/// Runs cargo, with variables added to the environment.
pub(crate) fn cargo(
    command: &str,
    args: &[&str],
    variables: &[(String, String)],
) -> Result<(), String> {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut cargo = Command::new(program);
    cargo.arg(command).args(args);
    cargo.envs(variables.iter().map(|(key, value)| (key, value)));
    run(&mut cargo)
}

/// Runs a program and waits for it; an error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let shown = words.join(" ");
    eprintln!("xtask: {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(e) => Err(format!("{shown}: {e}")),
    }
}
