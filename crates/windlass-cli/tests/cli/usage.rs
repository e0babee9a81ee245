//! Help texts, and messages for wrong usage.

use crate::fixture::{FinishedProcess, Fixture, bare};

fn help(args: &[&str]) -> String {
    let done = FinishedProcess::of(&mut bare(args));
    assert_eq!(done.code, 0);
    assert_eq!(done.err, "");
    done.out
}

#[test]
fn help_of_windlass() {
    insta::assert_snapshot!(help(&["--help"]));
}

#[test]
fn help_of_run() {
    insta::assert_snapshot!(help(&["run", "--help"]));
}

#[test]
fn help_of_lock() {
    insta::assert_snapshot!(help(&["lock", "--help"]));
}

#[test]
fn help_of_lock_acquire() {
    insta::assert_snapshot!(help(&["lock", "acquire", "--help"]));
}

#[test]
fn help_of_sem() {
    insta::assert_snapshot!(help(&["sem", "--help"]));
}

#[test]
fn help_of_sem_acquire() {
    insta::assert_snapshot!(help(&["sem", "acquire", "--help"]));
}

#[test]
fn help_of_rw() {
    insta::assert_snapshot!(help(&["rw", "--help"]));
}

#[test]
fn help_of_rw_write() {
    insta::assert_snapshot!(help(&["rw", "write", "--help"]));
}

#[test]
fn help_of_elect() {
    insta::assert_snapshot!(help(&["elect", "--help"]));
}

#[test]
fn help_of_latch() {
    insta::assert_snapshot!(help(&["latch", "--help"]));
}

#[test]
fn help_of_latch_reset() {
    insta::assert_snapshot!(help(&["latch", "reset", "--help"]));
}

#[test]
fn help_of_barrier() {
    insta::assert_snapshot!(help(&["barrier", "--help"]));
}

#[test]
fn help_of_top() {
    insta::assert_snapshot!(help(&["top", "--help"]));
}

#[test]
fn help_of_gate_admit() {
    insta::assert_snapshot!(help(&["gate", "admit", "--help"]));
}

#[test]
fn no_arguments_prints_examples() {
    let done = FinishedProcess::of(&mut bare(&[]));
    assert_eq!(done.code, 125);
    assert_eq!(done.out, "");
    insta::assert_snapshot!(done.err);
}

