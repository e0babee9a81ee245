//! Name patterns.

/// Whether `name` matches `pattern`, where `*` matches any text and `?` one character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((star_p, star_n)) = star {
            p = star_p + 1;
            n = star_n + 1;
            star = Some((star_p, star_n + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        assert!(matches("*", ""));
        assert!(matches("*", "anything"));
        assert!(matches("job/*", "job/1"));
        assert!(matches("*/1", "job/1"));
        assert!(matches("j?b/*/x", "job/a/b/x"));
        assert!(!matches("j?b", "jb"));
        assert!(!matches("job", "job/1"));
        assert!(matches("a*b*c", "a1b2b3c"));
        assert!(matches("[x]", "[x]"), "brackets mean themselves");
    }
}
