//! CPU time, memory and command counts as a Redis server reports them.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use windlass_term::{Failure, raw_redis};

/// A connection for `INFO`, separate from those that are measured.
#[derive(Clone)]
pub(crate) struct ServerStats(MultiplexedConnection);

impl ServerStats {
    pub(crate) fn new(connection: MultiplexedConnection) -> ServerStats {
        ServerStats(connection)
    }

    /// CPU time of the server.
    pub(crate) async fn cpu(&self) -> Result<Duration, Failure> {
        let info = self.info("cpu").await?;
        let part = |field| number(&info, field).unwrap_or_default();
        let seconds = part("used_cpu_sys") + part("used_cpu_user");
        Ok(Duration::from_secs_f64(seconds))
    }

    /// Bytes that the server has allocated.
    pub(crate) async fn memory(&self) -> Result<Option<u64>, Failure> {
        let info = self.info("memory").await?;
        Ok(number(&info, "used_memory").map(|bytes| bytes as u64))
    }

    /// Commands of all clients so far, including those called by scripts.
    pub(crate) async fn commands(&self) -> Result<CommandCounts, Failure> {
        Ok(CommandCounts(self.info("commandstats").await?))
    }

    async fn info(&self, section: &str) -> Result<String, Failure> {
        redis::cmd("INFO")
            .arg(section)
            .query_async(&mut self.0.clone())
            .await
            .map_err(raw_redis::failure)
    }
}

/// The counts of `INFO commandstats` at one moment.
#[derive(Debug)]
pub(crate) struct CommandCounts(String);

impl CommandCounts {
    /// All calls except `INFO`, which this module sends.
    pub(crate) fn all(&self) -> u64 {
        let counts = self.counts();
        counts
            .filter(|(name, _)| *name != "info")
            .map(|c| c.1)
            .sum()
    }

    /// The calls of one command.
    pub(crate) fn of(&self, command: &str) -> u64 {
        let counts = self.counts();
        counts
            .filter(|(name, _)| *name == command)
            .map(|c| c.1)
            .sum()
    }

    fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = rest.split(',').next()?.parse().ok()?;
            Some((name, calls))
        })
    }
}

fn number(info: &str, field: &str) -> Option<f64> {
    let line = info.lines().find_map(|line| {
        let rest = line.strip_prefix(field)?;
        rest.strip_prefix(':')
    })?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_parsed() {
        let commands = CommandCounts(
            "# Commandstats\r\n\
             cmdstat_get:calls=12,usec=34,usec_per_call=2.8,rejected_calls=0,failed_calls=0\r\n\
             cmdstat_config|get:calls=3,usec=1,usec_per_call=0.3\r\n\
             cmdstat_info:calls=5,usec=1,usec_per_call=0.2\r\n"
                .to_owned(),
        );
        assert_eq!(commands.all(), 15);
        assert_eq!(commands.of("get"), 12);
        assert_eq!(commands.of("set"), 0);
        let cpu = "used_cpu_sys:1.5\r\nused_cpu_user:0.25\r\nused_cpu_user_children:9\r\n";
        assert_eq!(number(cpu, "used_cpu_user"), Some(0.25));
        assert_eq!(number(cpu, "used_memory"), None);
    }
}
