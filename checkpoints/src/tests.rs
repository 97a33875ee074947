//! The acts together: by example here, as a law in [`crashes`].

mod crashes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tally_model::ids::{Shard, Shards};
use tally_model::revision::Generation;

use crate::decide::shards_of;
use crate::layout::{self, DATA, SAVEPOINTS};
use crate::manifest::{Cut, Manifest, Totals};
use crate::objects::{
    Act, Fault, FaultyObjects, LocalObjects, MemoryObjects, ObjectError, ObjectName, ObjectStore,
};
use crate::reader::{self, Origin, Restored};
use crate::writer::{Pending, ShardPart, Uploaded, Writer, WriterOptions, remove_savepoint};
use crate::{CheckpointError, CheckpointId, Damage, SavepointName};

const SHARDS: u16 = 3;
const DEPLOYMENT: &str = "shop";

fn options(generation: u32) -> WriterOptions {
    WriterOptions {
        deployment: DEPLOYMENT.to_owned(),
        generation: Generation::new(generation).unwrap(),
        shards: Shards::new(SHARDS).unwrap(),
        keep_last: 2,
    }
}

fn id(generation: u32, epoch: u64) -> CheckpointId {
    CheckpointId { generation: Generation::new(generation).unwrap(), epoch }
}

fn state(id: CheckpointId, shard: u16) -> Vec<u8> {
    format!("state of shard {shard} at {id}").into_bytes()
}

/// The content of a segment follows from its name.
fn content(name: &str) -> Vec<u8> {
    name.repeat(3).into_bytes()
}

fn segment(generation: u32, shard: u16, sequence: u64) -> String {
    format!("g{generation:07}-s{shard:04}-{sequence:010}")
}

fn open(
    objects: &Arc<dyn ObjectStore>,
    generation: u32,
) -> Result<(Writer, Option<Restored>), CheckpointError> {
    Writer::open(Arc::clone(objects), options(generation), &Origin::Newest)
}

fn memory() -> (Arc<MemoryObjects>, Arc<dyn ObjectStore>) {
    let memory = Arc::new(MemoryObjects::default());
    (Arc::clone(&memory), memory)
}

/// Puts shard by shard what `segments` says each has.
fn put_all(
    pending: &mut Pending<'_>,
    id: CheckpointId,
    segments: &[Vec<String>],
) -> Result<(), CheckpointError> {
    for (shard, segments) in (0..).zip(segments) {
        let totals = Totals::from([("counted".to_owned(), id.epoch)]);
        let state = state(id, shard);
        let part = ShardPart { shard: Shard(shard), state: &state, segments, totals };
        pending.put(part, &mut |name| Ok(content(name)))?;
    }
    Ok(())
}

fn write(
    writer: &mut Writer,
    id: CheckpointId,
    segments: &[Vec<String>],
    savepoint: Option<&SavepointName>,
) -> Result<Uploaded, CheckpointError> {
    let next_offsets = [(0, id.epoch * 10)].into();
    let mut pending = writer.begin(Cut { epoch: id.epoch, next_offsets, ..Cut::default() })?;
    put_all(&mut pending, id, segments)?;
    let (written, uploaded) = pending.finish()?;
    if let Some(name) = savepoint {
        writer.keep(name)?;
    }
    assert_eq!(written, id);
    Ok(uploaded)
}

/// One new segment for each shard.
fn one_each(generation: u32, sequence: u64) -> Vec<Vec<String>> {
    (0..SHARDS).map(|shard| vec![segment(generation, shard, sequence)]).collect()
}

/// Everything in the checkpoint is what was put; returns the names of the segments.
fn check(objects: &dyn ObjectStore, restored: &Restored) -> Vec<Vec<String>> {
    let id = restored.manifest().id();
    let load = |shard| {
        let loaded = restored.take(objects, Shard(shard)).unwrap();
        assert_eq!(loaded.state, state(id, shard));
        let names = loaded.segments.iter().map(|object| {
            let name = object.segment_name().to_owned();
            assert_eq!(restored.segment(objects, object).unwrap(), content(&name));
            name
        });
        names.collect()
    };
    (0..SHARDS).map(load).collect()
}

