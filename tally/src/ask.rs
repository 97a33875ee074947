//! The client commands: `top`, `series`, `types`, `keys`.

use serde_json::{Value, json};
use tally_model::bucket::Granularity;
use tally_model::clock::Clock;
use tally_model::time::format_rfc3339;

use crate::cli::{KeysCommand, KindArg, RangeArgs, SeriesArgs, TargetArgs, TopArgs, TypesCommand};
use crate::clock::SystemClock;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::target::{Role, Target, encode};

/// `tally top`.
pub(crate) fn top(args: &TopArgs) -> Result<(), Failure> {
    let target = Target::open(&args.target, Role::Read)?;
    let query = range_query(&args.range, Granularity::Minute)?;
    let path = format!("/v1/stats/top?{query}&k={}", args.k);
    if let Some(answer) = raw(&target, &path, args.output)? {
        return output::line(answer.trim_end());
    }
    let answer = ask_json(&target, &path)?;
    table(items(&answer, "results"), ["rank", "eventType", "count"])?;
    summary(&answer)
}

/// `tally series`.
pub(crate) fn series(args: &SeriesArgs) -> Result<(), Failure> {
    let target = Target::open(&args.target, Role::Read)?;
    let width = Granularity::ALL.into_iter().find(|g| g.name() == args.granularity);
    let query = range_query(&args.range, width.unwrap_or(Granularity::Minute))?;
    let path = format!(
        "/v1/stats/series?type={}&{query}&granularity={}",
        encode(&args.event_type),
        encode(&args.granularity)
    );
    if let Some(answer) = raw(&target, &path, args.output)? {
        return output::line(answer.trim_end());
    }
    let answer = ask_json(&target, &path)?;
    table(items(&answer, "points"), ["start", "complete", "count"])?;
    summary(&answer)
}

/// `tally types …`.
pub(crate) fn types(command: &TypesCommand) -> Result<(), Failure> {
    match command {
        TypesCommand::List { target, output } => {
            let answer = ask_json(&Target::open(target, Role::Admin)?, "/v1/event-types")?;
            list(&answer, "eventTypes", &["typeId", "name", "status", "owner", "piiFlag"], *output)
        }
        TypesCommand::Add { name, owner, pii, target } => {
            let mut body = json!({"name": name, "piiFlag": pii});
            if let (Some(owner), Some(fields)) = (owner, body.as_object_mut()) {
                fields.insert("owner".to_owned(), json!(owner));
            }
            let target = Target::open(target, Role::Admin)?;
            let answer =
                target.ask("POST", "/v1/event-types", Some(body.to_string().as_bytes()))?;
            let entry: Value = serde_json::from_slice(&answer)?;
            output::line(format!("{} has slot {}", text(&entry, "name"), text(&entry, "typeId")))
        }
        TypesCommand::Deprecate { name, target } => set_status(name, target, "deprecated"),
        TypesCommand::Activate { name, target } => set_status(name, target, "active"),
    }
}

fn set_status(name: &str, target: &TargetArgs, status: &str) -> Result<(), Failure> {
    let target = Target::open(target, Role::Admin)?;
    let body = json!({"status": status}).to_string();
    let path = format!("/v1/event-types/{}", encode(name));
    target.ask("PATCH", &path, Some(body.as_bytes()))?;
    output::line(format!("{name} is {status}"))
}

/// `tally keys …`.
pub(crate) fn keys(command: &KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::List { target, output } => {
            let answer = ask_json(&Target::open(target, Role::Admin)?, "/v1/keys")?;
            list(
                &answer,
                "keys",
                &["number", "kind", "name", "scopes", "createdAt", "revokedAt"],
                *output,
            )
        }
        KeysCommand::Create { kind, scope, name, target } => {
            let kind = match kind {
                KindArg::Write => "write",
                KindArg::Read => "read",
                KindArg::Admin => "admin",
            };
            let mut body = json!({"kind": kind, "name": name});
            if let Some(scope) = scope {
                body["scopes"] = json!([scope.name()]);
            }
            let body = body.to_string();
            let target = Target::open(target, Role::Admin)?;
            let answer = target.ask("POST", "/v1/keys", Some(body.as_bytes()))?;
            let made: Value = serde_json::from_slice(&answer)?;
            output::note(format!("key {} made; it is shown only now:", text(&made, "number")));
            output::line(text(&made, "secret"))
        }
        KeysCommand::Revoke { number, target } => {
            let target = Target::open(target, Role::Admin)?;
            target.ask("POST", &format!("/v1/keys/{number}/revoke"), None)?;
            output::line(format!("key {number} is revoked"))
        }
    }
}

