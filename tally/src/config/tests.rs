use super::*;

fn error_of(file: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tally.toml");
    std::fs::write(&path, file).unwrap();
    let mut layers = Layers::defaults();
    let outcome = layers.add_file(&path).and_then(|()| Settings::check(&layers).map(|_| ()));
    outcome.unwrap_err().to_string()
}

#[test]
fn the_compiled_in_defaults_are_valid() {
    let settings = Settings::check(&Layers::defaults()).unwrap();
    assert_eq!(settings.pipeline.timing, Timing::DEFAULT);
    assert_eq!(settings.fixed.dedup.value, DedupRule::DEFAULT);
    assert!(!settings.fixed.shards.asked_for);
}

#[test]
fn a_bad_setting_names_file_key_and_allowed_values() {
    let cases = [
        ("[pipeline]\nlatenes = \"1min\"", &["tally.toml", "pipeline.latenes", "lateness"][..]),
        ("[pipelin]\nlateness = \"1min\"", &["pipelin.lateness", "sections", "pipeline"]),
        ("[pipeline]\nlateness = 15", &["pipeline.lateness = 15", "duration from"]),
        ("[pipeline]\nworkers = \"two\"", &["pipeline.workers", "whole number from 0 to 1024"]),
        ("[pipeline]\nappend_grace = \"30s\"", &["append_grace", "append_deadline = 30s"]),
        ("[dedup]\nwindow = \"36h\"\nbucket = \"24h\"", &["dedup.window", "whole number of"]),
        ("[dedup]\nmemory = \"64MB\"", &["dedup.memory", "a size from"]),
        ("[dedup]\nexpected = \"many\"", &["dedup.expected", "whole number from 1"]),
        (
            "[dedup]\nmemory = \"64MiB\"",
            &["dedup.expected = 100000000", "dedup.memory = 64MiB", "need"],
        ),
        ("[log]\nretention = \"8d\"", &["log.retention", "longer than", "9d"]),
        ("[retention]\nminutes = \"36h\"", &["retention.minutes", "whole number of days"]),
        ("[retention]\nhours = \"59d\"", &["retention.hours", "at least", "60d"]),
        ("[query]\nsuppress_below = 0", &["query.suppress_below", "whole number from 1"]),
        ("[query]\nmin_width = \"30min\"", &["query.min_width", "duration from 1h"]),
        ("[jobs]\nrollup_every = \"1\"", &["jobs.rollup_every", "duration from"]),
        ("[objects]\nurl = \"file:\"", &["objects.url", "auto, file:FOLDER"]),
        ("[objects]\nurl = \"s3://x\"", &["objects.url", "auto, file:FOLDER"]),
        ("[counts]\nurl = \"redis://x\"", &["counts.url", "auto"]),
        ("[collector]\ncapture = \"yes\"", &["collector.capture", "true or false"]),
        ("[collector", &["tally.toml", "TOML"]),
    ];
    for (file, wanted) in cases {
        let message = error_of(file);
        for want in wanted {
            assert!(message.contains(want), "{file:?}: {message:?} lacks {want:?}");
        }
    }
}

#[test]
fn the_environment_lies_over_the_file_and_flags_over_both() {
    let mut layers = Layers::defaults();
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    layers
        .add_environment([
            variable("TALLY__PIPELINE__LATENESS", "3min"),
            variable("TALLY__COLLECTOR__LIMITS__EVENTS", "7"),
            variable("HOME", "ignored"),
        ])
        .unwrap();
    layers.add_flag("--workers", "pipeline.workers", 3_i64).unwrap();
    let settings = Settings::check(&layers).unwrap();
    assert_eq!(settings.pipeline.timing.lateness_ms, 180_000);
    assert_eq!(settings.collector.limits.events, 7);
    assert_eq!(settings.pipeline.workers, 3);

    let error = layers.add_environment([variable("TALLY__PIPELINE__NOPE", "1")]).unwrap_err();
    assert!(error.to_string().contains("TALLY__PIPELINE__NOPE"), "{error}");
}
