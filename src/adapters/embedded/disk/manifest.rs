//! The list of the store's keyspaces: a small text file with a checksum.
//!
//! The store library treats a keyspace without its marker file as unfinished and deletes it. It treats a missing folder
//! as a keyspace that never existed. This list detects both. It is written after a keyspace was created and before its
//! first row, and before a keyspace is deleted. So every listed keyspace exists completely, and an unlisted one holds
//! no data that counts.
//!
//! ```text
//! tallystone keyspaces 1
//! state live
//! 3 events.1.1763596800
//! checksum 9f86d081884c7d65
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

/// Format of the data directory, and the newest that this release reads.
pub const FORMAT: u32 = 1;
const HEAD: &str = "tallystone keyspaces 1";
const NAME: &str = "tallystone keyspaces ";

/// The reason why a manifest cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManifestError {
    /// The contents differ from those written.
    Damaged(String),
    /// A newer release wrote the manifest, in this format.
    Newer(u32),
}

impl<T: Into<String>> From<T> for ManifestError {
    fn from(detail: T) -> Self {
        Self::Damaged(detail.into())
    }
}

/// The list of keyspaces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// Whether the store was created completely.
    pub is_initialized: bool,
    /// Names by the numbers of the store library.
    pub keyspaces: BTreeMap<u64, String>,
}

impl Manifest {
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("keyspaces")
    }

    /// Reads the manifest; `None` if there is no file.
    pub fn read(dir: &Path) -> io::Result<Option<Result<Self, ManifestError>>> {
        match fs::read_to_string(Self::path(dir)) {
            Ok(text) => Ok(Some(Self::parse(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(Err("not text".into()))),
            Err(error) => Err(error),
        }
    }

    /// Replaces the manifest, durably.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let next = dir.join("keyspaces.next");
        let mut file = File::create(&next)?;
        file.write_all(self.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&next, Self::path(dir))?;
        sync_folder(dir)
    }

    fn text(&self) -> String {
        let state = if self.is_initialized { "live" } else { "unfinished" };
        let rows: String = self.keyspaces.iter().map(|(id, name)| format!("{id} {name}\n")).collect();
        let body = format!("{HEAD}\nstate {state}\n{rows}");
        let checksum = xxh3_64(body.as_bytes());
        format!("{body}checksum {checksum:016x}\n")
    }

    fn parse(text: &str) -> Result<Self, ManifestError> {
        // Checked first, because only the release of a format knows where its checksum is.
        let format = text.lines().next().and_then(|line| line.strip_prefix(NAME)?.parse().ok());
        if let Some(newer) = format.filter(|format| *format > FORMAT) {
            return Err(ManifestError::Newer(newer));
        }
        let at = text.rfind("checksum ").ok_or("no checksum")?;
        let (body, checksum) = text.split_at(at);
        if checksum != format!("checksum {:016x}\n", xxh3_64(body.as_bytes())) {
            return Err("wrong checksum".into());
        }
        let mut lines = body.lines();
        if lines.next() != Some(HEAD) {
            return Err(format!("does not begin with {HEAD:?}").into());
        }
        let live = match lines.next() {
            Some("state live") => true,
            Some("state unfinished") => false,
            Some(_) | None => return Err("no state".into()),
        };
        let row = |line: &str| {
            let (id, name) = line.split_once(' ')?;
            Some((id.parse().ok()?, name.to_owned()))
        };
        let keyspaces =
            lines.map(|line| row(line).ok_or_else(|| format!("line {line:?}"))).collect::<Result<_, _>>()?;
        Ok(Self { is_initialized: live, keyspaces })
    }
}

/// Makes the entries of a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let keyspaces = [(1, "meta".to_owned()), (12, "events.1.-10".to_owned())];
        Manifest { is_initialized: true, keyspaces: keyspaces.into() }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(Manifest::read(dir.path()).expect("readable"), None);
        for manifest in [Manifest::default(), manifest()] {
            manifest.write(dir.path()).expect("writable");
            assert_eq!(Manifest::read(dir.path()).expect("readable"), Some(Ok(manifest)));
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let newer = manifest().text().replacen(HEAD, "tallystone keyspaces 2", 1);
        assert_eq!(Manifest::parse(&newer), Err(ManifestError::Newer(2)));
        let older = manifest().text().replacen(HEAD, "tallystone keyspaces 0", 1);
        assert!(matches!(Manifest::parse(&older), Err(ManifestError::Damaged(_))));
    }

    #[test]
    fn a_flipped_or_missing_byte_is_seen() {
        let text = manifest().text();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let flipped = String::from_utf8(bytes).expect("still text");
            assert!(Manifest::parse(&flipped).is_err(), "{flipped}");
            assert!(Manifest::parse(&text[..at]).is_err(), "cut at {at}");
        }
    }
}
