//! Tokens open what they are for, until they are revoked.

use super::*;
use crate::faults::Fault;
use crate::meta::failing::FailingMeta;
use crate::meta::memory::MemoryMeta;

fn tokens(store: &Arc<impl MetaStore + 'static>) -> Tokens {
    Tokens::open(Arc::new(Arc::clone(store))).unwrap()
}

fn secret(kind: TokenKind, seed: u8) -> String {
    format_secret(kind, [seed; 32])
}

fn write_key(tokens: &Tokens, seed: u8) -> TokenInfo {
    tokens.create(TokenKind::Write, "test", &[], &secret(TokenKind::Write, seed), 5).unwrap()
}

#[test]
fn a_secret_shows_its_kind_and_all_its_bytes() {
    let mut random = [0; 32];
    random[0] = 0xab;
    random[31] = 1;
    let hex = format!("ab{}01", "00".repeat(30));
    for (kind, prefix) in
        [(TokenKind::Write, "tw_"), (TokenKind::Read, "tr_"), (TokenKind::Admin, "ta_")]
    {
        assert_eq!(format_secret(kind, random), format!("{prefix}{hex}"));
    }
}

#[test]
fn a_token_opens_with_its_own_secret_only() {
    let store = Arc::new(MemoryMeta::default());
    let tokens = tokens(&store);
    let scopes = [Scope::Stats, Scope::StatsRaw];
    let text = secret(TokenKind::Read, 1);
    let made = tokens.create(TokenKind::Read, "dashboard", &scopes, &text, 7).unwrap();
    assert_eq!((made.number, made.created_at_ms, made.revoked_at_ms), (1, 7, None));
    assert_eq!(tokens.authenticate(&text).as_deref(), Some(&made));
    let upper = text.to_uppercase();
    let long = "a".repeat(1 << 20);
    for wrong in ["", text.trim_start_matches('t'), &upper, &secret(TokenKind::Write, 1), &long] {
        assert_eq!(tokens.authenticate(wrong), None);
    }
}

#[test]
fn numbers_are_never_given_twice() {
    let store = Arc::new(MemoryMeta::default());
    let (here, elsewhere) = (tokens(&store), tokens(&store));
    assert_eq!(write_key(&here, 1).number, 1);
    assert_eq!(write_key(&elsewhere, 2).number, 2);
    here.revoke(2, 9).unwrap();
    assert_eq!(write_key(&here, 3).number, 3);
    let numbers: Vec<u32> = here.list().unwrap().iter().map(|info| info.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn racing_creators_get_different_numbers() {
    let store = Arc::new(MemoryMeta::default());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let tokens = tokens(&store);
            scope.spawn(move || {
                for round in 0..20 {
                    write_key(&tokens, 20 * thread + round);
                }
            });
        }
    });
    let numbers: Vec<u32> = tokens(&store).list().unwrap().iter().map(|info| info.number).collect();
    assert_eq!(numbers, (1..=80).collect::<Vec<u32>>());
}

#[test]
fn a_revoked_token_stops_here_at_once_and_elsewhere_with_the_next_refresh() {
    let store = Arc::new(MemoryMeta::default());
    let here = tokens(&store);
    let number = write_key(&here, 1).number;
    let elsewhere = tokens(&store);
    let text = secret(TokenKind::Write, 1);
    assert!(elsewhere.authenticate(&text).is_some());
    assert_eq!(here.revoke(number, 100).unwrap().revoked_at_ms, Some(100));
    assert_eq!(here.authenticate(&text), None);
    assert!(elsewhere.refresh().unwrap());
    assert_eq!(elsewhere.authenticate(&text), None);
    assert!(!elsewhere.refresh().unwrap());
    assert_eq!(here.revoke(number, 200).unwrap().revoked_at_ms, Some(100), "the first time stays");
    let error = here.create(TokenKind::Write, "again", &[], &text, 300).unwrap_err();
    assert!(matches!(error, TokenError::Exists { number: 1 }), "a revoked secret stays revoked");
    assert!(matches!(here.revoke(99, 0), Err(TokenError::NotFound { number: 99 })));
}

