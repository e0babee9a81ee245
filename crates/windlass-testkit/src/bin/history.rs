//! Checks histories that were saved: `cargo run -p windlass-testkit --bin history -- FILE …`

use std::path::Path;
use std::process::ExitCode;

use windlass_testkit::history::{check, load};

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: history FILE …\n\nEach file has one event a line, as JSON.");
        return ExitCode::from(2);
    }
    let mut fine = true;
    for file in files {
        let events = match load(Path::new(&file)) {
            Ok(events) => events,
            Err(e) => {
                eprintln!("history: {file}: {e}");
                return ExitCode::from(2);
            }
        };
        for verdict in check(&events) {
            println!("{verdict}");
            fine &= verdict.is_fine();
        }
    }
    ExitCode::from(u8::from(!fine))
}
