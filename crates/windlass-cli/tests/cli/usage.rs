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
        (&["lock", "release", "x"], "--owner"),
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
fn default_store_is_a_private_file_in_the_state_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::file();
    let mut command = fixture.command(&["run", "hello", "--", "echo", "one at a time"]);
    let done = FinishedProcess::of(command.env_remove("WINDLASS_STORE"));
    assert_eq!((done.code, done.out.as_str()), (0, "one at a time\n"));
    let folder = fixture.path("windlass");
    assert!(folder.join("windlass.db").exists());
    let mode = folder.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
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

/// A wrong URL is not an unreachable server.
#[test]
fn wrong_redis_url_is_125() {
    let fixture = Fixture::redis();
    let tls = fixture.store.replace("redis://", "rediss://");
    for (store, said) in [
        (
            format!("{}/99", fixture.store),
            "no database of that number",
        ),
        (
            format!("{}/-1", fixture.store),
            "no database of that number",
        ),
        (
            format!("{}#insecure", fixture.store),
            "a fragment (after #)",
        ),
        (format!("{tls}#insecure"), "tls_ca"),
        (format!("{}?db=3", fixture.store), "part of the path"),
    ] {
        for args in [
            &["lock", "ls"][..],
            &["doctor"],
            &["run", "x", "--", "true"],
        ] {
            let done = fixture.run(&[&["--store", store.as_str()], args].concat());
            assert_eq!(done.code, 125, "{store} {args:?}: {done:?}");
            assert!(done.err.contains(said), "{store}: {done:?}");
            assert!(done.err.contains("hint: "), "{store}: {done:?}");
        }
    }
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

/// Wherever a password is in a URL, also a misspelt one, no message repeats any part of it.
#[test]
fn passwords_in_urls_are_not_repeated() {
    // In capitals, so that no other text contains a part of it.
    let secret = "XQZ";
    let mut urls: Vec<String> = [
        "redis//ann:XQZ@h",
        "redis:ann:XQZ@h",
        "redis:/ann:XQZ@h",
        "redis:XQZ@h",
        "ann:XQZ@h",
        "ann:XQZ@h:6379",
        "XQZ@h",
        "XQZ@h:6379",
        ":XQZ@h",
        "//:XQZ@h",
        "http://ann:XQZ@h",
        "redis+unix:///nowhere?pass=XQZ",
        "redis+unix:///nowhere?passwd=XQZ",
        "redis+unix:///nowhere?XQZ",
        "redis+sentinel://127.0.0.1:1/main?sentinel_password=XQZ",
        "redis+sentinel://127.0.0.1:1/main?sentinel_pasword=XQZ",
        "redis+sentinel://127.0.0.1:1/main?sentinel_username=a&sentinel_password=XQZ&XQZ",
    ]
    .map(str::to_owned)
    .to_vec();
    for (scheme, path) in [
        ("redis", ""),
        ("rediss", "/0"),
        ("redis+sentinel", "/main"),
        ("redis+cluster", ""),
        ("redlock", ""),
        ("etcd", ""),
        ("zookeeper", "/app"),
        ("unknown", ""),
    ] {
        let hosts = match scheme {
            "redlock" => "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
            _ => "127.0.0.1:1",
        };
        for user in [
            "XQZ",
            ":XQZ",
            "ann:XQZ",
            "ann:p?XQZ",
            "ann:p?p=XQZ",
            "ann:p/XQZ",
            "ann:p/p:XQZ",
            "ann:p@XQZ",
            "ann:p:XQZ",
            "ann:p XQZ",
            "ann:p[XQZ",
            "ann:p%XQZ",
            "ann:p&XQZ",
            "ann:p,XQZ",
            "ann:p#XQZ",
            "ann:XQZ/?",
        ] {
            urls.push(format!("{scheme}://{user}@{hosts}{path}"));
        }
        urls.push(format!("{scheme}://{hosts}:XQZ@"));
        urls.push(format!("{scheme}://{hosts}{path}?password=XQZ"));
        urls.push(format!("{scheme}://{hosts}{path}?Password=XQZ"));
    }
    let threads: Vec<_> = urls
        .chunks(urls.len().div_ceil(4))
        .map(<[String]>::to_vec)
        .map(|urls| {
            std::thread::spawn(move || {
                let fixture = Fixture::file();
                let mut leaks = Vec::new();
                for url in urls {
                    let args = [
                        "-v",
                        "run",
                        "x",
                        "--ttl",
                        "300ms",
                        "--no-wait",
                        "--",
                        "true",
                    ];
                    let mut command = fixture.command(&args);
                    command.env("WINDLASS_STORE", &url);
                    let by_env = FinishedProcess::of(&mut command);
                    let args = ["run", "x", "--ttl", "300ms", "--no-wait", "--store", &url];
                    let by_option = fixture.run(&[&args[..], &["--", "true"]].concat());
                    for shown in [by_env, by_option] {
                        assert_ne!(shown.code, 0, "{url}: {shown:?}");
                        if format!("{shown:?}").contains(secret) {
                            leaks.push(format!("{url}: {}", shown.err));
                        }
                    }
                }
                leaks
            })
        })
        .collect();
    let leaks: Vec<String> = threads
        .into_iter()
        .flat_map(|t| t.join().unwrap())
        .collect();
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
}

#[test]
fn empty_store_is_an_error() {
    // Most often a secret that is missing: the default store, a local file, would keep nobody out.
    let fixture = Fixture::file();
    for args in [
        &["run", "x", "--", "true"][..],
        &["lock", "acquire", "x"],
        &["doctor"],
        &["elect", "x", "--show"],
    ] {
        for (name, value) in [
            ("WINDLASS_STORE", ""),
            ("WINDLASS_STORE", " "),
            ("WINDLASS_STORE_FILE", ""),
        ] {
            let mut command = fixture.command(args);
            let done = FinishedProcess::of(command.env_remove("WINDLASS_STORE").env(name, value));
            assert_eq!(
                (done.code, done.out.as_str()),
                (125, ""),
                "{args:?}: {done:?}"
            );
            assert!(
                done.err.contains(name) && done.err.contains("empty"),
                "{done:?}"
            );
        }
        let by_option = fixture.run(&[&["--store", ""], args].concat());
        assert_eq!(by_option.code, 125, "{args:?}: {by_option:?}");
        assert!(by_option.err.contains("--store"), "{by_option:?}");
    }
    assert!(
        !fixture.path("windlass").exists(),
        "no default store was made"
    );
}

#[test]
fn store_url_can_be_in_a_file() {
    let fixture = Fixture::file();
    let file = fixture.path("url");
    let path = file.to_str().unwrap();
    std::fs::write(&file, format!("{}\n", fixture.store)).unwrap();
    let without = |args: &[&str]| {
        let mut command = fixture.command(args);
        command.env_remove("WINDLASS_STORE");
        command
    };
    let acquire = [
        "lock",
        "acquire",
        "l",
        "--owner",
        "ann",
        "--store-file",
        path,
    ];
    assert_eq!(FinishedProcess::of(&mut without(&acquire)).code, 0);
    assert_eq!(fixture.show("l")["owner"], "ann");
    let mut show = without(&["--json", "lock", "show", "l"]);
    let shown = FinishedProcess::of(show.env("WINDLASS_STORE_FILE", path));
    assert_eq!(shown.object()["owner"], "ann", "{shown:?}");
    // The command learns the path, not the URL.
    let script = "echo $WINDLASS_STORE,$WINDLASS_STORE_FILE";
    let mut run = without(&["run", "m", "--store-file", "url", "--shell", "--", script]);
    let done = FinishedProcess::of(run.env("WINDLASS_STORE", "redis://:XQZ@127.0.0.1:1"));
    assert_eq!(done.out, format!(",{path}\n"), "{done:?}");
    // An option replaces the variable of the other one.
    let args = ["lock", "show", "l", "--store", &fixture.store];
    let done = FinishedProcess::of(without(&args).env("WINDLASS_STORE_FILE", "nowhere"));
    assert_eq!(done.code, 0, "{done:?}");
    let both = [
        "lock",
        "show",
        "l",
        "--store",
        &fixture.store,
        "--store-file",
        path,
    ];
    assert_eq!(FinishedProcess::of(&mut without(&both)).code, 125);
    for (content, said) in [
        ("", "is empty"),
        ("redis://:XQZ@127.0.0.1:1\nXQZ", "more than one line"),
        ("XQZ@127.0.0.1:1", "no scheme"),
    ] {
        std::fs::write(&file, content).unwrap();
        let done = FinishedProcess::of(&mut without(&["lock", "show", "l", "--store-file", path]));
        assert_eq!(done.code, 125, "{done:?}");
        assert!(
            done.err.contains(said) && !done.err.contains("XQZ"),
            "{done:?}"
        );
    }
    let done = FinishedProcess::of(&mut without(&["lock", "show", "l", "--store-file", "no"]));
    assert_eq!(done.code, 125);
    assert!(
        done.err.contains("cannot read the store's URL from no"),
        "{done:?}"
    );
}
