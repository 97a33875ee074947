use proptest::prelude::*;
use serde_json::json;

use tally_model::time::parse_rfc3339;

use super::fields::is_deeper;
use super::*;

const ID: &str = "0195f3a0-5b1c-7c3e-8a4d-0123456789ab";

fn limits() -> Limits {
    Limits::default()
}

fn parse(body: &str) -> Result<Vec<ParsedEvent<'_>>, BatchError> {
    parse_batch(body.as_bytes(), &limits())
}

/// An event as text, with one field replaced by raw JSON (empty = left out).
fn event_text(field: &str, raw: &str) -> String {
    let fields = [
        ("eventId", format!("\"{ID}\"")),
        ("eventType", "\"page_view\"".to_owned()),
        ("userId", "\"u-1\"".to_owned()),
        ("eventTime", "\"2026-03-10T09:59:30Z\"".to_owned()),
        ("properties", "{}".to_owned()),
    ];
    let mut written: Vec<String> = fields
        .iter()
        .map(|(name, value)| (*name, if *name == field { raw } else { value.as_str() }))
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    if !fields.iter().any(|(name, _)| *name == field) && !raw.is_empty() {
        written.push(format!("\"{field}\":{raw}"));
    }
    format!("{{{}}}", written.join(","))
}

/// The reason for an event with one field replaced, `None` if it is well-formed.
fn reason(field: &str, raw: &str) -> Option<RejectReason> {
    let body = format!("{{\"events\":[{}]}}", event_text(field, raw));
    parse(&body).unwrap().remove(0).event.err()
}

#[test]
fn a_whole_event_is_read_as_sent() {
    let body = json!({"events": [{
        "eventId": ID, "eventType": "page_view", "userId": "\u{fc}-1\n", "eventTime": 1773136770000_i64,
        "properties": {"path": "/", "n": 1.50}, "consent": {"analytics": true},
        "deviceId": "d", "sessionId": 7,
    }]})
    .to_string();
    let events = parse(&body).unwrap();
    let sent = events[0].event.as_ref().unwrap();
    assert_eq!(events[0].sent_id.as_deref(), Some(ID));
    assert_eq!(sent.id, EventId::parse(ID).unwrap());
    assert_eq!((sent.event_type.as_ref(), sent.user_id.as_ref()), ("page_view", "\u{fc}-1\n"));
    assert_eq!(
        (sent.event_time_ms, sent.event_time_text.as_ref()),
        (1_773_136_770_000, "1773136770000")
    );
    assert_eq!(sent.consent, SentConsent::Granted);
    assert_eq!((sent.device_id.as_deref(), sent.session_id.as_deref()), (Some("d"), Some("7")));
    assert!(body.contains(sent.properties), "properties are a slice of the body");
}

#[test]
fn faults_of_the_whole_body_are_told_apart() {
    let event = event_text("", "");
    let batch = format!("{{\"events\":[{event}]}}");
    let syntax = |body: &str| matches!(parse(body), Err(BatchError::Syntax { .. }));
    assert!(syntax(&format!("{batch}baz")), "rubbish after the body");
    assert!(syntax(&format!("{batch}{batch}")), "a second document");
    assert!(syntax(""), "nothing");
    assert!(syntax("{\"events\":["), "cut off");
    assert!(syntax(&format!("{{\"events\":[{event},]}}")), "a comma too many");
    assert!(syntax(&batch.replace("{}", "{\"a\":NaN}")), "NaN is no JSON");
    assert!(syntax(&batch.replace("{}", "[[[")), "brackets that do not close");
    assert_eq!(parse(&format!("{batch}\n \t\r\n")).map(|events| events.len()), Ok(1));

    for body in
        ["[]", "7", "\"x\"", "null", "{\"events\":{}}", "{\"events\":null}", "{\"events\":\"x\"}"]
    {
        assert_eq!(parse(body), Err(BatchError::Envelope), "{body}");
    }
    for body in ["{}", "{\"events\":[]}", "{\"other\":[1]}"] {
        assert_eq!(parse(body), Err(BatchError::Empty), "{body}");
    }
    for body in [
        format!("{{\"events\":[{event}],\"events\":[{event}]}}"),
        format!("{{\"events\":[],\"\\u0065vents\":[{event}]}}"),
    ] {
        assert_eq!(parse(&body), Err(BatchError::DuplicateEvents), "{body}");
    }
    let not_utf8 = [b"{\"events\":[\"".as_slice(), b"\xff", b"\"]}"].concat();
    assert_eq!(parse_batch(&not_utf8, &limits()), Err(BatchError::NotUtf8 { valid_bytes: 12 }));
}

