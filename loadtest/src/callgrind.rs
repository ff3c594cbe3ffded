//! A process under callgrind, and the instructions that it has executed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Callgrind on a process that runs. Counts instructions of the process itself, in all threads, without those of the kernel.
pub struct Callgrind {
    pid: u32,
    /// The start of the names of its dumps.
    out: PathBuf,
    dumps: u32,
}

/// Fails where valgrind is not installed.
pub fn find() -> Result<()> {
    for program in ["valgrind", "callgrind_control"] {
        let found = Command::new(program).arg("--version").output();
        let is_there = found.is_ok_and(|answer| answer.status.success());
        ensure!(is_there, "no {program}: install it (apt-get install valgrind)");
    }
    Ok(())
}

impl Callgrind {
    /// The command that runs a program under callgrind, with dumps in a folder.
    pub fn command(program: &Path, folder: &Path) -> Command {
        let mut command = Command::new("valgrind");
        command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", out(folder).display())).arg(program);
        command
    }

    /// Callgrind on the process that the command above has started, with the same folder.
    pub fn of(pid: u32, folder: &Path) -> Self {
        Self { pid, out: out(folder), dumps: 0 }
    }

    /// Instructions since the last call of this, or since the start. Takes about a second.
    pub fn take(&mut self) -> Result<u64> {
        let asked = Command::new("callgrind_control").arg("--dump").arg(self.pid.to_string()).output();
        let asked = asked.context("no callgrind_control: it comes with valgrind")?;
        let said = String::from_utf8_lossy(&asked.stdout).into_owned() + &String::from_utf8_lossy(&asked.stderr);
        ensure!(asked.status.success(), "callgrind_control cannot reach the process {}: {said}", self.pid);
        self.dumps += 1;
        let path = PathBuf::from(format!("{}.{}", self.out.display(), self.dumps));
        let dump = fs::read_to_string(&path).with_context(|| format!("{} is not there: {said}", path.display()))?;
        // It lists every function of the program, which is of no use here.
        fs::remove_file(&path)?;
        total_of(&dump).with_context(|| format!("{} has no sum", path.display()))
    }
}

fn out(folder: &Path) -> PathBuf {
    folder.join("callgrind.out")
}

/// The sum of a dump: a line such as `totals: 123456`, one for each thread where threads are told apart.
fn total_of(dump: &str) -> Option<u64> {
    let sums = |word: &str| {
        let numbers = dump.lines().filter_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse().ok());
        numbers.reduce(|sum: u64, number| sum + number)
    };
    sums("totals:").or_else(|| sums("summary:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_has_its_sum_at_its_end() {
        assert_eq!(total_of("events: Ir\nfn=(1)\n16 400\n\ntotals: 123456\n"), Some(123_456));
        assert_eq!(total_of("events: Ir\nsummary: 77\n\n16 400\n"), Some(77));
        assert_eq!(total_of("totals: 5\npart: 2\ntotals: 6\n"), Some(11));
        for broken in ["", "totals:", "totals: x", "16 400"] {
            assert_eq!(total_of(broken), None, "{broken:?}");
        }
    }
}
