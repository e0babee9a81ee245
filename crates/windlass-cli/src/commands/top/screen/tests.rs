//! What the view shows on screens of several sizes, and after keys.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use windlass::{Fence, Holder, Kind, Occupancy};

use super::*;
use crate::commands::top::Survey;
use crate::commands::top::data::DataRow;
use crate::commands::top::view::{Command, SortBy};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn holder(owner: &str, note: &str, left: Option<u64>) -> Holder {
    let mut holder = Holder::new(owner);
    holder.note = Some(note.to_owned()).filter(|note| !note.is_empty());
    holder.remaining = left.map(seconds);
    holder.age = left.map(|_| seconds(75));
    holder.fence = Some(Fence::new(17));
    holder
}

fn seen(kind: Kind, name: &str, holders: Vec<Holder>, size: u32, waiters: u64) -> Occupancy {
    let mut seen = Occupancy::new(kind, name);
    seen.used = holders.len() as u64;
    seen.holders = holders;
    seen.size = size;
    seen.waiters = waiters;
    seen
}

fn survey() -> Survey {
    let one = |owner: &str, note: &str, left| vec![holder(owner, note, Some(left))];
    let long = "z-name-that-is-much-longer-than-any-column-of-any-screen";
    let downloads = vec![
        holder("host-1:4711:c0ffee", "", Some(12)),
        holder("host-2:42:decaf", "", Some(5)),
    ];
    let watch = "倉庫の見張り番 と その 仲間たち";
    Survey {
        held: vec![
            seen(
                Kind::Lock,
                "backup",
                one("host-7:99:feed", "nightly", 28),
                1,
                3,
            ),
            seen(Kind::ReadWrite, "catalogue", one("ben", "", 20), 0, 0),
            seen(Kind::Semaphore, "downloads", downloads, 3, 0),
            seen(
                Kind::Lock,
                "legacy",
                vec![holder("old-client", "", None)],
                1,
                0,
            ),
            seen(
                Kind::Election,
                "scheduler",
                one("10.0.0.7:8080", "", 30),
                1,
                4,
            ),
            seen(Kind::Lock, "waited-for", Vec::new(), 1, 2),
            seen(Kind::Barrier, long, one(watch, "", 25), 10, 0),
        ],
        ..Survey::default()
    }
}

fn view_of(survey: Survey) -> LiveView {
    let mut view = LiveView::new("redis://127.0.0.1:6379", false, false);
    view.show(survey, Instant::now());
    view
}

fn view() -> LiveView {
    view_of(survey())
}

fn numbered(count: usize) -> Survey {
    let one = |n| seen(Kind::Lock, &job(n), vec![holder("ann", "", Some(20))], 1, 0);
    Survey {
        held: (0..count).map(one).collect(),
        ..Survey::default()
    }
}

fn job(n: usize) -> String {
    format!("job/{n:03}")
}

fn drawn(view: &mut LiveView, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    terminal.backend().to_string()
}

fn press(view: &mut LiveView, code: KeyCode) -> Option<Command> {
    view.key(KeyEvent::from(code))
}

fn type_in(view: &mut LiveView, text: &str) {
    for c in text.chars() {
        assert_eq!(press(view, KeyCode::Char(c)), None);
    }
}

fn names(view: &LiveView) -> Vec<&str> {
    let mut names: Vec<&str> = view.rows.iter().map(|row| &*row.name).collect();
    names.dedup();
    names
}

#[test]
fn at_80_by_24() {
    insta::assert_snapshot!(drawn(&mut view(), 80, 24));
}

#[test]
fn at_120_by_14_after_some_time_and_with_a_problem() {
    let mut view = view();
    view.since = seconds(6);
    view.problem = Some("cannot list locks on redis://127.0.0.1:6379: no answer".to_owned());
    insta::assert_snapshot!(drawn(&mut view, 120, 14));
}

#[test]
fn empty_view_before_and_after_the_first_survey() {
    let mut view = LiveView::default();
    assert!(drawn(&mut view, 80, 24).contains("loading …"));
    assert_eq!(press(&mut view, KeyCode::Down), None);
    assert_eq!(press(&mut view, KeyCode::End), None);
    view.show(Survey::default(), Instant::now());
    assert!(drawn(&mut view, 80, 24).contains("nothing is held or waited for"));
}

