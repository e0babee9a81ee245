//! A real Prometheus.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::port::ReservedPort;
use crate::eventually::eventually_blocking;
use crate::process::TestProcess;

const START: Duration = Duration::from_secs(60);

/// A Prometheus server that scrapes one program four times per second.
#[derive(Debug)]
pub struct PrometheusServer {
    process: TestProcess,
    port: ReservedPort,
    _folder: TempDir,
}

impl PrometheusServer {
    /// Starts `prometheus` with these alerts, and scrapes `target`.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not start.
    pub fn start(target: SocketAddr, alerts: &Path) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}\n\
             rule_files: [{alerts:?}]\n\
             scrape_configs: [{{job_name: service, static_configs: [{{targets: [\"{target}\"]}}]}}]\n"
        );
        std::fs::write(&config, text)?;
        let port = ReservedPort::free()?;
        let address = format!("{}:{}", Ipv4Addr::LOCALHOST, port.number());
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=error"])
            .stderr(Stdio::inherit());
        let missing = |e: io::Error| {
            let hint = "install it, for instance with the Debian package \"prometheus\"";
            io::Error::new(e.kind(), format!("{e}: {hint}"))
        };
        let server = Self {
            process: TestProcess::spawn(&mut command).map_err(missing)?,
            port,
            _folder: folder,
        };
        let ready = || !server.process.is_alive() || server.get("/-/ready").is_ok();
        if eventually_blocking(START, ready) && server.process.is_alive() {
            return Ok(server);
        }
        Err(io::Error::other("prometheus did not start"))
    }

    /// The result of a PromQL query at this moment.
    ///
    /// # Errors
    ///
    /// If Prometheus rejects the query.
    pub fn query(&self, query: &str) -> io::Result<Vec<Value>> {
        let path = format!("/api/v1/query?query={}", percent_encoded(query));
        let mut answer = self.get_json(&path)?;
        match answer["data"]["result"].take() {
            Value::Array(series) => Ok(series),
            other => Err(io::Error::other(format!("{query}: {other}"))),
        }
    }

    /// The alerting rules, as the server evaluated them last.
    ///
    /// # Errors
    ///
    /// If Prometheus does not answer.
    pub fn rules(&self) -> io::Result<Vec<Value>> {
        let answer = self.get_json("/api/v1/rules")?;
        let groups = answer["data"]["groups"].as_array().cloned();
        let rules = |group: Value| group["rules"].as_array().cloned().unwrap_or_default();
        Ok(groups.into_iter().flatten().flat_map(rules).collect())
    }

    fn get_json(&self, path: &str) -> io::Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?)?)
    }

    fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number()))?;
        stream.set_read_timeout(Some(START))?;
        // Without chunks, because of the version.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.contains(" 200 ") {
            true => Ok(body.to_owned()),
            false => Err(io::Error::other(answer)),
        }
    }
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
