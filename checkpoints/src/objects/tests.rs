use std::sync::Arc;
use std::thread;

use super::*;

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

fn names(objects: &dyn ObjectStore, prefix: &str) -> Vec<String> {
    objects.list(prefix).unwrap().into_iter().map(|listed| listed.name.to_string()).collect()
}

/// What every store has to do.
fn keeps_the_contract(objects: &dyn ObjectStore) {
    let (a, b, c) = (name("data/a"), name("data/b"), name("data-2/deep/c"));
    assert_eq!(objects.list("").unwrap(), []);
    assert_eq!(objects.read(&a).unwrap(), None);
    assert_eq!(objects.create(&b, b"two").unwrap(), Created::New);
    assert_eq!(objects.create(&a, b"").unwrap(), Created::New);
    assert_eq!(objects.create(&c, &[0, 255, 10]).unwrap(), Created::New);

    assert_eq!(objects.create(&b, b"other").unwrap(), Created::Exists, "never replaced");
    assert_eq!(objects.read(&b).unwrap().unwrap(), b"two");
    assert_eq!(objects.read(&a).unwrap().unwrap(), b"");
    assert_eq!(objects.read(&c).unwrap().unwrap(), [0, 255, 10]);

    assert_eq!(names(objects, ""), ["data-2/deep/c", "data/a", "data/b"]);
    assert_eq!(names(objects, "data/"), ["data/a", "data/b"]);
    assert_eq!(names(objects, "data-2/deep/"), ["data-2/deep/c"]);
    assert_eq!(names(objects, "nothing/"), Vec::<String>::new());
    assert_eq!(objects.list("data/").unwrap()[1].bytes, 3);

    objects.delete(&[]).unwrap();
    objects.delete(&[a.clone(), name("nothing/here"), c]).unwrap();
    assert_eq!(names(objects, ""), ["data/b"]);
    assert_eq!(objects.read(&a).unwrap(), None);
    assert_eq!(objects.create(&a, b"again").unwrap(), Created::New);
    assert_eq!(objects.read(&a).unwrap().unwrap(), b"again");
}

/// Of several that create one name at once, one wins and its bytes stand.
fn lets_one_creator_win(objects: &Arc<dyn ObjectStore>) {
    let start = Arc::new(std::sync::Barrier::new(4));
    let create = |number: u8| {
        let (objects, start) = (Arc::clone(objects), Arc::clone(&start));
        thread::spawn(move || {
            start.wait();
            (number, objects.create(&name("race/one"), &[number; 1000]).unwrap())
        })
    };
    let threads: Vec<_> = (0..4).map(create).collect();
    let answers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let winners: Vec<_> = answers.iter().filter(|(_, created)| *created == Created::New).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    assert_eq!(objects.read(&name("race/one")).unwrap().unwrap(), [winners[0].0; 1000]);
}

#[test]
fn every_store_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let stores: [Arc<dyn ObjectStore>; 3] = [
        Arc::new(MemoryObjects::default()),
        Arc::new(LocalObjects::open(folder.path().join("a/b")).unwrap()),
        Arc::new(FaultyObjects::new(MemoryObjects::default(), |_, _| None)),
    ];
    for objects in stores {
        keeps_the_contract(&objects);
        lets_one_creator_win(&objects);
    }
}

#[test]
fn names_that_could_leave_the_folder_are_refused() {
    for text in ["", "/a", "a/", "a//b", "..", "a/../b", ".tmp/a", "A", "a b", "\u{e4}", "a\\b"] {
        assert!(ObjectName::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_local_store_finds_its_objects_again_and_shows_no_unfinished_ones() {
    let folder = tempfile::tempdir().unwrap();
    let objects = LocalObjects::open(folder.path()).unwrap();
    objects.create(&name("data/a"), b"one").unwrap();
    let left_over = folder.path().join(".tmp/1-1");
    std::fs::write(&left_over, b"half").unwrap();

    let objects = LocalObjects::open(folder.path()).unwrap();
    assert_eq!(names(&objects, ""), ["data/a"]);
    assert_eq!(objects.read(&name("data/a")).unwrap().unwrap(), b"one");
    objects.remove_unfinished().unwrap();
    assert!(!left_over.exists());
    assert_eq!(std::fs::read_dir(folder.path().join(".tmp")).unwrap().count(), 0);
}

#[test]
fn a_local_store_that_cannot_write_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let objects = LocalObjects::open(folder.path()).unwrap();
    std::fs::write(folder.path().join("data"), b"a file where a folder belongs").unwrap();
    let refused = objects.create(&name("data/a"), b"one");
    assert!(matches!(
        refused,
        Err(ObjectError::Unavailable { act: Act::Create, .. }
            | ObjectError::Unknown { act: Act::Create, .. })
    ));
    assert_eq!(std::fs::read_dir(folder.path().join(".tmp")).unwrap().count(), 0);
}

#[test]
fn a_file_in_the_place_of_a_folder_is_no_empty_folder() {
    let folder = tempfile::tempdir().unwrap();
    let objects = LocalObjects::open(folder.path()).unwrap();
    objects.create(&name("a/1"), b"x").unwrap();
    std::fs::write(folder.path().join("b"), "no folder").unwrap();
    assert_eq!(names(&objects, "a/"), ["a/1"]);
    let refused = objects.list("b/").unwrap_err();
    assert!(matches!(refused, ObjectError::Unavailable { act: Act::List, .. }), "{refused:?}");
}

#[test]
fn a_fault_does_what_it_says() {
    let inner = Arc::new(MemoryObjects::default());
    let mut faults = [
        Some(Fault::Refused),
        Some(Fault::TimedOut),
        Some(Fault::AppliedThenLost),
        Some(Fault::TimedOut),
        None,
    ]
    .into_iter();
    let objects = FaultyObjects::new(Arc::clone(&inner), move |_, _| faults.next().flatten());
    let a = name("a");
    assert!(matches!(objects.create(&a, b""), Err(ObjectError::Unavailable { .. })));
    assert!(matches!(objects.create(&a, b""), Err(ObjectError::Unknown { .. })));
    assert_eq!(inner.read(&a).unwrap(), None);
    assert!(matches!(objects.create(&a, b""), Err(ObjectError::Unknown { .. })));
    assert!(inner.read(&a).unwrap().is_some());
    assert!(matches!(objects.read(&a), Err(ObjectError::Unavailable { .. })));
    assert!(objects.read(&a).unwrap().is_some());
}