fn range_query(range: &RangeArgs, width: Granularity) -> Result<String, Failure> {
    let (start, end) = match (&range.start, &range.end, range.last) {
        (Some(start), Some(end), _) => (start.clone(), end.clone()),
        (_, _, Some(last_ms)) => {
            let end = width.floor(SystemClock::new().now_ms());
            (format_rfc3339(width.floor(end - last_ms)), format_rfc3339(end))
        }
        _ => return Err(Failure::usage("give --start and --end, or --last")),
    };
    let snap = if range.snap { "&snap=true" } else { "" };
    Ok(format!("start={}&end={}{snap}", encode(&start), encode(&end)))
}

/// The answer as the service wrote it, for the forms that it writes itself.
pub(crate) fn raw(target: &Target, path: &str, format: Format) -> Result<Option<String>, Failure> {
    let path = match format {
        Format::Table => return Ok(None),
        Format::Json => path.to_owned(),
        Format::Csv => format!("{path}&format=csv"),
    };
    Ok(Some(String::from_utf8(target.ask("GET", &path, None)?)?))
}

pub(crate) fn ask_json(target: &Target, path: &str) -> Result<Value, Failure> {
    Ok(serde_json::from_slice(&target.ask("GET", path, None)?)?)
}

pub(crate) fn items<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn text(item: &Value, key: &str) -> String {
    match item.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn list(answer: &Value, key: &str, headings: &[&str], format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return output::json(answer);
    }
    let cells: Vec<Vec<String>> = items(answer, key)
        .iter()
        .map(|item| headings.iter().map(|heading| text(item, heading)).collect())
        .collect();
    output::rows(format, headings, &cells)
}

/// Items that have a count, each with a bar as long as its count.
fn table(items: &[Value], headings: [&str; 3]) -> Result<(), Failure> {
    let count = |item: &Value| text(item, "count").parse::<u64>().unwrap_or(0);
    let most = items.iter().map(count).max().unwrap_or(0);
    let cells: Vec<Vec<String>> = items
        .iter()
        .map(|item| {
            let texts = headings.iter().map(|heading| text(item, heading));
            texts.chain([output::bar(count(item), most)]).collect()
        })
        .collect();
    let [one, two, three] = headings;
    output::rows(Format::Table, &[one, two, three, ""], &cells)
}

/// What a reader of the table must know beside the numbers.
fn summary(answer: &Value) -> Result<(), Failure> {
    let window = answer.get("window").cloned().unwrap_or_default();
    output::line(format!(
        "{} to {}: {}, {}; total {}, as of {}",
        text(&window, "start"),
        text(&window, "end"),
        if answer["complete"] == true { "complete" } else { "not complete yet" },
        if answer["exact"] == true { "exact" } else { "not all counted" },
        text(answer, "total"),
        text(answer, "asOf"),
    ))?;
    if let Some(below) = answer["suppressedBelow"].as_u64() {
        output::note(format!("counts of a type in an hour below {below} are left out"));
    }
    if answer["staleMinutes"].as_i64().is_some_and(|minutes| minutes > 0) {
        output::note("parts of it were restated and are not folded again yet");
    }
    if answer["dirtyHours"].as_i64().is_some_and(|hours| hours > 0) {
        output::note(format!(
            "dirty hours in it: {}; tally late list says what their counts lack",
            text(answer, "dirtyHours"),
        ));
    }
    if window["widened"] == true {
        output::note(format!(
            "the range was widened from {} to {}",
            text(&window, "requestedStart"),
            text(&window, "requestedEnd")
        ));
    }
    Ok(())
}
