//! Who may write events.
//!
//! A write key comes in a header: `X-Write-Key`, `Authorization: Bearer`, or as the user name of
//! `Authorization: Basic`. Never in a URL: what stands there ends up in logs.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use tally_sinks::tokens::{TokenInfo, TokenKind, Tokens};

use super::problem::{Code, Problem};
use crate::metrics::{AuthFailure, Metrics};

/// The write key's entry. `X-Write-Key` comes before Authorization, which a proxy may have set.
pub(super) fn authenticate(
    headers: &HeaderMap,
    tokens: &Tokens,
) -> Result<Arc<TokenInfo>, AuthFailure> {
    let key = sent_key(headers).ok_or(AuthFailure::Missing)?;
    let token = tokens.authenticate(&key).ok_or(AuthFailure::Unknown)?;
    match token.kind {
        TokenKind::Write => Ok(token),
        TokenKind::Read | TokenKind::Admin => Err(AuthFailure::WrongKind),
    }
}

/// Counts a failure and makes its answer.
pub(super) fn refuse(failure: AuthFailure, metrics: &Metrics) -> Problem {
    metrics.auth_failure(failure);
    match failure {
        AuthFailure::Missing => Problem::new(
            Code::Unauthorized,
            "send the write key once, in the header X-Write-Key or Authorization; keys in the URL \
             are not looked at",
        ),
        AuthFailure::Unknown => {
            Problem::new(Code::Unauthorized, "the write key is not known or was revoked")
        }
        AuthFailure::WrongKind => {
            Problem::new(Code::Forbidden, "this key reads or administers; use a write key")
        }
    }
}

fn sent_key(headers: &HeaderMap) -> Option<String> {
    let key = match once(headers, "x-write-key")? {
        Some(key) => key.to_owned(),
        None => authorization(once(headers, AUTHORIZATION.as_str())??)?,
    };
    Some(key).filter(|key| !key.is_empty())
}

/// The value of a header; `None` if it stands there twice or is no text, `Some(None)` if it does
/// not stand there.
fn once<'h>(headers: &'h HeaderMap, name: &str) -> Option<Option<&'h str>> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Some(None),
        (Some(value), None) => value.to_str().ok().map(|text| Some(text.trim())),
        (Some(_), Some(_)) => None,
    }
}

fn authorization(value: &str) -> Option<String> {
    let (scheme, credentials) = value.split_once(' ')?;
    let credentials = credentials.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        Some(credentials.to_owned())
    } else if scheme.eq_ignore_ascii_case("basic") {
        let pair = String::from_utf8(base64(credentials)?).ok()?;
        pair.split_once(':').map(|(user, _password)| user.to_owned())
    } else {
        None
    }
}

/// Decodes standard base64 with or without padding.
///
/// # Source
/// RFC 4648, section 4.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if digits.len() % 4 == 1 || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut width) = (0_u32, 0_u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        width += 6;
        if width >= 8 {
            width -= 8;
            bytes.push(u8::try_from(bits >> width).ok()?);
            bits &= (1 << width) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// Names and values.
    type Headers<'h> = &'h [(&'static str, &'h str)];

    fn headers(pairs: Headers<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).expect("a header value"));
        }
        headers
    }

    #[test]
    fn keys_are_found_in_headers_only_and_never_guessed() {
        let cases: [(&str, Headers<'_>, Option<&str>); 14] = [
            ("own header", &[("x-write-key", "wk_1")], Some("wk_1")),
            ("bearer", &[("authorization", "Bearer wk_1")], Some("wk_1")),
            ("scheme in any case", &[("authorization", "bEARER  wk_1")], Some("wk_1")),
            ("basic, no password", &[("authorization", "Basic d2tfMTo=")], Some("wk_1")),
            ("basic with password", &[("authorization", "Basic d2tfMTpwYXNz")], Some("wk_1")),
            ("basic without colon", &[("authorization", "Basic d2tfMQ==")], None),
            ("basic, not base64", &[("authorization", "Basic d2t*MTo=")], None),
            ("basic, no user", &[("authorization", "Basic OnBhc3M=")], None),
            ("unknown scheme", &[("authorization", "Digest wk_1")], None),
            ("no scheme", &[("authorization", "wk_1")], None),
            ("empty", &[("x-write-key", "")], None),
            ("nothing", &[], None),
            ("twice", &[("x-write-key", "wk_1"), ("x-write-key", "wk_2")], None),
            (
                "own header before a proxy's",
                &[("authorization", "Negotiate abc"), ("x-write-key", "wk_1")],
                Some("wk_1"),
            ),
        ];
        for (name, pairs, want) in cases {
            assert_eq!(sent_key(&headers(pairs)).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn base64_cases() {
        let cases: [(&str, Option<&[u8]>); 9] = [
            ("", Some(b"")),
            ("Zg==", Some(b"f")),
            ("Zg", Some(b"f")),
            ("Zm8=", Some(b"fo")),
            ("Zm9v", Some(b"foo")),
            ("+/+/", Some(&[0xfb, 0xff, 0xbf])),
            ("Z", None),
            ("Zg===", None),
            ("Z g=", None),
        ];
        for (text, want) in cases {
            assert_eq!(base64(text).as_deref(), want, "{text}");
        }
    }
}
