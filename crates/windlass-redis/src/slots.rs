//! Hash slots: how a Redis Cluster assigns keys to nodes.

use redis::{Arg, Cmd};

pub(super) const SLOTS: u16 = 16384;

/// The hash slot of text without a hash tag (CRC16/XMODEM, as Redis Cluster specifies).
pub(super) fn of_text(text: &[u8]) -> u16 {
    let crc = text.iter().fold(0u16, |crc, &byte| {
        (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]
    });
    crc % SLOTS
}

/// The slot of a key: that of its hash tag (`{…}`), if it has one.
pub(super) fn of_key(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let after = &key[open + 1..];
        let close = after.iter().position(|&b| b == b'}')?;
        (close > 0).then(|| &after[..close])
    });
    of_text(tag.unwrap_or(key))
}

/// The slot of a command: that of its first key, since all keys of a command share a slot. `None`
/// if it has no key.
pub(super) fn of_command(command: &Cmd) -> Option<u16> {
    let mut words = command.args_iter().map(|arg| match arg {
        Arg::Simple(word) => word,
        _ => b"",
    });
    let verb = words.next()?;
    let key = match verb {
        b"EVALSHA" | b"EVAL" => {
            let mut rest = words.skip(1);
            if rest.next()? == b"0" {
                return None;
            }
            rest.next()?
        }
        b"MEMORY" => words.nth(1)?,
        b"PUBLISH" | b"SUBSCRIBE" | b"UNSUBSCRIBE" | b"SCRIPT" | b"SCAN" | b"DBSIZE" | b"TIME"
        | b"INFO" | b"CONFIG" | b"CLUSTER" | b"PING" | b"WAIT" | b"WAITAOF" | b"ROLE" => {
            return None;
        }
        _ => words.next()?,
    };
    Some(of_key(key))
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = match crc & 0x8000 {
                0 => crc << 1,
                _ => (crc << 1) ^ 0x1021,
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_redis() {
        // From the Redis Cluster specification, and `CLUSTER KEYSLOT`.
        assert_eq!(of_text(b"123456789"), 0x31C3);
        assert_eq!(of_key(b"foo"), 12182);
        assert_eq!(of_key(b"x{foo}y"), 12182);
        assert_eq!(of_key(b"x{foo}{bar}"), 12182);
        assert_eq!(of_key(b"{}foo"), of_text(b"{}foo"));
        assert_eq!(of_key(b"foo{"), of_text(b"foo{"));
    }

    #[test]
    fn a_command_goes_where_its_first_key_is() {
        let command = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            of_command(&command)
        };
        assert_eq!(command(&["GET", "foo"]), Some(12182));
        assert_eq!(
            command(&["EVALSHA", "abc", "2", "foo", "{foo}x"]),
            Some(12182)
        );
        assert_eq!(command(&["EVALSHA", "abc", "0", "foo"]), None);
        assert_eq!(command(&["MEMORY", "USAGE", "foo"]), Some(12182));
        assert_eq!(command(&["PUBLISH", "foo", "x"]), None);
        assert_eq!(command(&["SCAN", "0"]), None);
    }
}
