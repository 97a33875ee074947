use std::convert::Infallible;
use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::Request as HttpRequest;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Frame;
use serde_json::{Value, json};
use tally_eventlog::AppendError;
use tally_eventlog::memory::Fault;
use tally_model::ids::EventId;

use super::*;
use crate::background::poll_ledger_every;
use crate::limits::{Capture, CollectorOptions, Limits};
use crate::service::NotReady;
use crate::testing::{KEY, READ, RUN, Reply, World, at, event, event_with, id, request};

/// Long enough that something that can happen at once would have happened.
const SHORT: Duration = Duration::from_millis(50);

fn batch(events: &[Value]) -> String {
    json!({ "events": events }).to_string()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// [`request`] with one more header, or with one replaced.
fn with(body: impl Into<Body>, name: &'static str, value: &str) -> HttpRequest<Body> {
    let mut request = request(body);
    request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
    request
}

fn rejected(index: u64, reason: &str) -> (u64, String) {
    (index, reason.to_owned())
}

/// What came of a request that nothing was taken from.
fn assert_untouched(world: &World) {
    assert!(world.payloads().is_empty(), "nothing may be appended");
}

// What an answer says.

#[tokio::test]
async fn the_answer_has_exactly_the_documented_shape() {
    let world = World::new();
    let events = [
        event(1),
        event_with(2, "eventType", json!("never_seen")),
        event_with(3, "eventId", json!("Not A UUID")),
        event_with(4, "eventId", json!(17)),
    ];
    let reply = world.batch(&events).await;
    assert_eq!(reply.status, StatusCode::ACCEPTED);
    assert_eq!(reply.headers["content-type"], "application/json");
    let want = json!({
        "accepted": 2,
        "warned": [{"eventId": id(2), "index": 1, "reason": "unknown_type"}],
        "rejected": [
            {"eventId": "Not A UUID", "index": 2, "reason": "bad_event_id"},
            {"eventId": null, "index": 3, "reason": "bad_event_id"},
        ],
    });
    assert_eq!(reply.body, want);
    assert_eq!(world.records().len(), 2);
}

#[tokio::test]
async fn an_answer_comes_only_after_the_log_has_confirmed() {
    let world = World::new();
    world.log.hold();
    let events = [event(1)];
    let mut waiting = Box::pin(world.batch(&events));
    assert!(tokio::time::timeout(SHORT, &mut waiting).await.is_err(), "nothing is durable yet");
    world.log.release();
    assert_eq!(waiting.await.accepted(), 1);
    let record = world.records().remove(0);
    assert_eq!((record.run, record.sequence), (RUN, 0));
    assert_eq!((record.received_at_ms, record.slot), (at("2026-03-10T10:00:00Z"), 1));
}

#[tokio::test]
async fn an_append_without_an_answer_in_time_is_never_confirmed() {
    let limits = Limits { append_timeout_ms: 20, ..Limits::default() };
    let world = World::with(limits, CollectorOptions::default());
    world.log.hold();
    let reply = world.batch(&[event(1)]).await;
    reply.assert_problem(503, "unavailable");
    reply.assert_retry_later();
    world.log.release();
}

// Bodies that are malformed.

#[tokio::test]
async fn rubbish_after_the_body_is_refused_and_blanks_are_not() {
    let world = World::new();
    let body = batch(&[event(1)]);
    for spoilt in [format!("{body}baz"), format!("{body}{body}")] {
        world.post(spoilt).await.assert_problem(400, "invalid_json");
    }
    assert_untouched(&world);
    assert_eq!(world.post(format!("{body}\n  ")).await.accepted(), 1);
}

#[tokio::test]
async fn fields_that_stand_twice_are_refused_and_never_picked_from() {
    let world = World::new();
    let twice = |field: &str| {
        event(1).to_string().replacen('{', &format!("{{\"{field}\":\"purchase\","), 1)
    };
    let body = format!("{{\"events\":[{},{},{}]}}", twice("eventType"), twice("userId"), event(2));
    let reply = world.post(body).await;
    assert_eq!(reply.accepted(), 1);
    let reasons = [rejected(0, "duplicate_field"), rejected(1, "duplicate_field")];
    assert_eq!(reply.reasons("rejected"), reasons);

    let two_lists = format!("{{\"events\":[{}],\"events\":[{}]}}", event(3), event(4));
    world.post(two_lists).await.assert_problem(400, "duplicate_field");
    assert_eq!(world.records().len(), 1);
}

#[tokio::test]
async fn deep_nesting_rejects_its_event_and_no_other() {
    let world = World::new();
    let nested = |number, depth: usize| {
        let properties = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        event_with(number, "properties", json!("@")).to_string().replace("\"@\"", &properties)
    };
    let body = format!(
        "{{\"events\":[{},{},{},{}]}}",
        nested(1, 100_000),
        nested(2, 64),
        nested(3, 65),
        event(4)
    );
    let reply = world.post(body).await;
    assert_eq!(reply.accepted(), 2);
    assert_eq!(reply.reasons("rejected"), [rejected(0, "too_deep"), rejected(2, "too_deep")]);
    world.post("[".repeat(200_000)).await.assert_problem(400, "invalid_envelope");
}

#[tokio::test]
async fn an_escaped_nul_is_kept_in_properties_and_refused_in_a_type() {
    let world = World::new();
    let events = [
        event_with(1, "properties", json!({"a": "x\u{0}y"})),
        event_with(2, "userId", json!("user\u{0}")),
        event_with(3, "eventType", json!("page\u{0}view")),
    ];
    let reply = world.batch(&events).await;
    assert_eq!(reply.accepted(), 2);
    assert_eq!(reply.reasons("rejected"), [rejected(2, "bad_type")]);
    let records = world.records();
    assert_eq!(world.personal(&records[0], "user-1").properties, "{\"a\":\"x\\u0000y\"}");
    assert_eq!(world.personal(&records[1], "user\u{0}").user_id, "user\u{0}");
}

#[tokio::test]
async fn one_bad_event_costs_no_other() {
    let world = World::new();
    let mut events: Vec<Value> = (0..20).map(event).collect();
    events[6]["eventType"] = json!("");
    for _attempt in 0..2 {
        let reply = world.batch(&events).await;
        assert_eq!(reply.accepted(), 19);
        assert_eq!(reply.reasons("rejected"), [rejected(6, "bad_type")]);
    }
    let records = world.records();
    let sent_again: Vec<_> = records[19..].iter().map(|record| &record.event_id).collect();
    let sent_first: Vec<_> = records[..19].iter().map(|record| &record.event_id).collect();
    assert_eq!(sent_first, sent_again, "the copies can be told by their ids");
}

#[tokio::test]
async fn a_large_event_is_rejected_and_a_large_body_refused() {
    let world = World::new();
    let sized = |kib: usize| event_with(2, "properties", json!("x".repeat(kib << 10)));
    let reply = world.batch(&[event(1), sized(300), event(3)]).await;
    assert_eq!(reply.accepted(), 2);
    assert_eq!(reply.reasons("rejected"), [rejected(1, "too_large")]);
    world.batch(&[event(4), sized(2_048), event(5)]).await.assert_problem(413, "body_too_large");
    assert_eq!(world.records().len(), 2);
}

#[tokio::test]
async fn empty_batches_and_bad_ids_are_named_as_such() {
    let world = World::new();
    for body in ["{\"events\":[]}", "{}"] {
        world.post(body).await.assert_problem(400, "empty_batch");
    }
    let events = [
        event_with(1, "eventId", Value::Null),
        event(2),
        event_with(3, "eventId", json!("not-a-uuid")),
        event(4),
        event_with(5, "eventId", json!("00000000-0000-0000-0000-000000000000")),
    ];
    let reply = world.batch(&events).await;
    assert_eq!(reply.accepted(), 2);
    let reasons = [0, 2, 4].map(|index| rejected(index, "bad_event_id"));
    assert_eq!(reply.reasons("rejected"), reasons);
}

#[tokio::test]
async fn too_many_events_and_bytes_that_are_no_text_are_refused() {
    let world = World::new();
    let many: Vec<Value> = (0..501).map(event).collect();
    world.batch(&many).await.assert_problem(413, "too_many_events");
    world.post(&b"{\"events\":[\"\xff\"]}"[..]).await.assert_problem(400, "invalid_json");
    world.post("[1]").await.assert_problem(400, "invalid_envelope");
    assert_untouched(&world);
}

#[tokio::test]
async fn a_repeat_in_one_request_is_accepted_and_not_appended() {
    let world = World::new();
    let reply = world.batch(&[event(1), event(2), event(1)]).await;
    assert_eq!(reply.accepted(), 3);
    assert_eq!(reply.reasons("warned"), [rejected(2, "repeat")]);
    assert_eq!(world.records().len(), 2);
}

#[tokio::test]
async fn an_event_two_hours_ahead_is_clamped_to_its_arrival() {
    let world = World::new();
    let reply = world.batch(&[event_with(1, "eventTime", json!("2026-03-10T12:00:00Z"))]).await;
    assert_eq!(reply.accepted(), 1);
    assert_eq!(reply.reasons("warned"), [rejected(0, "clamped")]);
    let record = world.records().remove(0);
    assert!(record.clamped);
    assert_eq!(record.event_time_ms, record.received_at_ms);
    let personal = world.personal(&record, "user-1");
    assert_eq!(personal.original_event_time, "2026-03-10T12:00:00Z");
    assert!(world.metrics_text().contains("collector_events_warned_total{reason=\"clamped\"} 1"));
}

// What the log does.

#[tokio::test]
async fn a_record_that_the_log_can_never_take_is_rejected_and_the_client_may_stop() {
    let limits = Limits { record_bytes: 4 << 20, wire_bytes: 8 << 20, ..Limits::default() };
    let world = World::with(limits, CollectorOptions::default());
    let mut events: Vec<Value> = (0..5).map(event).collect();
    events[2]["properties"] = json!("x".repeat(2 << 20));
    events.push(events[2].clone());
    let reply = world.batch(&events).await;
    assert_eq!(reply.accepted(), 4);
    assert_eq!(reply.reasons("rejected"), [rejected(2, "too_large"), rejected(5, "too_large")]);
    assert_eq!(reply.reasons("warned"), []);
}

#[tokio::test]
async fn a_fault_of_the_deployment_is_503_and_not_ready_until_it_is_mended() {
    let world = World::new();
    let full = AppendError::Unavailable { reason: "disk full".to_owned() };
    for fault in [Fault::Lose(full.clone()), Fault::Refuse(full)] {
        world.log.set_fault(Some(fault));
        let reply = world.batch(&[event(1), event(2)]).await;
        reply.assert_problem(503, "unavailable");
        reply.assert_retry_later();
        assert_eq!(world.collector.ready(), Err(NotReady::Log));
        world.log.set_fault(None);
        assert_eq!(world.batch(&[event(3)]).await.accepted(), 1);
        assert_eq!(world.collector.ready(), Ok(()));
    }
}

/// B52: whatever becomes of the answers, every copy has the client's id, so that one counts.
#[tokio::test]
async fn a_batch_that_is_sent_again_after_a_lost_answer_keeps_its_ids() {
    let world = World::new();
    let without_id = event_with(3, "eventId", Value::Null);
    let batch = [event(1), event(2), without_id];
    let unknown = AppendError::Unknown { reason: "no answer".to_owned() };
    world.log.set_fault(Some(Fault::KeepUnconfirmed(unknown)));
    world.batch(&batch).await.assert_problem(503, "unavailable");
    world.log.set_fault(None);
    for _ in 0..2 {
        let reply = world.batch(&batch).await;
        assert_eq!(reply.accepted(), 2);
        assert_eq!(reply.reasons("rejected"), [rejected(2, "bad_event_id")]);
    }
    let ids = [1, 2].map(|number| EventId::parse(&id(number)).unwrap().0.to_vec());
    let records = world.records();
    let copies = ids.each_ref().map(|id| records.iter().filter(|of| of.event_id == *id).count());
    assert_eq!(copies.iter().sum::<usize>(), records.len(), "no other id was invented");
    assert_eq!(copies, [3, 3], "also those of which nobody heard");
}

#[tokio::test]
async fn an_overloaded_log_asks_for_patience() {
    let world = World::new();
    world.log.set_fault(Some(Fault::Refuse(AppendError::Overloaded { queued_bytes: 1 })));
    let reply = world.batch(&[event(1)]).await;
    reply.assert_problem(503, "overloaded");
    reply.assert_retry_later();
    assert_eq!(world.collector.ready(), Ok(()), "load passes by itself");
}

// Keys of users.

#[tokio::test]
async fn without_a_fresh_ledger_or_keys_nothing_is_written() {
    let world = World::new();
    world.clock.advance(60_000);
    let reply = world.batch(&[event(1)]).await;
    reply.assert_problem(503, "unavailable");
    reply.assert_retry_later();
    assert_eq!(world.collector.ready(), Err(NotReady::StaleLedger { age_ms: 60_000 }));
    world.ledger.set_down(true);
    assert!(world.collector.poll_ledger().is_err());
    world.ledger.set_down(false);
    assert!(world.metrics_text().contains("collector_erasure_ledger_age_seconds 60.0"));
    world.collector.poll_ledger().unwrap();
    assert!(world.metrics_text().contains("collector_erasure_ledger_age_seconds 0.0"));

    world.user_keys.set_down(true);
    let reply = world.batch(&[event(1)]).await;
    reply.assert_problem(503, "unavailable");
    reply.assert_retry_later();
    assert_untouched(&world);
    world.user_keys.set_down(false);
    assert_eq!(world.batch(&[event(1)]).await.accepted(), 1);
}

#[tokio::test]
async fn a_batch_whose_stamp_grew_old_while_keys_were_made_is_not_written() {
    let world = World::new();
    world.user_keys.slow_down(Arc::clone(&world.clock), 30_000);
    let reply = world.batch(&[event(1)]).await;
    reply.assert_problem(503, "overloaded");
    reply.assert_retry_later();
    assert_untouched(&world);
}

// Who may write.

#[tokio::test]
async fn a_wrong_key_is_noticed_by_its_sender() {
    let world = World::new();
    let body = batch(&[event(1)]);
    let unknown = world.send(with(body.clone(), "x-write-key", "unknown")).await;
    unknown.assert_problem(401, "unauthorized");
    assert_eq!(unknown.headers["www-authenticate"], "Bearer realm=\"tally\"");
    let empty = world.send(with(body.clone(), "x-write-key", "")).await;
    empty.assert_problem(401, "unauthorized");
    let reader = world.send(with(body.clone(), "x-write-key", READ)).await;
    reader.assert_problem(403, "forbidden");
    let mut none = request(body);
    none.headers_mut().remove("x-write-key");
    world.send(none).await.assert_problem(401, "unauthorized");
    assert_untouched(&world);
    let metrics = world.metrics_text();
    for (cause, count) in [("missing", 2), ("unknown", 1), ("wrong_kind", 1)] {
        let line = format!("collector_auth_failures_total{{cause=\"{cause}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn each_way_to_send_the_key_works() {
    let world = World::new();
    for (number, value) in (0..).zip([format!("Bearer {KEY}"), "Basic d3JpdGUta2V5Og==".to_owned()])
    {
        let mut request = with(batch(&[event(number)]), "authorization", &value);
        request.headers_mut().remove("x-write-key");
        assert_eq!(world.send(request).await.accepted(), 1, "{value}");
    }
    let records = world.records();
    assert_eq!(records[0].write_key, records[1].write_key);
    assert_ne!(records[0].write_key, 0);
}

#[tokio::test]
async fn a_revoked_key_stops_under_traffic() {
    let world = World::new();
    assert_eq!(world.batch(&[event(1)]).await.accepted(), 1);
    let number = world.tokens.authenticate(KEY).unwrap().number;
    world.tokens.revoke(number, 1).unwrap();
    for number in 2..5 {
        world.batch(&[event(number)]).await.assert_problem(401, "unauthorized");
    }
    assert_eq!(world.records().len(), 1);
}

#[tokio::test]
async fn a_key_in_the_url_is_no_key_and_nothing_private_is_repeated() {
    let world = World::with(
        Limits::default(),
        CollectorOptions { capture: Capture { ip: true, user_agent: true }, ..Default::default() },
    );
    let with_query = |body: String, key: Option<&str>| {
        let mut request = request(body);
        *request.uri_mut() = "/v1/events?key=SECRET&userId=user-1".parse().unwrap();
        request.headers_mut().insert("user-agent", HeaderValue::from_static("agent-x"));
        match key {
            Some(_) => {}
            None => {
                request.headers_mut().remove("x-write-key");
            }
        }
        request
    };
    let mut replies: Vec<Reply> = Vec::new();
    replies.push(world.send(with_query(batch(&[event(1)]), None)).await);
    replies[0].assert_problem(401, "unauthorized");
    replies.push(world.send(with_query("{\"events\":[\"user-1\"".to_owned(), Some(KEY))).await);
    let large = event_with(1, "properties", json!("/private/page".repeat(1 << 17)));
    replies.push(world.send(with_query(batch(&[large]), Some(KEY))).await);
    world.log.set_fault(Some(Fault::Refuse(AppendError::Overloaded { queued_bytes: 1 })));
    replies.push(world.send(with_query(batch(&[event(1)]), Some(KEY))).await);
    world.log.set_fault(None);
    replies.push(world.send(with_query(batch(&[event(1)]), Some(KEY))).await);
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status.as_u16()).collect();
    assert_eq!(statuses, [401, 400, 413, 503, 202]);

    let metrics = world.metrics_text();
    for secret in ["SECRET", KEY, "user-1", "/private/page", "agent-x"] {
        assert!(!metrics.contains(secret), "{secret} in the metrics");
        for reply in &replies {
            assert!(!reply.body.to_string().contains(secret), "{secret} in {reply:?}");
        }
        for (_, payload) in world.payloads() {
            let in_clear = payload.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!in_clear, "{secret} in the log");
        }
    }
    assert_eq!(world.personal(&world.records()[0], "user-1").user_agent, "agent-x");
}

#[tokio::test]
async fn the_sender_is_sealed_only_where_capture_is_on() {
    for capture in [Capture::default(), Capture { ip: true, user_agent: true }] {
        let options = CollectorOptions { capture, ..CollectorOptions::default() };
        let world = World::with(Limits::default(), options);
        let mut request = with(batch(&[event(1)]), "user-agent", "agent/1");
        let address: SocketAddr = "192.0.2.7:5000".parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(address));
        assert_eq!(world.send(request).await.accepted(), 1);
        let personal = world.personal(&world.records()[0], "user-1");
        let want = if capture.ip { ("192.0.2.7", "agent/1") } else { ("", "") };
        assert_eq!((personal.ip.as_str(), personal.user_agent.as_str()), want);
    }
}