#[test]
fn version_is_printed() {
    assert_eq!(
        help(&["--version"]),
        format!("windlass {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn wrong_usage_is_125_with_a_suggestion() {
    for (args, word) in [
        (&["lok"][..], "'lock'"),
        (&["run", "--no-wiat", "x", "--", "true"], "--no-wait"),
        (&["run", "x", "true"], "comes after --"),
        (&["run", "x"], "comes after --"),
        (
            &["run", "x", "--ttl", "30", "--", "true"],
            "write 30s or 30ms",
        ),
        (&["run", "x", "--wait", "1,5s", "--", "true"], "write 1.5s"),
        (
            &["run", "x", "--wait", "1s", "--no-wait", "--", "true"],
            "cannot be used with",
        ),
        (&["sem", "release", "x"], "--owner"),
        (&["gate", "admit", "x", "seven"], "invalid value 'seven'"),
        (&["lock"], "Usage"),
    ] {
        let done = FinishedProcess::of(&mut bare(args));
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert_eq!(done.out, "", "{args:?}");
        assert!(done.err.contains(word), "{args:?}: {}", done.err);
    }
}

#[test]
fn invalid_values_are_125_with_a_hint_and_write_nothing() {
    let fixture = Fixture::file();
    let long_name = "x".repeat(2000);
    for args in [
        &["lock", "acquire", ""][..],
        &["lock", "acquire", &long_name],
        &["lock", "acquire", "a\tb"],
        &["lock", "acquire", "x", "--ttl", "0s"],
        &["lock", "acquire", "x", "--ttl", "9ms"],
        &["lock", "acquire", "x", "--ttl", "366d"],
        &["lock", "acquire", "x", "--owner", "a b"],
        &["run", "x", "--ttl", "1ms", "--", "true"],
        &["--store", "localhost", "lock", "ls"],
        &["--store", "gopher://x", "lock", "ls"],
        &["--namespace", "a\nb", "lock", "ls"],
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        let last = done.err.lines().last().unwrap();
        assert!(
            last.starts_with("  hint: ") || last.starts_with("  try: "),
            "{args:?}: {}",
            done.err
        );
    }
    assert_eq!(fixture.json(&["lock", "ls"]).out, "");
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let bash = help(&["completions", "bash"]);
    assert!(bash.contains("--skip-ok"));
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(help(&["completions", shell]).contains("windlass"));
    }
    assert!(help(&["man"]).contains(".TH windlass 1"));

    let fixture = Fixture::file();
    let done = fixture.run(&["man", "--dir", "pages"]);
    assert_eq!(done.code, 0, "{done:?}");
    for page in ["windlass.1", "windlass-run.1", "windlass-lock-acquire.1"] {
        let text = std::fs::read_to_string(fixture.path("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn manual_pages_refer_only_to_pages_that_exist() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["man", "--dir", "pages"]).code, 0);
    let files = std::fs::read_dir(fixture.path("pages")).unwrap();
    let pages: std::collections::BTreeMap<String, String> = files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    let one = help(&["man"]);
    let mut references = 0;
    for text in pages.values().chain([&one]) {
        let text = text.replace("\\-", "-");
        for (before, _) in text.split("(1)").zip(1..text.split("(1)").count()) {
            let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
            let name = before.rsplit(|c| !is_name(c)).next().unwrap();
            assert!(pages.contains_key(name), "{name}(1)");
            references += 1;
        }
    }
    assert!(references > 100, "{references}");
    assert_eq!(one, pages["windlass"]);
    assert_eq!(
        help(&["man", "lock", "acquire"]),
        pages["windlass-lock-acquire"]
    );
    let unknown = fixture.run(&["man", "lock", "take"]);
    assert_eq!(unknown.code, 125, "{unknown:?}");
}

#[test]
fn verbose_twice_shows_every_call_to_the_store() {
    let fixture = Fixture::file();
    let messages = |verbose: &str| fixture.run(&[verbose, "run", "l", "--", "true"]).err;
    let (once, twice) = (messages("-v"), messages("-vv"));
    assert!(once.contains("l acquired in"), "{once}");
    assert!(!once.contains("store call"), "{once}");
    for operation in ["acquire", "release"] {
        let call = format!("operation=\"{operation}\" name=\"l\" outcome=\"answered\"");
        assert!(twice.contains(&call), "{twice}");
    }
}

#[test]
fn contradictory_options_are_rejected() {
    let fixture = Fixture::file();
    for (args, said) in [
        (
            &["run", "x", "--max-time", "0s", "--", "touch", "ran"][..],
            "longer than zero",
        ),
        (
            &["counter", "add", "c", "1", "--min", "5", "--max", "3"],
            "minimum 5 is above the maximum 3",
        ),
        (
            &["latch", "reset", "l", "3", "--keep", "0s"],
            "kept for no time",
        ),
        (&["bench", "bloom", "--seconds", "2"], "use --items N"),
        (
            &["lock", "acquire", "l", "--ttl", "1ms"],
            "several round trips to the store must fit",
        ),
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(said), "{args:?}: {done:?}");
    }
    assert!(!fixture.path("ran").exists());
}

#[test]
fn advice_matches_the_error() {
    use std::os::unix::ffi::OsStringExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    let fixture = Fixture::file();
    std::fs::write(fixture.path("noshebang"), [0x7f, 0, 0, 0]).unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fixture.path("noshebang"), executable).unwrap();
    std::fs::create_dir(fixture.path("folder")).unwrap();
    for (program, said) in [("./noshebang", "interpreter"), ("./folder", "a folder")] {
        let done = fixture.run(&["run", "e", "--", program]);
        assert_eq!(done.code, 126, "{done:?}");
        assert!(!done.err.contains("chmod"), "{done:?}");
        assert!(done.err.contains(said), "{done:?}");
    }
    // Started directly, because without a PATH, `env` could not be found.
    let mut shell = std::process::Command::new(env!("CARGO_BIN_EXE_windlass"));
    shell.args([
        "--store",
        &fixture.store,
        "run",
        "e",
        "--shell",
        "--",
        "echo a b",
    ]);
    let done = FinishedProcess::of(shell.env("PATH", "/nowhere"));
    assert_eq!(done.code, 127, "{done:?}");
    assert!(!done.err.contains("use --shell"), "{done:?}");
    assert!(done.err.contains("needs sh"), "{done:?}");

    let mut command = fixture.command(&["lock", "ls"]);
    command.env(
        "WINDLASS_STORE",
        std::ffi::OsString::from_vec(vec![b'f', 0xff]),
    );
    let done = FinishedProcess::of(&mut command);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.err.contains("WINDLASS_STORE is not UTF-8"), "{done:?}");
}

#[test]
fn tip_shows_the_command_that_was_typed() {
    let fixture = Fixture::file();
    for (args, usage) in [
        (&["run", "n"][..], "windlass run NAME -- COMMAND"),
        (&["elect", "e"], "windlass elect NAME -- COMMAND"),
        (&["once", "k"], "windlass once KEY -- COMMAND"),
        (
            &["barrier", "b", "--parties", "2", "sleep", "--long"],
            "windlass barrier NAME --parties N -- COMMAND",
        ),
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        let tip = format!("tip: the command comes after --, as in: {usage}\n");
        assert!(done.err.ends_with(&tip), "{args:?}: {done:?}");
    }
}

#[test]
fn wrong_names_and_owners_get_a_hint_that_fits() {
    let fixture = Fixture::file();
    let long = "x".repeat(1025);
    for (args, said, hint) in [
        (
            &["run", "", "--", "touch", "ran"][..],
            "the name is empty",
            "is the variable set",
        ),
        (&["lock", "show", "a\nb"], "control character", "line ends"),
        (&["lock", "show", &long], "1025 bytes long", "use a hash"),
        (
            &["lock", "show", "windlass:x"],
            "are reserved",
            "something else",
        ),
        (
            &["lock", "acquire", "l", "--owner", "a b"],
            "the owner contains a space",
            "such as a host name and a process id",
        ),
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}: {done:?}");
        assert!(done.err.contains(said), "{args:?}: {done:?}");
        let hint_line = done.err.lines().find(|line| line.starts_with("  hint: "));
        assert!(
            hint_line.is_some_and(|line| line.contains(hint)),
            "{args:?}: {done:?}"
        );
    }
    assert!(!fixture.path("ran").exists());
}

