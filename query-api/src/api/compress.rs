//! Packing of answers, where the client takes it and it is worth the time.

use std::io::Write as _;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::negotiate::{Coding, coding};
use crate::problem::{Code, Problem};

/// Shorter bodies fit into one packet anyway.
const BYTES_MIN: usize = 1_400;

/// Longer bodies are packed where nobody waits for the thread.
const BYTES_QUICK: usize = 16 << 10;

/// Fast levels: answers are made anew each time.
const ZSTD_LEVEL: i32 = 1;

/// Packs the body of an answer as the client likes it best.
pub(super) async fn compress(request: Request, next: Next) -> Response {
    let coding = coding(request.headers());
    let response = next.run(request).await;
    if coding == Coding::Identity || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Answers of this service are in memory as a whole already.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return Problem::new(Code::Internal, "the answer could not be packed").into_response();
    };
    if body.len() < BYTES_MIN {
        return Response::from_parts(parts, Body::from(body));
    }
    let plain = body.clone();
    let packed = if body.len() <= BYTES_QUICK {
        pack(&body, coding)
    } else {
        tokio::task::spawn_blocking(move || pack(&body, coding)).await.unwrap_or(None)
    };
    let Some(packed) = packed else {
        return Response::from_parts(parts, Body::from(plain));
    };
    let name = if coding == Coding::Gzip { "gzip" } else { "zstd" };
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(packed))
}

/// The packed body; `None` where that failed, which writing to memory does not.
fn pack(body: &Bytes, coding: Coding) -> Option<Vec<u8>> {
    match coding {
        Coding::Identity => None,
        Coding::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL).ok(),
        Coding::Gzip => {
            let level = flate2::Compression::fast();
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), level);
            packer.write_all(body).ok()?;
            packer.finish().ok()
        }
    }
}