// HTTP.

#[tokio::test]
async fn a_bomb_is_inflated_by_nobody_without_a_key_and_to_the_limit_with_one() {
    let world = World::new();
    let bomb = gzip(&vec![0; 128 << 20]);
    let zipped = || with(bomb.clone(), "content-encoding", "gzip");
    let mut no_key = zipped();
    no_key.headers_mut().remove("x-write-key");
    world.send(no_key).await.assert_problem(401, "unauthorized");
    world.send(zipped()).await.assert_problem(413, "body_too_large");
    let mut elsewhere = zipped();
    *elsewhere.uri_mut() = "/v1/nothing".parse().unwrap();
    assert_eq!(world.send(elsewhere).await.status, StatusCode::NOT_FOUND);
    for encoding in ["gzip, gzip", "br", "identity, gzip", "deflate"] {
        let reply = world.send(with(bomb.clone(), "content-encoding", encoding)).await;
        reply.assert_problem(415, "unsupported_encoding");
        assert_eq!(reply.headers["accept-encoding"], "gzip");
    }
    let mut twice = zipped();
    twice.headers_mut().append("content-encoding", HeaderValue::from_static("gzip"));
    world.send(twice).await.assert_problem(415, "unsupported_encoding");
    assert_untouched(&world);
}

#[tokio::test]
async fn inflating_stops_at_the_limit() {
    let limits = Limits { inflated_bytes: 1 << 10, ..Limits::default() };
    let world = World::with(limits, CollectorOptions::default());
    let mut bomb = gzip(&vec![b' '; 1 << 20]);
    // Whoever reads on to the end finds it damaged.
    let checksum = bomb.len() - 8;
    bomb[checksum] ^= 1;
    let reply = world.send(with(bomb, "content-encoding", "gzip")).await;
    reply.assert_problem(413, "body_too_large");
}

