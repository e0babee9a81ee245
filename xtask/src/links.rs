//! Links between pages: each leads to a file that exists, and to a heading that it has.
//!
//! Pages are read as Markdown, as in the repository, or as HTML, as in the book. Links to other
//! hosts are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// What links need to know of a page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// What may follow a `#`.
    anchors: BTreeSet<String>,
    links: Vec<String>,
}

/// A link or an image in a Markdown text: `[text](target)`, `![text](target)`.
pub(crate) struct Link {
    pub(crate) image: bool,
    /// All of it, in the Markdown text.
    pub(crate) whole: Range<usize>,
    pub(crate) text: Range<usize>,
    pub(crate) target: Range<usize>,
}

impl Page {
    pub(crate) fn of_markdown(text: &str) -> Page {
        let links = links(text);
        let links = links
            .iter()
            .map(|link| text[link.target.clone()].to_owned());
        Page {
            anchors: anchors(text),
            links: links.collect(),
        }
    }

    pub(crate) fn of_html(text: &str) -> Page {
        let mut page = Page::default();
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            rest = &rest[start + 1..];
            let Some(end) = rest.find('>') else { break };
            let tag = &rest[..end];
            for value in attribute(tag, "id") {
                page.anchors.insert(value);
            }
            let links = attribute(tag, "href").chain(attribute(tag, "src"));
            page.links
                .extend(links.map(|link| link.replace("&amp;", "&")));
            rest = &rest[end..];
            // What is between these tags may contain `<`.
            if tag.starts_with("script") {
                rest = rest.find("</script").map_or("", |end| &rest[end..]);
            }
        }
        page
    }
}

fn attribute(tag: &str, name: &str) -> impl Iterator<Item = String> {
    let value = tag.split_once(&format!(" {name}=\""));
    let value = value.and_then(|(_, rest)| rest.split_once('"'));
    value.map(|(value, _)| value.to_owned()).into_iter()
}

/// Parts of a Markdown text outside fenced blocks.
fn prose(text: &str) -> Vec<Range<usize>> {
    let (mut found, mut at, mut fenced) = (Vec::new(), 0, false);
    for line in text.split_inclusive('\n') {
        let range = at..at + line.len();
        at = range.end;
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.push(range);
        }
    }
    found
}

/// All links and images of a Markdown text, outside code.
pub(crate) fn links(text: &str) -> Vec<Link> {
    let mut plain = vec![false; text.len()];
    for range in prose(text) {
        plain[range].fill(true);
    }
    let bytes = text.as_bytes();
    let (mut found, mut open, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        match bytes[at] {
            _ if !plain[at] => open.clear(),
            b'\\' => at += 1,
            b'`' => {
                at = end_of_code(text, at);
                continue;
            }
            b'[' => open.push(at),
            b']' => {
                let Some(start) = open.pop() else {
                    at += 1;
                    continue;
                };
                let rest = &text[at + 1..];
                if let Some(end) = rest.find(')').filter(|_| rest.starts_with('(')) {
                    let image = start > 0 && bytes[start - 1] == b'!';
                    found.push(Link {
                        image,
                        whole: start - usize::from(image)..at + 1 + end + 1,
                        text: start + 1..at,
                        target: at + 2..at + 1 + end,
                    });
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The end of the code span that begins at `start`, or of the backticks if they begin none.
fn end_of_code(text: &str, start: usize) -> usize {
    let rest = &text[start..];
    let ticks = rest.len() - rest.trim_start_matches('`').len();
    let (mark, body) = rest.split_at(ticks);
    let paragraph = &body[..body.find("\n\n").unwrap_or(body.len())];
    match paragraph.find(mark) {
        Some(length) => start + ticks + length + ticks,
        None => start + ticks,
    }
}

/// The anchors that headings of a Markdown text get.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for range in prose(text) {
        let line = text[range].trim_end();
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let slug = slug(&without_links(title.trim()));
        let again = (1..).map(|n| format!("{slug}-{n}"));
        let mut names = std::iter::once(slug.clone()).chain(again);
        found.extend(names.find(|name| !found.contains(name)));
    }
    found
}

fn without_links(title: &str) -> String {
    let mut text = title.to_owned();
    for link in links(title).iter().rev() {
        text.replace_range(link.whole.clone(), &title[link.text.clone()]);
    }
    text
}

fn slug(title: &str) -> String {
    let characters = title.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ => character.is_alphanumeric().then_some(character),
    });
    characters.flat_map(char::to_lowercase).collect()
}

/// The path without `.` and `..`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if parts.file_name().is_some() => {
                parts.pop();
            }
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts
}

/// Whether a link leads to another host.
pub(crate) fn is_external(target: &str) -> bool {
    ["http://", "https://", "mailto:", "data:"]
        .iter()
        .any(|scheme| target.starts_with(scheme))
}

