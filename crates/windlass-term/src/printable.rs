//! Text from a store, made safe to print.
//!
//! Owners, notes, names and messages come from other clients. Printed raw, their control characters could move the
//! cursor, clear the screen, forge lines or change the title of the terminal of the person who looks at them.

use std::borrow::Cow;

/// The text on one line, with control characters escaped (`\\u{1b}`).
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// The same for a message of several lines: line feeds and tabs stay.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && !matches!(c, '\n' | '\t'))
}

/// JSON escapes the control characters of ASCII. The others have the same effect in a terminal.
pub(crate) fn printable_json(json: String) -> String {
    if !json.contains(is_unsafe) {
        return json;
    }
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match is_unsafe(c) {
            // All of them fit 16 bits.
            true => safe += &format!("\\u{:04x}", u32::from(c)),
            false => safe.push(c),
        }
    }
    safe
}

/// Control characters, and those that change the direction of the text around them.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, escaped: impl Fn(char) -> bool + Copy) -> Cow<'_, str> {
    if !text.contains(escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match escaped(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_text_stays() {
        for (text, safe) in [
            ("nightly backup, 5 %", "nightly backup, 5 %"),
            ("Büro 東京 🎉", "Büro 東京 🎉"),
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("a\u{9b}31mb", "a\\u{9b}31mb"),
            ("x\nroot holds y\r\t", "x\\nroot holds y\\r\\t"),
            ("\u{202e}txt", "\\u{202e}txt"),
            ("\x07\x7f", "\\u{7}\\u{7f}"),
        ] {
            assert_eq!(printable(text), safe);
        }
        assert_eq!(printable_lines("a\n\tb\x1b"), "a\n\tb\\u{1b}");
        let json = serde_json::to_string("\x1b\n\u{9b}\u{202e}é").unwrap();
        let safe = printable_json(json);
        assert_eq!(safe, "\"\\u001b\\n\\u009b\\u202eé\"");
        let back: String = serde_json::from_str(&safe).unwrap();
        assert_eq!(back, "\x1b\n\u{9b}\u{202e}é");
    }
}
