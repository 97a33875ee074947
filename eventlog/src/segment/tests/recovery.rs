//! What opening does with a folder: after a crash, with damage, and if it is something else.

use super::*;
use crate::segment::format::{BLOCK_HEADER_BYTES, BlockHeader, Place};

/// Places of the blocks in a segment of three partitions.
fn blocks(segment: &[u8], sequence: u64) -> Vec<(usize, BlockHeader)> {
    let mut position = 48;
    let mut blocks = Vec::new();
    while position < segment.len() {
        let place = Place { sequence, position: crate::convert::to_u64(position) };
        let header = BlockHeader::decode(&segment[position..], place).unwrap();
        blocks.push((position, header));
        position += header.block_bytes();
    }
    assert_eq!(position, segment.len());
    blocks
}

fn numbers(log: &SegmentLog) -> Vec<Vec<u64>> {
    let found = everything(log);
    (0..3).map(|partition| numbers_of(&found, partition, 0)).collect()
}

/// A log of one segment with commits of one block each, closed; its segment and the last block's
/// position.
fn three_commits(bench: &Bench) -> (Vec<u8>, usize) {
    let log = bench.open(ONE_SEGMENT);
    for (partition, number) in [(0, 1), (1, 2), (0, 3)] {
        append_all(&log, vec![record(partition, number)]);
    }
    drop(log);
    let segment = bench.files().remove(&segment_name(1)).unwrap();
    let last = blocks(&segment, 1).pop().unwrap().0;
    (segment, last)
}

/// Opens after the last block was spoiled: it is gone, the rest is there, and the log goes on.
fn expect_cut(bench: &Bench, last: usize, case: &str) {
    let log = bench.open(ONE_SEGMENT);
    assert_eq!(bench.segment_bytes(1), crate::convert::to_u64(last), "{case}");
    assert_eq!(numbers(&log), [vec![1], vec![2], vec![]], "{case}");
    assert_eq!(append(&log, vec![record(0, 9)]), [Ok(1)], "{case}");
    assert_eq!(numbers(&log), [vec![1, 9], vec![2], vec![]], "{case}");
    drop(log);
    assert_eq!(numbers(&bench.open(ONE_SEGMENT)), [vec![1, 9], vec![2], vec![]], "{case}");
}

#[test]
fn a_closed_log_opens_with_everything_in_it() {
    let bench = Bench::new();
    for round in 0..4 {
        let log = bench.open(SMALL);
        for call in 0..25 {
            append_all(&log, vec![record(0, round * 25 + call), record(2, call)]);
        }
    }
    let log = bench.open(SMALL);
    assert_eq!(log.end_offsets().unwrap(), [100, 0, 100]);
    assert_eq!(numbers(&log)[0], (0..100).collect::<Vec<_>>());
    assert!(bench.files().len() > 10, "several segments");
}

#[test]
fn a_write_cut_at_any_byte_is_cut_off() {
    let bench = Bench::new();
    let (segment, last) = three_commits(&bench);
    let files = bench.files();
    for length in last + 1..segment.len() {
        bench.restore(&files);
        fs::write(bench.dir().join(segment_name(1)), &segment[..length]).unwrap();
        expect_cut(&bench, last, &format!("cut at {length} of {}", segment.len()));
    }
}

#[test]
fn a_write_whose_bytes_never_reached_the_disk_is_cut_off() {
    let bench = Bench::new();
    let (segment, last) = three_commits(&bench);
    let files = bench.files();
    let good = || segment[..last].to_vec();
    let zeros = |mut bytes: Vec<u8>, count: usize| {
        bytes.resize(bytes.len() + count, 0);
        bytes
    };
    let mut flipped = segment.clone();
    flipped[last + BLOCK_HEADER_BYTES + 3] ^= 1;
    let cases = [
        ("zeros, less than a header", zeros(good(), 17)),
        ("zeros, more than a window", zeros(good(), (1 << 20) + 5_000)),
        ("zeros after part of the block", zeros(segment[..last + 60].to_vec(), 300)),
        ("other bytes", [good(), vec![0xa5; 777]].concat()),
        ("a block of another place", [good(), segment[48..last].to_vec()].concat()),
        ("a wrong byte", flipped),
    ];
    for (case, bytes) in cases {
        bench.restore(&files);
        fs::write(bench.dir().join(segment_name(1)), bytes).unwrap();
        expect_cut(&bench, last, case);
    }
}