fn newest(objects: &dyn ObjectStore) -> Option<CheckpointId> {
    let restored = reader::restore(objects, DEPLOYMENT, &Origin::Newest).unwrap()?;
    check(objects, &restored);
    Some(restored.manifest().id())
}

/// A store with checkpoints at these epochs of generation 1, each with segments of its own.
fn written(epochs: &[u64]) -> (Arc<MemoryObjects>, Arc<dyn ObjectStore>, Writer) {
    let (memory, objects) = memory();
    let (mut writer, restored) = open(&objects, 1).unwrap();
    assert!(restored.is_none());
    for epoch in epochs {
        write(&mut writer, id(1, *epoch), &one_each(1, *epoch), None).unwrap();
    }
    (memory, objects, writer)
}

fn names(objects: &dyn ObjectStore, prefix: &str) -> BTreeSet<ObjectName> {
    objects.list(prefix).unwrap().into_iter().map(|listed| listed.name).collect()
}

type Change = fn(&mut Vec<u8>);

/// B54, and the damage by hand of CKP-4.
#[test]
fn a_damaged_newest_checkpoint_is_passed_over_and_said_so() {
    let damages: [(&str, Change); 3] = [
        ("a flipped byte", |bytes| bytes[7] ^= 1),
        ("the last 10 bytes cut", |bytes| bytes.truncate(bytes.len() - 10)),
        ("a longer object", |bytes| bytes.push(0)),
    ];
    let (_, objects, _) = written(&[1, 2]);
    let manifest = layout::manifest(id(1, 2));
    let own = Manifest::decode(&objects.read(&manifest).unwrap().unwrap()).unwrap();
    let mut targets: Vec<_> = own.objects().map(|object| object.name.clone()).collect();
    targets.push(manifest.clone());
    for target in &targets {
        for (case, damage) in damages {
            let (memory, objects, _) = written(&[1, 2]);
            memory.damage(target, damage);
            let restored =
                reader::restore(objects.as_ref(), DEPLOYMENT, &Origin::Newest).unwrap().unwrap();
            assert_eq!(restored.manifest().id(), id(1, 1), "{case} of {target}");
            let want =
                if *target == manifest { Damage::Manifest } else { Damage::Object(target.clone()) };
            assert_eq!(restored.passed_over(), [(id(1, 2), want)], "{case} of {target}");
            check(objects.as_ref(), &restored);
        }
        let (_, objects, _) = written(&[1, 2]);
        objects.delete(std::slice::from_ref(target)).unwrap();
        assert_eq!(newest(objects.as_ref()), Some(id(1, 1)), "{target} deleted");
    }
}

#[test]
fn when_all_are_damaged_the_start_is_refused_with_instructions() {
    let (memory, objects, _) = written(&[1, 2]);
    memory.damage(&layout::manifest(id(1, 1)), |bytes| bytes[20] ^= 1);
    objects.delete(&[layout::state(id(1, 2), Shard(1))]).unwrap();
    let refused = open(&objects, 2).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, CheckpointError::NothingUsable { ref found } if found.len() == 2));
    assert!(text.contains("is missing") && text.contains("savepoint"), "{text}");
    // Mended by hand, the same generation starts.
    memory.damage(&layout::manifest(id(1, 1)), |bytes| bytes[20] ^= 1);
    assert!(open(&objects, 2).unwrap().1.is_some());
}

