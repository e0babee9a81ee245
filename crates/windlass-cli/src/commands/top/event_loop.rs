//! The event loop of the live view: keys, signals and refreshing.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_core::Stream;
use tokio::time::sleep;
use windlass::Coordinator;
use windlass_term::{Exit, Failure, Printer, Signal, Signals};

use super::terminal::TerminalScreen;
use super::view::{Command, LiveView};
use super::{MAX_HOLDERS, Survey};
use crate::args::TopArgs;

/// Remaining times are redrawn at least this often.
const TICK: Duration = Duration::from_secs(1);

pub(super) async fn run(
    args: &TopArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let mut screen = TerminalScreen::open().map_err(no_terminal)?;
    let mut events = EventStream::new();
    let mut view = LiveView::new(store.address(), printer.has_colour(), args.read_only);
    let mut read_at = Instant::now();
    let mut next_read = Instant::now();
    let read = |with_data| {
        let survey = Survey::read(store, &args.pattern, MAX_HOLDERS, with_data);
        Some(Box::pin(survey))
    };
    let mut reading = read(false);
    let mut performing = None;
    loop {
        view.since = read_at.elapsed();
        screen.draw(|frame| view.draw(frame)).map_err(no_terminal)?;
        let pause = next_read
            .saturating_duration_since(Instant::now())
            .min(TICK);
        tokio::select! {
            event = next(&mut events) => match event {
                Some(Ok(event)) => match command(&mut view, &event) {
                    Some(Command::Quit) => return Ok(Exit::SUCCESS),
                    Some(Command::Suspend) => {
                        drop(screen);
                        suspend();
                        screen = TerminalScreen::open().map_err(no_terminal)?;
                    }
                    Some(Command::Read) => reading = read(view.with_data),
                    Some(Command::Perform(action)) => {
                        performing = Some(Box::pin(action.perform(store)));
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
                        view.since = Duration::ZERO;
                        view.show(found, read_at);
                    }
                    // Retried: the view shows when the store is back.
                    Err(failure) => view.problem = Some(failure.message),
                }
            }
            done = finished(&mut performing) => {
                performing = None;
                view.notice = Some(done.unwrap_or_else(|failure| failure.message));
                reading = read(view.with_data);
            }
            () = sleep(pause) => {
                if reading.is_none() && next_read <= Instant::now() {
                    reading = read(view.with_data);
                }
            }
        }
    }
}

fn command(view: &mut LiveView, event: &Event) -> Option<Command> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => view.key(*key),
        // A new size needs only a redraw, which follows anyway.
        _ => None,
    }
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
