//! Opening connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket, tls::NoTlsStream};

use super::errors::{not_connected, unreachable};
use windlass_core::connections;
use windlass_core::error::Result;

/// The kind of the store, in metrics.
const KIND: &str = "postgres";

/// Opens connections to one server, or to the first usable one of several.
#[derive(Clone)]
pub(super) struct Connector {
    config: Arc<Config>,
    limit: Duration,
}

/// An open connection. It ends when this value is dropped.
pub(super) struct OpenConnection {
    pub(super) client: Arc<Client>,
    task: AbortHandle,
}

impl OpenConnection {
    /// Ends the connection without waiting for replies.
    pub(super) fn abort(&self) {
        self.task.abort();
    }
}

impl Connector {
    pub(super) fn new(mut config: Config, limit: Duration) -> Connector {
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(limit);
        }
        config.keepalives_idle(Duration::from_secs(30));
        Connector {
            config: Arc::new(config),
            limit,
        }
    }

    async fn open(&self, again: bool) -> Result<(Client, Connection<Socket, NoTlsStream>)> {
        let opened = tokio::time::timeout(self.limit, self.config.connect(NoTls)).await;
        let failed = |e| {
            connections::connection_failed(KIND);
            Err(e)
        };
        match opened {
            Ok(Ok(opened)) => {
                connections::connected(KIND, again);
                Ok(opened)
            }
            Ok(Err(e)) => failed(not_connected(&e)),
            Err(_) => failed(unreachable(format!("no reply within {:?}", self.limit))),
        }
    }

    /// Connects. `again` if in place of a connection that was lost.
    pub(super) async fn connect(&self, again: bool) -> Result<OpenConnection> {
        let (client, connection) = self.open(again).await?;
        let task = tokio::spawn(async move {
            // Callers that wait for a reply learn of the failure.
            let _ = connection.await;
        });
        Ok(OpenConnection {
            client: Arc::new(client),
            task: task.abort_handle(),
        })
    }

    /// Connects, and passes on what the server sends unasked. The channel closes with the
    /// connection.
    pub(super) async fn connect_listening(
        &self,
        again: bool,
    ) -> Result<(
        OpenConnection,
        tokio::sync::mpsc::UnboundedReceiver<AsyncMessage>,
    )> {
        let (client, mut connection) = self.open(again).await?;
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            loop {
                let message = std::future::poll_fn(|cx| connection.poll_message(cx)).await;
                match message {
                    Some(Ok(message)) => {
                        if sender.send(message).is_err() {
                            return;
                        }
                    }
                    Some(Err(_)) | None => return,
                }
            }
        });
        let connection = OpenConnection {
            client: Arc::new(client),
            task: task.abort_handle(),
        };
        Ok((connection, receiver))
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}