#[test]
fn only_read_tokens_have_scopes() {
    let store = Arc::new(MemoryMeta::default());
    let tokens = tokens(&store);
    let wrong: [(TokenKind, &[Scope]); 3] = [
        (TokenKind::Read, &[]),
        (TokenKind::Write, &[Scope::Stats]),
        (TokenKind::Admin, &[Scope::StatsRaw]),
    ];
    for (kind, scopes) in wrong {
        let error = tokens.create(kind, "x", scopes, &secret(kind, 1), 0).unwrap_err();
        assert!(matches!(error, TokenError::Scopes), "{kind:?}");
    }
    assert_eq!(tokens.list().unwrap(), []);
}

#[test]
fn the_store_and_debug_output_never_hold_a_secret() {
    let store = Arc::new(MemoryMeta::default());
    let tokens = tokens(&store);
    let text = secret(TokenKind::Write, 0x5a);
    write_key(&tokens, 0x5a);
    let needles = [text.as_bytes().to_vec(), vec![0x5a; 32], "5a".repeat(32).into_bytes()];
    for table in [TOKENS, NUMBERS] {
        for (key, row) in scan_all(&*store, table, None).unwrap() {
            for needle in &needles {
                for bytes in [&key, &row] {
                    assert!(!bytes.windows(needle.len()).any(|window| window == needle));
                }
            }
        }
    }
    let digest = digest_of(&text).map(|byte| byte.to_string()).join(", ");
    let shown = format!("{:?}", tokens.known());
    assert!(!shown.contains("5a5a") && !shown.contains(&digest), "{shown}");
}

#[test]
fn lost_answers_make_no_second_token() {
    let faults = [None, Some(Fault::AppliedThenLost), Some(Fault::LostBeforeApplied)];
    for first in faults {
        for second in faults {
            let store = Arc::new(FailingMeta::new(MemoryMeta::default()));
            let tokens = tokens(&store);
            store.script_writes([first, None, second]);
            let made = write_key(&tokens, 1);
            assert_eq!(tokens.list().unwrap(), [made], "{first:?}, {second:?}");
            assert!(tokens.authenticate(&secret(TokenKind::Write, 1)).is_some());
        }
    }
}

#[test]
fn a_creation_cut_short_keeps_its_number_or_costs_one() {
    let store = Arc::new(FailingMeta::new(MemoryMeta::default()));
    let tokens = tokens(&store);
    let text = secret(TokenKind::Write, 1);
    store.script_writes([None, Some(Fault::Refused)]);
    let error = tokens.create(TokenKind::Write, "x", &[], &text, 0).unwrap_err();
    assert!(matches!(error, TokenError::Store(_)));
    assert_eq!(tokens.authenticate(&text), None, "a number is no token");
    assert!(matches!(tokens.revoke(1, 0), Err(TokenError::NotFound { number: 1 })));
    assert_eq!(write_key(&tokens, 2).number, 2);
    assert_eq!(write_key(&tokens, 1).number, 3);
    assert!(matches!(tokens.revoke(1, 0), Err(TokenError::NotFound { number: 1 })));
    assert_eq!(tokens.revoke(3, 0).unwrap().number, 3);
}

#[test]
fn a_refresh_that_fails_leaves_what_is_known() {
    let store = Arc::new(FailingMeta::new(MemoryMeta::default()));
    let tokens = tokens(&store);
    write_key(&tokens, 1);
    store.script_reads([Some(Fault::Refused)]);
    assert!(tokens.refresh().is_err());
    assert!(tokens.authenticate(&secret(TokenKind::Write, 1)).is_some());
}

#[test]
fn version_1_of_a_token_is_this_json() {
    let text = r#"{"number":3,"kind":"read","name":"x","scopes":["stats","stats:raw"],"createdAtMs":5,"revokedAtMs":null}"#;
    let info = decode(text.as_bytes()).unwrap();
    assert_eq!(info.scopes, [Scope::Stats, Scope::StatsRaw]);
    assert_eq!(encode(&info).unwrap(), text.as_bytes());
}

#[test]
fn rows_that_are_no_tokens_are_reported() {
    let rows: [(&[u8], &[u8]); 2] = [(&[1; 31], b"{}"), (&[1; 32], b"{}")];
    for (key, row) in rows {
        let store = Arc::new(MemoryMeta::default());
        store.put_if(TOKENS, key, None, row).unwrap();
        assert!(matches!(Tokens::open(store), Err(StoreError::Corrupt { .. })));
    }
}
