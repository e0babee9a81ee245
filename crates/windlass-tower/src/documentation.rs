//! The Rust examples of the guide, compiled and run as doctests. Not part of any build.

#[doc = include_str!("../../../docs/protect-an-http-api.md")]
mod protect_an_http_api {}
