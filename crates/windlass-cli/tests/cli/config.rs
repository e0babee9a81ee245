//! The config file, its profiles, and `windlass config`.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::fixture::{FinishedProcess, Fixture};

/// windlass with this config file as the default one, and without a store in its environment.
fn with_config(fixture: &Fixture, config: &str, args: &[&str]) -> Command {
    let folder = fixture.path("config/windlass");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("config.toml");
    std::fs::write(&file, config).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = fixture.command(args);
    command
        .env_remove("WINDLASS_STORE")
        .env("XDG_CONFIG_HOME", fixture.path("config"));
    command
}

fn run(fixture: &Fixture, config: &str, args: &[&str]) -> FinishedProcess {
    FinishedProcess::of(&mut with_config(fixture, config, args))
}

/// The value and the origin of a setting.
fn setting(done: &FinishedProcess, name: &str) -> (String, String) {
    let objects = done.objects();
    let found = objects.iter().find(|object| object["setting"] == name);
    let found = found.unwrap_or_else(|| panic!("{name}: {done:?}"));
    let text = |key: &str| found[key].as_str().unwrap_or("null").to_owned();
    (
        text("value"),
        format!("{} {}", text("outcome"), text("from")),
    )
}

const CONFIG: &str = r#"
namespace = "top"
call-timeout = "3s"
store = "redis://top-host"

[profile.prod]
store = "redis://ann:XQZ-secret@prod-host"
namespace = "prod"

[profile.plain]
color = "never"
"#;

#[test]
fn option_beats_variable_beats_profile_beats_top_level() {
    let fixture = Fixture::file();
    let file = fixture.path("config/windlass/config.toml");
    let line = |line: u32| format!("{}:{line}", file.display());
    let config = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = with_config(&fixture, CONFIG, &[&["--json", "config"], args].concat());
        FinishedProcess::of(command.envs(env.iter().copied()))
    };
    let top = config(&[], &[]);
    assert_eq!(top.code, 0, "{top:?}");
    let found = |value: &str, from: String| (value.to_owned(), from);
    let store = setting(&top, "store");
    assert_eq!(
        store,
        found("redis://top-host", format!("file {}", line(4)))
    );
    let default = found("auto", "default null".into());
    assert_eq!(setting(&top, "color"), default);
    assert_eq!(
        setting(&top, "profile"),
        found("null", "default null".into())
    );

    let profile = config(&["--profile", "prod"], &[]);
    let store = setting(&profile, "store");
    let from = format!("profile {}", line(7));
    assert_eq!(store, found("redis://ann:***@prod-host", from));
    let namespace = setting(&profile, "namespace");
    assert_eq!(namespace, found("prod", format!("profile {}", line(8))));
    let timeout = setting(&profile, "call-timeout");
    assert_eq!(timeout, found("3s", format!("file {}", line(3))));

    let variable = [("WINDLASS_PROFILE", "prod"), ("WINDLASS_NAMESPACE", "env")];
    let env = config(&[], &variable);
    let from = "environment WINDLASS_PROFILE".into();
    assert_eq!(setting(&env, "profile"), found("prod", from));
    let from = "environment WINDLASS_NAMESPACE".into();
    assert_eq!(setting(&env, "namespace"), found("env", from));
    assert!(setting(&env, "store").0.contains("prod-host"), "{env:?}");

    let option = config(&["--namespace", "opt", "--profile", "plain"], &variable);
    assert_eq!(
        setting(&option, "namespace"),
        found("opt", "option --namespace".into())
    );
    assert_eq!(setting(&option, "color").0, "never");
    assert!(
        setting(&option, "store").0.contains("top-host"),
        "{option:?}"
    );
    // An empty namespace is none, and still beats the file.
    let none = config(&[], &[("WINDLASS_NAMESPACE", "")]);
    let from = "environment WINDLASS_NAMESPACE".into();
    assert_eq!(setting(&none, "namespace"), found("null", from));
    for done in [&top, &profile, &env, &option, &none] {
        assert!(
            !done.out.contains("XQZ-secret") && !done.err.contains("XQZ-secret"),
            "{done:?}"
        );
    }
    let table = run(&fixture, CONFIG, &["config", "--profile", "prod"]);
    assert!(table.out.starts_with("SETTING"), "{}", table.out);
    assert!(
        table.out.contains("redis://ann:***@prod-host"),
        "{}",
        table.out
    );
}

