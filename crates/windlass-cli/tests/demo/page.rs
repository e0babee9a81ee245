//! The HTML report of the flash sale in a real browser: no console errors, readable on a desktop and on a phone.
//!
//! Needs Chromium, which `cargo xtask test` installs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fixture::{FinishedProcess, Fixture};
use serde_json::Value;

/// Finds layout problems, as one JSON object. Runs in the page around the report.
const INSPECT: &str = r#"
const frame = document.querySelector('iframe');
frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const inside = element => element.closest('.scroll') !== null;
  const small = [], outside = [], collide = [];
  for (const element of page.body.querySelectorAll('*')) {
    const text = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    const box = element.getBoundingClientRect();
    if (!text || !box.width) continue;
    const svg = element.ownerSVGElement;
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    if (parseFloat(view.getComputedStyle(element).fontSize) * scale < 9.5) small.push(element.textContent);
    if (!inside(element) && (box.right > view.innerWidth + 1 || box.left < -1)) outside.push(element.textContent);
  }
  for (const svg of page.querySelectorAll('svg')) {
    const texts = [...svg.querySelectorAll('text')];
    const boxes = texts.map(text => text.getBoundingClientRect());
    for (let a = 0; a < boxes.length; a++) for (let b = a + 1; b < boxes.length; b++) {
      const across = Math.min(boxes[a].right, boxes[b].right) - Math.max(boxes[a].left, boxes[b].left);
      const down = Math.min(boxes[a].bottom, boxes[b].bottom) - Math.max(boxes[a].top, boxes[b].top);
      // Boxes of text have empty margins above and below the letters.
      if (across > 0 && down > 3) collide.push(texts[a].textContent + ' / ' + texts[b].textContent);
    }
  }
  const marks = mark => [...page.querySelectorAll('.bars:not(.speeds) .mark')].filter(m => m.textContent === mark).length;
  const fact = mark => {
    const name = [...page.querySelectorAll('dt')].find(dt => dt.textContent.includes(mark));
    return name ? Number(name.nextElementSibling.textContent) : 0;
  };
  const colour = name => view.getComputedStyle(page.body)[name];
  document.querySelector('pre').textContent = JSON.stringify({
    width: view.innerWidth, wide: page.documentElement.scrollWidth, small, outside, collide,
    marks: ['✓', '✗', '–'].map(marks), facts: ['✓', '✗', '–'].map(fact),
    speeds: page.querySelectorAll('.speeds .bar').length,
    charts: page.querySelectorAll('svg').length, cards: page.querySelectorAll('.card').length,
    background: colour('backgroundColor'), ink: colour('color'),
  });
};
"#;

/// A browser with a fresh profile and no background requests.
fn chromium(fixture: &Fixture, profile: &str) -> Command {
    let mut chromium = Command::new("timeout");
    chromium.args(["120", "chromium", "--headless", "--no-sandbox"]);
    chromium.args(["--disable-gpu", "--disable-quic", "--no-first-run"]);
    chromium.args(["--disable-background-networking", "--disable-sync"]);
    chromium.args(["--disable-component-update", "--enable-logging=stderr"]);
    let profile = fixture.path(profile);
    chromium.arg(format!("--user-data-dir={}", profile.display()));
    chromium.stdin(Stdio::null());
    chromium
}

/// The console messages of a page.
fn console(done: &FinishedProcess) -> Vec<&str> {
    let lines = done.err.lines();
    lines.filter(|line| line.contains(":CONSOLE")).collect()
}

fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// Shows the report in a frame of this width, and returns what was found.
fn inspect(fixture: &Fixture, report: &str, width: u32, scheme: &str) -> (Value, FinishedProcess) {
    let quoted = report.replace('&', "&amp;").replace('"', "&quot;");
    let page = format!(
        "<!doctype html><meta charset=utf-8><link rel=icon href=\"data:,\">\
         <style>:root {{ color-scheme: {scheme} }}</style><pre></pre>\
         <iframe width={width} height=4000 srcdoc=\"{quoted}\"></iframe><script>{INSPECT}</script>"
    );
    let path = fixture.path(&format!("inspect-{width}-{scheme}.html"));
    std::fs::write(&path, page).unwrap();
    let mut chromium = chromium(fixture, &format!("profile-{width}-{scheme}"));
    chromium.args(["--dump-dom", "--virtual-time-budget=2000"]);
    let done = FinishedProcess::of(chromium.arg(url(&path)));
    assert_eq!(done.code, 0, "{}", done.err);
    let text = done.out.split("<pre>").nth(1).unwrap_or_default();
    let text = text.split("</pre>").next().unwrap_or_default();
    let text = text.replace("&quot;", "\"").replace("&amp;", "&");
    let found = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text} {}", done.err));
    (found, done)
}

#[test]
fn report_is_readable_on_desktop_and_phone() {
    let fixture = Fixture::file();
    let path = fixture.path("sale.html");
    let sale = [
        "demo",
        "flash-sale",
        "--stock",
        "12",
        "--buyers",
        "36",
        "--shops",
        "2",
    ];
    let guards = [
        "--guard", "none", "--guard", "setnx", "--guard", "fence", "--guard", "counter",
    ];
    let html = ["--html", path.to_str().unwrap()];
    let done = fixture.run(&[&sale[..], &guards, &html].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let report = std::fs::read_to_string(&path).unwrap();
    for outside in ["http:", "https:", "<script", "@import", "url(\""] {
        assert!(
            !report.contains(outside),
            "{outside} in a page that stands alone"
        );
    }

    for width in [1280, 390] {
        let (found, done) = inspect(&fixture, &report, width, "light");
        assert_eq!(found["width"], width, "{found}");
        assert!(
            found["wide"].as_u64() <= Some(width.into()),
            "scrolls sideways: {found}"
        );
        for problem in ["small", "outside", "collide"] {
            assert_eq!(found[problem], serde_json::json!([]), "{width}: {found}");
        }
        // Four guards; the lock with a fence has a second row, with polling.
        assert_eq!(found["cards"], 5, "{found}");
        assert_eq!(found["speeds"], 5, "{found}");
        assert_eq!(found["marks"], found["facts"], "{found}");
        assert!(found["charts"].as_u64() > Some(10), "{found}");
        assert_eq!(console(&done), Vec::<&str>::new());
    }

    // Screenshots for people, in the target directory.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for (name, size) in [("desk", "1280,2400"), ("telephone", "500,5200")] {
        let picture = folder.join(format!("flash-sale-{name}.png"));
        let _ = std::fs::remove_file(&picture);
        let mut chromium = chromium(&fixture, &format!("profile-{name}"));
        chromium.arg(format!("--window-size={size}"));
        chromium.arg(format!("--screenshot={}", picture.display()));
        let done = FinishedProcess::of(chromium.arg("--hide-scrollbars").arg(url(&path)));
        assert_eq!(done.code, 0, "{}", done.err);
        assert_eq!(console(&done), Vec::<&str>::new());
        let bytes = std::fs::read(&picture).unwrap();
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000);
    }
}

/// The inspection finds real problems.
#[test]
fn inspection_finds_problems_of_a_bad_page() {
    let fixture = Fixture::file();
    let bad = "<!doctype html><body style='margin:0'><p style='width:900px'>wide</p>\
               <p style='font-size:6px'>small</p>\
               <svg width=100 height=40 viewBox='0 0 100 40'><text y=20>one</text><text x=5 y=20>two</text></svg>\
               <script>console.error('oh no')</script>";
    let (found, done) = inspect(&fixture, bad, 390, "light");
    assert!(found["wide"].as_u64() > Some(390), "{found}");
    assert_eq!(found["outside"], serde_json::json!(["wide"]), "{found}");
    assert_eq!(found["small"], serde_json::json!(["small"]), "{found}");
    let collide = serde_json::json!(["one / two"]);
    assert_eq!(found["collide"], collide, "{found}");
    assert_eq!(console(&done).len(), 1, "{}", done.err);
}
