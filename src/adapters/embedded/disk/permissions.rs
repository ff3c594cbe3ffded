//! Makes the data directory readable by its owner only: it holds payloads, names and tokens.
//!
//! New files get their mode from the umask of the server. This module tightens a directory that an earlier build or a
//! copy left open. Invariant: after `restrict_permissions`, no file below the directory is open to the group or to
//! others.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Mode of a directory.
const DIRECTORY: u32 = 0o700;
/// Mode of a file.
const FILE: u32 = 0o600;

/// Removes the permissions of group and others from a directory and everything below it. Cost: one `stat` per file.
///
/// Links are left alone: their targets may not belong to the store. The error names the path that cannot be changed.
pub fn restrict_permissions(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let named = |path: &Path| {
            let path = path.to_owned();
            move |error| (path, error)
        };
        tighten(&folder, &fs::metadata(&folder).map_err(named(&folder))?, DIRECTORY).map_err(named(&folder))?;
        for entry in fs::read_dir(&folder).map_err(named(&folder))? {
            let path = entry.map_err(named(&folder))?.path();
            let found = fs::symlink_metadata(&path).map_err(named(&path))?;
            if found.is_dir() {
                folders.push(path);
            } else if found.is_file() {
                tighten(&path, &found, FILE).map_err(named(&path))?;
            }
        }
    }
    Ok(())
}

fn tighten(path: &Path, found: &Metadata, mode: u32) -> io::Result<()> {
    let is_open = found.permissions().mode() & 0o077 != 0;
    if is_open { fs::set_permissions(path, Permissions::from_mode(mode)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_could_read_they_cannot_afterwards_and_links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (dir, outside) = (folder.path().join("data"), folder.path().join("outside"));
        fs::create_dir_all(dir.join("a/b")).expect("directories");
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        for file in [dir.join("x"), dir.join("a/b/y"), outside.clone()] {
            fs::write(&file, "payload").expect("a file");
            set(&file, 0o644);
        }
        std::os::unix::fs::symlink(&outside, dir.join("link")).expect("a link");
        for open in [&dir, &dir.join("a"), &dir.join("a/b")] {
            set(open, 0o755);
        }
        restrict_permissions(&dir).expect("they are ours");
        assert_eq!([dir.clone(), dir.join("a"), dir.join("a/b")].map(|path| mode(&path)), [0o700; 3]);
        assert_eq!([dir.join("x"), dir.join("a/b/y")].map(|path| mode(&path)), [0o600; 2]);
        assert_eq!(mode(&outside), 0o644);
    }
}
