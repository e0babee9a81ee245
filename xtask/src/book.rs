//! The book: the pages of `docs/` in the order of `docs/SUMMARY.md`, with the reference of the
//! command line, which is generated and not checked in.
//!
//! The pages are written for code hosts, too, which read them where they are. So a copy of them is
//! adapted and built: images in SVG become part of the page, where they take its colours, tables
//! marked for it get a bar chart, and links to files outside the book become plain text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::links::{self, Page};
use crate::plot;
use crate::run::{cargo, run};
use crate::servers::target;

/// The version of mdBook, and the folder for the reference of the command line.
const MDBOOK: &str = "0.5.4";
const REFERENCE: &str = "cli";

/// Builds the book into `target/book` and checks its links.
pub(crate) fn book() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    links::check_repository(&root)?;
    let docs = root.join("docs");
    every_page_is_listed(&docs)?;
    let (sources, built) = (target().join("book-src"), target().join("book"));
    for folder in [&sources, &built] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(problem(folder))?;
        }
    }
    copy(&docs, &sources)?;
    cargo("build", &["--package", "windlass-cli"], &[])?;
    run(Command::new(target().join("debug/windlass"))
        .args(["--quiet", "man", "--markdown"])
        .arg(sources.join(REFERENCE)))?;
    list_reference(&sources)?;
    for page in links::files(&sources, "md")? {
        let path = sources.join(&page);
        let text = read(&path)?;
        let text = adapt(&text, &page, |image| read(&sources.join(image)))?;
        let text = plot::draw_tables(&text)?;
        fs::write(&path, text).map_err(problem(&path))?;
    }
    run(Command::new(mdbook()?)
        .arg("build")
        .arg(&sources)
        .arg("--dest-dir")
        .arg(&built))?;
    // The page for printing repeats all others; that for errors has links from the root of a site.
    let mut pages = links::files(&built, "html")?;
    pages.retain(|page| page != Path::new("print.html") && page != Path::new("404.html"));
    let count = pages.len();
    links::check(&built, pages, Page::of_html)?;
    let start = built.join("index.html");
    eprintln!(
        "xtask: {count} pages without broken links: {}",
        start.display()
    );
    Ok(())
}

/// The path of mdBook, which is installed if it is missing.
fn mdbook() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("WINDLASS_MDBOOK") {
        return Ok(path.into());
    }
    let home = target().join("servers").join(format!("mdbook-{MDBOOK}"));
    let program = home.join("bin/mdbook");
    if !program.is_file() {
        // Without optimization and debug information: it is built in half the time, and the book
        // is small.
        let (build, home) = (home.join("build"), home.display().to_string());
        let built = build.display().to_string();
        let what = ["mdbook", "--version", MDBOOK, "--locked", "--debug"];
        let features = ["--no-default-features", "--features", "search"];
        let place = ["--root", &home, "--target-dir", &built];
        let quickly = [("CARGO_PROFILE_DEV_DEBUG".to_owned(), "0".to_owned())];
        cargo(
            "install",
            &[&what[..], &features, &place].concat(),
            &quickly,
        )?;
        fs::remove_dir_all(&build).map_err(problem(&build))?;
    }
    Ok(program)
}

fn problem(path: &Path) -> impl Fn(std::io::Error) -> String {
    let path = path.display().to_string();
    move |e| format!("{path}: {e}")
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(problem(path))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(problem(to))?;
    for entry in fs::read_dir(from).map_err(problem(from))?.flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy(&from, &to)?,
            false => drop(fs::copy(&from, &to).map_err(problem(&from))?),
        }
    }
    Ok(())
}

fn every_page_is_listed(docs: &Path) -> Result<(), String> {
    let missing = unlisted(&read(&docs.join("SUMMARY.md"))?, links::files(docs, "md")?);
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("not in docs/SUMMARY.md: {}", missing.join(", "))),
    }
}

/// The pages that a summary does not link.
fn unlisted(summary: &str, pages: Vec<PathBuf>) -> Vec<String> {
    let links = links::links(summary);
    let listed: BTreeSet<&Path> = links
        .iter()
        .map(|link| Path::new(&summary[link.target.clone()]))
        .collect();
    let pages = pages.iter().filter(|page| *page != Path::new("SUMMARY.md"));
    pages
        .filter(|page| !listed.contains(page.as_path()))
        .map(|page| page.display().to_string())
        .collect()
}

