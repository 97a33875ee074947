//! `GET /v1/stats/top` and `GET /v1/stats/series`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use tally_model::range::{Availability, Run, TimeRange};
use tally_model::types::{OTHER_NAME, TypeId, normal_name};
use tally_model::vector::{CountVector, VectorError};
use tally_sinks::marks::Marks;
use tally_sinks::registry::RegistrySnapshot;

use super::negotiate::{self, KnownTags};
use super::{QueryApi, QuerySettings, auth, store_problem};
use crate::answer::{
    Count, Envelope, PointSums, SeriesAnswer, TopAnswer, Window, rank, series_csv, top_csv,
};
use crate::ask::{Format, SeriesAsk, TopAsk};
use crate::metrics::Route;
use crate::problem::{Code, Problem};
use crate::reader::ReadError;
use crate::resolve::{Facts, Part, Resolved, resolve};

/// How often a read is begun before it is given up. A row is put at most every few seconds, so the
/// second attempt nearly always succeeds.
const READS_MAX: usize = 5;

pub(super) async fn top(
    State(api): State<Arc<QueryApi>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let answer = async {
        auth::may_read_stats(&api.tokens, &headers)?;
        let ask = TopAsk::parse(&pairs(&uri)?)?;
        let format = negotiate::format(ask.format, &headers)?;
        let known = KnownTags::of(&headers);
        api.blocking(move |api| api.answer_top(&ask, format, &known)).await
    };
    api.measured(Route::Top, answer).await
}

pub(super) async fn series(
    State(api): State<Arc<QueryApi>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let answer = async {
        auth::may_read_stats(&api.tokens, &headers)?;
        let ask = SeriesAsk::parse(&pairs(&uri)?)?;
        let format = negotiate::format(ask.format, &headers)?;
        let known = KnownTags::of(&headers);
        api.blocking(move |api| api.answer_series(&ask, format, &known)).await
    };
    api.measured(Route::Series, answer).await
}

pub(super) fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    match Query::<Vec<(String, String)>>::try_from_uri(uri) {
        Ok(Query(pairs)) => Ok(pairs),
        Err(why) => Err(Problem::new(Code::BadParameter, why.body_text())),
    }
}

/// A question with everything about it that does not depend on what is stored.
struct Question<'a> {
    now_ms: i64,
    availability: Availability,
    window: Window,
    answered: TimeRange,
    runs: Vec<Run>,
    /// What shapes the answer beside the window.
    shape: &'a [&'a str],
    format: Format,
    known: &'a KnownTags,
}

/// What was read for a question.
enum Outcome<A> {
    /// The client has the answer already.
    Unchanged { tag: String },
    /// The sums, and all that is known about them.
    Read(Box<Reading<A>>),
}

struct Reading<A> {
    tag: String,
    envelope: Envelope,
    facts: Facts,
    resolved: Resolved,
    registry: Arc<RegistrySnapshot>,
    sums: A,
}