/// A start from an older checkpoint goes on with its segments: they outlive the damaged ones.
#[test]
fn the_checkpoint_fallen_back_on_is_kept_however_many_damaged_ones_follow() {
    let (memory, objects, _) = written(&[1, 2, 3]);
    for epoch in [2, 3] {
        memory.damage(&layout::state(id(1, epoch), Shard(0)), |bytes| bytes[0] ^= 1);
    }
    let (mut writer, restored) = open(&objects, 2).unwrap();
    let segments = check(objects.as_ref(), &restored.unwrap());
    writer.collect().unwrap();
    assert_eq!(newest(objects.as_ref()), Some(id(1, 1)));
    write(&mut writer, id(2, 4), &segments, None).unwrap();
    writer.collect().unwrap();
    assert_eq!(newest(objects.as_ref()), Some(id(2, 4)));
    memory.damage(&layout::manifest(id(2, 4)), |bytes| bytes[20] ^= 1);
    assert_eq!(newest(objects.as_ref()), Some(id(1, 1)), "still there to fall back on");
}

#[test]
fn a_segment_is_uploaded_once_and_again_only_if_it_is_lost() {
    let (_, objects, mut writer) = written(&[]);
    let mut segments = one_each(1, 0);
    assert_eq!(write(&mut writer, id(1, 1), &segments, None).unwrap().objects, 6);
    segments[1].push(segment(1, 1, 1));
    assert_eq!(write(&mut writer, id(1, 2), &segments, None).unwrap().objects, 3 + 1);
    objects.delete(&[layout::segment(&segments[0][0]).unwrap()]).unwrap();
    assert_eq!(write(&mut writer, id(1, 3), &segments, None).unwrap().objects, 3 + 1);
    let (mut writer, _) = open(&objects, 2).unwrap();
    assert_eq!(write(&mut writer, id(2, 4), &segments, None).unwrap().objects, 3);
    assert_eq!(newest(objects.as_ref()), Some(id(2, 4)));
}

#[test]
fn collecting_leaves_exactly_what_is_retained() {
    let (_, objects, mut writer) = written(&[1, 2]);
    let before = names(objects.as_ref(), "");
    assert_eq!(writer.collect().unwrap(), crate::writer::Collected::default());
    assert_eq!(names(objects.as_ref(), ""), before);
    write(&mut writer, id(1, 3), &one_each(1, 3), None).unwrap();
    let collected = writer.collect().unwrap();
    assert_eq!((collected.checkpoints, collected.objects), (1, 6));
    assert_eq!(names(objects.as_ref(), "manifests/").len(), 2);
    assert_eq!(names(objects.as_ref(), "data/").len(), 2 * 6);
    assert_eq!(newest(objects.as_ref()), Some(id(1, 3)));
}

/// A store whose user dies after so many objects of checkpoints: nothing happens any more.
fn dying(inner: &Arc<MemoryObjects>, creates: usize) -> Arc<dyn ObjectStore> {
    let made = AtomicUsize::new(0);
    Arc::new(FaultyObjects::new(Arc::clone(inner), move |act, name| {
        let one = usize::from(act == Act::Create && !name.starts_with("generations/"));
        let is_dead = made.fetch_add(one, Ordering::Relaxed) + one > creates;
        (is_dead && matches!(act, Act::Create | Act::Delete)).then_some(Fault::Refused)
    }))
}

/// B55: killed after each object in turn; what is left behind goes with later collections.
#[test]
fn a_checkpoint_that_was_cut_off_is_never_restored() {
    let objects_of_one = 2 * usize::from(SHARDS) + 1;
    for made in 0..objects_of_one {
        let (memory, objects, _) = written(&[1, 2]);
        let (mut writer, _) = open(&dying(&memory, made), 2).unwrap();
        let cut_off = write(&mut writer, id(2, 3), &one_each(2, 3), None);
        assert!(matches!(cut_off, Err(CheckpointError::Objects(_))), "{made}: {cut_off:?}");
        let count = || names(&*memory, "data/").len() + names(&*memory, "manifests/").len();
        assert_eq!(count(), 2 * objects_of_one + made);
        assert_eq!(newest(objects.as_ref()), Some(id(1, 2)), "after {made} objects");

        let (mut writer, _) = open(&objects, 3).unwrap();
        for epoch in 4..6 {
            write(&mut writer, id(3, epoch), &one_each(3, epoch), None).unwrap();
            writer.collect().unwrap();
        }
        assert_eq!(count(), 2 * objects_of_one, "nothing else is left");
    }
}

