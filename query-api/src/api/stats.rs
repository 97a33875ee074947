//! `GET /v1/stats/top` and `GET /v1/stats/series`.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use tally_model::bucket::Bucket;
use tally_model::range::Availability;
use tally_model::types::{OTHER_NAME, TypeId, normal_name};
use tally_model::vector::CountVector;

use super::described::{SeriesParameters, TopParameters};
use super::negotiate::{self, KnownTags};
use super::read::{Outcome, Question, name_of};
use super::respond::{internal, json, not_modified, table};
use super::{QueryApi, QuerySettings, auth};
use crate::answer::{
    Count, PointSums, SeriesAnswer, TopAnswer, Window, rank, series_arrow, series_csv, top_arrow,
    top_csv,
};
use crate::ask::{Format, SeriesAsk, TopAsk};
use crate::metrics::Route;
use crate::problem::{Code, Document, Problem};
use crate::shown::View;

/// The event types with the highest counts.
#[utoipa::path(
    get,
    operation_id = "top",
    path = "/v1/stats/top",
    params(TopParameters),
    responses(
        (
            status = 200,
            description = "The counts",
            content(
                (TopAnswer = "application/json"),
                (String = "text/csv"),
                (String = "application/vnd.apache.arrow.stream"),
            ),
        ),
        (status = 304, description = "Nothing has changed since the answer of If-None-Match"),
        (status = "4XX", description = "The request is wrong, or not allowed", body = Document<'static>, content_type = "application/problem+json"),
        (status = 503, description = "Try again", body = Document<'static>, content_type = "application/problem+json"),
    ),
    security(("token" = [])),
)]
pub(super) async fn top(
    State(api): State<Arc<QueryApi>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let answer = async {
        let view = auth::may_read_stats(&api, &headers)?;
        let ask = TopAsk::parse(&pairs(&uri)?, view.rules(api.settings.min_width_ms))?;
        let format = negotiate::format(ask.format, Format::OF_COUNTS, &headers)?;
        let known = KnownTags::of(&headers);
        api.blocking(move |api| api.answer_top(&ask, view, format, &known)).await
    };
    api.measured(Route::Top, answer).await
}

/// The counts of one event type over time.
#[utoipa::path(
    get,
    operation_id = "series",
    path = "/v1/stats/series",
    params(SeriesParameters),
    responses(
        (
            status = 200,
            description = "The counts",
            content(
                (SeriesAnswer = "application/json"),
                (String = "text/csv"),
                (String = "application/vnd.apache.arrow.stream"),
            ),
        ),
        (status = 304, description = "Nothing has changed since the answer of If-None-Match"),
        (status = "4XX", description = "The request is wrong, or not allowed", body = Document<'static>, content_type = "application/problem+json"),
        (status = 503, description = "Try again", body = Document<'static>, content_type = "application/problem+json"),
    ),
    security(("token" = [])),
)]
pub(super) async fn series(
    State(api): State<Arc<QueryApi>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let answer = async {
        let view = auth::may_read_stats(&api, &headers)?;
        let ask = SeriesAsk::parse(&pairs(&uri)?, view.rules(api.settings.min_width_ms))?;
        let format = negotiate::format(ask.format, Format::OF_COUNTS, &headers)?;
        let known = KnownTags::of(&headers);
        api.blocking(move |api| api.answer_series(&ask, view, format, &known)).await
    };
    api.measured(Route::Series, answer).await
}

pub(super) fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    match Query::<Vec<(String, String)>>::try_from_uri(uri) {
        Ok(Query(pairs)) => Ok(pairs),
        Err(why) => Err(Problem::new(Code::BadParameter, why.body_text())),
    }
}

