//! Latency histograms, and medians of rounds.

use std::time::Duration;

use hdrhistogram::Histogram;

const MAX: Duration = Duration::from_secs(60);

/// A histogram of durations with a precision of one percent.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u32>);

impl Latencies {
    pub(crate) fn new() -> Latencies {
        let nanos = MAX.as_nanos() as u64;
        Latencies(
            Histogram::new_with_bounds(1, nanos, 2)
                .expect("1 ns to 60 s with two digits is within what a histogram can hold"),
        )
    }

    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(took.as_nanos() as u64);
    }

    pub(crate) fn merge(&mut self, other: &Latencies) {
        self.0
            .add(&other.0)
            .expect("histograms of the same bounds fit each other");
    }

    /// The duration at a quantile, in microseconds.
    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// The median; for an even number of values, the mean of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (half, last) = (values.len() / 2, values.len().checked_sub(1)?);
    Some((values[half] + values[last - half]) / 2.0)
}

/// Rounds to three decimal places, more than the precision of any figure here.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn quantiles_are_precise_to_a_percent() {
        let mut all = Latencies::new();
        let mut half = Latencies::new();
        for micros in 1..=1000 {
            let into = if micros % 2 == 0 { &mut all } else { &mut half };
            into.record(Duration::from_micros(micros));
        }
        all.merge(&half);
        assert!((all.micros(0.5) - 500.0).abs() < 10.0);
        assert!((all.micros(0.99) - 990.0).abs() < 20.0);
        all.record(Duration::from_secs(3600));
        assert!(all.micros(1.0) >= 59_000_000.0);
    }
}