/// B57: the older one knows fewer partitions; cleaning up fails at any call, and while it is read.
#[test]
fn collecting_an_older_checkpoint_harms_no_newer_one() {
    let write_with = |writer: &mut Writer, epoch, partitions, segments: &[Vec<String>]| {
        let next_offsets = (0..partitions).map(|partition| (partition, epoch)).collect();
        let mut pending = writer.begin(Cut { epoch, next_offsets, ..Cut::default() }).unwrap();
        put_all(&mut pending, id(1, epoch), segments).unwrap();
        pending.finish().unwrap();
    };
    for fails_at in 0..4 {
        let (memory, objects) = memory();
        let faulty = failing_once(&memory, Act::Delete, fails_at, Fault::TimedOut);
        let (mut writer, _) = open(&faulty, 1).unwrap();
        write_with(&mut writer, 1, 4, &one_each(1, 1));
        let being_read =
            reader::restore(objects.as_ref(), DEPLOYMENT, &Origin::Newest).unwrap().unwrap();
        being_read.take(objects.as_ref(), Shard(0)).unwrap();
        // Shard 0 goes on with its segment, the others have merged theirs away.
        let mut segments = one_each(1, 2);
        segments[0].insert(0, segment(1, 0, 1));
        write_with(&mut writer, 2, 8, &segments);
        write_with(&mut writer, 3, 8, &segments);
        let collected = writer.collect();
        assert!(collected.is_ok() || fails_at < 2, "{collected:?}");
        writer.collect().unwrap();
        let lost = being_read.take(objects.as_ref(), Shard(1));
        assert!(matches!(lost, Err(CheckpointError::Damaged { .. })), "{lost:?}");
        let restored =
            reader::restore(objects.as_ref(), DEPLOYMENT, &Origin::Newest).unwrap().unwrap();
        assert_eq!(restored.manifest().id(), id(1, 3));
        assert_eq!(restored.manifest().cut.next_offsets.len(), 8);
        assert_eq!(check(objects.as_ref(), &restored), segments);
        assert_eq!(reader::list(objects.as_ref(), DEPLOYMENT).unwrap().len(), 2);
    }
}

#[test]
fn a_savepoint_is_kept_until_it_is_removed_and_can_be_started_from() {
    let (memory, objects, mut writer) = written(&[]);
    let name: SavepointName = "before-upgrade".parse().unwrap();
    write(&mut writer, id(1, 1), &one_each(1, 1), Some(&name)).unwrap();
    for epoch in 2..5 {
        write(&mut writer, id(1, epoch), &one_each(1, epoch), None).unwrap();
        writer.collect().unwrap();
    }
    let origin = Origin::Savepoint(name.clone());
    let (mut writer, restored) = Writer::open(Arc::clone(&objects), options(2), &origin).unwrap();
    let segments = check(objects.as_ref(), &restored.unwrap());
    assert_eq!(segments, one_each(1, 1));
    let taken = write(&mut writer, id(2, 9), &segments, Some(&name));
    assert!(matches!(taken, Err(CheckpointError::SavepointExists { .. })), "{taken:?}");
    assert_eq!(newest(objects.as_ref()), Some(id(2, 9)), "the checkpoint itself was written");

    memory.damage(&layout::savepoint(&name), |bytes| bytes[9] ^= 1);
    assert_eq!(writer.collect().unwrap().held_back_by, [layout::savepoint(&name)]);
    remove_savepoint(objects.as_ref(), &name).unwrap();
    assert_eq!(writer.collect().unwrap().held_back_by, []);
    let gone = Writer::open(Arc::clone(&objects), options(3), &origin).map(|_| ());
    assert!(matches!(gone, Err(CheckpointError::NotFound { .. })), "{gone:?}");
    let gone = remove_savepoint(objects.as_ref(), &name);
    assert!(matches!(gone, Err(CheckpointError::NotFound { .. })), "{gone:?}");
}

