//! The parameters of a Bloom filter.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::digest::Shape;
use super::key::BloomKey;
use crate::error::{Error, Result};

/// The largest shard, in bits: 16 MiB. A Redis string may have 512 MiB, but allocating that much
/// stalls the server for a tenth of a second.
const LARGEST_SHARD: u64 = 1 << 27;
/// The largest filter, in bits: 8 GiB.
const LARGEST: u64 = 1 << 36;
/// The most generations of a growing filter: each costs another look-up.
pub const MOST_GENERATIONS: u64 = 16;
/// The most bits of one item: fewer than the probe that selects the shard.
pub const MOST_HASHES: u32 = 64;
/// The most slices of a rotating filter.
pub const MOST_SLICES: u32 = 64;

/// The parameters of a filter. They are stored beside it, and every client compares them with its
/// own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// What happens when the filter fills up.
    pub kind: BloomKind,
    /// The number of items that it is sized for.
    pub capacity: u64,
    /// The rate of false positives once `capacity` items are inserted.
    pub error_rate: f64,
    /// The size of the first generation.
    pub shape: Shape,
    /// The [check value](BloomKey::check) of the key of its items, if it has one.
    pub key_check: Option<u64>,
}

/// What happens when a filter fills up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BloomKind {
    /// Its size is fixed: past its capacity, its error rate grows.
    Fixed,
    /// A full generation is followed by one of twice its capacity and half its error rate.
    Growing,
    /// Items expire after a window.
    Rotating {
        /// How long an item is kept at least.
        window: Duration,
        /// The number of slices of time; one slice expires at a time.
        slices: u32,
    },
}

impl Plan {
    /// The plan for a capacity and an error rate.
    ///
    /// # Errors
    ///
    /// If they are out of range, or the filter would be too large.
    pub fn sized(kind: BloomKind, capacity: u64, error_rate: f64) -> Result<Plan> {
        if capacity == 0 {
            return Err(
                invalid("the capacity is 0").with_hint("give the number of items that you expect")
            );
        }
        if !(error_rate > 0.0 && error_rate <= 0.5) {
            return Err(invalid(format!("the error rate is {error_rate}"))
                .with_hint("give a number above 0 and up to 0.5, such as 0.01"));
        }
        check_kind(kind)?;
        let mut plan = Plan {
            kind,
            capacity,
            error_rate,
            shape: Shape {
                bits: 1,
                shards: 1,
                hashes: 1,
            },
            key_check: None,
        };
        plan.shape = plan.shape_for(0)?;
        Ok(plan)
    }

    /// The plan of a fixed filter with this many bits and hashes.
    ///
    /// # Errors
    ///
    /// If they are out of range, or the filter is not fixed.
    pub fn with_bits(kind: BloomKind, bits: u64, hashes: u32) -> Result<Plan> {
        if kind != BloomKind::Fixed {
            return Err(invalid("only a fixed filter can be given bits and hashes")
                .with_hint("give a capacity and an error rate"));
        }
        if bits == 0 || bits > LARGEST {
            return Err(invalid(format!("{bits} bits are not possible"))
                .with_hint(format!("a filter has from 1 to {LARGEST} bits")));
        }
        if hashes == 0 || hashes > MOST_HASHES {
            return Err(invalid(format!("{hashes} hashes are not possible"))
                .with_hint(format!("a filter has from 1 to {MOST_HASHES} hashes")));
        }
        // A filter is most efficient when half of its bits are set.
        let capacity = bits as f64 * std::f64::consts::LN_2 / f64::from(hashes);
        Ok(Plan {
            kind,
            capacity: (capacity as u64).max(1),
            error_rate: 0.5f64.powi(hashes as i32),
            shape: cut(bits, hashes),
            key_check: None,
        })
    }

    /// The same plan for items that are hashed with this key, or without one.
    pub fn keyed(mut self, key: Option<&BloomKey>) -> Plan {
        self.key_check = key.map(BloomKey::check);
        self
    }

