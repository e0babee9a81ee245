//! Permissions.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "permissions are not written by another schema (Redis)",
        file: "backend/redis/scripts/perm_write.lua",
        from: "~= ARGV[1] then",
        to: "== '' then",
        caught_by: &["--test", "conformance_redis", "removed_is_gone"],
    },
    Mutant {
        breaks: "permissions: all that one subject is given is one step (Redis)",
        file: "backend/redis/scripts/perm_write.lua",
        from: "for first = 2, #ARGV, MOST do",
        to: "for first = 2, math.min(#ARGV, MOST), MOST do",
        caught_by: &["--test", "conformance_redis", "all_of_a_subject"],
    },
    Mutant {
        breaks: "permissions: an interrupted removal denies at once (Redis: short strings)",
        file: "backend/redis/permissions.rs",
        from: "        if !self.is_open(head) {",
        to: "        if false && !self.is_open(head) {",
        caught_by: &["--test", "redis_permissions", "a_removal_that_loses"],
    },
    Mutant {
        breaks: "permissions: an interrupted removal denies at once (Redis: long strings)",
        file: "backend/redis/scripts/perm_read.lua",
        from: "~= ARGV[1] then",
        to: "== '' then",
        caught_by: &["--lib", "permissions_are_kept_as_the_rules_have_it"],
    },
    Mutant {
        breaks: "permissions: an interrupted removal denies at once (rules: memory and file)",
        file: "backend/rules/permissions.rs",
        from: "    stored.is_some_and(|schema| schema.id == id)",
        to: "    stored.is_none_or(|schema| schema.id == id)",
        caught_by: &["--test", "conformance_file", "an_interrupted_removal"],
    },
    Mutant {
        breaks: "permissions: what is left of a removed space is cleared away",
        file: "backend/redis/scripts/perm_remove.lua",
        from: "redis.call('SADD', KEYS[3], ARGV[2])",
        to: "",
        caught_by: &["--test", "redis_permissions", "a_removal_that_loses"],
    },
    Mutant {
        breaks: "permissions: what is left of a removed space becomes nobody's (Redis)",
        file: "backend/redis/scripts/perm_define.lua",
        from: " or redis.call('SISMEMBER', KEYS[3], ARGV[4]) == 1",
        to: "",
        caught_by: &["--lib", "permissions_are_kept_as_the_rules_have_it"],
    },
    Mutant {
        breaks: "permissions: answers belong to the subjects that were asked about",
        file: "permissions/space.rs",
        from: "for (found, places) in found.into_iter().zip(places.by_ref()) {",
        to: "for (places, found) in places.by_ref().zip(found) {",
        caught_by: &["--test", "conformance_memory", "all_of_a_subject"],
    },
    Mutant {
        breaks: "permissions: names that were added meanwhile are known to who looks for holders",
        file: "permissions/scan.rs",
        from: "self.space.schema_for(\"look for holders\", &names).await?;",
        to: "{ let _ = names; self.space.schema() };",
        caught_by: &["--test", "conformance_memory", "holders_of_what_was_added"],
    },
    Mutant {
        breaks: "permissions: a schema's names are never moved",
        file: "permissions/schema.rs",
        from: "true => a.starts_with(b).then_some(a),",
        to: "true => Some(a),",
        caught_by: &["--test", "conformance_memory", "the_schema_only_grows"],
    },
    Mutant {
        breaks: "permissions: a schema is not changed behind another's back (non-atomic check)",
        file: "backend/redis/scripts/perm_define.lua",
        from: "if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or",
        to: "if",
        caught_by: &["--lib", "permissions_are_kept_as_the_rules_have_it"],
    },
    Mutant {
        breaks: "permissions: flags given at once do not undo each other",
        file: "permissions/space.rs",
        from: "(subject, Field { offset, width: 1 }, to)",
        to: "(subject, Field { offset: offset - u64::from(offset > 0), width: 2 }, to)",
        caught_by: &["--test", "conformance_memory", "flags_combine"],
    },
];