#[tokio::test]
async fn gzip_is_read_whole_or_not_at_all() {
    let world = World::new();
    let body = batch(&[event(1)]);
    let zipped = gzip(body.as_bytes());
    let send = |bytes: Vec<u8>| world.send(with(bytes, "content-encoding", "GZIP"));
    assert_eq!(send(zipped.clone()).await.accepted(), 1);
    let (head, tail) = body.as_bytes().split_at(20);
    assert_eq!(send([gzip(head), gzip(tail)].concat()).await.accepted(), 1, "two members");
    let cut = zipped[..zipped.len() - 3].to_vec();
    send(cut).await.assert_problem(400, "invalid_gzip");
    send([zipped.clone(), b"rubbish".to_vec()].concat()).await.assert_problem(400, "invalid_gzip");
    send(body.clone().into_bytes()).await.assert_problem(400, "invalid_gzip");
    world.post(zipped).await.assert_problem(400, "invalid_json");
    let plain = world.send(with(body, "content-encoding", "identity")).await;
    assert_eq!(plain.accepted(), 1);
}

#[tokio::test]
async fn only_json_in_utf8_is_taken_also_as_text() {
    let world = World::new();
    let cases = [
        ("application/json", true),
        ("Application/JSON; charset=\"UTF-8\"", true),
        ("text/plain;charset=UTF-8", true),
        ("text/plain", true),
        ("application/x-www-form-urlencoded", false),
        ("application/jsonp", false),
        ("application/json; charset=iso-8859-1", false),
        ("", false),
    ];
    for (number, (media_type, is_taken)) in (0..).zip(cases) {
        let reply = world.send(with(batch(&[event(number)]), "content-type", media_type)).await;
        if is_taken {
            assert_eq!(reply.accepted(), 1, "{media_type}");
        } else {
            reply.assert_problem(415, "unsupported_media_type");
        }
    }
}