    /// The size of generation `n`.
    pub fn shape(&self, n: u64) -> Shape {
        match self.kind {
            BloomKind::Growing if n > 0 => self.shape_for(n).unwrap_or(self.shape),
            _ => self.shape,
        }
    }

    /// The number of items in generation `n` before the next one starts.
    pub fn capacity_of(&self, n: u64) -> u64 {
        match self.kind {
            BloomKind::Growing => self.capacity.saturating_mul(1 << n.min(MOST_GENERATIONS)),
            BloomKind::Fixed => self.capacity,
            BloomKind::Rotating { slices, .. } => {
                self.capacity.div_ceil(u64::from(slices.max(2) - 1))
            }
        }
    }

    /// Whether a generation may follow generation `n`. The last one takes all further items.
    pub fn has_next(&self, n: u64) -> bool {
        self.kind == BloomKind::Growing && n + 1 < MOST_GENERATIONS && self.shape_for(n + 1).is_ok()
    }

    fn shape_for(&self, n: u64) -> Result<Shape> {
        let capacity = self.capacity_of(n) as f64;
        let error = match self.kind {
            BloomKind::Fixed => self.error_rate,
            // 1/2 + 1/4 + …: the sum over all generations stays below the requested rate.
            BloomKind::Growing => self.error_rate / 2f64.powi(n as i32 + 1),
            BloomKind::Rotating { slices, .. } => self.error_rate / f64::from(slices),
        };
        let ln2 = std::f64::consts::LN_2;
        let bits = (-capacity * error.ln() / (ln2 * ln2)).ceil();
        if bits > LARGEST as f64 {
            return Err(invalid(format!(
                "the filter would have {bits:.0} bits; the limit is {LARGEST}"
            ))
            .with_hint("choose a smaller capacity or a higher error rate"));
        }
        let hashes = (bits / capacity * ln2)
            .round()
            .clamp(1.0, f64::from(MOST_HASHES));
        Ok(cut(bits as u64, hashes as u32))
    }

    /// How long a slice of a rotating filter is the current one.
    pub fn period(&self) -> Option<Duration> {
        match self.kind {
            BloomKind::Rotating { window, slices } => {
                let millis = (window.as_millis() as u64).div_ceil(u64::from(slices - 1));
                Some(Duration::from_millis(millis.max(1)))
            }
            _ => None,
        }
    }

    /// A number that differs from plan to plan, never 0: it is part of the stored keys, so that
    /// filters of different plans are not mixed up.
    pub fn fingerprint(&self) -> u64 {
        xxh3_64(self.to_string().as_bytes()) | 1
    }
}

fn check_kind(kind: BloomKind) -> Result<()> {
    let BloomKind::Rotating { window, slices } = kind else {
        return Ok(());
    };
    let longest = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    if window < Duration::from_millis(1) || window > longest {
        return Err(invalid(format!("the window is {window:?}"))
            .with_hint("give a window from 1 ms to 100 years"));
    }
    if !(2..=MOST_SLICES).contains(&slices) {
        return Err(
            invalid(format!("{slices} slices are not possible")).with_hint(format!(
                "a rotating filter has from 2 to {MOST_SLICES} slices"
            )),
        );
    }
    Ok(())
}

fn cut(bits: u64, hashes: u32) -> Shape {
    let shards = bits.div_ceil(LARGEST_SHARD).max(1);
    Shape {
        bits: bits.div_ceil(shards).max(1),
        shards,
        hashes,
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::invalid("create the filter", message)
}

/// The stored text: `windlass-bloom-1 fixed capacity=… error_rate=… bits=… shards=… hashes=…`, with
/// the bits of one shard. The fields of a rotating filter and of a key follow.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BloomKind::Fixed => "fixed",
            BloomKind::Growing => "growing",
            BloomKind::Rotating { .. } => "rotating",
        };
        let (capacity, error, shape) = (self.capacity, self.error_rate, &self.shape);
        write!(
            f,
            "{MAGIC} {kind} capacity={capacity} error_rate={error} bits={} shards={} hashes={}",
            shape.bits, shape.shards, shape.hashes
        )?;
        if let BloomKind::Rotating { window, slices } = self.kind {
            write!(f, " window_ms={} slices={slices}", window.as_millis())?;
        }
        if let Some(check) = self.key_check {
            write!(f, " key_check={check:016x}")?;
        }
        Ok(())
    }
}