impl QueryApi {
    fn answer_top(
        &self,
        ask: &TopAsk,
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
            shape: &["top", &ask.k.to_string()],
            format,
            known,
        };
        let add = |sum: &mut CountVector, _: &Part, vector: &CountVector| sum.add(vector);
        let reading = match self.read(question, CountVector::new, add)? {
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
            Format::Csv => csv(top_csv(&answer), &answer.envelope, &reading.tag),
        }
    }

    fn answer_series(
        &self,
        ask: &SeriesAsk,
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
            shape: &["series", granularity.name(), &type_id.to_string()],
            format,
            known,
        };
        let zeros = || PointSums::new(type_id, granularity, range);
        let add = |sums: &mut PointSums, part: &Part, vector: &CountVector| {
            sums.add(part.bucket.start_ms(), vector)
        };
        let reading = match self.read(question, zeros, add)? {
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
            Format::Csv => csv(series_csv(&answer), &answer.envelope, &reading.tag),
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

    /// Reads the rows of a question: again from fresh manifests when a row changed meanwhile.
    fn read<A>(
        &self,
        question: Question<'_>,
        zeros: impl Fn() -> A,
        add: impl Fn(&mut A, &Part, &CountVector) -> Result<(), VectorError>,
    ) -> Result<Outcome<A>, Problem> {
        for _ in 0..READS_MAX {
            match self.read_once(&question, &zeros, &add) {
                Ok(outcome) => return Ok(outcome),
                Err(ReadError::Moved { .. }) => self.metrics.rereads.inc(),
                Err(ReadError::Store(why)) => return Err(store_problem(&why)),
                Err(ReadError::Overflow(why)) => return Err(internal(&why)),
            };
        }
        Err(Problem::new(Code::Unavailable, "rows kept changing while they were read; try again"))
    }

    fn read_once<A>(
        &self,
        question: &Question<'_>,
        zeros: impl Fn() -> A,
        add: impl Fn(&mut A, &Part, &CountVector) -> Result<(), VectorError>,
    ) -> Result<Outcome<A>, ReadError> {
        let snapshot = self.reader.snapshot()?;
        let facts = facts(question, &snapshot.marks);
        let load = |period| self.reader.manifest(&snapshot, period);
        let dirty = self.reader.dirty(&snapshot, question.answered)?;
        let resolved = Resolved { dirty, ..resolve(&question.runs, &facts, load)? };
        let registry =
            self.registry_for(usize::try_from(resolved.width()).unwrap_or(usize::MAX))?;
        let window = question.window.clone();
        let envelope = Envelope::new(window, question.answered, &facts, &resolved);
        let tag = envelope.entity_tag(question.shape, question.format, registry.version());
        if question.known.has(&tag) {
            return Ok(Outcome::Unchanged { tag });
        }
        let mut sums = zeros();
        let visited = self
            .reader
            .visit(&snapshot, &resolved.parts, |part, vector| add(&mut sums, part, vector))
            .inspect_err(|why| {
                if matches!(why, ReadError::Moved { .. }) {
                    self.reader.forget(&snapshot);
                }
            })?;
        self.metrics.rows_read.inc_by(visited.rows_read);
        self.metrics.cache_hits.inc_by(visited.cache_hits);
        self.metrics.cache_misses.inc_by(visited.cache_misses);
        let cache_bytes = i64::try_from(self.reader.cache_bytes()).unwrap_or(i64::MAX);
        self.metrics.cache_bytes.set(cache_bytes);
        Ok(Outcome::Read(Box::new(Reading { tag, envelope, facts, resolved, registry, sums })))
    }

    /// The registry as far as vectors of this width need it: a type that another process has
    /// registered can be counted before this one's timer has read its name.
    fn registry_for(&self, width: usize) -> Result<Arc<RegistrySnapshot>, ReadError> {
        let snapshot = self.registry.snapshot();
        if snapshot.width() >= width {
            return Ok(snapshot);
        }
        self.registry.refresh()?;
        Ok(self.registry.snapshot())
    }
}

const fn facts(question: &Question<'_>, marks: &Marks) -> Facts {
    Facts {
        now_ms: question.now_ms,
        availability: question.availability,
        origin_ms: marks.origin_ms,
        retired_up_to_ms: marks.retired_up_to_ms,
        readable_up_to_ms: marks.readable_up_to_ms,
    }
}

fn name_of(registry: &RegistrySnapshot, slot: TypeId) -> Option<&str> {
    registry.by_id(slot).map(|entry| entry.name.as_str())
}

pub(super) fn internal(why: &dyn std::error::Error) -> Problem {
    tracing::error!(error = %why, "a query cannot be answered");
    Problem::new(Code::Internal, why.to_string())
}

pub(super) fn json(answer: &impl Serialize, tag: &str) -> Result<Response, Problem> {
    let body = serde_json::to_vec(answer).map_err(|why| internal(&why))?;
    let mut response = tagged(Body::from(body), tag)?;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// What the table has no room for goes into headers.
fn csv(text: String, envelope: &Envelope, tag: &str) -> Result<Response, Problem> {
    let mut response = tagged(Body::from(text), tag)?;
    let content_type = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    let Envelope { window, complete, exact, .. } = envelope;
    for (name, value) in [
        ("tally-window", format!("{}/{}", window.start, window.end)),
        ("tally-complete", complete.to_string()),
        ("tally-exact", exact.to_string()),
    ] {
        response.headers_mut().insert(HeaderName::from_static(name), header(&value)?);
    }
    Ok(response)
}

pub(super) fn not_modified(tag: &str) -> Result<Response, Problem> {
    let mut response = tagged(Body::empty(), tag)?;
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    Ok(response)
}

/// An answer belongs to one token's holder, and its youngest buckets change every few seconds:
/// only the client itself may keep it, and it asks each time whether it still holds. That is
/// cheap: it reads no vector.
pub(super) fn tagged(body: Body, tag: &str) -> Result<Response, Problem> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(ETAG, header(tag)?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(VARY, HeaderValue::from_static("accept, authorization"));
    Ok(response)
}

fn header(text: &str) -> Result<HeaderValue, Problem> {
    HeaderValue::from_str(text).map_err(|why| internal(&why))
}