/// Lists the generated pages below that of the command line, in the order of `windlass --help`.
fn list_reference(sources: &Path) -> Result<(), String> {
    let overview = read(&sources.join(REFERENCE).join("windlass.md"))?;
    let commands: Vec<&str> = links::links(&overview)
        .iter()
        .filter_map(|link| overview[link.target.clone()].strip_prefix("windlass-"))
        .filter_map(|page| page.strip_suffix(".md"))
        .collect();
    let path = sources.join("SUMMARY.md");
    let summary = read(&path)?;
    let entry = "- [The command line](command-line.md)\n";
    let mut list = format!("{entry}- [Command reference]({REFERENCE}/windlass.md)\n");
    for command in commands {
        list += &format!("  - [windlass {command}]({REFERENCE}/windlass-{command}.md)\n");
    }
    if !summary.contains(entry) {
        return Err(format!("docs/SUMMARY.md lacks the line {entry}"));
    }
    fs::write(&path, summary.replace(entry, &list)).map_err(problem(&path))
}

/// The text of a page as it is in the book. `page` is its path in the book.
fn adapt(
    text: &str,
    page: &Path,
    image: impl Fn(&Path) -> Result<String, String>,
) -> Result<String, String> {
    let mut adapted = text.to_owned();
    for link in links::links(text).iter().rev() {
        let target = &text[link.target.clone()];
        let path = links::normal(&page.with_file_name("").join(target));
        let words = &text[link.text.clone()];
        if link.image && target.ends_with(".svg") {
            let figure = figure(&image(&path)?, words);
            adapted.replace_range(link.whole.clone(), &figure);
        } else if path.starts_with("..") && !links::is_external(target) {
            adapted.replace_range(link.whole.clone(), words);
        }
    }
    Ok(adapted)
}

/// A drawing as part of a page. Its own style, for a page of its own, is left out: it would apply
/// to all of the page.
fn figure(svg: &str, words: &str) -> String {
    let style = svg.find("<style>").zip(svg.find("</style>"));
    let svg = match style {
        Some((start, end)) => svg[..start].to_owned() + &svg[end + "</style>".len()..],
        None => svg.to_owned(),
    };
    // A blank line would end the block.
    let lines = svg.lines().map(str::trim).filter(|line| !line.is_empty());
    let svg: Vec<&str> = lines.collect();
    let words = words.replace('\n', " ").replace('"', "&quot;");
    format!(
        "<figure role=\"img\" aria-label=\"{words}\">\n{}\n</figure>",
        svg.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_documentation_is_listed() {
        every_page_is_listed(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")).unwrap();
    }

    #[test]
    fn rust_examples_of_every_page_are_tests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let crates = ["windlass", "windlass-tower"];
        let included = crates
            .map(|name| read(&root.join(format!("crates/{name}/src/documentation.rs"))).unwrap());
        for page in links::files(&root.join("docs"), "md").unwrap() {
            let text = read(&root.join("docs").join(&page)).unwrap();
            let include = format!("docs/{}\")", page.display());
            assert!(
                !text.contains("```rust") || included.iter().any(|file| file.contains(&include)),
                "no documentation.rs includes {}",
                page.display()
            );
        }
    }

    #[test]
    fn page_that_is_not_listed_is_found() {
        let pages = ["SUMMARY.md", "a.md", "x/b.md"].map(PathBuf::from).to_vec();
        assert_eq!(unlisted("- [A](a.md)\n", pages), ["x/b.md"]);
    }

    #[test]
    fn link_out_of_the_book_becomes_text() {
        let text = "[`e`](../examples/e), [b](b.md), [c](https://example.com)";
        let adapted = adapt(text, Path::new("a.md"), |_| Err("no images".to_owned()));
        assert_eq!(adapted.unwrap(), "`e`, [b](b.md), [c](https://example.com)");
        let text = "[b](../b.md)";
        let adapted = adapt(text, Path::new("x/a.md"), |_| Err("no images".to_owned()));
        assert_eq!(adapted.unwrap(), text);
    }

    #[test]
    fn drawing_becomes_part_of_the_page_without_its_style() {
        let svg = "<svg>\n<style>text{}</style>\n\n<path/>\n</svg>\n";
        let adapted = adapt("![a \"b\"](i/c.svg)", Path::new("x/a.md"), |path| {
            assert_eq!(path, Path::new("x/i/c.svg"));
            Ok(svg.to_owned())
        });
        assert_eq!(
            adapted.unwrap(),
            "<figure role=\"img\" aria-label=\"a &quot;b&quot;\">\n<svg>\n<path/>\n</svg>\n</figure>"
        );
    }
}