#[test]
fn one_event_too_many_refuses_the_batch() {
    let few = Limits { events: 2, ..limits() };
    let events = |count| format!("{{\"events\":[{}]}}", vec![event_text("", ""); count].join(","));
    assert_eq!(parse_batch(events(2).as_bytes(), &few).map(|events| events.len()), Ok(2));
    assert_eq!(
        parse_batch(events(5).as_bytes(), &few),
        Err(BatchError::TooMany { events: 5, events_max: 2 })
    );
}

#[test]
fn unknown_fields_are_skipped_wherever_they_stand() {
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    let body = format!(
        "{{\"sentAt\":{deep},\"events\":[{}],\"context\":{{\"events\":[1]}}}}",
        event_text("extra", &deep)
    );
    let events = parse(&body).unwrap();
    assert_eq!(events.len(), 1);
    assert!(events[0].event.is_ok());
}

#[test]
fn elements_that_are_no_objects_spoil_only_themselves() {
    let event = event_text("", "");
    let others = ["7", "\"x\"", "null", "true", "[[]]", "1e999", "\"\\ud800\""];
    for other in others {
        let body = format!("{{\"events\":[{event},{other},{event}]}}");
        let events = parse(&body).unwrap_or_else(|error| panic!("{other}: {error}"));
        let reasons: Vec<_> = events.iter().map(|event| event.event.as_ref().err()).collect();
        assert_eq!(reasons, [None, Some(&RejectReason::NotAnObject), None], "{other}");
        assert_eq!(events[1].sent_id, None);
    }
}

#[test]
fn each_field_has_its_reason() {
    use RejectReason::{BadEventId, BadType, BadUserId, TooDeep};
    let long_type = format!("\"{}\"", "t".repeat(129));
    let long_user = format!("\"{}\"", "u".repeat(513));
    let cases: [(&str, &str, Option<RejectReason>); 34] = [
        ("eventId", "", Some(BadEventId)),
        ("eventId", "null", Some(BadEventId)),
        ("eventId", "7", Some(BadEventId)),
        ("eventId", "\"not-a-uuid\"", Some(BadEventId)),
        ("eventId", "\"00000000-0000-0000-0000-000000000000\"", Some(BadEventId)),
        ("eventId", "\"\\ud800\"", Some(BadEventId)),
        ("eventId", "\"0195F3A05B1C7C3E8A4D0123456789AB\"", None),
        ("eventType", "", Some(BadType)),
        ("eventType", "\"\"", Some(BadType)),
        ("eventType", "\"  \"", Some(BadType)),
        ("eventType", "\" page_view\"", Some(BadType)),
        ("eventType", "\"page\\u0000view\"", Some(BadType)),
        ("eventType", "\"__other\"", Some(BadType)),
        ("eventType", "\"half \\udc00\"", Some(BadType)),
        ("eventType", "[\"page_view\"]", Some(BadType)),
        ("eventType", &long_type, Some(BadType)),
        ("eventType", "\"never_seen\"", None),
        ("userId", "", Some(BadUserId)),
        ("userId", "\"\"", Some(BadUserId)),
        ("userId", "42", Some(BadUserId)),
        ("userId", &long_user, Some(BadUserId)),
        ("userId", "\"half \\ud83d\"", Some(BadUserId)),
        ("userId", "\"nul \\u0000\"", None),
        ("properties", "", None),
        ("properties", "null", None),
        ("properties", "\"text\"", None),
        ("properties", "{\"nul\":\"\\u0000\",\"half\":\"\\ud800\"}", None),
        ("properties", "{\"a\":1,\"a\":2}", None),
        ("half key \\ud800", "1", None),
        ("deviceId", "{\"any\":1}", None),
        ("consent", "null", None),
        ("consent", "{\"analytics\":false}", None),
        ("properties", "{\"[\":\"]\\\"[[\"}", None),
        ("eventType", "{\"deep\":[[]]}", Some(BadType)),
    ];
    for (field, raw, want) in cases {
        assert_eq!(reason(field, raw), want, "{field}: {raw}");
    }
    assert_ne!(reason("properties", "[]"), Some(TooDeep));
}