const MAGIC: &str = "windlass-bloom-1";

impl FromStr for Plan {
    type Err = ();

    fn from_str(text: &str) -> Result<Plan, ()> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or(());
        if word()? != MAGIC {
            return Err(());
        }
        let kind = word()?.to_owned();
        let mut field = |name: &str| {
            let value = word()?.strip_prefix(name).ok_or(())?;
            value.strip_prefix('=').ok_or(())
        };
        let number = |text: &str| text.parse::<u64>().map_err(drop);
        let capacity = number(field("capacity")?)?;
        let error_rate = field("error_rate")?.parse().map_err(drop)?;
        let shape = Shape {
            bits: number(field("bits")?)?,
            shards: number(field("shards")?)?,
            hashes: number(field("hashes")?)? as u32,
        };
        let kind = match kind.as_str() {
            "fixed" => BloomKind::Fixed,
            "growing" => BloomKind::Growing,
            "rotating" => BloomKind::Rotating {
                window: Duration::from_millis(number(field("window_ms")?)?),
                slices: number(field("slices")?)? as u32,
            },
            _ => return Err(()),
        };
        let key_check = match words.next() {
            None => None,
            Some(word) => {
                let check = word.strip_prefix("key_check=").ok_or(())?;
                Some(u64::from_str_radix(check, 16).map_err(drop)?)
            }
        };
        let is_valid = (1..=LARGEST_SHARD).contains(&shape.bits)
            && (1..=LARGEST / LARGEST_SHARD).contains(&shape.shards)
            && (1..=MOST_HASHES).contains(&shape.hashes)
            && capacity > 0
            && check_kind(kind).is_ok()
            && words.next().is_none();
        is_valid
            .then_some(Plan {
                kind,
                capacity,
                error_rate,
                shape,
                key_check,
            })
            .ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits_per_item(plan: &Plan) -> f64 {
        plan.shape.total_bits() as f64 / plan.capacity as f64
    }

    #[test]
    fn sizes_are_optimal() {
        for (error, theory, hashes) in [(0.01, 9.585, 7), (0.001, 14.378, 10), (0.25, 2.885, 2)] {
            let plan = Plan::sized(BloomKind::Fixed, 1_000_000, error).unwrap();
            let found = bits_per_item(&plan);
            assert!((found / theory - 1.0).abs() < 0.001, "{error}: {found}");
            assert_eq!(plan.shape.hashes, hashes);
            let filled = 1.0 - (-f64::from(hashes) / found).exp();
            let expected = filled.powi(hashes as i32);
            assert!((expected / error - 1.0).abs() < 0.03, "{error}: {expected}");
        }
    }

    #[test]
    fn large_filters_are_cut_into_shards_of_16_mib() {
        let plan = Plan::sized(BloomKind::Fixed, 500_000_000, 0.01).unwrap();
        assert!(plan.shape.bytes() > 512 << 20);
        assert_eq!(plan.shape.shards, 36);
        assert!(plan.shape.bits <= LARGEST_SHARD);
        assert!((bits_per_item(&plan) / 9.585 - 1.0).abs() < 0.001);
    }