/// A screen of any size shows names, and no partial cells; no dialog panics.
#[test]
fn small_screens_show_names() {
    for (width, height) in [(0, 0), (0, 5), (5, 0), (300, 3), (3, 100), (2, 2)] {
        for key in ['/', '?', 'b', '\n'] {
            let mut view = view();
            view.problem = Some("trouble".to_owned());
            match key {
                '\n' => press(&mut view, KeyCode::Enter),
                key => press(&mut view, KeyCode::Char(key)),
            };
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
        }
    }
    for (width, height) in (1..=100).flat_map(|width| (1..=7).map(move |height| (width, height))) {
        let screen = drawn(&mut view(), width, height);
        let shown = match width {
            1..6 => fit("backup", usize::from(width)),
            _ => "backup".to_owned(),
        };
        assert!(screen.contains(&shown), "{width}x{height}:\n{screen}");
    }
    insta::assert_snapshot!(drawn(&mut view(), 20, 3));
    insta::assert_snapshot!(drawn(&mut view(), 40, 6));
}

#[tokio::test]
async fn rate_limits_and_data_are_below_claims() {
    let store = windlass::connect("memory:").await.unwrap();
    let limiter = store.limiter("login", windlass::Quota::per_day(5));
    assert!(limiter.check("ann").await.unwrap().is_allowed());
    let mut survey = survey();
    survey.held.truncate(2);
    survey.limiters = store.survey_limiters("*", 10).await.unwrap().limiters;
    survey.more = true;
    survey.data = vec![DataRow {
        name: "visits".to_owned(),
        kind: "counter",
        value: "42".to_owned(),
    }];
    let mut view = view_of(survey);
    insta::assert_snapshot!(drawn(&mut view, 80, 14));
    // Every row can be selected, and nothing else.
    let mut selected = Vec::new();
    for _ in 0..6 {
        selected.push(view.lines[view.selected]);
        press(&mut view, KeyCode::Down);
    }
    let rows = [BodyLine::Claim(0), BodyLine::Claim(1), BodyLine::Limit(0)];
    assert_eq!(selected[..3], rows);
    assert_eq!(selected[3..], [BodyLine::Data(0); 3]);
    press(&mut view, KeyCode::Up);
    assert_eq!(view.lines[view.selected], BodyLine::Limit(0));
    // The last line comes into view, also on a small screen.
    drawn(&mut view, 80, 6);
    press(&mut view, KeyCode::End);
    assert!(drawn(&mut view, 80, 6).contains("visits"));
    press(&mut view, KeyCode::Home);
    assert!(drawn(&mut view, 80, 6).contains("backup"));
}

#[test]
fn rows_that_do_not_fit_can_be_scrolled_to() {
    let mut view = view_of(numbered(100));
    let shows = |view: &mut LiveView, first: usize, last: usize| {
        let screen = drawn(view, 80, 24);
        let seen = |n: usize| screen.contains(&job(n));
        assert!(seen(first) && seen(last), "{screen}");
        assert!(first == 0 || !seen(first - 1), "{screen}");
        assert!(!seen(last + 1), "{screen}");
        let place = format!("{}–{} of 100", first + 1, last + 1);
        assert!(screen.contains(&place), "{screen}");
    };
    shows(&mut view, 0, 20);
    press(&mut view, KeyCode::Down);
    shows(&mut view, 0, 20);
    press(&mut view, KeyCode::PageDown);
    shows(&mut view, 1, 21);
    press(&mut view, KeyCode::End);
    shows(&mut view, 79, 99);
    press(&mut view, KeyCode::PageUp);
    press(&mut view, KeyCode::Up);
    shows(&mut view, 78, 98);
    press(&mut view, KeyCode::Home);
    shows(&mut view, 0, 20);
    // A larger screen shows more rows, without empty lines.
    press(&mut view, KeyCode::End);
    drawn(&mut view, 80, 24);
    assert!(drawn(&mut view, 80, 50).contains(&job(53)));
    // The position follows when rows disappear.
    view.show(numbered(10), Instant::now());
    assert!(drawn(&mut view, 80, 24).contains(&job(0)));
}