#[test]
fn seconds_are_durations_too() {
    let fixture = Fixture::file();
    for (seconds, said) in [
        ("5x", "unknown unit"),
        ("50ms", "not within 100ms to 1h"),
        ("2h", "not within 100ms to 1h"),
    ] {
        let done = fixture.run(&["bench", "lock", "--seconds", seconds]);
        assert_eq!(done.code, 125, "{seconds}: {done:?}");
        assert!(done.err.contains(said), "{seconds}: {done:?}");
    }
    for seconds in ["0.1", "100ms"] {
        let args = [
            "--json",
            "bench",
            "lock",
            "--tasks",
            "1",
            "--seconds",
            seconds,
        ];
        let done = fixture.run(&args);
        assert_eq!(done.code, 0, "{seconds}: {done:?}");
    }
}

#[test]
fn nouns_agree_with_numbers() {
    let fixture = Fixture::file();
    let text = |args: &[&str]| fixture.run(args).out;
    assert!(text(&["barrier", "b", "--parties", "1"]).starts_with("the only party has arrived"));
    text(&["sem", "acquire", "s", "--permits", "1"]);
    assert!(text(&["sem", "show", "s"]).contains("1 of 1 permit in use"));
    let resized = text(&["sem", "resize", "s", "--permits", "2"]);
    assert_eq!(resized, "s has 2 permits now, 1 before\n");
    let defined = text(&[
        "perm",
        "define",
        "p",
        "--levels",
        "no,yes",
        "--resources",
        "x",
    ]);
    assert!(defined.contains("1 resource of 1 bit each"), "{defined}");
}

#[test]
fn colour_can_be_chosen() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["lock", "acquire", "a"]).code, 0);
    let plain = fixture.run(&["lock", "ls"]).out;
    assert!(!plain.contains('\x1b'), "{plain}");
    for args in [
        &["--color", "always", "lock", "ls"][..],
        &["lock", "ls", "--color=always"],
    ] {
        let coloured = FinishedProcess::of(fixture.command(args).env("NO_COLOR", "1"));
        assert!(coloured.out.contains("\x1b[1m"), "{coloured:?}");
    }
    let help = fixture.run(&["--help", "--color", "always"]).out;
    assert!(help.contains("\x1b["), "{help}");
    let wrong = fixture.run(&["lock", "ls", "--color", "sometimes"]);
    assert_eq!(wrong.code, 125, "{wrong:?}");

    let pty = super::fixture::pty::Pty::new(100, 24);
    let shown = pty.start(&fixture, &["lock", "ls", "--color", "never"], &[]);
    assert!(
        shown
            .wait_timeout(super::fixture::LONG)
            .is_some_and(|status| status.success())
    );
    pty.wait_for("OWNER");
    assert!(!pty.written().contains('\x1b'), "{:?}", pty.written());
}

#[test]
fn call_timeout_can_be_chosen() {
    let fixture = Fixture::redis();
    assert_eq!(
        fixture
            .run(&["lock", "acquire", "a", "--call-timeout", "5s"])
            .code,
        0
    );
    fixture.server().pause().unwrap();
    let began = std::time::Instant::now();
    let done = fixture.run(&["lock", "show", "a", "--call-timeout", "100ms"]);
    fixture.server().resume().unwrap();
    assert_eq!(done.code, 69, "{done:?}");
    // By default, it takes two seconds.
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(2), "{took:?}");
    assert_eq!(
        fixture.run(&["lock", "ls", "--call-timeout", "0s"]).code,
        125
    );
}

#[test]
fn stores_are_listed_in_the_help() {
    let fixture = Fixture::file();
    for args in [&["help", "stores"][..], &["stores"], &["stores", "--help"]] {
        let done = fixture.run(args);
        assert_eq!(done.code, 0, "{done:?}");
        for scheme in [
            "file:PATH",
            "redis://",
            "redlock://",
            "etcd://",
            "zookeeper://",
            "postgres://",
        ] {
            assert!(done.out.contains(scheme), "{scheme}: {}", done.out);
        }
        let too_long = done.out.lines().find(|line| line.chars().count() > 100);
        assert_eq!(too_long, None);
    }
}
