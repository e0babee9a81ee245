//! Metrics and spans. Each test has a recorder of its own, so all of them run in one thread.

mod claims;
mod limits;
mod outage;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Where the metrics of one test go.
struct Recorded {
    handle: PrometheusHandle,
    _installed: metrics::LocalRecorderGuard<'static>,
}

impl Recorded {
    /// Records what this thread does, until it is dropped.
    fn start() -> Recorded {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&windlass::SECONDS_BUCKETS)
            .unwrap()
            .build_recorder();
        // Handles outlive the guard, and the guard borrows the recorder.
        let recorder: &'static PrometheusRecorder = Box::leak(Box::new(recorder));
        Recorded {
            handle: recorder.handle(),
            _installed: metrics::set_default_local_recorder(recorder),
        }
    }

    /// The sum of all series of this name that have these labels: `lock granted` matches the values of any label.
    fn sum(&self, name: &str, values: &str) -> f64 {
        let text = self.handle.render();
        let series = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, labels) = series.split_once('{').unwrap_or((series, ""));
            let mut values = values.split_whitespace();
            let all = values.all(|value| labels.contains(&format!("=\"{value}\"")));
            (found == name && all).then(|| value.parse::<f64>().unwrap())
        });
        series.sum()
    }

    fn acquired(&self, values: &str) -> f64 {
        self.sum("windlass_acquire_total", values)
    }

    fn held(&self) -> f64 {
        self.sum("windlass_held", "")
    }

    fn waiting(&self) -> f64 {
        self.sum("windlass_waiting", "")
    }

    fn text(&self) -> String {
        self.handle.render()
    }
}
