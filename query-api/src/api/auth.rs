//! Who may do what.
//!
//! A token comes in the header `Authorization: Bearer ...` and nowhere else: what stands in a URL
//! ends up in logs.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use tally_sinks::tokens::{Scope, TokenInfo, TokenKind, Tokens};

use super::QueryApi;
use crate::problem::{Code, Problem};
use crate::shown::View;

/// Lets holders of a read token and administrators in, and says what they may see.
pub(super) fn may_read_stats(api: &QueryApi, headers: &HeaderMap) -> Result<View, Problem> {
    let token = authenticate(&api.tokens, headers)?;
    match token.kind {
        TokenKind::Admin => Ok(View::Raw),
        TokenKind::Read if token.scopes.contains(&Scope::StatsRaw) => Ok(View::Raw),
        TokenKind::Read => Ok(View::Shown { below: api.settings.suppress_below }),
        TokenKind::Write => {
            Err(Problem::new(Code::Forbidden, "a write key reads no counts; use a read token"))
        }
    }
}

/// Lets those in who may see exact counts.
pub(super) fn may_read_raw(api: &QueryApi, headers: &HeaderMap) -> Result<(), Problem> {
    match may_read_stats(api, headers)? {
        View::Raw => Ok(()),
        View::Shown { .. } => Err(Problem::new(
            Code::RawScopeRequired,
            "this answer is exact, and the token lacks the scope stats:raw",
        )),
    }
}

/// Lets holders of any token in.
pub(super) fn may_list_types(tokens: &Tokens, headers: &HeaderMap) -> Result<(), Problem> {
    authenticate(tokens, headers).map(|_| ())
}

/// Lets administrators in.
pub(super) fn may_change_types(tokens: &Tokens, headers: &HeaderMap) -> Result<(), Problem> {
    match authenticate(tokens, headers)?.kind {
        TokenKind::Admin => Ok(()),
        TokenKind::Read | TokenKind::Write => {
            Err(Problem::new(Code::Forbidden, "only an admin token changes event types"))
        }
    }
}

fn authenticate(tokens: &Tokens, headers: &HeaderMap) -> Result<Arc<TokenInfo>, Problem> {
    let missing = || {
        Problem::new(Code::Unauthorized, "send the header \"Authorization: Bearer TOKEN\", once")
    };
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(missing());
    };
    let (scheme, token) =
        value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(missing)?;
    if !scheme.eq_ignore_ascii_case("Bearer") {
        return Err(missing());
    }
    tokens
        .authenticate(token.trim())
        .ok_or_else(|| Problem::new(Code::Unauthorized, "the token is not known or was revoked"))
}
