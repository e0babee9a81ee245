//! The options that people know from flock(1).

use crate::fixture::Fixture;

on_each_store!(flock_options_have_their_meaning);

fn flock_options_have_their_meaning(fixture: Fixture) {
    let _holder = fixture.hold("j", &[]);
    for (args, code) in [
        (&["run", "-w", "0.1", "j", "--", "true"][..], 75),
        (&["run", "-w", "100ms", "j", "--", "true"], 75),
        (&["run", "-n", "-E", "9", "j", "--", "true"], 9),
        (&["run", "-n", "-E", "0", "j", "--", "true"], 0),
        (&["run", "-w", "0.1", "-E", "9", "j", "--", "true"], 9),
        (&["run", "free", "-c", "exit 3"], 3),
        (&["run", "-s", "catalogue", "--", "true"], 0),
        (
            &[
                "run",
                "-x",
                "catalogue",
                "-c",
                "test -n \"$WINDLASS_FENCE\"",
            ],
            0,
        ),
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, code, "{args:?}: {done:?}");
    }
}

#[test]
fn shared_excludes_exclusive() {
    let fixture = Fixture::file();
    let _reader = fixture.hold("catalogue", &["-s"]);
    assert_eq!(
        fixture
            .run(&["run", "-n", "-s", "catalogue", "--", "true"])
            .code,
        0
    );
    assert_eq!(
        fixture
            .run(&["run", "-n", "-x", "catalogue", "--", "true"])
            .code,
        75
    );
    assert_eq!(
        fixture
            .run(&["run", "-n", "-e", "catalogue", "--", "true"])
            .code,
        75
    );
}

#[test]
fn bare_numbers_are_seconds_only_there() {
    let fixture = Fixture::file();
    let done = fixture.run(&["run", "--wait", "5", "j", "--", "true"]);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.err.contains("the unit is missing"), "{done:?}");
    for args in [
        &["run", "-w", "5", "--wait", "5s", "j", "--", "true"][..],
        &["run", "-w", "5", "-n", "j", "--", "true"],
        &["run", "j", "-c", "true", "--", "true"],
        &["run", "-n", "-E", "256", "j", "--", "true"],
        &["run", "j"],
    ] {
        assert_eq!(fixture.run(args).code, 125, "{args:?}");
    }
}

/// clap proposes to write an unknown option after `--`, where it would be run.
#[test]
fn no_tip_would_run_an_option() {
    let fixture = Fixture::file();
    for args in [
        &["run", "-z", "j", "--", "true"][..],
        &["run", "j", "-z"],
        &["elect", "j", "-z"],
    ] {
        let done = fixture.run(args);
        assert_eq!(done.code, 125, "{args:?}");
        assert!(!done.err.contains("-- -z"), "{}", done.err);
    }
    let misspelt = fixture.run(&["run", "--no-wiat", "j", "--", "true"]);
    assert!(misspelt.err.contains("--no-wait"), "{}", misspelt.err);
}
