//! The URL of the store: where it comes from, what is wrong with it, and that no message shows its password.

use crate::fixture::{FinishedProcess, Fixture};

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
        // A path is none that has a user and a host.
        "file://ann:XQZ@h/x",
        "file://XQZ@h/x",
        "file:ann:XQZ@h/x",
        "file:redis://ann:XQZ@h/x",
        "file:redis://ann:XQZ",
        "ann:XQZ",
        "ann:XQZ.db",
        "ann:XQZ:2379",
        "ann:XQZ\u{ff20}h",
        "redis:ann:XQZ",
        "redis//ann:XQZ",
        "redlock://ann:xqz,ann:xqz,h",
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
        ("etcds", ""),
        ("zookeeper", "/app"),
        ("zookeeper+tls", "/app"),
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
        // The @ is missing, or something else was typed for it.
        for user in [
            "ann:XQZ",
            ":XQZ",
            "ann:1:XQZ",
            "ann:XQZ%40h",
            "ann:XQZ\u{ff20}h",
            "XQZ%40h",
        ] {
            urls.push(format!("{scheme}://{user}{path}"));
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
                    let file = fixture.folder.path().join("url");
                    std::fs::write(&file, &url).unwrap();
                    let mut command = fixture.command(&["--json", "lock", "show", "x"]);
                    command
                        .env_remove("WINDLASS_STORE")
                        .env("WINDLASS_STORE_FILE", &file);
                    let by_file = FinishedProcess::of(&mut command);
                    for shown in [by_env, by_option, by_file] {
                        assert_ne!(shown.code, 0, "{url}: {shown:?}");
                        if format!("{shown:?}").to_uppercase().contains(secret) {
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

/// A path or a host is not a URL, and the hint has the URL that was meant.
#[test]
fn store_that_is_no_url_gets_the_url_that_was_meant() {
    let fixture = Fixture::file();
    for (store, meant) in [
        ("/var/lib/locks.db", "did you mean file:/var/lib/locks.db?"),
        ("locks.db", "did you mean file:locks.db?"),
        ("localhost:6379", "did you mean redis://localhost:6379?"),
        ("file:~/locks.db", "write file:/"),
    ] {
        let done = fixture.run(&["--store", store, "lock", "ls"]);
        assert_eq!(done.code, 125, "{done:?}");
        assert!(done.err.contains(meant), "{done:?}");
    }
    assert!(!fixture.path("~").exists());
}