#[tokio::test]
async fn browsers_of_any_origin_may_send_and_never_with_credentials() {
    let world = World::new();
    let preflight = HttpRequest::options("/v1/events")
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "content-type,x-write-key")
        .body(Body::empty())
        .unwrap();
    let reply = world.send(preflight).await;
    assert_eq!(reply.status, StatusCode::NO_CONTENT);
    assert!(reply.headers["access-control-allow-methods"].to_str().unwrap().contains("POST"));
    let allowed = reply.headers["access-control-allow-headers"].to_str().unwrap();
    for name in ["authorization", "content-type", "content-encoding", "x-write-key"] {
        assert!(allowed.contains(name), "{name}");
    }
    let beacon = with(batch(&[event(1)]), "content-type", "text/plain;charset=UTF-8");
    let posted = world.send(beacon).await;
    assert_eq!(posted.accepted(), 1);
    let refused = world.post("{}").await;
    for reply in [&reply, &posted, &refused] {
        assert_eq!(reply.headers["access-control-allow-origin"], "*");
        assert!(!reply.headers.contains_key("access-control-allow-credentials"));
    }
}

#[tokio::test]
async fn other_methods_are_told_which_to_use() {
    let world = World::new();
    for method in ["GET", "PUT", "DELETE"] {
        let mut request = request("");
        *request.method_mut() = method.parse().unwrap();
        let reply = world.send(request).await;
        reply.assert_problem(405, "method_not_allowed");
        assert_eq!(reply.headers["allow"], "POST, OPTIONS");
    }
}

