//! The levels and resources of a permission space, and the positions of their bits.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use super::Level;
use crate::error::{Error, ErrorKind, Result};

const MAGIC: &str = "windlass-perm-2";
/// The widest field.
const MAX_BITS: u32 = 32;
const MAX_RESOURCES: usize = 100_000;
const MAX_NAME_BYTES: usize = 256;
/// Separators of flags in text.
const SEPARATORS: [char; 3] = ['|', '+', ','];
/// The name of the empty set of flags.
const NONE: &str = "none";

/// The schema of a space: its levels and resources, in an order that never changes.
///
/// Names can be added at the end, and none can be removed or moved: so every program that knows an
/// earlier version still reads the right bits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schema {
    /// Random, chosen when the space was defined. Bits are stored under it, so that the data of a
    /// removed space is never read with the schema of its successor.
    pub id: String,
    /// Starts at 1, and grows with each addition.
    pub version: u64,
    /// Whether levels are ranked or flags.
    pub scale: Scale,
    /// The names of levels, lowest first, or of flags.
    pub levels: Vec<String>,
    /// Bits for each resource.
    pub bits: u32,
    /// The names of resources.
    pub resources: Vec<String>,
    /// The index of each resource in `resources`.
    numbers: HashMap<String, u64>,
}

/// Whether levels are ranked or flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Scale {
    /// Each level includes those before it; a subject has one of them.
    Ranked,
    /// Levels are independent; a subject has any combination of them.
    Flags,
}

impl Schema {
    /// A new schema.
    ///
    /// # Errors
    ///
    /// If names are empty, too long or duplicate, or there are too few or too many of them for
    /// `bits`.
    pub fn new(
        scale: Scale,
        levels: Vec<String>,
        bits: Option<u32>,
        resources: Vec<String>,
    ) -> Result<Schema> {
        let least = match scale {
            Scale::Ranked => 2,
            Scale::Flags => 1,
        };
        if levels.len() < least {
            return Err(invalid("there are not enough levels")
                .with_hint("give at least two levels, the lowest first, or one flag"));
        }
        check_names("level", &levels)?;
        check_names("resource", &resources)?;
        if scale == Scale::Flags
            && let Some(bad) = levels.iter().find(|l| *l == NONE || l.contains(SEPARATORS))
        {
            return Err(invalid(format!("{bad:?} cannot be the name of a flag"))
                .with_hint("| + and , separate flags, and none is the empty set"));
        }
        if resources.len() > MAX_RESOURCES {
            return Err(
                invalid(format!("{} resources are too many", resources.len())).with_hint(format!(
                    "a space has up to {MAX_RESOURCES} resources; use several spaces"
                )),
            );
        }
        let needed = needed(scale, levels.len());
        let bits = bits.unwrap_or(needed);
        if bits < needed || bits > MAX_BITS {
            return Err(
                invalid(format!("{bits} bits do not fit {} levels", levels.len()))
                    .with_hint(format!("give {needed} to {MAX_BITS} bits")),
            );
        }
        Ok(Schema {
            id: random_id(),
            version: 1,
            scale,
            levels,
            bits,
            numbers: number(&resources),
            resources,
        })
    }

    /// The same schema with a new id.
    pub fn with_fresh_id(self) -> Schema {
        let id = random_id();
        Schema { id, ..self }
    }

    /// This schema with the names that `wanted` adds; `None` if it adds nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] if the names of one are not a prefix of the names of the other.
    pub fn extended(&self, wanted: &Schema, bits_given: bool) -> Result<Option<Schema>> {
        let differ = |what: &str, hint: &str| {
            let message = format!("the space is defined with other {what}");
            Err(Error::new(ErrorKind::Mismatch, "define the space", message).with_hint(hint))
        };
        if self.scale != wanted.scale {
            return differ(
                "levels: one is ranked, the other has flags",
                "this cannot be changed",
            );
        }
        if bits_given && self.bits != wanted.bits {
            return differ("bits per resource", "they cannot be changed");
        }
        let append = "names can be added at the end; none can be removed, renamed or moved";
        let Some(levels) = longer(&self.levels, &wanted.levels) else {
            return differ("levels", append);
        };
        let Some(resources) = longer(&self.resources, &wanted.resources) else {
            return differ("resources", append);
        };
        if needed(self.scale, levels.len()) > self.bits {
            return differ(
                "bits: too few for these levels",
                "reserve bits for more levels when the space is defined",
            );
        }
        if levels.len() == self.levels.len() && resources.len() == self.resources.len() {
            return Ok(None);
        }
        Ok(Some(Schema {
            version: self.version + 1,
            levels: levels.to_vec(),
            numbers: number(resources),
            resources: resources.to_vec(),
            ..self.clone()
        }))
    }

