//! The response as it is stored.
//!
//! A version byte, the status, and length-prefixed headers, body and trailers. Numbers are big-endian.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::body::Whole;

const VERSION: u8 = 1;

/// A stored response.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// `None` if the body was too large to store.
    pub(super) body: Option<Whole>,
}

impl Record {
    pub(super) fn encode(&self) -> Vec<u8> {
        let data = self.body.as_ref().map_or(&[][..], |body| &body.data);
        let mut out = Vec::with_capacity(data.len() + 256);
        out.push(VERSION);
        out.extend(self.status.as_u16().to_be_bytes());
        put_headers(&mut out, &self.headers);
        match &self.body {
            None => out.push(0),
            Some(body) => {
                out.push(1);
                put(&mut out, data);
                put_headers(
                    &mut out,
                    body.trailers.as_ref().unwrap_or(&HeaderMap::new()),
                );
            }
        }
        out
    }

    /// `None` if it was not written by [`encode`](Record::encode).
    pub(super) fn decode(stored: Vec<u8>) -> Option<Record> {
        let mut reader = Reader(Bytes::from(stored));
        if reader.take(1)?[0] != VERSION {
            return None;
        }
        let status = u16::from_be_bytes(reader.take(2)?.as_ref().try_into().ok()?);
        let status = StatusCode::from_u16(status).ok()?;
        let headers = reader.headers()?;
        let body = match reader.take(1)?[0] {
            0 => None,
            _ => {
                let data = reader.text()?;
                let trailers = Some(reader.headers()?).filter(|trailers| !trailers.is_empty());
                Some(Whole { data, trailers })
            }
        };
        Some(Record {
            status,
            headers,
            body,
        })
    }

    /// The response, unless its body was not stored.
    pub(super) fn into_response(self) -> Option<Response<Whole>> {
        let mut response = Response::new(self.body?);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        Some(response)
    }
}

fn put(out: &mut Vec<u8>, text: &[u8]) {
    let length = u32::try_from(text.len()).expect("bounded by the largest result");
    out.extend(length.to_be_bytes());
    out.extend(text);
}

fn put_headers(out: &mut Vec<u8>, headers: &HeaderMap) {
    let count = u32::try_from(headers.len()).expect("a header map is smaller");
    out.extend(count.to_be_bytes());
    for (name, value) in headers {
        put(out, name.as_str().as_bytes());
        put(out, value.as_bytes());
    }
}

struct Reader(Bytes);

impl Reader {
    fn take(&mut self, length: usize) -> Option<Bytes> {
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.as_ref().try_into().ok()?))
    }

    fn text(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    fn headers(&mut self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        for _ in 0..self.number()? {
            let name = HeaderName::from_bytes(&self.text()?).ok()?;
            headers.append(name, HeaderValue::from_maybe_shared(self.text()?).ok()?);
        }
        Some(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_written() {
        let mut headers = HeaderMap::new();
        headers.append("location", HeaderValue::from_static("/orders/7"));
        headers.append("link", HeaderValue::from_static("a"));
        headers.append("link", HeaderValue::from_bytes(b"\xff").unwrap());
        let trailers = Some(headers.clone());
        let data = Bytes::from_static(b"\0binary");
        for body in [None, Some(Whole::default()), Some(Whole { data, trailers })] {
            let record = Record {
                status: StatusCode::CREATED,
                headers: headers.clone(),
                body: body.clone(),
            };
            let encoded = record.encode();
            let read = Record::decode(encoded.clone()).unwrap();
            assert_eq!(
                (read.status, &read.headers),
                (record.status, &record.headers)
            );
            let parts = |body: Option<Whole>| body.map(|body| (body.data, body.trailers));
            assert_eq!(parts(read.body), parts(body));
            for cut in 0..encoded.len() {
                assert!(Record::decode(encoded[..cut].to_vec()).is_none(), "{cut}");
            }
        }
    }
}