/// B60, B61.
#[test]
fn each_shard_is_handed_out_once_to_any_number_of_workers() {
    let (_, objects, _) = written(&[1]);
    for workers in [1, 2, 3, 6] {
        let restored =
            reader::restore(objects.as_ref(), DEPLOYMENT, &Origin::Newest).unwrap().unwrap();
        let mut counted = 0;
        for worker in 0..workers {
            for shard in shards_of(worker, workers, options(1).shards) {
                counted += restored.take(objects.as_ref(), shard).unwrap().totals["counted"];
            }
        }
        assert_eq!(counted, u64::from(SHARDS));
        for shard in [0, SHARDS] {
            let again = restored.take(objects.as_ref(), Shard(shard));
            assert!(matches!(again, Err(CheckpointError::Taken { .. })), "{again:?}");
        }
    }
}

#[test]
fn a_woken_predecessor_neither_writes_nor_collects() {
    let (_, objects, mut old) = written(&[1, 2, 3]);
    let (mut new, _) = open(&objects, 2).unwrap();
    let before = names(objects.as_ref(), "");
    let results = [
        write(&mut old, id(1, 4), &one_each(1, 4), None).map(|_| ()),
        old.collect().map(|_| ()),
        open(&objects, 1).map(|_| ()),
    ];
    for result in results {
        assert!(matches!(result, Err(CheckpointError::TakenOver { greater, .. })
            if greater.number() == 2));
    }
    assert_eq!(names(objects.as_ref(), ""), before);
    write(&mut new, id(2, 4), &one_each(1, 3), None).unwrap();
    new.collect().unwrap();
    assert_eq!(names(objects.as_ref(), "generations/").len(), 1);
    assert!(matches!(old.collect(), Err(CheckpointError::TakenOver { .. })));
}

/// Fails the `at`th create (or delete) from now on; the calls before and after succeed.
fn failing_once(
    inner: &Arc<MemoryObjects>,
    act: Act,
    at: usize,
    fault: Fault,
) -> Arc<dyn ObjectStore> {
    let calls = AtomicUsize::new(0);
    Arc::new(FaultyObjects::new(Arc::clone(inner), move |of, _| {
        (of == act && calls.fetch_add(1, Ordering::Relaxed) == at).then_some(fault)
    }))
}

#[test]
fn a_lost_answer_is_looked_up_and_a_refusal_left_to_the_next_checkpoint() {
    // One mark, three segments and states, a manifest.
    for at in 0..8 {
        for fault in [Fault::AppliedThenLost, Fault::Refused, Fault::TimedOut] {
            let (memory, plain) = memory();
            let objects = failing_once(&memory, Act::Create, at, fault);
            let first = open(&objects, 1).and_then(|(mut writer, _)| {
                write(&mut writer, id(1, 1), &one_each(1, 0), None).map(|_| writer)
            });
            match (fault, first) {
                (Fault::AppliedThenLost, first) => drop(first.unwrap()),
                (Fault::Refused | Fault::TimedOut, first) => {
                    let refused = first.unwrap_err();
                    assert!(matches!(
                        refused,
                        CheckpointError::Objects(
                            ObjectError::Unavailable { .. } | ObjectError::Unknown { .. }
                        )
                    ));
                    assert_eq!(newest(plain.as_ref()), None);
                    let (mut writer, _) = open(&objects, 1).unwrap();
                    write(&mut writer, id(1, 2), &one_each(1, 0), None).unwrap();
                }
            }
            assert!(newest(plain.as_ref()).is_some(), "{fault:?} at {at}");
        }
    }
}

