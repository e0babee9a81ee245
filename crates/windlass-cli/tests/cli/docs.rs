//! Runs every shell example in README.md and docs/*.md, and compares its output with the documented one.
//!
//! In a `console` block, `$ ` begins a command and `> ` continues it; what follows is its output, stdout and stderr
//! together. `[..]` stands for any text in a line, a line `...` for any lines. A command may fail only if the next one
//! is `echo $?`. Each page has its own folder and store, and a Redis server at the address that it names.
//!
//! `yaml`, `ini` and `crontab` blocks: each `windlass` command in them is run, with `true` as its COMMAND.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::Fixture;
use saphyr::{LoadableYamlNode as _, Yaml};

/// The server that the pages name.
const REDIS: &str = "127.0.0.1:6379";

/// Makes `redis-cli` print as on a terminal, and `cargo run --release --` run the binary of this test.
const PRELUDE: &str = "exec 2>&1
redis-cli() { command redis-cli --no-raw \"$@\"; }
cargo() { while [ \"$1\" != -- ]; do shift; done; shift; windlass \"$@\"; }
";

#[test]
fn examples_print_the_documented_output() {
    let pages = pages();
    assert!(pages.len() > 5, "{pages:?}");
    let problems: String = std::thread::scope(|scope| {
        let running: Vec<_> = pages
            .iter()
            .map(|p| scope.spawn(move || check(p)))
            .collect();
        running
            .into_iter()
            .map(|page| page.join().unwrap())
            .collect()
    });
    assert!(problems.is_empty(), "{problems}");
}

#[tokio::test]
async fn table_of_backends_matches_the_capabilities() {
    let page = std::fs::read_to_string(root().join("docs/choose-a-backend.md")).unwrap();
    let (file, redis) = (Fixture::file(), Fixture::redis());
    let etcd = windlass_testkit::EtcdCluster::start().unwrap();
    let etcd_url = etcd.url();
    let stores = [
        ("etcd://HOST,HOST,HOST", etcd_url.as_str()),
        ("memory:", "memory:"),
        ("file:PATH", &file.store),
        ("redis://HOST", &redis.store),
    ];
    for (shown, url) in stores {
        let offers = windlass::connect(url).await.unwrap().capabilities();
        let (reach, fences, durability) = (offers.reach, offers.fences, offers.durability);
        let row = format!("| `{shown}` | {reach} | {fences} | {durability} |\n");
        assert!(page.contains(&row), "missing in the table: {row}");
    }
}

#[test]
fn every_command_and_option_is_documented() {
    let page = std::fs::read_to_string(root().join("docs/command-line.md")).unwrap();
    let commands = commands(&[]);
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        // The options of workloads are documented with their figures.
        if words.first() == Some(&"bench") {
            continue;
        }
        let command = words.join(" ");
        assert!(page.contains(&command), "{command}");
        let help = help(&words);
        let options = help
            .split_whitespace()
            .filter(|word| word.starts_with("--") && word.len() > 2);
        for option in options.filter(|option| *option != "--help") {
            let option = option
                .trim_end_matches([',', '.', ')', ':'])
                .trim_end_matches("...");
            assert!(page.contains(option), "{option} of {command}");
        }
    }
}

fn help(command: &[&str]) -> String {
    let help = crate::fixture::FinishedProcess::of(&mut crate::fixture::bare(
        &[command, &["--help"]].concat(),
    ));
    assert_eq!(help.code, 0, "{command:?}");
    help.out
}

/// All commands below this one that can be called: those without subcommands, and those with arguments of their own.
fn commands(above: &[&str]) -> Vec<Vec<String>> {
    let help = help(above);
    // The commands of windlass itself are in groups with headings of their own.
    let start = if above.is_empty() {
        "Usage:"
    } else {
        "Commands:"
    };
    let listed = help.lines().skip_while(|line| !line.starts_with(start));
    let below: Vec<&str> = listed
        .take_while(|line| !line.ends_with("ptions:") && *line != "Arguments:")
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    let mut found = Vec::new();
    if below.is_empty() || help.contains("\nArguments:\n") {
        found.push(above.iter().map(|word| (*word).to_owned()).collect());
    }
    for name in below {
        found.extend(commands(&[above, &[name]].concat()));
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages.chain([root().join("README.md")]).collect()
}

/// Runs the blocks of a page in order. Returns the problems.
fn check(page: &Path) -> String {
    let text = std::fs::read_to_string(page).unwrap();
    let (fixture, server) = if text.contains(REDIS) {
        let fixture = Fixture::redis();
        let server = fixture.server().addr().to_string();
        (fixture, server)
    } else {
        (Fixture::file(), REDIS.to_owned())
    };
    let mut problems = String::new();
    for (line, kind, block) in blocks(&text) {
        let steps = match kind {
            "console" => console(line, &block),
            "yaml" => Yaml::load_from_str(&block.join("\n"))
                .unwrap()
                .iter()
                .flat_map(|y| in_yaml(line, y))
                .collect(),
            "ini" | "crontab" => block
                .iter()
                .filter_map(|text| windlass_command_in(line, text))
                .collect(),
            _ => continue,
        };
        for problem in run(&fixture, &server, &steps) {
            writeln!(problems, "{}:{problem}", page.display()).unwrap();
        }
    }
    problems
}

/// The fenced blocks of a page: the number of the first line, the kind, the lines.
fn blocks(text: &str) -> Vec<(usize, &str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let block = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| *line != "```");
            found.push((number + 2, kind, block.collect()));
        }
    }
    found
}