#[test]
fn blocks_of_one_write_that_reached_the_disk_out_of_order_are_cut_off() {
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    append_all(&log, vec![record(0, 1)]);
    append_all(&log, vec![record(0, 2), record(1, 3), record(2, 4)]);
    drop(log);
    let path = bench.dir().join(segment_name(1));
    let mut segment = fs::read(&path).unwrap();
    let blocks = blocks(&segment, 1);
    assert_eq!(blocks.len(), 4);
    segment[blocks[1].0..blocks[2].0].fill(0);
    fs::write(&path, segment).unwrap();
    let log = bench.open(ONE_SEGMENT);
    assert_eq!(numbers(&log), [vec![1], vec![], vec![]]);
    assert_eq!(append(&log, vec![record(1, 5)]), [Ok(0)]);
}

#[test]
fn a_wrong_byte_before_the_last_commit_is_damage_and_nothing_is_cut() {
    let bench = Bench::new();
    let (segment, last) = three_commits(&bench);
    let path = bench.dir().join(segment_name(1));
    for at in 0..last {
        let mut spoiled = segment.clone();
        spoiled[at] ^= 0x10;
        fs::write(&path, &spoiled).unwrap();
        let outcome = bench.try_open(ONE_SEGMENT).map(|_| ());
        let Err(LogError::Damaged { path: found, position, .. }) = outcome else {
            panic!("byte {at}: {outcome:?}");
        };
        assert_eq!(found, path);
        assert!(position <= crate::convert::to_u64(at), "byte {at}, reported at {position}");
        assert!(fs::read(&path).unwrap() == spoiled, "byte {at}: the file was changed");
    }
}

#[test]
fn a_wrong_byte_in_a_closed_segment_is_damage_when_opened_or_when_read() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    for number in 0..40 {
        append_all(&log, vec![record(0, number)]);
    }
    drop(log);
    let files = bench.files();
    let segment = &files[&segment_name(2)];
    for at in (0..segment.len()).step_by(7).chain([segment.len() - 1]) {
        bench.restore(&files);
        let mut spoiled = segment.clone();
        spoiled[at] ^= 0x10;
        fs::write(bench.dir().join(segment_name(2)), &spoiled).unwrap();
        // With its index, blocks are checked only as they are read.
        if at >= 48 {
            let log = bench.open(SMALL);
            let mut reader = log.reader(&[(0, 0)]).unwrap();
            let mut next = 0;
            let outcome =
                reader.read(ReadLimits { records: 1_000, bytes: usize::MAX }, &mut |seen| {
                    assert_eq!(seen.offset, next);
                    next += 1;
                });
            assert!(matches!(outcome, Err(LogError::Damaged { .. })), "byte {at}: {outcome:?}");
            assert_eq!(reader.positions(), [(0, next)]);
            assert!(reader.read(ReadLimits { records: 1, bytes: 1 }, &mut |_| panic!()).is_err());
        }
        fs::remove_file(bench.dir().join(index_name(2))).unwrap();
        let outcome = bench.try_open(SMALL).map(|_| ());
        assert!(matches!(outcome, Err(LogError::Damaged { .. })), "byte {at}: {outcome:?}");
    }
}

