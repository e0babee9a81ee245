//! The screen while it lives: keys, signals, and looking again and again.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_core::Stream;
use tokio::time::sleep;
use windlass::Coordinator;

use super::limits::limit_rows;
use super::rows::{Scale, rows};
use super::screen::{Scroll, View};
use super::terminal::Screen;
use super::{Found, MOST_HOLDERS, look};
use crate::args::TopArgs;
use crate::child::{Signal, Signals};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;

/// Time left is counted down at least this often.
const TICK: Duration = Duration::from_secs(1);

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Suspend,
    Scroll(Scroll),
}

pub(super) async fn live(
    args: &TopArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    let mut screen = Screen::take().map_err(no_terminal)?;
    let mut events = EventStream::new();
    let mut scale = Scale::default();
    let mut view = View::new(store.address(), printer.has_colour());
    let mut seen_at = Instant::now();
    let mut next_look = Instant::now();
    let glance = || Box::pin(look(store, &args.pattern, MOST_HOLDERS));
    let mut looking = Some(glance());
    loop {
        view.since = seen_at.elapsed();
        screen.draw(|frame| view.draw(frame)).map_err(no_terminal)?;
        let pause = next_look
            .saturating_duration_since(Instant::now())
            .min(TICK);
        tokio::select! {
            event = next(&mut events) => match event {
                Some(Ok(event)) => match wish(&event) {
                    Some(Wish::Quit) => return Ok(Exit::SUCCESS),
                    Some(Wish::Scroll(scroll)) => view.scroll(scroll),
                    Some(Wish::Suspend) => {
                        drop(screen);
                        suspend();
                        screen = Screen::take().map_err(no_terminal)?;
                    }
                    None => {}
                },
                // There is nobody at the other end any more.
                Some(Err(_)) | None => return Ok(Exit::by_signal(Signal::HUP)),
            },
            signal = signals.next() => {
                if ![Signal::USR1, Signal::USR2].contains(&signal) {
                    return Ok(Exit::by_signal(signal));
                }
            }
            found = finished(&mut looking) => {
                looking = None;
                next_look = Instant::now() + args.interval;
                match found {
                    Ok(found) => {
                        seen_at = Instant::now();
                        show(&mut view, &found, &mut scale);
                    }
                    // Tried again: whoever watches wants to see it come back.
                    Err(failure) => view.problem = Some(failure.message),
                }
            }
            () = sleep(pause) => {
                if looking.is_none() && next_look <= Instant::now() {
                    looking = Some(glance());
                }
            }
        }
    }
}

fn show(view: &mut View, found: &Found, scale: &mut Scale) {
    let held = &found.held;
    view.problem = None;
    view.held = held.iter().filter(|seen| seen.used > 0).count();
    view.waiting = held.iter().map(|seen| seen.waiters).sum();
    view.rows = Some(rows(held, scale));
    view.limits = limit_rows(&found.limiters);
    view.more_limits = found.more;
}

fn wish(event: &Event) -> Option<Wish> {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = event
    else {
        // A new size is heeded by drawing again.
        return None;
    };
    let control = modifiers.contains(KeyModifiers::CONTROL);
    Some(match code {
        KeyCode::Char('c') if control => Wish::Quit,
        KeyCode::Char('z') if control => Wish::Suspend,
        KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Up | KeyCode::Char('k') => Wish::Scroll(Scroll::Up),
        KeyCode::Down | KeyCode::Char('j') => Wish::Scroll(Scroll::Down),
        KeyCode::PageUp => Wish::Scroll(Scroll::PageUp),
        KeyCode::PageDown | KeyCode::Char(' ') => Wish::Scroll(Scroll::PageDown),
        KeyCode::Home => Wish::Scroll(Scroll::Home),
        KeyCode::End => Wish::Scroll(Scroll::End),
        _ => return None,
    })
}

/// Stops this process until the shell continues it, as Ctrl-Z does where nobody has taken over the terminal.
fn suspend() {
    // Failing to means going on, which is harmless.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

async fn next(events: &mut EventStream) -> Option<io::Result<Event>> {
    poll_fn(|context| Pin::new(&mut *events).poll_next(context)).await
}

/// What a look has found, if one is under way. Cancel safe.
async fn finished<F: Future + Unpin>(looking: &mut Option<F>) -> F::Output {
    match looking {
        Some(looking) => looking.await,
        None => std::future::pending().await,
    }
}

fn no_terminal(error: io::Error) -> Failure {
    Failure::internal(format!("cannot use this terminal: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_they_usually_mean() {
        let key = |code, modifiers| wish(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('q'), none), Some(Wish::Quit));
        assert_eq!(key(KeyCode::Esc, none), Some(Wish::Quit));
        let control = KeyModifiers::CONTROL;
        assert_eq!(key(KeyCode::Char('c'), control), Some(Wish::Quit));
        assert_eq!(key(KeyCode::Char('z'), control), Some(Wish::Suspend));
        assert_eq!(key(KeyCode::Char('c'), none), None);
        assert_eq!(key(KeyCode::Down, none), Some(Wish::Scroll(Scroll::Down)));
        assert_eq!(wish(&Event::Resize(80, 24)), None);
    }
}