#[test]
fn a_field_that_stands_twice_is_never_picked_from() {
    for field in ["eventId", "eventType", "userId", "eventTime", "properties", "consent"] {
        let once = event_text("consent", "null");
        let twice = once.replacen('{', &format!("{{\"{field}\":\"x\","), 1);
        let body = format!("{{\"events\":[{twice}]}}");
        let events = parse(&body).unwrap_or_else(|error| panic!("{body}: {error}"));
        assert_eq!(events[0].event, Err(RejectReason::DuplicateField), "{field}");
    }
    let escaped = event_text("\\u0075serId", "\"u-2\"");
    let body = format!("{{\"events\":[{escaped}]}}");
    assert_eq!(parse(&body).unwrap()[0].event, Err(RejectReason::DuplicateField));
}

#[test]
fn times_are_read_without_guessing() {
    let nine = parse_rfc3339("2026-03-10T09:59:30Z").unwrap();
    let leap = parse_rfc3339("2016-12-31T23:59:59.999Z").unwrap();
    let cases: [(&str, Option<i64>); 24] = [
        ("\"2026-03-10T18:59:30+09:00\"", Some(nine)),
        ("\"2026-03-10T09:59:30Z\"", Some(nine)),
        ("\"2026-03-10T15:44:30+05:45\"", Some(nine)),
        ("\"2026-03-10t06:59:30-03:00\"", Some(nine)),
        ("\"2026-03-10T09:59:30.0009999Z\"", Some(nine)),
        ("\"2026-03-10T09:59:30\"", None),
        ("\"2026-03-10T09:59:30 00:00\"", None),
        ("\"yesterday\"", None),
        ("\"2026-13-01T00:00:00Z\"", None),
        ("\"2026-02-30T10:00:00Z\"", None),
        ("\"\"", None),
        ("null", None),
        ("", None),
        ("true", None),
        ("1773136800000", Some(1_773_136_800_000)),
        ("1773136800", Some(1_773_136_800)),
        ("1773136800000000", Some(1_773_136_800_000_000)),
        ("999999999", Some(999_999_999)),
        ("-1", Some(-1)),
        ("\"1773136800\"", None),
        ("1773136800000.5", None),
        ("1.7731368e12", None),
        ("99999999999999999999", None),
        ("\"2016-12-31T23:59:60.9Z\"", Some(leap)),
    ];
    for (raw, want) in cases {
        let body = format!("{{\"events\":[{}]}}", event_text("eventTime", raw));
        let got = parse(&body).unwrap().remove(0).event.map(|sent| sent.event_time_ms);
        assert_eq!(got, want.ok_or(RejectReason::BadEventTime), "{raw}");
    }
}