#[test]
fn a_closed_segment_of_another_length_or_a_missing_one_is_damage() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    for number in 0..80 {
        append_all(&log, vec![record(0, number)]);
    }
    drop(log);
    let files = bench.files();
    let last = files.keys().filter_map(|name| name.strip_suffix(".log")).max().unwrap();
    let last: u64 = last.parse().unwrap();
    assert!(last > 3);
    type Spoil<'a> = &'a dyn Fn(&mut BTreeMap<String, Vec<u8>>);
    let spoil: [(&str, Spoil<'_>); 5] = [
        ("cut with its index", &|files| {
            files.get_mut(&segment_name(2)).unwrap().pop();
        }),
        ("cut without its index", &|files| {
            files.get_mut(&segment_name(2)).unwrap().pop();
            files.remove(&index_name(2));
        }),
        ("longer", &|files| files.get_mut(&segment_name(2)).unwrap().push(0)),
        ("missing in the middle", &|files| _ = files.remove(&segment_name(2))),
        ("missing at the end", &|files| _ = files.remove(&segment_name(last))),
    ];
    for (case, spoil) in spoil {
        let mut spoiled = files.clone();
        spoil(&mut spoiled);
        bench.restore(&spoiled);
        let outcome = bench.try_open(SMALL).map(|_| ());
        assert!(matches!(outcome, Err(LogError::Damaged { .. })), "{case}: {outcome:?}");
        assert!(bench.files() == spoiled, "{case}: files were changed");
    }
}

#[test]
fn a_lost_or_damaged_index_is_made_anew() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    for number in 0..40 {
        append_all(&log, vec![record(0, number)]);
    }
    drop(log);
    let files = bench.files();
    let index = &files[&index_name(2)];
    let mut flipped = index.clone();
    flipped[20] ^= 1;
    let other = files[&index_name(1)].clone();
    for (case, bytes) in [
        ("lost", None),
        ("empty", Some(Vec::new())),
        ("cut", Some(index[..index.len() / 2].to_vec())),
        ("flipped", Some(flipped)),
        ("of another segment", Some(other)),
    ] {
        bench.restore(&files);
        let path = bench.dir().join(index_name(2));
        fs::remove_file(&path).unwrap();
        if let Some(bytes) = bytes {
            fs::write(&path, bytes).unwrap();
        }
        let log = bench.open(SMALL);
        assert_eq!(numbers(&log)[0], (0..40).collect::<Vec<_>>(), "{case}");
        assert!(fs::read(&path).unwrap() == *index, "{case}");
    }
}

#[test]
fn a_folder_that_is_not_this_log_is_refused_untouched_with_what_to_do() {
    let bench = Bench::new();
    three_commits(&bench);
    let log = bench.files();
    let with = |changes: &[(&str, &[u8])]| {
        let mut files = log.clone();
        files.extend(changes.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())));
        files
    };
    let only = |name: &str| BTreeMap::from([(name.to_owned(), b"x".to_vec())]);
    let mut no_format = log.clone();
    no_format.remove(files::FORMAT_FILE);
    let cases = [
        ("other files", only("photo.jpg"), "choose an empty folder"),
        ("a name close to ours", only("1.log"), "choose an empty folder"),
        ("no format file", no_format, "put that back from a copy"),
        ("an index alone", only(&index_name(1)), "put it back from a copy"),
        ("a late segment alone", only(&segment_name(7)), "put it back from a copy"),
        ("another format", with(&[(files::FORMAT_FILE, b"\xff\xfe")]), "choose an empty folder"),
        (
            "a later version",
            with(&[(files::FORMAT_FILE, b"tally segment log\nversion 2\nshape round\n")]),
            "use the program that wrote it",
        ),
        (
            "other partitions",
            with(&[(files::FORMAT_FILE, b"tally segment log\nversion 1\npartitions 4\n")]),
            "set it to 4",
        ),
    ];
    for (case, files, advice) in cases {
        bench.restore(&files);
        let outcome = bench.try_open(ONE_SEGMENT).map(|_| ());
        let Err(LogError::Foreign { what, .. }) = outcome else {
            panic!("{case}: {outcome:?}");
        };
        assert!(what.contains(advice), "{case}: {what}");
        assert_eq!(bench.files(), files, "{case}");
    }
}

