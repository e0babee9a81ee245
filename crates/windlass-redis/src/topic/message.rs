//! A message of a topic, as it is published: a header of 28 bytes, and the message.
//!
//! Bytes without the header are a message without a number, of an earlier version or of another
//! program.

use std::time::Duration;

/// The first bytes of a numbered message. No JSON begins so.
const MESSAGE: [u8; 8] = *b"\0wl-msg1";
/// The first bytes of a repeated number.
const LAST: [u8; 8] = *b"\0wl-end1";

/// The header of what is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) publisher: u64,
    /// Counts the publisher's messages to this topic, from 1.
    pub(super) number: u64,
    /// How long ago the publisher began to count.
    pub(super) age: Duration,
}

/// What was received.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'a> {
    /// A message with its number.
    Numbered(Header, &'a [u8]),
    /// The number of the publisher's last message.
    Last(Header),
    /// A message without a number.
    Plain(&'a [u8]),
}

impl Header {
    pub(super) fn with_message(self, message: &[u8]) -> Vec<u8> {
        self.encode(MESSAGE, message)
    }

    /// The header alone, to repeat the last number.
    pub(super) fn as_last(self) -> Vec<u8> {
        self.encode(LAST, b"")
    }

    fn encode(self, tag: [u8; 8], message: &[u8]) -> Vec<u8> {
        let age = u32::try_from(self.age.as_millis()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(28 + message.len());
        bytes.extend(tag);
        bytes.extend(self.publisher.to_be_bytes());
        bytes.extend(self.number.to_be_bytes());
        bytes.extend(age.to_be_bytes());
        bytes.extend(message);
        bytes
    }
}

impl Received<'_> {
    pub(super) fn read(bytes: &[u8]) -> Received<'_> {
        let mut rest = bytes;
        let tag = take::<8>(&mut rest);
        let header = (|| {
            Some(Header {
                publisher: u64::from_be_bytes(take(&mut rest)?),
                number: u64::from_be_bytes(take(&mut rest)?),
                age: Duration::from_millis(u32::from_be_bytes(take(&mut rest)?).into()),
            })
        })();
        match (tag, header) {
            (Some(MESSAGE), Some(header)) => Received::Numbered(header, rest),
            (Some(LAST), Some(header)) => Received::Last(header),
            _ => Received::Plain(bytes),
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_other_messages_pass() {
        let header = Header {
            publisher: 7,
            number: 1 << 40,
            age: Duration::from_millis(1234),
        };
        let message = header.with_message(b"{}");
        assert_eq!(Received::read(&message), Received::Numbered(header, b"{}"));
        assert_eq!(Received::read(&header.as_last()), Received::Last(header));
        for plain in [&b""[..], b"{\"a\":1}", b"\0wl-msg1 cut off", &message[..27]] {
            assert_eq!(Received::read(plain), Received::Plain(plain));
        }
    }
}