/// A checkpoint that failed leaves its segments to the next one, whatever is collected between.
#[test]
fn segments_of_a_failed_checkpoint_are_not_collected() {
    let (memory, _) = memory();
    // The mark, a checkpoint of seven objects, six data objects more, then the manifest.
    let objects = failing_once(&memory, Act::Create, 1 + 7 + 6, Fault::Refused);
    let (mut writer, _) = open(&objects, 1).unwrap();
    write(&mut writer, id(1, 1), &one_each(1, 0), None).unwrap();
    let segments = one_each(1, 1);
    assert!(write(&mut writer, id(1, 2), &segments, None).is_err());
    assert_eq!(writer.collect().unwrap().objects, 3, "the states alone");
    assert_eq!(write(&mut writer, id(1, 3), &segments, None).unwrap().objects, 3);
    assert_eq!(newest(objects.as_ref()), Some(id(1, 3)));
}

#[test]
fn parts_that_make_no_whole_checkpoint_are_refused() {
    let (_, objects, mut writer) = written(&[5]);
    for epoch in [5, 4] {
        let again = writer.begin(Cut { epoch, ..Cut::default() });
        assert!(matches!(again, Err(CheckpointError::Epoch { last: 5, .. })));
    }
    let mut pending = writer.begin(Cut { epoch: 6, ..Cut::default() }).unwrap();
    let mut put = |shard, segment: &str| {
        let segments = [segment.to_owned()];
        let part = ShardPart {
            shard: Shard(shard),
            state: b"",
            segments: &segments,
            totals: Totals::new(),
        };
        pending.put(part, &mut |name| Ok(content(name)))
    };
    put(0, &segment(1, 0, 9)).unwrap();
    let double = put(0, &segment(1, 0, 9));
    assert!(matches!(double, Err(CheckpointError::Parts { shard: Shard(0), .. })));
    let unknown = put(SHARDS, &segment(1, 0, 9));
    assert!(matches!(unknown, Err(CheckpointError::Parts { shard: Shard(SHARDS), .. })));
    for name in [segment(2, 1, 0), "../../etc".to_owned(), "g1".to_owned(), String::new()] {
        let refused = put(1, &name);
        assert!(matches!(refused, Err(CheckpointError::SegmentName { .. })), "{name}");
    }
    let other_content = put(1, &segment(1, 0, 5));
    assert!(other_content.is_ok(), "the same segment may be named by several");
    let missing = pending.finish();
    assert!(matches!(missing, Err(CheckpointError::Parts { shard: Shard(2), .. })));
    assert_eq!(newest(objects.as_ref()), Some(id(1, 5)));
}

#[test]
fn an_unreadable_segment_and_other_content_under_its_name_stop_the_checkpoint() {
    let (_, objects, mut writer) = written(&[]);
    let name = segment(1, 0, 0);
    objects.create(&layout::segment(&name).unwrap(), b"other").unwrap();
    let mut pending = writer.begin(Cut { epoch: 1, ..Cut::default() }).unwrap();
    let segments = [name];
    let part =
        ShardPart { shard: Shard(0), state: b"", segments: &segments, totals: Totals::new() };
    let unreadable = pending.put(part.clone(), &mut |_| Err(std::io::Error::other("gone")));
    assert!(matches!(unreadable, Err(CheckpointError::SegmentSource { .. })));
    let conflict = pending.put(part, &mut |name| Ok(content(name)));
    assert!(matches!(conflict, Err(CheckpointError::Conflict { .. })));
}

#[test]
fn checkpoints_for_others_are_refused() {
    let (_, objects, _) = written(&[1]);
    let foreign = WriterOptions { deployment: "bank".to_owned(), ..options(2) };
    let refused = Writer::open(Arc::clone(&objects), foreign, &Origin::Newest).map(|_| ());
    assert!(matches!(refused, Err(CheckpointError::Foreign { .. })), "{refused:?}");
    let wider = WriterOptions { shards: Shards::new(SHARDS + 1).unwrap(), ..options(2) };
    let refused = Writer::open(Arc::clone(&objects), wider, &Origin::Newest).map(|_| ());
    assert!(matches!(refused, Err(CheckpointError::Shards { found: 3, own: 4, .. })));

    let name = layout::manifest(id(1, 2));
    let mut newer = objects.read(&layout::manifest(id(1, 1))).unwrap().unwrap();
    newer.truncate(newer.len() - 4);
    newer[8] = 9;
    newer.extend_from_slice(&crc32c::crc32c(&newer).to_le_bytes());
    objects.create(&name, &newer).unwrap();
    let refused = open(&objects, 2).map(|_| ());
    assert!(matches!(refused, Err(CheckpointError::Version { version: 9, .. })), "{refused:?}");
}

