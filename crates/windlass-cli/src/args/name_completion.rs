//! Which name a person is typing at the end of a command line, for shell completion.

use std::str::Chars;

use clap::{Arg, ArgAction, Args as _, Command, FromArgMatches as _, ValueEnum as _};
use windlass_term::GlobalArgs;

use super::{InventoryKind, grammar};

/// The options that decide which store has the names.
const STORE_OPTIONS: [&str; 4] = ["store", "store-file", "profile", "namespace"];

/// The ids of the positional arguments that are names in the store.
const NAME_IDS: [&str; 4] = ["name", "names", "space", "key"];

/// A name that is being typed.
#[derive(Debug)]
pub(crate) struct NameToComplete {
    pub(crate) kind: InventoryKind,
    /// What is typed of it so far.
    pub(crate) prefix: String,
    /// The options of this command line.
    pub(crate) global: GlobalArgs,
}

impl NameToComplete {
    /// The name at the end of `line`, the command line up to the cursor. `None` if something else is being typed there.
    pub(crate) fn at_end_of(line: &str) -> Option<NameToComplete> {
        let mut words = split(line)?;
        let current = words.pop()?;
        // The last one: a command under windlass may be windlass.
        let is_windlass = |word: &String| word.rsplit('/').next() == Some("windlass");
        let start = words.iter().rposition(is_windlass)?;
        let mut root = grammar();
        // Puts the global options into every command.
        root.build();
        let mut given = Given::of(&root, &words[start + 1..])?;
        if current.starts_with('-') {
            return None;
        }
        let positional = given.next_positional()?;
        if !NAME_IDS.contains(&positional.get_id().as_str()) {
            return None;
        }
        given.store_options.insert(0, "windlass".into());
        let options = GlobalArgs::augment_args(Command::new("windlass"));
        let matches = options.try_get_matches_from(&given.store_options).ok()?;
        let mut global = GlobalArgs::from_arg_matches(&matches).ok()?;
        global.note_origins(&matches);
        Some(NameToComplete {
            kind: given.kind()?,
            prefix: current,
            global,
        })
    }
}

/// The words of a command line that are complete.
struct Given<'a> {
    command: &'a Command,
    /// The name of the first subcommand.
    group: Option<&'a str>,
    options: Vec<&'a str>,
    positionals: usize,
    store_options: Vec<String>,
}

impl<'a> Given<'a> {
    /// `None` if the next word is the value of an option, or part of a command to run.
    fn of(root: &'a Command, words: &[String]) -> Option<Given<'a>> {
        let mut given = Given {
            command: root,
            group: None,
            options: Vec::new(),
            positionals: 0,
            store_options: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--" {
                return None;
            }
            match given.option(word) {
                Some((arg, value)) => {
                    let id = arg.get_id().as_str();
                    given.options.push(id);
                    if !takes_value(arg) {
                        continue;
                    }
                    let value = match value {
                        Some(value) => value,
                        None => words.next()?.clone(),
                    };
                    let long = arg.get_long().unwrap_or_default();
                    if STORE_OPTIONS.contains(&long) {
                        given.store_options.push(format!("--{long}={value}"));
                    }
                }
                None if word.starts_with('-') => {}
                None => match given.command.find_subcommand(word) {
                    Some(command) if given.positionals == 0 => {
                        given.command = command;
                        given.group.get_or_insert(command.get_name());
                    }
                    _ => given.positionals += 1,
                },
            }
        }
        Some(given)
    }

