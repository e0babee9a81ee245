//! Topics from the shell, between processes.

mod bed;

use bed::{Bed, LONG, code};
use windlass_testkit::eventually_blocking;

#[test]
fn what_is_published_is_printed() {
    for bed in Bed::each() {
        let listener = bed.start(&["topic", "subscribe", "orders", "--count", "2"]);
        let programs = bed.start(&["--json", "topic", "subscribe", "orders", "--count", "2"]);
        let listening = || bed.stderr().matches("listening to orders").count() == 2;
        assert!(eventually_blocking(LONG, listening), "{}", bed.stderr());
        assert_eq!(bed.run(&["topic", "publish", "orders", "order 42"]).code, 0);
        let quoted = bed.run(&["topic", "publish", "orders", "{\"id\":43}"]);
        assert_eq!((quoted.code, quoted.out.as_str()), (0, ""));
        assert_eq!((code(&listener), code(&programs)), (0, 0));
        assert_eq!(listener.stdout_lines(), ["order 42", "{\"id\":43}"]);
        assert_eq!(
            programs.stdout_lines(),
            [
                r#"{"name":"orders","message":"order 42"}"#,
                r#"{"name":"orders","message":"{\"id\":43}"}"#
            ]
        );
    }
    let done = Bed::file().run(&["topic", "subscribe", "orders", "--count", "0"]);
    assert_eq!(done.code, 125);
}
