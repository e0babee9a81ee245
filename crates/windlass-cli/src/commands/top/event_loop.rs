//! The event loop of the live view: keys, signals and refreshing.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_core::Stream;
use tokio::time::sleep;
use windlass::Coordinator;
use windlass_term::{Exit, Failure, Printer, Signal, Signals};

use super::limits::limit_rows;
use super::rows::{TtlEstimates, rows};
use super::screen::{LiveView, Scroll};
use super::terminal::TerminalScreen;
use super::{MAX_HOLDERS, Survey};
use crate::args::TopArgs;

/// Remaining times are redrawn at least this often.
const TICK: Duration = Duration::from_secs(1);

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyAction {
    Quit,
    Suspend,
    Scroll(Scroll),
}

pub(super) async fn run(
    args: &TopArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let mut screen = TerminalScreen::open().map_err(no_terminal)?;
    let mut events = EventStream::new();
    let mut ttls = TtlEstimates::default();
    let mut view = LiveView::new(store.address(), printer.has_colour());
    let mut read_at = Instant::now();
    let mut next_read = Instant::now();
    let read = || Box::pin(Survey::read(store, &args.pattern, MAX_HOLDERS));
    let mut reading = Some(read());
    loop {
        view.since = read_at.elapsed();
        screen.draw(|frame| view.draw(frame)).map_err(no_terminal)?;
        let pause = next_read
            .saturating_duration_since(Instant::now())
            .min(TICK);
        tokio::select! {
            event = next(&mut events) => match event {
                Some(Ok(event)) => match key_action(&event) {
                    Some(KeyAction::Quit) => return Ok(Exit::SUCCESS),
                    Some(KeyAction::Scroll(scroll)) => view.scroll(scroll),
                    Some(KeyAction::Suspend) => {
                        drop(screen);
                        suspend();
                        screen = TerminalScreen::open().map_err(no_terminal)?;
                    }
                    None => {}
                },
                // The terminal is gone.
                Some(Err(_)) | None => return Ok(Exit::by_signal(Signal::HUP)),
            },
            signal = signals.next() => {
                if ![Signal::USR1, Signal::USR2].contains(&signal) {
                    return Ok(Exit::by_signal(signal));
                }
            }
            found = finished(&mut reading) => {
                reading = None;
                next_read = Instant::now() + args.interval;
                match found {
                    Ok(found) => {
                        read_at = Instant::now();
                        update(&mut view, &found, &mut ttls);
                    }
                    // Retried: the view shows when the store is back.
                    Err(failure) => view.problem = Some(failure.message),
                }
            }
            () = sleep(pause) => {
                if reading.is_none() && next_read <= Instant::now() {
                    reading = Some(read());
                }
            }
        }
    }
}

fn update(view: &mut LiveView, found: &Survey, ttls: &mut TtlEstimates) {
    let held = &found.held;
    view.problem = None;
    view.held = held.iter().filter(|seen| seen.used > 0).count();
    view.waiting = held.iter().map(|seen| seen.waiters).sum();
    view.rows = Some(rows(held, ttls));
    view.limits = limit_rows(&found.limiters);
    view.more_limits = found.more;
}

fn key_action(event: &Event) -> Option<KeyAction> {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = event
    else {
        // A new size needs only a redraw, which follows anyway.
        return None;
    };
    let control = modifiers.contains(KeyModifiers::CONTROL);
    Some(match code {
        KeyCode::Char('c') if control => KeyAction::Quit,
        KeyCode::Char('z') if control => KeyAction::Suspend,
        KeyCode::Char('q') | KeyCode::Esc => KeyAction::Quit,
        KeyCode::Up | KeyCode::Char('k') => KeyAction::Scroll(Scroll::Up),
        KeyCode::Down | KeyCode::Char('j') => KeyAction::Scroll(Scroll::Down),
        KeyCode::PageUp => KeyAction::Scroll(Scroll::PageUp),
        KeyCode::PageDown | KeyCode::Char(' ') => KeyAction::Scroll(Scroll::PageDown),
        KeyCode::Home => KeyAction::Scroll(Scroll::Home),
        KeyCode::End => KeyAction::Scroll(Scroll::End),
        _ => return None,
    })
}

/// Stops this process until the shell continues it, as Ctrl-Z does on a terminal that is not in raw mode.
fn suspend() {
    // If that fails, the process continues, which is harmless.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

async fn next(events: &mut EventStream) -> Option<io::Result<Event>> {
    poll_fn(|context| Pin::new(&mut *events).poll_next(context)).await
}

/// The result of the current read; pending if there is none. Cancel safe.
async fn finished<F: Future + Unpin>(reading: &mut Option<F>) -> F::Output {
    match reading {
        Some(reading) => reading.await,
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
    fn keys_have_their_usual_actions() {
        let key = |code, modifiers| key_action(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('q'), none), Some(KeyAction::Quit));
        assert_eq!(key(KeyCode::Esc, none), Some(KeyAction::Quit));
        let control = KeyModifiers::CONTROL;
        assert_eq!(key(KeyCode::Char('c'), control), Some(KeyAction::Quit));
        assert_eq!(key(KeyCode::Char('z'), control), Some(KeyAction::Suspend));
        assert_eq!(key(KeyCode::Char('c'), none), None);
        assert_eq!(
            key(KeyCode::Down, none),
            Some(KeyAction::Scroll(Scroll::Down))
        );
        assert_eq!(key_action(&Event::Resize(80, 24)), None);
    }
}
