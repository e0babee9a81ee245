//! The end of a request under an idempotency key: reads the response, and stores it for repeats.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use tokio_util::sync::CancellationToken;
use windlass::{Finished, OnFailure};

use super::buffer::{Buffered, buffer};
use super::record::Record;
use super::running::{Running, STORE_WAIT};
use super::stage::replay;
use super::{Config, OnLargeResponse};
use crate::BoxError;
use crate::body::{Body, Whole};
use crate::grpc_status;
use crate::rejection::{Protocol, Refused, RejectionKind};

/// How long the body of a response is awaited after the client is gone. After that, the request counts as interrupted.
const READ_WAIT: Duration = Duration::from_secs(60);

impl Config {
    fn kept_headers(&self, headers: &HeaderMap) -> HeaderMap {
        let mut kept = HeaderMap::new();
        for name in &self.replay_headers {
            for value in headers.get_all(name) {
                kept.append(name, value.clone());
            }
        }
        kept
    }

    /// The trailers that are stored: the same names, and all of gRPC's.
    fn kept_trailers(&self, trailers: &HeaderMap) -> HeaderMap {
        let mut kept = HeaderMap::new();
        for (name, value) in trailers {
            if name.as_str().starts_with("grpc-") || self.replay_headers.contains(name) {
                kept.append(name, value.clone());
            }
        }
        kept
    }

    /// Whether a response is stored that may be one of gRPC. A call without a status was cut off.
    fn is_stored(&self, protocol: Protocol, headers: &HeaderMap, body: &Whole) -> bool {
        match grpc_status::as_http(headers, body.trailers.as_ref()) {
            Some(status) => (self.store_if)(status),
            None => protocol != Protocol::Grpc,
        }
    }

    /// Whether the body may have no end that is worth waiting for.
    fn is_stream(headers: &HeaderMap) -> bool {
        let content = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        content.is_some_and(|content| content.starts_with(b"text/event-stream"))
    }

    /// Reads the response, stores it, and returns the response that counts. `gone` is cancelled when nobody waits for
    /// it any more.
    pub(super) async fn finish<R>(
        &self,
        mut running: Running,
        response: Response<R>,
        gone: CancellationToken,
    ) -> Response<Body<R>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let (parts, body) = response.into_parts();
        let refused = parts.extensions.get().map(|Refused(kind)| *kind);
        if refused.is_some() || !(self.store_if)(parts.status) {
            // A lost lease interrupts a handler that has begun; any other refusal comes before the handler.
            if refused != Some(RejectionKind::LeaseLost) {
                running.outcome = OnFailure::Retry;
            }
            running.end().await;
            return Response::from_parts(parts, Body::inner(body));
        }
        let buffered = match Config::is_stream(&parts.headers) {
            true => Some(Buffered::TooLarge(Body::inner(body))),
            false => {
                let buffer = buffer(body, self.max_response_bytes, self.max_response_time);
                unless(waited_in_vain(gone), buffer).await
            }
        };
        let Some(buffered) = buffered else {
            running.end().await;
            return Response::from_parts(parts, Body::from(Whole::default()));
        };
        let (stored, body) = match buffered {
            Buffered::Whole(whole) if !self.is_stored(running.protocol, &parts.headers, &whole) => {
                running.outcome = OnFailure::Retry;
                running.end().await;
                return Response::from_parts(parts, Body::from(whole));
            }
            Buffered::Whole(whole) => {
                let trailers = whole.trailers.as_ref();
                let stored = Whole {
                    data: whole.data.clone(),
                    trailers: trailers.map(|trailers| self.kept_trailers(trailers)),
                };
                (Some(stored), Body::from(whole))
            }
            Buffered::TooLarge(body) | Buffered::TooSlow(body)
                if self.on_large_response == OnLargeResponse::RunAgain =>
            {
                running.outcome = OnFailure::Retry;
                running.end().await;
                return Response::from_parts(parts, body);
            }
            Buffered::TooLarge(body) | Buffered::TooSlow(body) => (None, body),
            Buffered::Failed(body) => {
                running.end().await;
                return Response::from_parts(parts, body);
            }
        };
        let record = Record {
            status: parts.status,
            headers: self.kept_headers(&parts.headers),
            body: stored,
        };
        let guard = running.take();
        // On its own, so that it continues after the wait.
        let storing = tokio::spawn(async move {
            let record = record.encode();
            let finished = guard.finish(&record).await?;
            let is_other = finished != Finished::Done(record);
            Ok::<_, windlass::Error>(is_other.then_some(finished))
        });
        match tokio::time::timeout(STORE_WAIT, storing).await {
            Ok(Ok(Ok(None))) => {}
            // The lease was lost, and another instance was faster: its response is what repeats get.
            Ok(Ok(Ok(Some(other)))) => {
                if let Ok(response) = replay(other) {
                    return response.map(Body::from);
                }
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "a request was handled, but its response is not stored");
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!("a request was handled, but its response is not stored yet");
            }
        }
        Response::from_parts(parts, body)
    }
}

/// Ends when the client has been gone for a while, and the body of its response is still not there.
async fn waited_in_vain(gone: CancellationToken) {
    gone.cancelled().await;
    tokio::time::sleep(READ_WAIT).await;
}

/// The value of the future, unless `end` comes first.
async fn unless<T>(end: impl Future<Output = ()>, future: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut future) = (pin!(end), pin!(future));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(cx).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn body_without_end_is_awaited_while_the_client_is_there_and_a_minute_longer() {
        let gone = CancellationToken::new();
        let reading = unless(waited_in_vain(gone.clone()), std::future::pending::<()>());
        let mut reading = pin!(reading);
        let hour = Duration::from_secs(3_600);
        assert!(tokio::time::timeout(hour, &mut reading).await.is_err());
        gone.cancel();
        let early = READ_WAIT - Duration::from_secs(1);
        assert!(tokio::time::timeout(early, &mut reading).await.is_err());
        assert!(reading.await.is_none());
    }
}