/// The links of `pages` that lead nowhere. Paths are relative to one folder.
fn broken(pages: &BTreeMap<PathBuf, Page>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, page) in pages {
        for link in page.links.iter().filter(|link| !is_external(link)) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file.is_empty() {
                true => path.clone(),
                false => normal(&path.with_file_name("").join(file)),
            };
            let shown = path.display();
            if !exists(&target) {
                problems.push(format!("{shown}: {link}: there is no such file"));
                continue;
            }
            let known = pages
                .get(&target)
                .is_none_or(|page| page.anchors.contains(anchor));
            if !anchor.is_empty() && !known {
                problems.push(format!("{shown}: {link}: there is no such heading"));
            }
        }
    }
    problems
}

/// All files below a folder with this extension, relative to it.
pub(crate) fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut open = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(at) = open.pop() {
        let entries = fs::read_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                let below = path.strip_prefix(folder).unwrap_or(&path);
                found.push(below.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// An error that lists the links that lead nowhere.
pub(crate) fn check(
    folder: &Path,
    paths: impl IntoIterator<Item = PathBuf>,
    read: fn(&str) -> Page,
) -> Result<(), String> {
    let mut pages = BTreeMap::new();
    for path in paths {
        let text = fs::read_to_string(folder.join(&path));
        let text = text.map_err(|e| format!("{}: {e}", path.display()))?;
        pages.insert(path, read(&text));
    }
    let problems = broken(&pages, |path| folder.join(path).exists());
    match problems.is_empty() {
        true => Ok(()),
        false => Err(format!("broken links:\n  {}", problems.join("\n  "))),
    }
}

/// Checks the Markdown pages of the repository.
pub(crate) fn check_repository(root: &Path) -> Result<(), String> {
    let entries = fs::read_dir(root).map_err(|e| format!("{}: {e}", root.display()))?;
    let names = entries
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()));
    let mut pages: Vec<PathBuf> = names
        .filter(|name| name.extension().is_some_and(|e| e == "md"))
        .collect();
    for folder in ["docs", "examples"] {
        let below = files(&root.join(folder), "md")?;
        pages.extend(below.iter().map(|page| Path::new(folder).join(page)));
    }
    check(root, pages, Page::of_markdown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_in(read: fn(&str) -> Page, texts: &[(&str, &str)]) -> Vec<String> {
        let pages = texts.iter().map(|(path, text)| (path.into(), read(text)));
        let pages: BTreeMap<PathBuf, Page> = pages.collect();
        broken(&pages, |path| pages.contains_key(path))
    }

    #[test]
    fn links_of_the_repository_lead_somewhere() {
        check_repository(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    }

    #[test]
    fn broken_link_is_found() {
        let page = ("a.md", "[b](b.md)\n");
        assert_eq!(
            broken_in(Page::of_markdown, &[page]),
            ["a.md: b.md: there is no such file"]
        );
        let other = ("b.md", "");
        assert!(broken_in(Page::of_markdown, &[page, other]).is_empty());
    }

    #[test]
    fn broken_anchor_is_found() {
        let page = (
            "x/a.md",
            "# A\n\n[b](../b.md#c-d), [here](#a), [gone](#b)\n",
        );
        let other = ("b.md", "# B\n## `C`: [d](x/a.md)\n```\n# E\n```\n");
        assert_eq!(
            broken_in(Page::of_markdown, &[page, other]),
            ["x/a.md: #b: there is no such heading"]
        );
        let page = ("a.md", "[e](b.md#e)");
        let other = ("b.md", "```\n# E\n```\n");
        assert_eq!(
            broken_in(Page::of_markdown, &[page, other]),
            ["a.md: b.md#e: there is no such heading"]
        );
    }

    #[test]
    fn broken_links_of_html_are_found() {
        let page = (
            "a.html",
            r##"<p id="p"><a href="b.html#q">b</a><a href="b.html#r">b</a><a href="#p">p</a>
            <img alt="" src="c.svg"><a href="https://example.com/">x</a>"##,
        );
        let other = (
            "b.html",
            r#"<h1 id="q">q</h1><script>if (1 < 2) "<a href=\"d\">"</script>"#,
        );
        assert_eq!(
            broken_in(Page::of_html, &[page, other]),
            [
                "a.html: b.html#r: there is no such heading",
                "a.html: c.svg: there is no such file"
            ]
        );
    }

    #[test]
    fn links_in_code_are_not_links() {
        let page = ("a.md", "`[b](b.md)` and\n```\n[b](b.md)\n```\n");
        assert!(broken_in(Page::of_markdown, &[page]).is_empty());
    }

    #[test]
    fn link_may_continue_on_the_next_line_and_contain_code() {
        let text = "see ![a\n`b`](c.md), [d]";
        let found = links(text);
        assert_eq!(found.len(), 1);
        let link = &found[0];
        assert_eq!(&text[link.whole.clone()], "![a\n`b`](c.md)");
        assert_eq!(&text[link.text.clone()], "a\n`b`");
        assert!(link.image);
    }

    #[test]
    fn anchors_are_those_of_the_book_and_of_code_hosts() {
        let found = anchors("# A\n# A\n## redis+sentinel://HOST,HOST/SERVICE\n## From flock(1)\n");
        let expected = ["a", "a-1", "from-flock1", "redissentinelhosthostservice"];
        assert_eq!(found.iter().collect::<Vec<_>>(), expected);
    }
}
