//! The value that a majority agrees on, searched: nothing is lost with all of the protocol, and something
//! is without any part of it.
//!
//! Within its bounds, each search is complete. `WINDLASS_MODEL=long` has wider ones.

use windlass_model::register::{Flaw, Synod};
use windlass_model::search::{breaks, holds, long};

fn synod(flaw: Flaw, changers: usize, readers: usize, tries: usize, losses: u8) -> Synod {
    Synod {
        flaw,
        changers,
        readers,
        tries,
        losses,
    }
}

#[test]
fn two_change_it_and_try_again() {
    holds(synod(Flaw::None, 2, 0, 2, u8::from(long())));
}

#[test]
fn one_changes_it_and_another_reads() {
    holds(synod(Flaw::None, 1, 1, 2, u8::from(long())));
}

#[test]
fn three_change_it_and_a_node_forgets() {
    holds(synod(Flaw::None, 3, 0, 1, 1));
}

#[test]
fn two_change_it_one_reads_and_a_node_forgets() {
    holds(synod(Flaw::None, 2, 1, 1, 1));
}

#[test]
fn a_node_that_accepts_what_it_did_not_promise_makes_two_orders() {
    breaks(synod(Flaw::AcceptsUnpromised, 2, 0, 1, 0), &["one order"]);
}

#[test]
fn a_client_that_takes_any_value_loses_a_change() {
    breaks(synod(Flaw::TakesAny, 2, 0, 1, 0), &["kept", "one order"]);
}

#[test]
fn what_is_read_without_settling_it_is_undone() {
    breaks(synod(Flaw::DoesNotSettle, 1, 2, 1, 0), &["kept"]);
    breaks(synod(Flaw::DoesNotSettle, 2, 1, 1, 0), &["one order"]);
}

#[test]
fn a_node_that_forgot_and_takes_part_loses_a_change() {
    breaks(
        synod(Flaw::ForgottenCounts, 2, 0, 1, 1),
        &["kept", "one order"],
    );
}

#[test]
fn without_the_quarantine_two_write_under_one_number() {
    breaks(synod(Flaw::NoQuarantine, 2, 1, 1, 1), &["one order"]);
}

#[test]
fn whoever_collects_promises_for_too_long_writes_under_anothers_number() {
    breaks(synod(Flaw::CollectsForEver, 2, 1, 1, 1), &["one order"]);
}