    #[test]
    fn stored_plans_are_read_back() {
        let window = Duration::from_secs(3600);
        let rotating = BloomKind::Rotating { window, slices: 4 };
        for kind in [BloomKind::Fixed, BloomKind::Growing, rotating] {
            for error in [0.5, 0.01, 1e-9, 0.1 + 0.2 - 0.25] {
                let plan = Plan::sized(kind, 12_345, error).unwrap();
                assert_eq!(plan.to_string().parse(), Ok(plan));
                assert_eq!(plan.shape(0), plan.shape);
                let key = BloomKey::new(&[7; 32]).unwrap();
                let keyed = plan.keyed(Some(&key));
                assert_eq!(keyed.to_string().parse(), Ok(keyed));
                assert_ne!(keyed.fingerprint(), plan.fingerprint());
            }
        }
        let plan = Plan::with_bits(BloomKind::Fixed, 65_536, 14).unwrap();
        assert_eq!(plan.to_string().parse(), Ok(plan));
        let text = plan.to_string();
        for broken in ["", "x", &text[1..], &text.replace("bits=65536", "bits=0")] {
            assert_eq!(broken.parse::<Plan>(), Err(()), "{broken}");
        }
        for unknown in [" x", " key_check=x", " key_check=1 x"] {
            assert_eq!((text.clone() + unknown).parse::<Plan>(), Err(()));
        }
    }

    /// Filters without a key are stored as they always were.
    #[test]
    fn plans_without_a_key_never_change() {
        let plan = Plan::sized(BloomKind::Fixed, 1_000_000, 0.01).unwrap();
        let text = "windlass-bloom-1 fixed capacity=1000000 error_rate=0.01 bits=9585059 shards=1 \
                    hashes=7";
        assert_eq!(plan.to_string(), text);
        assert_eq!(plan.fingerprint(), FINGERPRINT);
    }

    const FINGERPRINT: u64 = 0xe07d_52f2_f018_fd1f;

    /// The figures of the documentation.
    #[test]
    fn growing_to_100_times_the_capacity_costs_23_bits_per_item() {
        let fixed = Plan::sized(BloomKind::Fixed, 1_000_000, 0.01).unwrap();
        assert!((bits_per_item(&fixed) - 9.6).abs() < 0.05);
        let plan = Plan::sized(BloomKind::Growing, 1_000_000, 0.01).unwrap();
        let (mut bits, mut capacity) = (0, 0);
        for n in 0.. {
            let (shape, items) = (plan.shape(n), plan.capacity_of(n));
            // 1.44 more bits per item, and 1.44 more again in each later generation.
            let more = shape.total_bits() as f64 / items as f64 - bits_per_item(&fixed);
            assert!((more - 1.44 * (n + 1) as f64).abs() < 0.03, "{n}: {more}");
            bits += shape.total_bits();
            capacity += items;
            if capacity >= 100_000_000 {
                break;
            }
        }
        let cost = bits as f64 / 100_000_000.0;
        assert!((cost - 23.3).abs() < 0.05, "{cost}");
        let largest: u64 = (0..MOST_GENERATIONS).map(|n| plan.capacity_of(n)).sum();
        assert_eq!(largest, 65_535 * plan.capacity);
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        for (capacity, error) in [(0, 0.1), (1, 0.0), (1, 0.51), (1, f64::NAN), (1, -1.0)] {
            assert!(Plan::sized(BloomKind::Fixed, capacity, error).is_err());
        }
        assert!(Plan::sized(BloomKind::Fixed, u64::MAX, 0.01).is_err());
        for (bits, hashes) in [(0, 1), (1, 0), (1, 65), (u64::MAX, 1)] {
            assert!(Plan::with_bits(BloomKind::Fixed, bits, hashes).is_err());
        }
        let rotating = |window, slices| BloomKind::Rotating { window, slices };
        for kind in [
            rotating(Duration::ZERO, 2),
            rotating(Duration::MAX, 2),
            rotating(Duration::from_secs(1), 1),
            rotating(Duration::from_secs(1), 1000),
        ] {
            assert!(Plan::sized(kind, 10, 0.1).is_err(), "{kind:?}");
        }
    }
}
