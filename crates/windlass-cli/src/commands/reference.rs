//! The reference of all commands as Markdown pages, from the grammar that `--help` and the manual
//! pages come from. `cargo xtask book` includes them in the book.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use clap::{Arg, Command};

use crate::args::{self, GROUPS, Group};

/// Writes `windlass.md`, and a page for each command.
pub(super) fn write_all(dir: &Path) -> io::Result<()> {
    let mut grammar = args::grammar();
    grammar.build();
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("windlass.md"), overview(&grammar))?;
    for command in visible(&grammar) {
        let page = dir.join(format!("windlass-{}.md", command.get_name()));
        std::fs::write(page, page_of(command))?;
    }
    Ok(())
}

/// The commands in their groups, and the options of all of them.
fn overview(grammar: &Command) -> String {
    let mut page = format!("# Command reference\n\n{}.\n\n", about(grammar));
    page += "These pages are generated from the texts of `windlass --help`; [the command line]\
             (../command-line.md)\nshows each command at work.\n";
    for Group {
        heading,
        commands,
        example,
    } in GROUPS
    {
        let _ = write!(page, "\n## {heading}\n\n");
        for command in commands
            .iter()
            .filter_map(|name| grammar.find_subcommand(name))
        {
            let (name, about) = (command.get_name(), about(command));
            let _ = writeln!(page, "- [`{name}`](windlass-{name}.md): {about}");
        }
        page += &text_block(example);
    }
    page += &items("\n## Global options\n\n", options(grammar));
    if let Some(after) = grammar.get_after_help() {
        page += "\n## Examples and exit codes\n";
        page += &text_block(&after.to_string());
    }
    page
}

fn page_of(command: &Command) -> String {
    let mut page = String::new();
    section(&mut page, command, "#");
    page += "\nAll commands also accept the [global options](windlass.md#global-options).\n";
    page
}

/// A command, and below it the commands that it contains.
fn section(page: &mut String, command: &Command, level: &str) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let _ = write!(page, "{level} {name}\n\n{}.\n", about(command));
    let usage = command.clone().render_usage().to_string();
    *page += &text_block(usage.trim_start_matches("Usage: "));
    *page += &items("\n**Arguments**\n\n", command.get_positionals());
    let own = options(command).filter(|arg| !arg.is_global_set());
    *page += &items("\n**Options**\n\n", own);
    if let Some(after) = command.get_after_help() {
        *page += &text_block(&after.to_string());
    }
    for command in visible(command) {
        page.push('\n');
        section(page, command, &format!("{level}#"));
    }
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    let commands = command.get_subcommands();
    commands.filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let args = command.get_arguments();
    args.filter(|arg| !arg.is_positional() && arg.get_id() != "help")
}

fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    escape(&about.unwrap_or_default())
}

/// A list of arguments below a heading; nothing without arguments.
fn items<'a>(heading: &str, args: impl Iterator<Item = &'a Arg>) -> String {
    let mut list = String::new();
    for arg in args.filter(|arg| !arg.is_hide_set()) {
        let _ = writeln!(list, "- {}", item(arg));
    }
    match list.is_empty() {
        true => list,
        false => heading.to_owned() + &list,
    }
}

fn item(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let values: Vec<String> = values.iter().map(|name| format!("<{name}>")).collect();
    let values = match arg.get_action().takes_values() {
        true => values.join(" "),
        false => String::new(),
    };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let shown = match (names.is_empty(), values.is_empty()) {
        (true, _) => values,
        (false, true) => format!("`{}`", names.join("`, `")),
        (false, false) => format!("`{} {values}`", names.join("`, `")),
    };
    let mut text = match names.is_empty() {
        true => format!("`{shown}`"),
        false => shown,
    };
    if let Some(help) = arg.get_long_help().or(arg.get_help()) {
        let help = help.to_string();
        let _ = write!(text, ": {}", escape(&help.replace('\n', " ")));
    }
    let quoted = |values: Vec<&str>| format!("`{}`", values.join("`, `"));
    let possible = arg.get_possible_values();
    let possible: Vec<&str> = possible
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name())
        .collect();
    if arg.get_action().takes_values() && !possible.is_empty() {
        let _ = write!(text, ". One of {}", quoted(possible));
    }
    let defaults = arg.get_default_values().iter();
    let defaults: Vec<&str> = defaults
        .filter_map(|value| value.to_str())
        .filter(|value| !value.is_empty())
        .collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(text, ". Default: {}", quoted(defaults));
    }
    if let Some(variable) = arg.get_env().and_then(|name| name.to_str()) {
        let _ = write!(text, ". Environment: `{variable}`");
    }
    text
}

fn text_block(text: &str) -> String {
    format!("\n```text\n{}\n```\n", text.trim_end())
}

/// Keeps the characters of a help text from being read as Markdown.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if "\\`*_<>[]|".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_the_texts_of_the_help() {
        let mut grammar = args::grammar();
        grammar.build();
        let page = page_of(grammar.find_subcommand("lock").unwrap());
        assert!(page.starts_with("# windlass lock\n\nAcquire, renew, release"));
        assert!(page.contains("\n## windlass lock acquire\n"), "{page}");
        assert!(page.contains("windlass lock acquire [OPTIONS] <NAME>"));
        assert!(page.contains("- `--owner <ID>`: "), "{page}");
        assert!(page.contains("- `--no-wait`: "), "{page}");
        assert!(!page.contains("--store-file"), "{page}");
    }

    #[test]
    fn overview_links_every_command() {
        let mut grammar = args::grammar();
        grammar.build();
        let page = overview(&grammar);
        for command in visible(&grammar) {
            let name = command.get_name();
            assert!(page.contains(&format!("(windlass-{name}.md)")), "{name}");
        }
        assert!(page.contains("- `--store <URL>`: "), "{page}");
        assert!(page.contains("- `-q`, `--quiet`: "), "{page}");
    }

    #[test]
    fn markup_in_help_texts_is_escaped() {
        assert_eq!(escape("a <b> *c* [d]"), r"a \<b\> \*c\* \[d\]");
    }
}