#[test]
fn commands_use_the_config() {
    let fixture = Fixture::file();
    let url = fixture.path("url");
    std::fs::write(&url, &fixture.store).unwrap();
    let config = format!(
        "store-file = \"{}\"\n[profile.other]\nnamespace = \"ns\"\n",
        url.display()
    );
    let acquire = ["lock", "acquire", "l", "--owner", "ann"];
    assert_eq!(run(&fixture, &config, &acquire).code, 0);
    assert_eq!(fixture.show("l")["owner"], "ann");
    let other = [&acquire[..], &["--profile", "other"]].concat();
    let done = run(&fixture, &config, &other);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(fixture.show("ns:l")["owner"], "ann");
    // A store that was given replaces a store file of the config.
    let mut command = with_config(&fixture, &config, &["ls", "--store", "memory:"]);
    let done = FinishedProcess::of(&mut command);
    assert_eq!((done.code, done.out.as_str()), (0, ""), "{done:?}");
    // Relative to the config file.
    std::fs::write(fixture.path("config/windlass/url"), &fixture.store).unwrap();
    let done = run(&fixture, "store-file = \"url\"", &["lock", "show", "l"]);
    assert_eq!(done.code, 0, "{done:?}");
    // Another file.
    let named = fixture.path("named.toml");
    std::fs::write(&named, format!("store = \"{}\"", fixture.store)).unwrap();
    let mut command = with_config(&fixture, "broken", &["lock", "show", "l"]);
    let done = FinishedProcess::of(command.env("WINDLASS_CONFIG", &named));
    assert_eq!(done.code, 0, "{done:?}");
}

/// The names of a nested windlass must be those of the outer one.
#[test]
fn nested_windlass_uses_the_same_names() {
    let fixture = Fixture::file();
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let config = format!(
        "namespace = \"top\"\nstore = \"{}\"\n[profile.p]\nnamespace = \"ns\"\n",
        fixture.store
    );
    for (options, name) in [
        (&["--profile", "p"][..], "ns:l"),
        (&["--namespace", ""], "l"),
        (&[], "top:l"),
    ] {
        let command = ["run", "outer", "--", windlass, "lock", "acquire", "l"];
        let done = run(&fixture, &config, &[options, &command].concat());
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(fixture.show(name)["held"], true, "{options:?}");
    }
}

