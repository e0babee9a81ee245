//! Topics from the shell, between processes.

use crate::fixture::{Fixture, LONG, code};
use windlass_testkit::eventually_blocking;

on_each_store!(published_messages_are_printed);

fn published_messages_are_printed(fixture: Fixture) {
    let listener = fixture.start(&["topic", "subscribe", "orders", "--count", "2"]);
    let programs = fixture.start(&["--json", "topic", "subscribe", "orders", "--count", "2"]);
    let listening = || fixture.stderr().matches("subscribed to orders").count() == 2;
    assert!(eventually_blocking(LONG, listening), "{}", fixture.stderr());
    assert_eq!(
        fixture
            .run(&["topic", "publish", "orders", "order 42"])
            .code,
        0
    );
    let quoted = fixture.run(&["topic", "publish", "orders", "{\"id\":43}"]);
    assert_eq!((quoted.code, quoted.out.as_str()), (0, ""));
    assert_eq!((code(&listener), code(&programs)), (0, 0));
    assert_eq!(listener.stdout_lines(), ["order 42", "{\"id\":43}"]);
    assert_eq!(
        programs.stdout_lines(),
        [
            r#"{"name":"orders","message":"order 42","outcome":"message"}"#,
            r#"{"name":"orders","message":"{\"id\":43}","outcome":"message"}"#
        ]
    );
}

#[test]
fn subscribe_count_zero_is_rejected() {
    let done = Fixture::file().run(&["topic", "subscribe", "orders", "--count", "0"]);
    assert_eq!(done.code, 125);
}
