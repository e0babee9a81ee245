//! Counts the connections that stores make. Does nothing without the feature `metrics`.

/// A store has connected to a server; `again` if in place of a connection that was lost.
pub fn connected(store: &'static str, again: bool) {
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("windlass_connections_total", "store" => store).increment(1);
        let reconnects = metrics::counter!("windlass_reconnects_total", "store" => store);
        reconnects.increment(again.into());
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (store, again);
}

/// A store could not connect to a server.
pub fn connection_failed(store: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("windlass_connection_failures_total", "store" => store).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = store;
}