    /// The index of the resource.
    pub fn resource(&self, name: &str) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// The value of a level's name: its rank, or its flags as bits.
    pub fn value(&self, level: &str) -> Option<u64> {
        let index = |name: &str| self.levels.iter().position(|l| l == name);
        match self.scale {
            Scale::Ranked => index(level).map(|rank| rank as u64),
            Scale::Flags if level == NONE => Some(0),
            Scale::Flags => level
                .split(SEPARATORS)
                .map(|flag| index(flag.trim()).map(|flag| 1 << flag))
                .try_fold(0, |flags, flag| Some(flags | flag?)),
        }
    }

    /// The level of a stored value.
    pub fn level(&self, value: u64) -> Level {
        Level {
            value,
            name: self.name(value),
        }
    }

    /// The name of a value. A level of a later version of the schema is shown as its number.
    pub fn name(&self, value: u64) -> String {
        let name = |index: usize| match self.levels.get(index) {
            Some(name) => name.clone(),
            None => format!("#{index}"),
        };
        match self.scale {
            Scale::Ranked => name(value as usize),
            Scale::Flags if value == 0 => NONE.to_owned(),
            Scale::Flags => {
                let set = (0..64).filter(|flag| value & (1 << flag) != 0);
                set.map(name).collect::<Vec<_>>().join("|")
            }
        }
    }

    /// Whether the level `has` includes the level `needs`.
    pub fn allows(&self, has: u64, needs: u64) -> bool {
        match self.scale {
            Scale::Ranked => has >= needs,
            Scale::Flags => has & needs == needs,
        }
    }

    /// The most bytes that the bits of a subject take.
    pub fn bytes(&self) -> u64 {
        (self.resources.len() as u64 * u64::from(self.bits)).div_ceil(8)
    }

    /// The start of the [head](Schema::head) of every version of the schema with this id.
    pub fn beginning(id: &str) -> String {
        format!("{MAGIC} {id} ")
    }

    /// The stored text: the head, then a line for each name.
    pub fn to_text(&self) -> String {
        format!("{}\n{}", self.head(), self.names())
    }

    /// One line that identifies this version of the schema: no two versions stored for a space have
    /// the same head.
    pub fn head(&self) -> String {
        let scale = match self.scale {
            Scale::Ranked => "ranked",
            Scale::Flags => "flags",
        };
        let (id, version, bits) = (&self.id, self.version, self.bits);
        let counts = (self.levels.len(), self.resources.len());
        let (levels, resources) = counts;
        format!("{MAGIC} {id} {version} {scale} {bits} {levels} {resources}")
    }

    /// The names of levels and resources, one a line.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self
            .levels
            .iter()
            .chain(&self.resources)
            .map(|n| &**n)
            .collect();
        names.join("\n")
    }
}

impl FromStr for Schema {
    type Err = ();

    fn from_str(text: &str) -> Result<Schema, ()> {
        let mut lines = text.split('\n');
        let head: Vec<&str> = lines.next().ok_or(())?.split(' ').collect();
        let [MAGIC, id, version, scale, bits, levels, resources] = head[..] else {
            return Err(());
        };
        let scale = match scale {
            "ranked" => Scale::Ranked,
            "flags" => Scale::Flags,
            _ => return Err(()),
        };
        let count = |text: &str| text.parse::<usize>().map_err(drop);
        let names: Vec<String> = lines.map(str::to_owned).collect();
        let (levels, resources) = (count(levels)?, count(resources)?);
        if levels.checked_add(resources) != Some(names.len()) {
            return Err(());
        }
        let bits = bits.parse().map_err(drop)?;
        if !(1..=MAX_BITS).contains(&bits) {
            return Err(());
        }
        let (levels, resources) = names.split_at(levels);
        Ok(Schema {
            id: id.to_owned(),
            version: version.parse().map_err(drop)?,
            scale,
            levels: levels.to_vec(),
            bits,
            numbers: number(resources),
            resources: resources.to_vec(),
        })
    }
}

fn random_id() -> String {
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').collect();
    let letter = |_| letters[rand::random_range(0..letters.len())];
    (0..4).map(letter).collect()
}

fn number(names: &[String]) -> HashMap<String, u64> {
    names.iter().cloned().zip(0..).collect()
}

fn needed(scale: Scale, levels: usize) -> u32 {
    match scale {
        Scale::Ranked => (levels as u64).next_power_of_two().trailing_zeros().max(1),
        Scale::Flags => u32::try_from(levels).unwrap_or(u32::MAX),
    }
}

/// The longer list, if the other is a prefix of it.
fn longer<'a>(a: &'a [String], b: &'a [String]) -> Option<&'a [String]> {
    match a.len() >= b.len() {
        true => a.starts_with(b).then_some(a),
        false => b.starts_with(a).then_some(b),
    }
}