#[test]
fn only_a_clear_yes_is_consent() {
    use SentConsent::{Denied, Granted, Unstated};
    let cases = [
        ("", Unstated),
        ("null", Unstated),
        ("{}", Unstated),
        ("{\"marketing\":false}", Unstated),
        ("{\"analytics\":true}", Granted),
        ("{\"analytics\":true,\"marketing\":{\"deep\":[[]]}}", Granted),
        ("{\"analytics\":true,\"analytics\":true}", Granted),
        ("{\"analytics\":false}", Denied),
        ("{\"analytics\":true,\"analytics\":false}", Denied),
        ("{\"analytics\":false,\"analytics\":true}", Denied),
        ("{\"analytics\":null}", Denied),
        ("{\"analytics\":\"true\"}", Denied),
        ("true", Denied),
        ("[]", Denied),
    ];
    for (raw, want) in cases {
        let body = format!("{{\"events\":[{}]}}", event_text("consent", raw));
        assert_eq!(parse(&body).unwrap().remove(0).event.unwrap().consent, want, "{raw}");
    }
}

#[test]
fn depth_is_bounded_without_recursion() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(reason("properties", &nested(64)), None);
    assert_eq!(reason("properties", &nested(65)), Some(RejectReason::TooDeep));
    assert_eq!(reason("properties", &nested(100_000)), Some(RejectReason::TooDeep));
    let objects = format!("{}1{}", "{\"a\":".repeat(65), "}".repeat(65));
    assert_eq!(reason("properties", &objects), Some(RejectReason::TooDeep));
    let wide = format!("[{}]", vec!["[]"; 1_000].join(","));
    assert_eq!(reason("properties", &wide), None, "many brackets are not deep ones");
    let in_text = format!("[\"{}\"]", "[\\\"".repeat(1_000));
    assert_eq!(reason("properties", &in_text), None, "brackets in text do not nest");
    // Wherever else the nesting stands, nothing overflows either.
    let deep = nested(100_000);
    assert_eq!(reason("eventId", &deep), Some(RejectReason::BadEventId));
    assert_eq!(reason("consent", &deep), None);
    assert_eq!(reason("unknown", &deep), None);
    assert!(parse(&format!("{{\"events\":[{deep}]}}")).is_ok());
    assert_eq!(parse(&deep), Err(BatchError::Envelope));
    assert!(parse(&"[".repeat(100_000)).is_err());
}

#[test]
fn a_single_event_is_read_by_the_same_rules() {
    let text = event_text("userId", "\"\"");
    assert_eq!(parse_event(&text, &limits()).unwrap().event, Err(RejectReason::BadUserId));
    let array = parse_event("[]", &limits()).unwrap();
    assert_eq!(array.event, Err(RejectReason::NotAnObject));
    assert!(matches!(parse_event("{}x", &limits()), Err(BatchError::Syntax { .. })));
    assert!(matches!(parse_event("", &limits()), Err(BatchError::Syntax { .. })));
}

proptest! {
    #[test]
    fn nothing_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _any = parse_batch(&bytes, &limits());
    }

    #[test]
    fn damaged_batches_are_refused_or_read_but_never_panic(
        at in 0_usize..400,
        byte in prop::sample::select(b"{}[]\",:\\0a\n".to_vec()),
    ) {
        let mut body = format!("{{\"events\":[{},{}]}}", event_text("", ""), event_text("", "")).into_bytes();
        let at = at % body.len();
        body[at] = byte;
        if let Ok(events) = parse_batch(&body, &limits()) {
            prop_assert!(!events.is_empty());
        }
    }

    #[test]
    fn depth_agrees_with_a_parser_that_builds_the_value(value in arbitrary_json()) {
        let text = value.to_string();
        for depth_max in 0..5 {
            prop_assert_eq!(is_deeper(&text, depth_max), depth_of(&value) > depth_max, "{}", text);
        }
    }
}

fn arbitrary_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i32>().prop_map(Into::into),
        "[\\[\\]{}\"\\\\a]{0,6}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(6, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec(("[\\[{\"\\\\]{0,3}", inner), 0..4)
                .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
        ]
    })
}

fn depth_of(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        serde_json::Value::Object(fields) => 1 + fields.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}
