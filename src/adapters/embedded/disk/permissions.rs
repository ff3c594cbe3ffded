//! Makes the data directory readable by its owner only: it holds payloads, names and tokens.
//!
//! New files get their mode from the umask of the server. This module tightens a directory that an earlier build or a
//! copy left open. A mounted volume may belong to another user, who shares it with the group of the server. Only its
//! owner can change it. So it is refused if people outside its group could enter it, and otherwise left as it is.
//! Invariant: after `refuse_open_volume` and `restrict_permissions`, no user outside the group of the directory reaches
//! a file below it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of a directory.
const DIRECTORY: u32 = 0o700;
/// Mode of a file.
const FILE: u32 = 0o600;

/// Permissions of people who neither own a file nor are in its group.
const OTHERS: u32 = 0o007;

/// Refuses a directory that this process does not own, if people outside its group could enter it. Returns its mode
/// then.
pub fn refuse_open_volume(dir: &Path) -> io::Result<Result<(), u32>> {
    let found = fs::metadata(dir)?;
    let mode = found.permissions().mode() & 0o7777;
    let is_open = !is_own(&found) && mode & OTHERS != 0;
    Ok(if is_open { Err(mode) } else { Ok(()) })
}

/// Removes the permissions of group and others from a directory and everything below it, as far as this process owns
/// it. Cost: one `stat` per file.
///
/// Links are left alone: their targets may not belong to the store. So is a folder of another user that this process
/// may not read, such as `lost+found`. The error names the path that cannot be changed.
pub fn restrict_permissions(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let named = |path: &Path| {
            let path = path.to_owned();
            move |error| (path, error)
        };
        let found = fs::metadata(&folder).map_err(named(&folder))?;
        tighten(&folder, &found, DIRECTORY).map_err(named(&folder))?;
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_own(&found) && folder != dir => {
                continue;
            }
            entries => entries.map_err(named(&folder))?,
        };
        for entry in entries {
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
    if is_open && is_own(found) { fs::set_permissions(path, Permissions::from_mode(mode)) } else { Ok(()) }
}

fn is_own(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
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
