//! What `tally torture` prints.

use serde_json::{Value, json};

use super::trial::Outcome;
use crate::failure::Failure;
use crate::output::{self, Format};

/// Differences that are told of one seed; the rest is only counted.
const TOLD: usize = 20;

/// One seed, as soon as it is done; for people only.
pub(super) fn seed(outcome: &Outcome, format: Format) -> Result<(), Failure> {
    if format != Format::Table {
        return Ok(());
    }
    let kills: Vec<String> =
        outcome.kills.iter().map(|(point, count)| format!("{count} {point}")).collect();
    let verdict = match outcome.differences.len() {
        0 => "no difference".to_owned(),
        more => plural(more, "difference"),
    };
    output::line(format!(
        "seed {}: {} ({}), {}, the slowest in {:.1} s, {} records, {verdict}",
        outcome.seed,
        plural(kills_of(outcome), "kill"),
        kills.join(", "),
        plural(outcome.restarts_ms.len(), "restart"),
        seconds(worst_ms([outcome])),
        outcome.records,
    ))?;
    told(outcome).into_iter().try_for_each(|difference| output::line(format!("  {difference}")))
}

/// Everything, at the end. `again` are the arguments that make such a run.
pub(super) fn all(outcomes: &[Outcome], again: &str, format: Format) -> Result<(), Failure> {
    match format {
        Format::Table => output::line(verdict(outcomes, again)),
        Format::Json => output::json(&describe(outcomes)),
        Format::Csv => {
            let headings =
                ["seed", "kills", "restarts", "worstRestartSeconds", "records", "differences"];
            let rows: Vec<Vec<String>> = outcomes.iter().map(row).collect();
            output::rows(format, &headings, &rows)
        }
    }
}

fn row(outcome: &Outcome) -> Vec<String> {
    vec![
        outcome.seed.to_string(),
        kills_of(outcome).to_string(),
        outcome.restarts_ms.len().to_string(),
        seconds(worst_ms([outcome])).to_string(),
        outcome.records.to_string(),
        outcome.differences.len().to_string(),
    ]
}

/// The last line, in plain words.
fn verdict(outcomes: &[Outcome], again: &str) -> String {
    match outcomes.iter().find(|outcome| !outcome.differences.is_empty()) {
        None => format!(
            "no difference in {} with {}",
            plural(outcomes.len(), "seed"),
            plural(outcomes.iter().map(kills_of).sum(), "kill"),
        ),
        Some(outcome) => format!(
            "seed {seed} differs: {}; run it again with tally torture --seeds 1 --first-seed \
             {seed} {again}",
            outcome.differences[0],
            seed = outcome.seed,
        ),
    }
}

fn describe(outcomes: &[Outcome]) -> Value {
    let restarts: Vec<i64> =
        outcomes.iter().flat_map(|outcome| &outcome.restarts_ms).copied().collect();
    let mean_ms = restarts.iter().sum::<i64>() / i64::try_from(restarts.len().max(1)).unwrap_or(1);
    let seeds: Vec<Value> = outcomes
        .iter()
        .map(|outcome| {
            json!({
                "seed": outcome.seed,
                "kills": outcome.kills,
                "restarts": outcome.restarts_ms.len(),
                "worstRestartSeconds": seconds(worst_ms([outcome])),
                "records": outcome.records,
                "differences": outcome.differences.len(),
            })
        })
        .collect();
    let differences: Vec<Value> = outcomes
        .iter()
        .flat_map(|outcome| told(outcome).into_iter().map(|what| (outcome.seed, what)))
        .map(|(seed, what)| json!({"seed": seed, "what": what}))
        .collect();
    json!({
        "seeds": seeds,
        "kills": outcomes.iter().map(kills_of).sum::<usize>(),
        "restarts": restarts.len(),
        "recoverySeconds": {"worst": seconds(worst_ms(outcomes)), "mean": seconds(mean_ms)},
        "differences": differences,
    })
}

/// The first differences, and how many more there are.
fn told(outcome: &Outcome) -> Vec<String> {
    let mut told: Vec<String> = outcome.differences.iter().take(TOLD).cloned().collect();
    if let Some(more @ 1..) = outcome.differences.len().checked_sub(TOLD) {
        told.push(format!("and {more} more"));
    }
    told
}

fn kills_of(outcome: &Outcome) -> usize {
    outcome.kills.values().sum()
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn worst_ms<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> i64 {
    outcomes.into_iter().flat_map(|outcome| &outcome.restarts_ms).copied().max().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "restarts take seconds, not centuries")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(seed: u64, differences: &[&str]) -> Outcome {
        Outcome {
            seed,
            kills: [("random", 3), ("before-manifest", 2)].into(),
            restarts_ms: vec![500, 1_500],
            records: 7,
            differences: differences.iter().map(|what| (*what).to_owned()).collect(),
        }
    }

    #[test]
    fn the_last_line_says_it_in_plain_words() {
        let good = [outcome(1, &[]), outcome(2, &[])];
        assert_eq!(verdict(&good, "--kills 5"), "no difference in 2 seeds with 10 kills");
        let bad = [outcome(1, &[]), outcome(7, &["a minute has no row", "another one"])];
        assert_eq!(
            verdict(&bad, "--kills 5"),
            "seed 7 differs: a minute has no row; run it again with tally torture --seeds 1 \
             --first-seed 7 --kills 5"
        );
    }

    #[test]
    fn the_json_has_kills_restarts_recovery_and_differences() {
        let described = describe(&[outcome(1, &[]), outcome(2, &["x"; 22])]);
        assert_eq!(described["kills"], 10);
        assert_eq!(described["restarts"], 4);
        assert_eq!(described["recoverySeconds"], json!({"worst": 1.5, "mean": 1.0}));
        assert_eq!(described["seeds"][1]["differences"], 22);
        let differences = described["differences"].as_array().unwrap();
        assert_eq!(differences.len(), TOLD + 1);
        assert_eq!(differences[TOLD], json!({"seed": 2, "what": "and 2 more"}));
    }
}
