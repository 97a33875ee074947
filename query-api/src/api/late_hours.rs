//! `GET /v1/late-hours`: what is not in the counts, by hour and cause.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tally_model::bucket::Granularity;
use tally_model::time::format_rfc3339;
use tally_sinks::dirty::DirtyHour;
use utoipa::ToSchema;

use super::described::LateParameters;
use super::negotiate::{self, KnownTags};
use super::respond::{internal, not_modified, typed};
use super::stats::pairs;
use super::{QueryApi, auth, store_problem};
use crate::answer::{Count, Window, hex};
use crate::ask::{Format, LateAsk};
use crate::manifest::short;
use crate::metrics::Route;
use crate::problem::{Document, Problem};

/// What is not in the counts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LateHours)]
pub(super) struct Listing {
    window: Window,
    /// The dirty hours that start in the window, ascending; none of the others has anything noted.
    hours: Vec<LateHour>,
    total: Causes,
}

/// How many events were not counted, by why.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Causes {
    late: Count,
    straggler: Count,
    past_window: Count,
}

/// One dirty hour.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct LateHour {
    start: String,
    #[serde(flatten)]
    causes: Causes,
    hole: bool,
    superseded: bool,
    positions: Vec<Position>,
}

/// Up to where in a partition of the log the uncounted events stand.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Position {
    partition: u32,
    next_offset: Count,
}

/// What is not in the counts, by hour and cause.
#[utoipa::path(
    get,
    operation_id = "late_hours",
    path = "/v1/late-hours",
    params(LateParameters),
    responses(
        (
            status = 200,
            description = "The dirty hours",
            content((Listing = "application/json"), (String = "text/csv")),
        ),
        (status = 304, description = "Nothing has changed since the answer of If-None-Match"),
        (status = "4XX", description = "The request is wrong, or not allowed", body = Document<'static>, content_type = "application/problem+json"),
    ),
    security(("token" = [])),
)]
pub(super) async fn list(
    State(api): State<Arc<QueryApi>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let answer = async {
        auth::may_read_raw(&api, &headers)?;
        let ask = LateAsk::parse(&pairs(&uri)?)?;
        let format = negotiate::format(ask.format, Format::OF_LISTS, &headers)?;
        let known = KnownTags::of(&headers);
        api.blocking(move |api| api.answer_late_hours(&ask, format, &known)).await
    };
    api.measured(Route::LateHours, answer).await
}

impl QueryApi {
    fn answer_late_hours(
        &self,
        ask: &LateAsk,
        format: Format,
        known: &KnownTags,
    ) -> Result<Response, Problem> {
        let range = ask.asked.range;
        let stored = self.reader.late_hours(range).map_err(|why| store_problem(&why))?;
        let listing = Listing::new(Window::new(&ask.asked, range, Granularity::Hour), &stored);
        let text = match format {
            Format::Csv => csv(&listing),
            // Arrow is not offered.
            Format::Json | Format::Arrow => {
                serde_json::to_string(&listing).map_err(|why| internal(&why))?
            }
        };
        let tag = format!("W/\"{}\"", hex(&short(Sha256::new().chain_update(&text))));
        if known.has(&tag) {
            return not_modified(&tag);
        }
        typed(Body::from(text), format, &tag)
    }
}

impl Listing {
    fn new(window: Window, stored: &BTreeMap<i64, DirtyHour>) -> Self {
        let mut sum = DirtyHour::default();
        stored.values().for_each(|hour| sum.add(hour));
        let hour = |(start_ms, hour): (&i64, &DirtyHour)| LateHour {
            start: format_rfc3339(*start_ms),
            causes: Causes::of(hour),
            hole: hour.hole,
            superseded: hour.superseded,
            positions: positions(hour),
        };
        Self { window, hours: stored.iter().map(hour).collect(), total: Causes::of(&sum) }
    }
}

impl Causes {
    const fn of(hour: &DirtyHour) -> Self {
        Self {
            late: Count(hour.late),
            straggler: Count(hour.straggler),
            past_window: Count(hour.past_window),
        }
    }
}

fn positions(hour: &DirtyHour) -> Vec<Position> {
    let position = |(partition, offset): (&u32, &u64)| Position {
        partition: *partition,
        next_offset: Count(*offset),
    };
    hour.positions.iter().map(position).collect()
}

/// One line an hour; positions as `partition:offset`, apart by blanks.
fn csv(listing: &Listing) -> String {
    let mut text = "start,late,straggler,pastWindow,hole,superseded,positions\r\n".to_owned();
    for hour in &listing.hours {
        let LateHour { start, causes, hole, superseded, positions } = hour;
        let Causes { late, straggler, past_window } = causes;
        let counts = format!("{},{},{}", late.0, straggler.0, past_window.0);
        let positions = positions
            .iter()
            .map(|one| format!("{}:{}", one.partition, one.next_offset.0))
            .collect::<Vec<_>>()
            .join(" ");
        text.push_str(&format!("{start},{counts},{hole},{superseded},{positions}\r\n"));
    }
    text
}
