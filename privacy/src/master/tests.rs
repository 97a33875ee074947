use std::os::unix::fs::PermissionsExt;

use super::*;

const NONCE: [u8; NONCE_BYTES] = [5; NONCE_BYTES];

fn is_same_key(left: &MasterKey, right: &MasterKey) -> bool {
    right.unwrap(b"test", &left.wrap(b"test", b"secret", NONCE)).is_ok()
}

#[test]
fn a_new_key_file_is_private_and_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("master.key");
    let made = MasterKey::load_or_create(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(text.trim_end().len(), 64);
    assert!(is_same_key(&made, &MasterKey::load_or_create(&path).unwrap()));
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing else is left behind: {names:?}");
}

#[test]
fn two_folders_have_two_keys() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] =
        ["a", "b"].map(|name| MasterKey::load_or_create(&folder.path().join(name)).unwrap());
    assert!(!is_same_key(&one, &two));
}

#[test]
fn starters_that_race_get_one_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("master.key");
    let barrier = std::sync::Barrier::new(8);
    let keys: Vec<MasterKey> = std::thread::scope(|scope| {
        let load = || {
            barrier.wait();
            MasterKey::load_or_create(&path).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for key in &keys {
        assert!(is_same_key(&keys[0], key));
    }
}

#[test]
fn key_files_of_others_are_refused_with_what_to_do() {
    let digits = "0f".repeat(32);
    // (what the file holds, its mode, what the message says)
    let cases = [
        (digits.clone(), 0o640, Err("is open to others (mode 0640); run: chmod 600")),
        (digits.clone(), 0o604, Err("is open to others (mode 0604); run: chmod 600")),
        (String::new(), 0o600, Err("must hold 64 hexadecimal digits but is 0 bytes long")),
        ("0f".repeat(31), 0o600, Err("but is 62 bytes long; restore it from a backup")),
        ("0f".repeat(33), 0o600, Err("but is 66 bytes long")),
        (format!("{digits}\n\n\n"), 0o600, Err("but is 67 bytes long")),
        (format!("{digits}\n\n\nf"), 0o600, Err("but is 68 bytes long")),
        ("0g".repeat(32), 0o600, Err("but holds something else")),
        (digits.to_uppercase(), 0o600, Ok(())),
        (format!("{digits}\r\n"), 0o400, Ok(())),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (index, (text, mode, want)) in cases.into_iter().enumerate() {
        let path = folder.path().join(format!("key-{index}"));
        fs::write(&path, &text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let got = MasterKey::load_or_create(&path).map(drop).map_err(|error| error.to_string());
        match want {
            Ok(()) => assert_eq!(got, Ok(()), "{text:?}"),
            Err(part) => {
                let message = got.unwrap_err();
                assert!(message.contains(part), "{message}");
                assert!(message.contains(path.to_str().unwrap()), "{message}");
                assert!(!message.contains(&digits), "{message}");
            }
        }
    }
}

#[test]
fn a_folder_or_a_missing_parent_is_an_error_that_names_the_path() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("no").join("master.key")] {
        let error = MasterKey::load_or_create(&path).unwrap_err();
        assert!(matches!(error, MasterKeyError::Io { .. }), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_secret_unwraps_only_under_its_key_and_label() {
    let [ours, theirs] = [1, 2].map(|byte| MasterKey::from_bytes([byte; 32]));
    let wrapped = ours.wrap(b"purpose", b"secret", NONCE);
    assert_eq!(ours.unwrap(b"purpose", &wrapped).unwrap().as_slice(), b"secret");
    assert_eq!(ours.unwrap(b"other", &wrapped), Err(UnwrapError));
    assert_eq!(theirs.unwrap(b"purpose", &wrapped), Err(UnwrapError));
    for length in 0..wrapped.len() {
        assert_eq!(ours.unwrap(b"purpose", &wrapped[..length]), Err(UnwrapError), "{length}");
    }
}

#[test]
fn a_master_key_does_not_show_itself() {
    assert_eq!(format!("{:?}", MasterKey::from_bytes([0xab; 32])), "MasterKey(hidden)");
}
