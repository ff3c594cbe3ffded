//! The wrong wall clock of `tests/faults/clockskew.c`: how a test gives one to a process and makes it jump.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::support::powerloss::compile;

/// The wall clock of one process.
pub struct Clock {
    folder: TempDir,
    file: File,
}

impl Clock {
    /// A clock that is off by so many milliseconds.
    pub fn off_by(millis: i64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("off");
        fs::write(&path, [0; 8]).expect("a file can be written");
        let file = File::options().write(true).open(&path).expect("it was just written");
        let clock = Self { folder, file };
        clock.jump_to(millis);
        clock
    }

    /// Makes it jump.
    pub fn jump_to(&self, millis: i64) {
        // The file is mapped by the process, so it must not be cut.
        self.file.write_all_at(&(millis * 1_000).to_ne_bytes(), 0).expect("a file can be written");
    }

    /// The environment that gives it to a process.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let path = self.folder.path().join("off");
        [("LD_PRELOAD", library().display().to_string()), ("CLOCKSKEW_FILE", path.display().to_string())]
    }
}

/// The preload library, built once.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("clockskew.c", &["-shared", "-fPIC"], "libclockskew.so"))
}

#[cfg(test)]
mod laws {
    use std::process::Command;

    use super::*;

    fn now(clock: &Clock) -> i64 {
        let output = Command::new("date").arg("+%s").envs(clock.environment()).output().expect("date runs");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("seconds")
    }

    #[test]
    fn the_clock_of_a_process_is_off_and_jumps() {
        let clock = Clock::off_by(-7_200_000);
        let before = now(&Clock::off_by(0));
        assert!(now(&clock) >= before - 7_200, "it is two hours behind, and goes on");
        assert!(now(&clock) < now(&Clock::off_by(0)), "it is behind");
        clock.jump_to(7_200_000);
        assert!(now(&clock) >= before + 7_200);
    }
}
