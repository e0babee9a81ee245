//! Prints the results as a table or as JSON.

use serde::Serialize;

use crate::contender::{Contender as _, Windlass};
use crate::drive::PeerRun;

/// What the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PeerWorkload {
    /// Each task has its own name: the cost of an uncontended lock.
    Apart,
    /// All tasks share one name: the speed of the hand-over.
    Together,
}

/// The rounds of one contender on one workload.
#[derive(Debug)]
pub(crate) struct PeerRow {
    workload: PeerWorkload,
    tasks: u32,
    pub(crate) contender: &'static str,
    rates: Vec<f64>,
    handed_on: Vec<f64>,
    fewest: u64,
    most: u64,
}

#[derive(Serialize)]
struct Answer<'a> {
    workload: PeerWorkload,
    tasks: u32,
    contender: &'a str,
    ops_per_s: f64,
    /// For tasks that share a name: how often per second it passed from one to another.
    handed_on_per_s: Option<f64>,
    /// The ratio of Windlass to this contender: the median over pairs of rounds.
    windlass_ratio: Option<f64>,
    fewest: u64,
    most: u64,
}

impl PeerRow {
    pub(crate) fn new(workload: PeerWorkload, tasks: u32, contender: &'static str) -> PeerRow {
        PeerRow {
            workload,
            tasks,
            contender,
            rates: Vec::new(),
            handed_on: Vec::new(),
            fewest: u64::MAX,
            most: 0,
        }
    }

    pub(crate) fn add(&mut self, seen: &PeerRun) {
        self.rates.push(seen.per_second);
        self.handed_on.push(seen.handed_on);
        self.fewest = self.fewest.min(seen.fewest);
        self.most = self.most.max(seen.most);
    }

    /// The rates by which contenders are compared.
    fn compared(&self) -> &[f64] {
        match self.workload {
            PeerWorkload::Apart => &self.rates,
            PeerWorkload::Together => &self.handed_on,
        }
    }

    fn answer(&self, ours: &[f64]) -> Answer<'_> {
        let theirs = self.compared().iter();
        let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs);
        let handed_on = rounded(median(self.handed_on.iter().copied()));
        Answer {
            workload: self.workload,
            tasks: self.tasks,
            contender: self.contender,
            ops_per_s: rounded(median(self.rates.iter().copied())),
            handed_on_per_s: (self.workload == PeerWorkload::Together).then_some(handed_on),
            windlass_ratio: (self.contender != Windlass::NAME).then(|| rounded(median(ratios))),
            fewest: self.fewest,
            most: self.most,
        }
    }
}

/// Prints rows that belong together.
pub(crate) fn show(rows: &[PeerRow], json: bool) {
    let Some(first) = rows.first() else { return };
    let ours: &[f64] = rows
        .iter()
        .find(|row| row.contender == Windlass::NAME)
        .map_or(&[], PeerRow::compared);
    if !json {
        let tasks = first.tasks;
        let what = match first.workload {
            PeerWorkload::Apart => "each with a name of its own",
            PeerWorkload::Together => "all with the same name",
        };
        println!("\n{tasks} tasks, {what}");
        println!(
            "{:<16}{:>12}{:>14}{:>16}{:>18}{:>18}",
            "", "cycles/s", "handed on/s", "windlass is", "fewest of a task", "most of a task"
        );
    }
    for row in rows {
        let answer = row.answer(ours);
        if json {
            let line = serde_json::to_string(&answer)
                .expect("a plain structure with text keys always serialises");
            println!("{line}");
            continue;
        }
        let ratio = match answer.windlass_ratio {
            Some(ratio) => format!("{ratio:.2} times"),
            None => String::new(),
        };
        let handed_on = match answer.handed_on_per_s {
            Some(rate) => format!("{rate:.0}"),
            None => String::new(),
        };
        println!(
            "{:<16}{:>12.0}{handed_on:>14}{ratio:>16}{:>18}{:>18}",
            answer.contender, answer.ops_per_s, answer.fewest, answer.most
        );
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n => (values[n / 2] + values[n - 1 - n / 2]) / 2.0,
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
