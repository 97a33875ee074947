//! A reader that asks for every count again and again and remembers what it was told: a count that
//! was readable once must never be lower, or gone, later.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tally_model::bucket::{Granularity, MINUTE_MS};
use tally_model::clock::Clock;
use tally_model::time::{format_rfc3339, parse_rfc3339};

use super::line::{Line, Reachable};
use super::traffic::TYPES;
use crate::target::encode;

/// The type of everything that nobody registered.
const OTHER: &str = "__other";
const EVERY: Duration = Duration::from_millis(300);

/// What the reader was told last, by minute and type.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    seen: BTreeMap<(i64, &'static str), u64>,
    differences: Vec<String>,
}

impl Watcher {
    /// Asks whatever node is up until the line is closed. Returns what was wrong.
    pub(super) fn run(mut self, line: &Line, clock: &dyn Clock) -> Vec<String> {
        // Some events are older than the deployment.
        let from_ms = Granularity::Minute.floor(clock.now_ms()) - 5 * MINUTE_MS;
        while !line.is_closed() {
            if let Some(node) = line.node() {
                let until_ms = Granularity::Minute.ceil(clock.now_ms());
                for name in TYPES.into_iter().chain([OTHER]) {
                    // A node that is going down answers nothing; the next one will.
                    if let Some(answer) = ask(&node, name, from_ms, until_ms) {
                        self.take(name, &answer);
                        if self.seen.values().any(|count| *count > 0) {
                            line.note_read();
                        }
                    }
                }
            }
            std::thread::park_timeout(EVERY);
        }
        self.differences
    }

    /// Compares an answer with what was seen before.
    fn take(&mut self, name: &'static str, answer: &Value) {
        let unreadable: Vec<(i64, i64)> = ["missing", "notClosed"]
            .iter()
            .flat_map(|list| answer[list].as_array().into_iter().flatten())
            .filter_map(|span| Some((instant(&span["start"])?, instant(&span["end"])?)))
            .collect();
        for point in answer["points"].as_array().into_iter().flatten() {
            let (Some(at_ms), Some(count)) = (instant(&point["start"]), count(&point["count"]))
            else {
                self.differences.push(format!("a series of {name} holds the point {point}"));
                continue;
            };
            let readable = !unreadable.iter().any(|(start, end)| (*start..*end).contains(&at_ms));
            let before = self.seen.get(&(at_ms, name)).copied();
            let minute = format_rfc3339(at_ms);
            match before {
                Some(before) if readable && count < before => self.differences.push(format!(
                    "{minute} {name} went down from {before} to {count} for a reader"
                )),
                Some(before) if !readable && before > 0 => self
                    .differences
                    .push(format!("{minute} {name} was {before} for a reader and then not there")),
                _ => {}
            }
            if readable {
                self.seen.insert((at_ms, name), count);
            } else {
                self.seen.remove(&(at_ms, name));
            }
        }
    }
}

fn ask(node: &Reachable, name: &str, from_ms: i64, until_ms: i64) -> Option<Value> {
    let [start, end] = [from_ms, until_ms].map(|at_ms| encode(&format_rfc3339(at_ms)));
    let path = format!("/v1/stats/series?type={name}&start={start}&end={end}&granularity=minute");
    let answer = node.query.send("GET", &path, None).ok()?;
    if answer.status != 200 {
        return None;
    }
    serde_json::from_slice(&answer.body).ok()
}

fn instant(value: &Value) -> Option<i64> {
    parse_rfc3339(value.as_str()?).ok()
}

/// A count is a number, or a text where a number would lose digits.
fn count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINUTE: &str = "2026-03-01T10:00:00Z";

    fn answer(count: u64, closed: bool) -> Value {
        let open = json!([{"start": MINUTE, "end": "2026-03-01T10:01:00Z"}]);
        json!({
            "points": [{"start": MINUTE, "count": count, "complete": false}],
            "missing": [],
            "notClosed": if closed { json!([]) } else { open },
        })
    }

    #[test]
    fn a_readable_count_may_rise_but_never_fall_or_vanish() {
        // What the reader is told, as (count, closed), and how often it complains.
        for (told, complaints) in [
            (&[(0, false), (5, true), (5, true), (6, true)][..], 0),
            (&[(3, false), (0, false), (1, true)], 0),
            (&[(5, true), (4, true)], 1),
            (&[(5, true), (0, false), (5, true)], 1),
            (&[(0, true), (0, false)], 0),
        ] {
            let mut watcher = Watcher::default();
            for (count, closed) in told {
                watcher.take("click", &answer(*count, *closed));
            }
            assert_eq!(watcher.differences.len(), complaints, "{told:?}");
        }
    }
}