#[derive(Debug)]
struct ExampleStep {
    line: usize,
    command: String,
    /// `None` if any output is accepted.
    output: Option<Vec<String>>,
}

fn console(first: usize, block: &[&str]) -> Vec<ExampleStep> {
    let mut steps: Vec<ExampleStep> = Vec::new();
    for (line, text) in (first..).zip(block) {
        if let Some(command) = text.strip_prefix("$ ") {
            let (command, output) = (command.to_owned(), Some(Vec::new()));
            steps.push(ExampleStep {
                line,
                command,
                output,
            });
            continue;
        }
        let step = steps.last_mut().expect("a block begins with a command");
        match text.strip_prefix("> ") {
            Some(more) => step.command += &format!("\n{more}"),
            None => step.output.get_or_insert_default().push((*text).to_owned()),
        }
    }
    steps
}

/// The windlass command in a line of another format, with `true` as its COMMAND.
fn windlass_command_in(line: usize, text: &str) -> Option<ExampleStep> {
    let start = text.find("windlass ")?;
    let (options, command) = text[start..]
        .split_once(" -- ")
        .unwrap_or((&text[start..], ""));
    let command = if command.is_empty() {
        options.to_owned()
    } else {
        format!("{options} -- true")
    };
    Some(ExampleStep {
        line,
        command,
        output: None,
    })
}

fn in_yaml(line: usize, yaml: &Yaml<'_>) -> Vec<ExampleStep> {
    if let Some(words) = yaml.as_sequence() {
        let words: Vec<&str> = words.iter().filter_map(Yaml::as_str).collect();
        if words.first() == Some(&"windlass") {
            return windlass_command_in(line, &words.join(" "))
                .into_iter()
                .collect();
        }
    }
    let inside = yaml.as_sequence().into_iter().flatten();
    let inside = inside.chain(yaml.as_mapping().into_iter().flat_map(|map| map.values()));
    let here = yaml
        .as_str()
        .and_then(|text| windlass_command_in(line, text));
    here.into_iter()
        .chain(inside.flat_map(|yaml| in_yaml(line, yaml)))
        .collect()
}

/// Runs the steps in one shell, and compares.
fn run(fixture: &Fixture, server: &str, steps: &[ExampleStep]) -> Vec<String> {
    let mut script = PRELUDE.to_owned();
    for step in steps {
        let command = step.command.replace(REDIS, server);
        writeln!(
            script,
            "{command}\nstatus=$?; printf '\\036%d\\n' $status; (exit $status)"
        )
        .unwrap();
    }
    std::fs::write(fixture.path("script"), script).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_windlass")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("timeout");
    shell
        .args(["120", "bash", "script"])
        .current_dir(fixture.folder.path());
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINDLASS_"))
    {
        shell.env_remove(name);
    }
    let home = fixture.folder.path();
    shell
        .env("PATH", path)
        .env("HOME", home)
        .env("XDG_STATE_HOME", home)
        .env("XDG_CONFIG_HOME", home)
        .env("GITHUB_RUN_ID", "7");
    let printed = crate::fixture::FinishedProcess::of(shell.stdin(std::process::Stdio::null()))
        .out
        .replace(server, REDIS);
    let mut rest = printed.as_str();
    let mut problems = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let (output, after) = rest
            .split_once('\x1e')
            .unwrap_or((rest, "-1 (not reached)\n"));
        let (status, after) = after.split_once('\n').unwrap();
        rest = after;
        let may_fail = steps
            .get(index + 1)
            .is_some_and(|next| next.command == "echo $?");
        let lines: Vec<&str> = output.lines().collect();
        let as_said = step.output.as_ref().is_none_or(|said| same(said, &lines));
        if !as_said || (status != "0" && !may_fail) {
            problems.push(format!(
                "{}: $ {}\nexit {status}, printed:\n{output}",
                step.line, step.command
            ));
        }
    }
    problems
}

fn same(said: &[String], printed: &[&str]) -> bool {
    match said.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "..." => {
            (0..=printed.len()).any(|n| same(rest, &printed[n..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, more)| like(line, first) && same(rest, more)),
    }
}

fn like(said: &str, printed: &str) -> bool {
    match said.split_once("[..]") {
        None => said == printed,
        Some((front, rest)) => printed.strip_prefix(front).is_some_and(|tail| {
            (0..=tail.len()).any(|n| tail.is_char_boundary(n) && like(rest, &tail[n..]))
        }),
    }
}