/// A body that sends its bytes and then nothing more, without ever ending.
struct Endless(Option<&'static str>);

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(text) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))),
            None => Poll::Pending,
        }
    }
}

fn endless(first: &'static str) -> Body {
    Body::new(Endless(Some(first)))
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_408() {
    let limits = Limits { body_timeout_ms: 20, ..Limits::default() };
    let world = World::with(limits, CollectorOptions::default());
    world.post(endless("{\"events\":[")).await.assert_problem(408, "body_timeout");
    assert_untouched(&world);
}

#[tokio::test]
async fn a_body_over_the_limit_without_a_length_is_cut_off() {
    let limits = Limits { wire_bytes: 8, ..Limits::default() };
    let world = World::with(limits, CollectorOptions::default());
    world.post(endless("{\"events\":[")).await.assert_problem(413, "body_too_large");
}

#[tokio::test]
async fn requests_without_room_are_refused_before_their_body_is_read() {
    let limits = Limits { inflight_bytes: 8 << 10, ..Limits::default() };
    let world = World::with(limits, CollectorOptions::default());
    let large = [event_with(1, "properties", json!("x".repeat(3 << 10)))];
    world.log.hold();
    let mut first = Box::pin(world.batch(&large));
    assert!(tokio::time::timeout(SHORT, &mut first).await.is_err());
    let second = world.batch(&large).await;
    second.assert_problem(503, "overloaded");
    second.assert_retry_later();
    world.log.release();
    assert_eq!(first.await.accepted(), 1);
    assert!(world.metrics_text().contains("collector_inflight_bytes 0"));
    assert_eq!(world.batch(&[event(2)]).await.accepted(), 1);
}

#[tokio::test]
async fn a_draining_collector_ends_what_it_began_and_begins_nothing() {
    let world = World::new();
    world.log.hold();
    let events = [event(1)];
    let mut begun = Box::pin(world.batch(&events));
    assert!(tokio::time::timeout(SHORT, &mut begun).await.is_err());
    world.collector.drain();
    let refused = world.batch(&[event(2)]).await;
    refused.assert_problem(503, "draining");
    refused.assert_retry_later();
    assert_eq!(world.collector.ready(), Err(NotReady::Draining));
    world.log.release();
    assert_eq!(begun.await.accepted(), 1);
    assert_eq!(world.records().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_once_lose_and_double_nothing() {
    let world = Arc::new(World::new());
    let sending: Vec<_> = (0..40)
        .map(|request| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let mut events: Vec<Value> = (0..10).map(|at| event(request * 10 + at)).collect();
                // Large enough that the work is moved off the async thread.
                events[0]["properties"] = json!("x".repeat(200 << 10));
                events[9]["eventTime"] = json!("yesterday");
                world.batch(&events).await.accepted()
            })
        })
        .collect();
    for sent in sending {
        assert_eq!(sent.await.unwrap(), 9);
    }
    let records = world.records();
    assert_eq!(records.len(), 360);
    let ids: std::collections::BTreeSet<_> =
        records.iter().map(|record| record.event_id.clone()).collect();
    assert_eq!(ids.len(), 360);
    let metrics = world.metrics_text();
    for line in [
        "collector_events_accepted_total 360",
        "collector_appended_records_total 360",
        "collector_events_rejected_total{reason=\"bad_event_time\"} 40",
        "collector_requests_total{status=\"202\"} 40",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn polling_keeps_the_copy_of_the_ledger_fresh() {
    let world = World::new();
    world.clock.advance(60_000);
    assert_eq!(world.collector.ready(), Err(NotReady::StaleLedger { age_ms: 60_000 }));
    let collector = Arc::clone(&world.collector);
    let polling = tokio::spawn(poll_ledger_every(collector, Duration::from_millis(1)));
    let is_ready = async {
        while world.collector.ready().is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_ready).await.unwrap();
    polling.abort();
}