#[test]
fn a_log_is_open_once_at_a_time_and_readers_do_not_hold_it() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    append_all(&log, vec![record(0, 1)]);
    let mut reader = log.reader(&[(0, 0)]).unwrap();
    let outcome = bench.try_open(SMALL).map(|_| ());
    let Err(LogError::Foreign { what, .. }) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(what.contains("stop the other process"), "{what}");
    drop(log);
    let _again = bench.open(SMALL);
    assert_eq!(read_all(reader.as_mut()), [(0, 0, 1)]);
}

#[test]
fn a_creation_cut_short_at_any_point_is_done_again() {
    let bench = Bench::new();
    drop(bench.open(SMALL));
    let whole = bench.files();
    let segment = whole[&segment_name(1)].clone();
    let cases: [&[(&str, &[u8])]; 5] = [
        &[],
        &[("00000000000000000001.log.tmp", b"")],
        &[("00000000000000000001.log.tmp", &segment[..20])],
        &[("00000000000000000001.log", &segment)],
        &[("00000000000000000001.log", &segment), ("log.format.tmp", b"tally seg")],
    ];
    for files in cases {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        bench.restore(&files.collect());
        assert_eq!(append(&bench.open(SMALL), vec![record(0, 1)]), [Ok(0)]);
        drop(bench.open(SMALL));
        assert_eq!(bench.files().len(), 2);
    }
}

#[test]
fn what_was_confirmed_is_in_a_copy_taken_at_any_moment() {
    const COPIES: usize = 15;
    /// How far the writer may run ahead of the copies, in rounds of 200 records.
    const AHEAD: usize = 4;
    let bench = Bench::new();
    let options = SegmentOptions { segment_bytes: 100_000, ..SMALL };
    let log = bench.open(options);
    let (progress, confirmed) = mpsc::sync_channel(AHEAD);
    let writer = thread::spawn(move || {
        let mut number = 0;
        // Ends when nobody listens any more.
        while progress.send(number).is_ok() {
            let (sender, receiver) = mpsc::channel();
            for first in (number..number + 200).step_by(10) {
                let sender = sender.clone();
                let records = (first..first + 10).map(|number| record(1, number)).collect();
                let done = Box::new(move |results: Vec<_>| sender.send(results).unwrap());
                log.append(records, done).unwrap();
            }
            number += 200;
            for _ in 0..20 {
                let results = receiver.recv_timeout(contract::DEADLINE).unwrap();
                assert!(results.iter().all(Result::is_ok));
            }
        }
    });
    let copy = Bench::new();
    for round in 0..COPIES {
        // Each copy has something new to lose.
        let last = confirmed.recv_timeout(contract::DEADLINE).unwrap();
        let last = confirmed.try_iter().last().unwrap_or(last);
        fs::create_dir_all(copy.dir()).unwrap();
        // The log before the first segment that the listing lacks: a folder that changes is not
        // listed as of one moment.
        let entries = fs::read_dir(bench.dir()).unwrap();
        let listed: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        let segments = (1..).map(segment_name).take_while(|name| listed.contains(&name.into()));
        for name in segments.chain([files::FORMAT_FILE.to_owned()]) {
            fs::copy(bench.dir().join(&name), copy.dir().join(&name)).unwrap();
        }
        let opened = copy.open(options);
        let found = &numbers(&opened)[1];
        let end = crate::convert::to_u64(found.len());
        assert!(end >= last, "round {round}: {end} of {last} confirmed records");
        assert_eq!(*found, (0..end).collect::<Vec<_>>());
        drop(opened);
        fs::remove_dir_all(copy.dir()).unwrap();
    }
    drop(confirmed);
    writer.join().unwrap();
}
