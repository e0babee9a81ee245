//! The outcome of a gRPC call, whose HTTP status is always 200.

use http::{HeaderMap, StatusCode};

/// The HTTP status that a gRPC status corresponds to, from the trailers, or from the headers of a response without a
/// body. `None` if the response is not gRPC's.
pub(crate) fn as_http(headers: &HeaderMap, trailers: Option<&HeaderMap>) -> Option<StatusCode> {
    let of = |map: &HeaderMap| map.get("grpc-status")?.to_str().ok()?.parse::<u16>().ok();
    let code = trailers.and_then(of).or_else(|| of(headers))?;
    Some(match code {
        0 => StatusCode::OK,
        3 | 9 | 11 => StatusCode::BAD_REQUEST,
        5 => StatusCode::NOT_FOUND,
        6 => StatusCode::CONFLICT,
        7 => StatusCode::FORBIDDEN,
        8 => StatusCode::TOO_MANY_REQUESTS,
        12 => StatusCode::NOT_IMPLEMENTED,
        16 => StatusCode::UNAUTHORIZED,
        4 => StatusCode::GATEWAY_TIMEOUT,
        // Aborted and unavailable: the client is expected to try again.
        10 | 14 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    })
}