#[test]
fn filter_matches_names_kinds_owners_and_notes() {
    for (text, expected) in [
        ("CATA", &["catalogue"][..]),
        ("night", &["backup"]),
        ("decaf", &["downloads"]),
        ("elect", &["scheduler"]),
        ("no-such-thing", &[]),
    ] {
        let mut view = view();
        type_in(&mut view, "/");
        type_in(&mut view, text);
        assert_eq!(names(&view), expected, "while it is typed");
        let screen = drawn(&mut view, 80, 24);
        assert!(screen.contains(&format!("filter: {text}▏")), "{screen}");
        press(&mut view, KeyCode::Enter);
        assert_eq!(names(&view), expected);
        // It applies to what is read later.
        view.show(survey(), Instant::now());
        assert_eq!(names(&view), expected);
        assert_eq!(press(&mut view, KeyCode::Esc), None, "Esc removes it first");
        assert_eq!(names(&view).len(), 7);
        assert_eq!(press(&mut view, KeyCode::Esc), Some(Command::Quit));
    }
    let mut view = view();
    type_in(&mut view, "/qs");
    press(&mut view, KeyCode::Backspace);
    assert_eq!(view.filter, "q", "letters are no keys here");
    press(&mut view, KeyCode::Esc);
    assert_eq!(names(&view).len(), 7);
}

#[test]
fn order_can_be_changed_and_the_selection_stays() {
    let mut view = view();
    for _ in 0..2 {
        press(&mut view, KeyCode::Down);
    }
    let selected = |view: &LiveView| view.selected_claim().unwrap().owner.clone();
    assert_eq!(selected(&view).unwrap(), "host-1:4711:c0ffee");
    type_in(&mut view, "s");
    assert_eq!(view.sort, SortBy::TimeLeft);
    assert_eq!(
        names(&view)[..3],
        [
            "downloads",
            "catalogue",
            "z-name-that-is-much-longer-than-any-column-of-any-screen"
        ]
    );
    assert_eq!(selected(&view).unwrap(), "host-1:4711:c0ffee");
    assert!(drawn(&mut view, 80, 24).contains("by time left"));
    type_in(&mut view, "s");
    assert_eq!(names(&view).last(), Some(&"waited-for"), "it is not held");
    type_in(&mut view, "s");
    assert_eq!(names(&view)[..3], ["scheduler", "backup", "waited-for"]);
    type_in(&mut view, "s");
    assert_eq!(names(&view)[0], "backup");
}

#[test]
fn one_name_is_shown_with_its_history() {
    let mut view = view();
    let mut later = survey();
    later.held[0].holders = vec![holder("cleo", "by hand", Some(30))];
    later.held[0].holders[0].fence = Some(Fence::new(18));
    view.show(later, Instant::now());
    press(&mut view, KeyCode::Enter);
    let screen = drawn(&mut view, 80, 24);
    for text in [
        "lock backup",
        "3 waiters",
        "owner  cleo",
        "note   by hand",
        "fence  18",
        "cleo acquired it, fence 18",
        "host-7:99:feed ended",
    ] {
        assert!(screen.contains(text), "{text}:\n{screen}");
    }
    press(&mut view, KeyCode::Esc);
    assert!(!drawn(&mut view, 80, 24).contains("owner  cleo"));
    type_in(&mut view, "?");
    insta::assert_snapshot!(drawn(&mut view, 80, 24));
}

#[test]
fn nothing_is_ended_without_a_confirmation() {
    let mut view = view();
    type_in(&mut view, "b");
    let screen = drawn(&mut view, 80, 24);
    assert!(screen.contains("Break the lock backup?"), "{screen}");
    type_in(&mut view, "n");
    assert!(drawn(&mut view, 80, 24).contains("nothing was changed"));
    type_in(&mut view, "b");
    let done = press(&mut view, KeyCode::Char('y'));
    assert!(matches!(done, Some(Command::Perform(_))), "{done:?}");
    assert_eq!(view.dialog, Dialog::None);
    // A semaphore cannot be broken, but what one owner holds can be released.
    press(&mut view, KeyCode::Down);
    press(&mut view, KeyCode::Down);
    type_in(&mut view, "b");
    assert!(drawn(&mut view, 80, 24).contains("only a lock can be broken"));
    type_in(&mut view, "r");
    let screen = drawn(&mut view, 80, 24);
    assert!(screen.contains("held by host-1:4711:c0ffee?"), "{screen}");
    let mut view = LiveView::new("file:x", false, true);
    view.show(survey(), Instant::now());
    for key in ["b", "r"] {
        type_in(&mut view, key);
        assert_eq!(view.dialog, Dialog::None);
        assert!(drawn(&mut view, 80, 24).contains("--read-only"));
    }
}

#[test]
fn colours_are_used_only_if_enabled() {
    for colour in [true, false] {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut view = view();
        view.colour = colour;
        view.problem = Some("trouble".to_owned());
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let cells = &terminal.backend().buffer().content;
        let coloured = cells.iter().any(|cell| cell.fg != Color::Reset);
        assert_eq!(coloured, colour);
    }
}
