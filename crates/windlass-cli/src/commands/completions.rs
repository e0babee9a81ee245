//! `windlass completions`: shell completion scripts, and the names that they offer.
//!
//! The scripts that clap generates know commands and options. Those for bash, zsh and fish are extended to ask
//! `windlass complete-names` for names in the store.

use std::time::Duration;

use clap_complete::Shell;
use tokio::time::timeout;
use windlass_term::{Exit, Printer, quoted, store};

use super::inventory;
use crate::args::{self, CompletionsArgs, NameToComplete};

/// What the scripts call, with the command line up to the cursor. It is no command of the grammar, or the scripts would
/// offer it.
pub(crate) const COMPLETE_NAMES: &str = "complete-names";

/// A person waits for the answer: all of it takes less than 300 ms, the start of the process included.
const TIME_LIMIT: Duration = Duration::from_millis(250);

/// More are no help.
const MAX_OFFERED: usize = 1000;

const BASH: &str = r#"
_windlass_with_names() {
    _windlass "$@"
    local line="${COMP_LINE:0:COMP_POINT}" names=() name word
    word="${line##*[[:space:]]}"
    while IFS= read -r name; do
        # bash replaces only what follows the last : or =.
        names+=("${name#"${word%"$2"}"}")
    done < <("$1" complete-names "$line" 2>/dev/null)
    if ((${#names[@]})); then
        COMPREPLY=("${names[@]}")
    fi
}
complete -F _windlass_with_names -o bashdefault -o default windlass
"#;

const ZSH: &str = r#"
_windlass_names() {
    local -a names
    names=(${(f)"$(windlass complete-names "$LBUFFER" 2>/dev/null)"})
    compadd -a names
}
"#;

/// Where the script for zsh calls its functions.
const ZSH_END: &str = "\nif [ \"$funcstack[1]\"";

const FISH: &str = r#"
complete -c windlass -a "(windlass complete-names (commandline -cp | string collect) 2>/dev/null)"
"#;

pub(super) fn completions(args: &CompletionsArgs, printer: &Printer) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::grammar(), "windlass", &mut script);
    let script = String::from_utf8(script).expect("a script is text");
    printer.out_bytes(with_names(args.shell, script).as_bytes());
    Exit::SUCCESS
}

/// The script, extended to offer names from the store.
fn with_names(shell: Shell, mut script: String) -> String {
    match shell {
        Shell::Bash => script += BASH,
        Shell::Fish => script += FISH,
        Shell::Zsh => {
            let lines = script.lines().map(|line| {
                let is_name = ["':name --", "'::name --", "'*::names --", "':space --"]
                    .iter()
                    .chain(&["':key --", "'::key --"])
                    .any(|start| line.starts_with(start));
                match is_name {
                    true => line.replace(":_default'", ":_windlass_names'"),
                    false => line.to_owned(),
                }
            });
            script = lines.collect::<Vec<_>>().join("\n") + "\n";
            script = script.replacen(ZSH_END, &format!("{ZSH}{ZSH_END}"), 1);
        }
        _ => {}
    }
    script
}

/// The names that the word at the end of a command line may become. There are no errors, because they would appear in
/// the middle of that line.
pub(crate) async fn complete_names(line: &str) -> Vec<String> {
    let found = timeout(TIME_LIMIT, find_names(line)).await;
    found.ok().flatten().unwrap_or_default()
}

/// `None` if there is nothing to offer, or something is wrong.
async fn find_names(line: &str) -> Option<Vec<String>> {
    let NameToComplete {
        kind,
        prefix,
        mut global,
    } = NameToComplete::at_end_of(line)?;
    global.apply_config().ok()?;
    // A wildcard would match other names.
    if prefix.contains(['*', '?']) || !store::exists(&global) {
        return None;
    }
    let store = store::open(&global).await.ok()?;
    let names = inventory::names(&store, kind, &format!("{prefix}*")).await;
    let mut names = names.ok()?;
    // A name is text of another client: what a shell would not take as it is, is not offered.
    names.retain(|name| {
        name.starts_with(&prefix) && !name.starts_with('-') && quoted(name) == *name
    });
    names.sort_unstable();
    names.dedup();
    names.truncate(MAX_OFFERED);
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_for_zsh_offers_names() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Zsh, &mut args::grammar(), "windlass", &mut script);
        let script = with_names(Shell::Zsh, String::from_utf8(script).unwrap());
        assert!(script.contains(&format!("{ZSH}{ZSH_END}")));
        for line in script.lines().filter(|line| line.contains("-- Name of")) {
            assert!(line.contains(":_windlass_names'"), "{line}");
        }
        assert!(script.matches(":_windlass_names'").count() > 20);
    }
}
