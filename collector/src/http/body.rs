//! Taking in a request body within its bounds.

use std::io::Read;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::in_place;
use super::problem::{Code, Problem};
use crate::budget::{Budget, Share};
use crate::limits::Limits;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Not at all.
    Identity,
    /// With gzip, once.
    Gzip,
}

impl Encoding {
    /// The body's encoding by its headers.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let encoding = match (values.next(), values.next()) {
            (None, _) => Some(Self::Identity),
            (Some(value), None) => {
                let value = value.as_bytes().trim_ascii();
                if value.eq_ignore_ascii_case(b"identity") || value.is_empty() {
                    Some(Self::Identity)
                } else if value.eq_ignore_ascii_case(b"gzip")
                    || value.eq_ignore_ascii_case(b"x-gzip")
                {
                    Some(Self::Gzip)
                } else {
                    None
                }
            }
            (Some(_), Some(_)) => None,
        };
        encoding.ok_or_else(|| {
            Problem::new(Code::UnsupportedEncoding, "use gzip once, or no Content-Encoding")
        })
    }
}

/// Refuses anything but JSON in UTF-8. Beacons of browsers can send JSON as `text/plain` only.
pub(super) fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let mut parts = value.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or("");
    let is_json = ["application/json", "text/plain"]
        .iter()
        .any(|allowed| media_type.eq_ignore_ascii_case(allowed));
    let is_utf8 = parts
        .filter_map(|parameter| parameter.split_once('='))
        .filter(|(name, _)| name.eq_ignore_ascii_case("charset"))
        .all(|(_, charset)| charset.trim_matches('"').eq_ignore_ascii_case("utf-8"));
    if is_json && is_utf8 {
        return Ok(());
    }
    Err(Problem::new(
        Code::UnsupportedMediaType,
        "send Content-Type: application/json, or text/plain with charset=utf-8",
    ))
}

/// A body as text, and the share of the memory that it and its records take.
pub(super) struct Taken {
    pub(super) text: Bytes,
    pub(super) share: Share,
}

/// How long a refused body is read on.
const DISCARD_DEADLINE: Duration = Duration::from_secs(2);

/// Reads a refused body and keeps nothing of it. A connection that is closed while its client still
/// sends takes the answer with it; up to twice the limit the client learns why it was refused.
pub(super) async fn discard(mut body: Body, limits: &Limits) {
    let most = 2 * limits.wire_bytes;
    let reading = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await
            && seen <= most
        {
            seen += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Who takes longer than that does not get the answer.
    let _done_or_not = tokio::time::timeout(DISCARD_DEADLINE, reading).await;
}

/// Takes a body in. Memory is reserved before any of it is read: once for the text and once for the
/// records that are made of it; inflated text gets its own share, for as long as it is needed.
pub(super) async fn take(
    body: Body,
    encoding: Encoding,
    limits: &Limits,
    budget: &Budget,
) -> Result<Taken, Problem> {
    let hint = body.size_hint();
    let told = usize::try_from(hint.lower()).unwrap_or(usize::MAX);
    if told > limits.wire_bytes {
        discard(body, limits).await;
        return Err(over_wire_limit(limits));
    }
    let expected = hint.exact().map_or(limits.wire_bytes, |_exact| told);
    let mut share = budget.take(2 * expected).ok_or_else(no_room)?;
    let wire = read(body, limits).await?;
    share.shrink_to(2 * wire.len());
    match encoding {
        Encoding::Identity if wire.len() > limits.inflated_bytes => Err(over_text_limit(limits)),
        Encoding::Identity => Ok(Taken { text: wire, share }),
        Encoding::Gzip => {
            let mut share = budget.take(2 * limits.inflated_bytes).ok_or_else(no_room)?;
            let likely_bytes = wire.len().saturating_mul(10);
            let text = in_place(likely_bytes, || inflate(&wire, limits))?;
            share.shrink_to(2 * text.len());
            Ok(Taken { text, share })
        }
    }
}

/// Inflates at most one byte more than the limit.
fn inflate(wire: &[u8], limits: &Limits) -> Result<Bytes, Problem> {
    let mut text = Vec::with_capacity(wire.len().saturating_mul(4).min(limits.inflated_bytes));
    let one_more = u64::try_from(limits.inflated_bytes).unwrap_or(u64::MAX).saturating_add(1);
    MultiGzDecoder::new(wire)
        .take(one_more)
        .read_to_end(&mut text)
        .map_err(|_what| Problem::new(Code::InvalidGzip, "the body is damaged or cut short"))?;
    if text.len() > limits.inflated_bytes {
        return Err(over_text_limit(limits));
    }
    Ok(text.into())
}

/// Reads a body of at most the allowed length in at most the allowed time.
async fn read(body: Body, limits: &Limits) -> Result<Bytes, Problem> {
    let deadline = Duration::from_millis(limits.body_timeout_ms);
    let reading = Limited::new(body, limits.wire_bytes).collect();
    match tokio::time::timeout(deadline, reading).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(over_wire_limit(limits)),
        Ok(Err(_broken_off)) => {
            Err(Problem::new(Code::IncompleteBody, "the connection ended within the body"))
        }
        Err(_elapsed) => Err(Problem::new(
            Code::BodyTimeout,
            format!("the body must arrive within {} ms", limits.body_timeout_ms),
        )),
    }
}

fn over_wire_limit(limits: &Limits) -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        format!("the limit is {} bytes on the wire", limits.wire_bytes),
    )
}

fn over_text_limit(limits: &Limits) -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        format!("the limit is {} bytes after decompression", limits.inflated_bytes),
    )
}

fn no_room() -> Problem {
    Problem::new(Code::Overloaded, "too many requests are in flight; send it again")
}