impl QueryApi {
    fn answer_top(
        &self,
        ask: &TopAsk,
        view: View,
        format: Format,
        known: &KnownTags,
    ) -> Result<Response, Problem> {
        let now_ms = self.clock.now_ms();
        let availability = self.availability(now_ms);
        let plan = ask.asked.range.plan(&availability);
        let question = Question {
            now_ms,
            availability,
            window: Window::new(&ask.asked, plan.window, plan.finest()),
            answered: plan.window,
            runs: plan.runs,
            view,
            shape: &["top", &ask.k.to_string()],
            format,
            known,
        };
        let add = |sum: &mut CountVector, _: Bucket, vector: &CountVector| sum.add(vector);
        let reading = match self.read(&question, CountVector::new, add)? {
            Outcome::Unchanged { tag } => return not_modified(&tag),
            Outcome::Read(reading) => *reading,
        };
        let results = rank(&reading.sums, ask.k, |slot| name_of(&reading.registry, slot))
            .map_err(|why| internal(&why))?;
        let answer = TopAnswer {
            envelope: reading.envelope,
            total: Count(reading.sums.total().map_err(|why| internal(&why))?),
            other: Count(reading.sums.get(TypeId::OTHER)),
            results,
        };
        match format {
            Format::Json => json(&answer, &reading.tag),
            Format::Csv => table(top_csv(&answer), format, &answer.envelope, &reading.tag),
            Format::Arrow => {
                let batches = top_arrow(&answer).map_err(|why| internal(&why))?;
                table(batches, format, &answer.envelope, &reading.tag)
            }
        }
    }

    fn answer_series(
        &self,
        ask: &SeriesAsk,
        view: View,
        format: Format,
        known: &KnownTags,
    ) -> Result<Response, Problem> {
        let now_ms = self.clock.now_ms();
        let availability = self.availability(now_ms);
        ask.check_kept(&availability)?;
        let (event_type, type_id) = self.event_type(&ask.event_type)?;
        let (granularity, range) = (ask.granularity, ask.asked.range);
        let question = Question {
            now_ms,
            availability,
            window: Window::new(&ask.asked, range, granularity),
            answered: range,
            runs: vec![ask.run()],
            view,
            shape: &["series", granularity.name(), &type_id.to_string()],
            format,
            known,
        };
        let zeros = || PointSums::new(type_id, granularity, range);
        let add = |sums: &mut PointSums, bucket: Bucket, vector: &CountVector| {
            sums.add(bucket.start_ms(), vector)
        };
        let reading = match self.read(&question, zeros, add)? {
            Outcome::Unchanged { tag } => return not_modified(&tag),
            Outcome::Read(reading) => *reading,
        };
        let answer = SeriesAnswer {
            envelope: reading.envelope,
            event_type,
            type_id,
            granularity,
            total: Count(reading.sums.total().map_err(|why| internal(&why))?),
            points: reading.sums.points(&reading.facts, &reading.resolved),
        };
        match format {
            Format::Json => json(&answer, &reading.tag),
            Format::Csv => table(series_csv(&answer), format, &answer.envelope, &reading.tag),
            Format::Arrow => {
                let batches = series_arrow(&answer).map_err(|why| internal(&why))?;
                table(batches, format, &answer.envelope, &reading.tag)
            }
        }
    }

    fn availability(&self, now_ms: i64) -> Availability {
        let QuerySettings { minutes_days, hours_days, .. } = self.settings;
        Availability::at(now_ms, minutes_days, hours_days)
    }

    /// The stored name and the id of the type that the client named.
    fn event_type(&self, name: &str) -> Result<(String, TypeId), Problem> {
        if name == OTHER_NAME {
            return Ok((OTHER_NAME.to_owned(), TypeId::OTHER));
        }
        let name = normal_name(name, self.settings.type_name_bytes_max)
            .map_err(|why| Problem::field(Code::BadParameter, "type", why.to_string()))?;
        let snapshot = self.registry.snapshot();
        let entry = snapshot.get(&name).ok_or_else(|| {
            let message =
                format!("no event type is called {name:?}; GET /v1/event-types lists them");
            Problem::field(Code::UnknownType, "type", message)
        })?;
        Ok((entry.name.clone(), entry.type_id))
    }
}
