//! Finds the Redis servers of a store of several: the master that sentinels name, and the masters of a cluster.

use redis::aio::MultiplexedConnection;
use windlass_term::{Failure, raw_redis};

use crate::bare_redis;

/// The URL of the server that keeps the data: asked of sentinels if the URL names them, else the URL itself.
pub(crate) async fn server_url(url: &str) -> Result<String, Failure> {
    let Some(parts) = UrlParts::of(url, "+sentinel") else {
        return Ok(url.to_owned());
    };
    let (service, database) = parts.path.split_once('/').unwrap_or((parts.path, "0"));
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let parameter = |name: &str| {
        let mut pairs = parts
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let login = match (parameter("sentinel_user"), parameter("sentinel_password")) {
        (user, Some(password)) => format!("{}:{password}@", user.unwrap_or_default()),
        _ => String::new(),
    };
    let ca = parameter("tls_ca").map_or(String::new(), |ca| format!("?tls_ca={ca}"));
    let mut problem = None;
    for host in parts.hosts(26379) {
        let sentinel = format!("{}://{login}{host}{ca}", parts.scheme);
        let answer = match raw_redis::connect(&sentinel).await {
            Ok(mut connection) => {
                let asked = question.query_async::<(String, u16)>(&mut connection).await;
                asked.map_err(raw_redis::failure)
            }
            Err(e) => Err(e),
        };
        match answer {
            Ok((host, port)) => {
                let login = parts.login;
                return Ok(format!(
                    "{}://{login}{host}:{port}/{database}{ca}",
                    parts.scheme
                ));
            }
            Err(e) => problem = Some(e),
        }
    }
    Err(problem.unwrap_or_else(|| Failure::internal("the URL names no sentinel")))
}

/// A connection to each master of a cluster, with its slot range.
pub(crate) struct ClusterNodes(Vec<(u16, u16, MultiplexedConnection)>);

impl ClusterNodes {
    /// Connects to all masters, if the URL is that of a cluster.
    pub(crate) async fn of(url: &str) -> Result<Option<ClusterNodes>, Failure> {
        let Some(parts) = UrlParts::of(url, "+cluster") else {
            return Ok(None);
        };
        let node = |address: &str| {
            format!(
                "{}://{}{address}?{}",
                parts.scheme, parts.login, parts.query
            )
        };
        let seed = parts.hosts(6379).next().unwrap_or_default();
        let mut connection = raw_redis::connect(&node(&seed)).await?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        type Node = (String, u16);
        let ranges: Vec<(u16, u16, redis::Value)> = question
            .query_async(&mut connection)
            .await
            .map_err(raw_redis::failure)?;
        let mut nodes = Vec::new();
        for (first, last, master) in ranges {
            let redis::Value::Array(parts) = master else {
                continue;
            };
            let front = redis::Value::Array(parts.into_iter().take(2).collect());
            let (host, port): Node =
                redis::from_redis_value(front).map_err(|e| raw_redis::failure(e.into()))?;
            let connection = bare_redis::connect(&node(&format!("{host}:{port}"))).await?;
            nodes.push((first, last, connection));
        }
        Ok(Some(ClusterNodes(nodes)))
    }

    /// The connection to the node that serves a key.
    pub(crate) async fn node_of(&self, key: &str) -> Result<&MultiplexedConnection, Failure> {
        let any = self
            .0
            .first()
            .ok_or_else(|| Failure::internal("a cluster without nodes"))?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("KEYSLOT").arg(key);
        let slot: u16 = question
            .query_async(&mut any.2.clone())
            .await
            .map_err(raw_redis::failure)?;
        let found = self
            .0
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        found
            .map(|(_, _, connection)| connection)
            .ok_or_else(|| Failure::internal(format!("no node serves slot {slot}")))
    }
}

/// `SCHEME+KIND://[LOGIN@]HOST,HOST[/PATH][?QUERY]`.
struct UrlParts<'a> {
    scheme: &'a str,
    /// Including the `@`, or empty.
    login: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl UrlParts<'_> {
    fn of<'a>(url: &'a str, kind: &str) -> Option<UrlParts<'a>> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = scheme.strip_suffix(kind)?;
        let (front, query) = rest.split_once('?').unwrap_or((rest, ""));
        let at = front.rfind('@').map_or(0, |at| at + 1);
        let (login, front) = front.split_at(at);
        let (hosts, path) = front.split_once('/').unwrap_or((front, ""));
        Some(UrlParts {
            scheme,
            login,
            hosts,
            path,
            query,
        })
    }

    fn hosts(&self, port: u16) -> impl Iterator<Item = String> {
        self.hosts
            .split(',')
            .map(move |host| match host.rsplit_once(':') {
                Some(_) => host.to_owned(),
                None => format!("{host}:{port}"),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_parts() {
        let parts = UrlParts::of("rediss+sentinel://u:p@a,b:1/main/2?x=1", "+sentinel").unwrap();
        assert_eq!((parts.scheme, parts.login), ("rediss", "u:p@"));
        assert_eq!(parts.hosts(5).collect::<Vec<_>>(), ["a:5", "b:1"]);
        assert_eq!((parts.path, parts.query), ("main/2", "x=1"));
        assert!(UrlParts::of("redis://h", "+cluster").is_none());
    }
}