    /// The option that a word is, and its value if the word has that too. Of several short ones, the last.
    fn option(&self, word: &str) -> Option<(&'a Arg, Option<String>)> {
        let with = |test: &dyn Fn(&&Arg) -> bool| self.command.get_arguments().find(test);
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            return Some((with(&|arg| arg.get_long() == Some(name))?, value));
        }
        let mut letters: Chars<'_> = word.strip_prefix('-')?.chars();
        let mut last = None;
        while let Some(letter) = letters.next() {
            let arg = with(&|arg| arg.get_short() == Some(letter))?;
            let rest = letters.as_str();
            if takes_value(arg) && !rest.is_empty() {
                return Some((arg, Some(rest.to_owned())));
            }
            last = Some((arg, None));
        }
        last
    }

    /// The positional argument that comes next.
    fn next_positional(&self) -> Option<&'a Arg> {
        let positionals = self.command.get_positionals();
        let positionals: Vec<&Arg> = positionals.filter(|arg| !arg.is_last_set()).collect();
        let last = positionals.last()?;
        let next = positionals.get(self.positionals);
        let repeats = matches!(last.get_action(), ArgAction::Append);
        next.or(repeats.then_some(last)).copied()
    }

    /// The kind of the names that the command takes; `None` if no store lists them.
    fn kind(&self) -> Option<InventoryKind> {
        let has = |id: &str| self.options.contains(&id);
        match self.group? {
            "run" if has("permits") => Some(InventoryKind::Sem),
            "run" if has("shared") || has("exclusive") => Some(InventoryKind::Rw),
            "run" => Some(InventoryKind::Lock),
            "seen" | "topic" => None,
            group => InventoryKind::from_str(group, false).ok(),
        }
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// The words of a command line; the last one is the one that is being typed, and may be empty. `None` if that one has
/// quotes, which each shell completes in its own way.
fn split(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut quote, mut is_quoted) = (None, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (_, Some(end)) if letter == end => quote = None,
            ('\\', None) => {
                is_quoted = true;
                word.extend(letters.next());
            }
            (_, Some(_)) => word.push(letter),
            ('\'' | '"', None) => (quote, is_quoted) = (Some(letter), true),
            _ if letter.is_whitespace() => {
                if !word.is_empty() || is_quoted {
                    words.push(std::mem::take(&mut word));
                }
                is_quoted = false;
            }
            _ => word.push(letter),
        }
    }
    words.push(word);
    (!is_quoted).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_end_of(line: &str) -> Option<(InventoryKind, String)> {
        NameToComplete::at_end_of(line).map(|name| (name.kind, name.prefix))
    }

    #[test]
    fn names_are_recognised() {
        for (line, kind, prefix) in [
            ("windlass run ", InventoryKind::Lock, ""),
            ("windlass run a b", InventoryKind::Lock, "b"),
            (
                "/opt/bin/windlass -v run --ttl 5s a",
                InventoryKind::Lock,
                "a",
            ),
            ("windlass run --permits 3 -n ", InventoryKind::Sem, ""),
            ("windlass run -ns cat", InventoryKind::Rw, "cat"),
            ("windlass run -w5 ", InventoryKind::Lock, ""),
            ("windlass --json lock show inv", InventoryKind::Lock, "inv"),
            (
                "windlass lock break --store='redis://h' x:",
                InventoryKind::Lock,
                "x:",
            ),
            ("windlass perm get sp", InventoryKind::Perm, "sp"),
            ("windlass once show k", InventoryKind::Once, "k"),
            ("windlass elect sch", InventoryKind::Elect, "sch"),
            ("windlass bloom add f", InventoryKind::Bloom, "f"),
            (
                "cd x; windlass run a -- windlass gate show ",
                InventoryKind::Gate,
                "",
            ),
        ] {
            assert_eq!(at_end_of(line), Some((kind, prefix.into())), "{line}");
        }
    }

    #[test]
    fn other_words_are_not_names() {
        for line in [
            "",
            "windlass",
            "windlass r",
            "windlass run -",
            "windlass run --ttl ",
            "windlass run -w ",
            "windlass run a -- ",
            "windlass run a -- ls ",
            "windlass run 'a",
            "windlass run a\\ ",
            "windlass lock ",
            "windlass lock show a b",
            "windlass lock ls a",
            "windlass bloom add f item",
            "windlass perm get space ann",
            "windlass topic publish t",
            "windlass seen s",
            "windlass --store ",
            "other run ",
        ] {
            assert_eq!(at_end_of(line), None, "{line}");
        }
    }

    #[test]
    fn store_of_the_line_is_used() {
        let line = "windlass --profile prod run --store redis://h --namespace=ns ";
        let NameToComplete { global, .. } = NameToComplete::at_end_of(line).unwrap();
        assert_eq!(global.store.as_deref(), Some("redis://h"));
        assert_eq!(global.namespace.as_deref(), Some("ns"));
        assert_eq!(global.profile.as_deref(), Some("prod"));
    }
}
