//! Durations in JSON: whole milliseconds under keys that end in `_ms`, as in the command line's output.

use std::time::Duration;

use serde::{Deserialize as _, Deserializer, Serializer};

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A duration in milliseconds.
pub(crate) mod as_millis {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(d: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(millis(*d))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// An optional duration in milliseconds.
pub(crate) mod as_optional_millis {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        d: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match d {
            Some(d) => serializer.serialize_some(&millis(*d)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

/// An optional duration in microseconds, for periods shorter than a millisecond.
pub(crate) mod as_optional_micros {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        d: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match d {
            Some(d) => serializer.serialize_some(&u64::try_from(d.as_micros()).unwrap_or(u64::MAX)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_micros))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{from_value, json, to_value};

    use crate::{Event, Leader, LockState, QuotaState};

    #[test]
    fn states_have_the_keys_of_the_command_line() {
        let leader = json!({
            "value": "10.0.0.7", "owner": "ann", "fence": 7, "age_ms": 1500, "remaining_ms": 9000
        });
        let read: Leader = from_value(leader.clone()).unwrap();
        assert_eq!(read.age, Some(Duration::from_millis(1500)));
        assert_eq!(read.remaining, Duration::from_secs(9));
        assert_eq!(to_value(&read).unwrap(), leader);

        let lock = json!({"name": "x", "holder": null, "waiters": 2});
        let read: LockState = from_value(lock.clone()).unwrap();
        assert_eq!(to_value(&read).unwrap(), lock);

        let quota = json!({
            "algorithm": "token-bucket", "amount": 1, "period_us": 100, "limit": 5,
            "remaining": 4, "reset_after_ms": null
        });
        let read: QuotaState = from_value(quota.clone()).unwrap();
        assert_eq!(read.period, Some(Duration::from_micros(100)));
        assert_eq!(to_value(read).unwrap(), quota);
    }

    #[test]
    fn events_are_messages_or_gaps() {
        let message = json!({"message": {"id": 42}});
        let read: Event<serde_json::Value> = from_value(message.clone()).unwrap();
        assert_eq!(to_value(&read).unwrap(), message);
        assert_eq!(
            to_value(Event::<u32>::Gap { missed: Some(3) }).unwrap(),
            json!({"gap": {"missed": 3}})
        );
    }
}
