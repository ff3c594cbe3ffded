//! A damaged directory either refuses to open and says where, or serves exactly what was acknowledged.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{add, add_to_many, count, data_directory};
use crate::support::harness::Launch;

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip,
    Truncate,
    Remove,
}

#[test]
fn damage_is_refused_or_harmless_never_a_wrong_count() {
    let (folder, data) = data_directory();
    let server = Launch::dev(&data).start();
    // Enough for table files beside the journal.
    for _ in 0..80 {
        assert_eq!(add_to_many(&server, 0..1_000, 256), 1_000);
    }
    for _ in 0..10 {
        assert_eq!(add(&server, "views", 3).status, 200);
    }
    server.kill();

    let files = files_with_data(&data);
    let files =
        if std::env::var_os("TALLYSTONE_LONG_TESTS").is_some() { files } else { one_or_two_of_each_kind(files) };
    assert!(files.len() >= 8, "there is something to damage: {files:?}");
    let mut refusals = 0;
    for file in &files {
        for damage in [Damage::Flip, Damage::Truncate, Damage::Remove] {
            let copy = folder.path().join("copy");
            copy_all(&data, &copy);
            inflict(damage, &copy.join(file));
            refusals += u32::from(is_refused(&copy, &format!("{damage:?} of {}", file.display())));
            fs::remove_dir_all(&copy).expect("the copy can go");
        }
    }
    assert!(refusals >= 3, "damage to what counts is noticed: {refusals} refusals over {files:?}");
}

/// Starts on the copy; true if it refuses, naming a place; fails if it serves anything wrong.
fn is_refused(copy: &Path, what: &str) -> bool {
    match Launch::dev(copy).try_start() {
        Err((status, printed)) => {
            assert!(!status.success(), "{what}: {status}");
            assert!(printed.contains("copy"), "{what}: the refusal names a place:\n{printed}");
            assert!(!printed.contains("panicked"), "{what}: a refusal is no panic:\n{printed}");
            true
        }
        Ok(server) => {
            let answers: Vec<(String, Result<i64, String>, i64)> = [("views", 30), ("many/0", 80), ("many/999", 80)]
                .map(|(counter, wanted)| (counter.to_owned(), count(&server, counter), wanted))
                .into();
            for (counter, read, wanted) in answers {
                // Damage that is found when a block is read may also be told by the read.
                if let Ok(read) = read {
                    assert_eq!(read, wanted, "{what}: {counter} is wrong without a word\n{}", server.printed());
                }
            }
            false
        }
    }
}

/// The files that hold data, from the data directory.
fn files_with_data(data: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the directory can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::metadata(&path).expect("a file").blocks() > 0 {
                found.push(path.strip_prefix(data).expect("below the data directory").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Names that differ in digits only are of one kind; of each the first and the last stay.
fn one_or_two_of_each_kind(files: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut kinds: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files {
        let kind = file.to_string_lossy().replace(|character: char| character.is_ascii_digit(), "");
        kinds.entry(kind).or_default().push(file);
    }
    kinds.into_values().flat_map(|mut files| [files.swap_remove(0)].into_iter().chain(files.pop())).collect()
}

fn inflict(damage: Damage, file: &Path) {
    let about = fs::metadata(file).expect("the file was copied");
    let handle = fs::File::options().read(true).write(true).open(file).expect("the file can be changed");
    // Preset files are mostly holes: aim at what was written.
    let written = (about.blocks() * 512).min(about.len());
    match damage {
        Damage::Flip => {
            let at = written / 2;
            let mut byte = [0];
            handle.read_exact_at(&mut byte, at).expect("inside the file");
            handle.write_all_at(&[byte[0] ^ 0x10], at).expect("inside the file");
        }
        Damage::Truncate => handle.set_len(written / 2).expect("it can be cut"),
        Damage::Remove => fs::remove_file(file).expect("it can be removed"),
    }
}

/// Copies a directory, holes as holes.
fn copy_all(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").args(["-r", "--sparse=always"]).args([from, to]).status();
    assert!(done.expect("cp is there").success(), "the directory can be copied");
}