#[test]
fn a_manifest_under_the_name_of_another_is_damaged() {
    let (_, objects, _) = written(&[1]);
    let bytes = objects.read(&layout::manifest(id(1, 1))).unwrap().unwrap();
    objects.create(&layout::manifest(id(1, 7)), &bytes).unwrap();
    assert_eq!(newest(objects.as_ref()), Some(id(1, 1)));
}

#[test]
fn verifying_finds_everything_that_is_wrong_and_reads_each_object_once() {
    let (memory, objects, mut writer) = written(&[1]);
    let shared = one_each(1, 1);
    let savepoint: SavepointName = "kept".parse().unwrap();
    write(&mut writer, id(1, 2), &shared, Some(&savepoint)).unwrap();
    let damaged = layout::segment(&shared[1][0]).unwrap();
    let missing = layout::state(id(1, 2), Shard(0));
    memory.damage(&damaged, |bytes| bytes[0] ^= 1);
    objects.delete(std::slice::from_ref(&missing)).unwrap();
    let reads = Arc::new(Mutex::new(Vec::new()));
    let counted = {
        let reads = Arc::clone(&reads);
        FaultyObjects::new(memory, move |act, name| {
            if act == Act::Read {
                reads.lock().unwrap().push(name.to_owned());
            }
            None
        })
    };
    let verified = reader::verify(&counted, DEPLOYMENT).unwrap();
    let damage: Vec<_> = verified.iter().map(|verified| verified.damage.clone()).collect();
    let of_second = vec![Damage::Missing(missing), Damage::Object(damaged.clone())];
    assert_eq!(damage, [vec![Damage::Object(damaged)], of_second.clone(), of_second]);
    assert_eq!(verified[2].found.savepoint, Some(savepoint));
    let reads = reads.lock().unwrap();
    assert_eq!(reads.iter().collect::<BTreeSet<_>>().len(), reads.len());
}

#[test]
fn checkpoints_in_a_directory_survive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let open_folder =
        || -> Arc<dyn ObjectStore> { Arc::new(LocalObjects::open(folder.path()).unwrap()) };
    let (mut writer, _) = open(&open_folder(), 1).unwrap();
    for epoch in 1..4 {
        write(&mut writer, id(1, epoch), &one_each(1, epoch), None).unwrap();
    }
    assert_eq!(writer.collect().unwrap().checkpoints, 1);
    let objects = open_folder();
    let (_, restored) = open(&objects, 2).unwrap();
    assert_eq!(check(objects.as_ref(), &restored.unwrap()), one_each(1, 3));
    assert_eq!(reader::list(objects.as_ref(), DEPLOYMENT).unwrap().len(), 2);
}

#[test]
fn a_forgotten_deployment_starts_from_nothing() {
    let objects: Arc<dyn ObjectStore> = Arc::new(MemoryObjects::default());
    let (mut writer, _) = Writer::open(Arc::clone(&objects), options(1), &Origin::Newest).unwrap();
    let kept: SavepointName = "kept".parse().unwrap();
    write(&mut writer, id(1, 1), &one_each(1, 1), Some(&kept)).unwrap();
    crate::writer::forget(objects.as_ref()).unwrap();
    let (_, restored) = Writer::open(Arc::clone(&objects), options(2), &Origin::Newest).unwrap();
    assert!(restored.is_none());
    assert!(objects.list(DATA).unwrap().is_empty() && objects.list(SAVEPOINTS).unwrap().is_empty());
}