fn check_names(what: &str, names: &[String]) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        let problem = if name.is_empty() {
            "is empty"
        } else if name.len() > MAX_NAME_BYTES {
            "is too long"
        } else if name.chars().any(char::is_control) {
            "contains a control character"
        } else if !seen.insert(name) {
            "occurs twice"
        } else {
            continue;
        };
        let shown: String = name.chars().take(40).collect();
        return Err(
            invalid(format!("the {what} {shown:?} {problem}")).with_hint(format!(
                "names are unique, and 1 to {MAX_NAME_BYTES} bytes long"
            )),
        );
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::invalid("define the space", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn ranked(levels: &str, resources: &str) -> Schema {
        Schema::new(Scale::Ranked, names(levels), None, names(resources)).unwrap()
    }

    #[test]
    fn levels_take_as_few_bits_as_possible() {
        for (levels, bits) in [("a b", 1), ("a b c", 2), ("a b c d", 2), ("a b c d e", 3)] {
            assert_eq!(ranked(levels, "r").bits, bits);
        }
        let flags = Schema::new(Scale::Flags, names("r w x"), None, names("r")).unwrap();
        assert_eq!(flags.bits, 3);
    }

    #[test]
    fn stored_schemas_are_read_back() {
        let schema = ranked("no read write", "repo1 repo2");
        assert_eq!(schema.to_text().parse(), Ok(schema.clone()));
        let empty = ranked("no yes", "");
        assert_eq!(empty.to_text().parse(), Ok(empty));
        let text = schema.to_text();
        let cut = &text[..text.len() - 6];
        for broken in ["", "x", cut, &text.replace("ranked", "x")] {
            assert_eq!(broken.parse::<Schema>(), Err(()), "{broken}");
        }
    }

    #[test]
    fn names_are_added_at_the_end_and_never_moved() {
        let stored = ranked("no read write", "a b");
        let same = |levels, resources| stored.extended(&ranked(levels, resources), false);
        assert_eq!(same("no read write", "a b").unwrap(), None);
        assert_eq!(same("no read", "a").unwrap(), None, "an older program");
        let more = same("no read write all", "a b c").unwrap().unwrap();
        assert_eq!((more.version, more.bits), (2, 2));
        assert_eq!(more.id, stored.id);
        assert_eq!(more.resources, names("a b c"));
        let mixed = same("no read write all", "a").unwrap().unwrap();
        assert_eq!(mixed.resources, names("a b"));
        for (levels, resources) in [
            ("no write read", "a b"),
            ("no read write", "b a"),
            ("no read write", "a c"),
            ("1 2 3 4 5", "a b"),
            ("no read write x y", "a b"),
        ] {
            let refused = same(levels, resources).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Mismatch);
        }
    }

    #[test]
    fn levels_rank_and_flags_combine() {
        let ranked = ranked("no read write", "a");
        assert_eq!(ranked.value("write"), Some(2));
        assert_eq!(ranked.value("nonsense"), None);
        assert!(ranked.allows(2, 1) && ranked.allows(1, 1) && !ranked.allows(0, 1));
        assert_eq!(
            (ranked.name(1), ranked.name(3)),
            ("read".into(), "#3".into())
        );
        let flags = Schema::new(Scale::Flags, names("read write run"), None, names("a")).unwrap();
        assert_eq!(flags.value("read|run"), Some(5));
        assert_eq!(flags.value("run + read"), Some(5));
        assert_eq!(flags.value("none"), Some(0));
        assert_eq!(flags.value("read|nonsense"), None);
        assert_eq!(flags.value(""), None);
        assert!(flags.allows(5, 1) && !flags.allows(2, 1) && !flags.allows(1, 3));
        assert_eq!(
            (flags.name(6), flags.name(0)),
            ("write|run".into(), "none".into())
        );
    }

    #[test]
    fn invalid_schemas_are_rejected() {
        let new = |scale, levels: &str, bits, resources: &str| {
            Schema::new(scale, names(levels), bits, names(resources)).unwrap_err()
        };
        use Scale::{Flags, Ranked};
        for refused in [
            new(Ranked, "", None, "a"),
            new(Ranked, "one", None, "a"),
            new(Flags, "", None, "a"),
            new(Ranked, "a a", None, "a"),
            new(Ranked, "a b", None, "a a"),
            new(Ranked, "a b c", Some(1), "a"),
            new(Ranked, "a b c", Some(33), "a"),
            new(Flags, "a|b", None, "a"),
            new(Flags, "none", None, "a"),
        ] {
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
            assert!(refused.hint().is_some());
        }
        let flags: Vec<String> = (0..33).map(|n| n.to_string()).collect();
        assert!(Schema::new(Flags, flags, None, names("a")).is_err());
    }
}
