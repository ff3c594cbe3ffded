//! The generated protocol in `src/proto/generated` is that of the protos in `proto/`.
//!
//! `build.rs` makes it. It is kept in the repository, so that no build of the service needs a compiler of protos.
//! `TALLYSTONE_BLESS=1 cargo test --workspace --test generated` renews it.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

#[test]
fn the_generated_protocol_is_that_of_the_protos() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/proto/generated");
    let (made, before) = (contents(Path::new(concat!(env!("OUT_DIR"), "/protocol"))), contents(&kept));
    if env::var_os("TALLYSTONE_BLESS").is_some() {
        bless(&kept, &made, &before);
        return;
    }
    let changed: Vec<&String> = made
        .iter()
        .filter(|(name, bytes)| before.get(*name) != Some(*bytes))
        .map(|(name, _)| name)
        .chain(before.keys().filter(|name| !made.contains_key(*name)))
        .collect();
    assert!(
        changed.is_empty(),
        "src/proto/generated is not that of proto/: {changed:?}; renew it with \
        TALLYSTONE_BLESS=1 cargo test --workspace --test generated"
    );
}

/// The files of a folder by name. None is in a folder below it.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.expect("the folder is read");
        (entry.file_name().into_string().expect("names are ASCII"), fs::read(entry.path()).expect("a file is read"))
    };
    entries.map(read).collect()
}

fn bless(kept: &Path, made: &BTreeMap<String, Vec<u8>>, before: &BTreeMap<String, Vec<u8>>) {
    fs::create_dir_all(kept).expect("the folder is made");
    for name in before.keys().filter(|name| !made.contains_key(*name)) {
        fs::remove_file(kept.join(name)).expect("a file is removed");
    }
    for (name, bytes) in made {
        fs::write(kept.join(name), bytes).expect("a file is written");
    }
}