#[test]
fn wrong_files_are_125_with_the_line_and_a_hint() {
    let fixture = Fixture::file();
    for (config, said, hint) in [
        (
            "\nstoer = \"redis://h\"",
            "line 2: unknown key \"stoer\"",
            "the keys are store,",
        ),
        (
            "[profile.p]\nttl = \"3s\"",
            "line 2: unknown key \"ttl\"",
            "the keys are store,",
        ),
        (
            "store = 5",
            "line 1: store is not a string",
            "write store = \"redis://HOST\"",
        ),
        (
            "call-timeout = \"30\"",
            "the unit is missing",
            "write call-timeout = \"2s\"",
        ),
        (
            "color = \"red\"",
            "none of auto, always and never",
            "\"auto\"",
        ),
        ("store = \"\"", "line 1: store: it is empty", "redis://HOST"),
        (
            "store = \"file:locks.db\"",
            "the whole path",
            "redis://HOST",
        ),
        (
            "profile = \"p\"",
            "profile is not a table",
            "[profile.NAME]",
        ),
        ("a b\n", "line 1: ", "the file is TOML"),
        ("# fine\nstore = \"x\" y", "line 2: ", "the file is TOML"),
    ] {
        for args in [
            &["lock", "ls"][..],
            &["config"],
            &["run", "x", "--", "true"],
        ] {
            let done = run(&fixture, config, args);
            assert_eq!(
                (done.code, done.out.as_str()),
                (125, ""),
                "{config}: {done:?}"
            );
            assert!(done.err.contains(said), "{said}: {}", done.err);
            assert!(done.err.contains(hint), "{hint}: {}", done.err);
            assert!(
                done.err.contains("config/windlass/config.toml"),
                "{}",
                done.err
            );
        }
    }
    let done = run(&fixture, CONFIG, &["ls", "--profile", "prd"]);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.err.contains("no profile \"prd\""), "{}", done.err);
    assert!(done.err.contains("it has plain, prod"), "{}", done.err);
    for (name, value, said) in [
        ("WINDLASS_PROFILE", "", "WINDLASS_PROFILE is empty"),
        ("WINDLASS_CONFIG", "", "WINDLASS_CONFIG is empty"),
        (
            "WINDLASS_CONFIG",
            "nowhere.toml",
            "cannot read the config file nowhere.toml",
        ),
    ] {
        let mut command = with_config(&fixture, "", &["ls"]);
        let done = FinishedProcess::of(command.env(name, value));
        assert_eq!(done.code, 125, "{done:?}");
        assert!(done.err.contains(said), "{}", done.err);
    }
    assert!(
        !fixture.path("windlass").exists(),
        "no default store was made"
    );
    // What uses no setting works with a wrong file, to repair it.
    for args in [
        &["config", "path"][..],
        &["--help"],
        &["stores"],
        &["completions", "bash"],
    ] {
        assert_eq!(run(&fixture, "broken", args).code, 0, "{args:?}");
    }
    let no_file = fixture.run(&["ls", "--profile", "p"]);
    assert_eq!(no_file.code, 125, "{no_file:?}");
    assert!(
        no_file.err.contains("there is no config file"),
        "{}",
        no_file.err
    );
}

#[test]
fn readable_passwords_and_overridden_profiles_get_a_warning() {
    let fixture = Fixture::file();
    let file = fixture.path("config/windlass/config.toml");
    let config = |config: &str, mode: u32, args: &[&str]| {
        let mut command = with_config(&fixture, config, args);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        FinishedProcess::of(command.env("WINDLASS_NAMESPACE", ""))
    };
    let prod = ["config", "--profile", "prod"];
    let warned = config(CONFIG, 0o644, &prod);
    assert_eq!(
        warned.err.matches("can read the password").count(),
        1,
        "{warned:?}"
    );
    assert!(!warned.err.contains("XQZ-secret"), "{warned:?}");
    let private = config(CONFIG, 0o600, &prod);
    assert!(!private.err.contains("can read"), "{private:?}");
    // A URL without a password may be read.
    assert_eq!(config("store = \"redis://h\"", 0o644, &["config"]).err, "");
    assert_eq!(
        config(CONFIG, 0o644, &["-q", "config", "--profile", "prod"]).err,
        ""
    );

    let replaced = "WINDLASS_NAMESPACE replaces the namespace of the profile prod";
    assert!(private.err.contains(replaced), "{private:?}");
    let mut command = with_config(&fixture, CONFIG, &prod);
    let done = FinishedProcess::of(command.env("WINDLASS_STORE", "memory:"));
    let replaced = "WINDLASS_STORE replaces the store of the profile prod";
    assert!(done.err.contains(replaced), "{done:?}");
}

#[test]
fn path_is_printed_whether_the_file_exists_or_not() {
    let fixture = Fixture::file();
    let mut command = fixture.command(&["--json", "config", "path"]);
    let missing = FinishedProcess::of(command.env("XDG_CONFIG_HOME", "/nowhere"));
    let found = missing.object();
    assert_eq!(found["path"], "/nowhere/windlass/config.toml");
    assert_eq!((missing.code, &found["exists"]), (0, &false.into()));
    let done = run(&fixture, "", &["config", "path"]);
    let path = fixture.path("config/windlass/config.toml");
    assert_eq!(done.out, format!("{}\n", path.display()));
}
