//! The power cut of `tests/faults/powerloss.c`: how a test builds and orders one, and what it does to files.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// When the power goes.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    /// When SIGUSR2 arrives.
    OnSignal,
    /// At this fsync, before it has made anything durable.
    BeforeSync(u32),
    /// At this fsync, after it has, but before its caller hears of it.
    AfterSync(u32),
}

/// A power cut, ordered through the environment of the process that suffers it.
#[derive(Clone, Debug)]
pub struct PowerCut {
    /// The data directory.
    pub data: PathBuf,
    /// When.
    pub moment: Moment,
    /// 0: nothing unsynced survives; else each unsynced page survives or not.
    pub seed: u64,
    /// Gets a line about the syncs and what was lost.
    pub report: PathBuf,
}

impl PowerCut {
    /// The environment that orders it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let data = self.data.canonicalize().expect("the data directory is there");
        let mut environment = vec![
            ("LD_PRELOAD", library().display().to_string()),
            ("POWERLOSS_DIR", data.display().to_string()),
            ("POWERLOSS_SEED", self.seed.to_string()),
            ("POWERLOSS_REPORT", self.report.display().to_string()),
        ];
        let at = match self.moment {
            Moment::OnSignal => None,
            Moment::BeforeSync(sync) => Some((sync, "before")),
            Moment::AfterSync(sync) => Some((sync, "after")),
        };
        if let Some((sync, moment)) = at {
            environment.push(("POWERLOSS_AT_SYNC", sync.to_string()));
            environment.push(("POWERLOSS_MOMENT", moment.to_owned()));
        }
        environment
    }
}

/// The preload library, built once.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("powerloss.c", &["-shared", "-fPIC"], "libpowerloss.so"))
}

/// Builds a file of `tests/faults`, into the target directory.
pub fn compile(source: &str, options: &[&str], output: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults").join(source);
    // Another process of the same target folder may be building it: rename into place, so that nobody loads half a file.
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(output);
    let fresh = output.with_extension(format!("new{}", std::process::id()));
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg("-o")
        .args([&fresh, &source])
        .args(["-ldl", "-lpthread"])
        .output()
        .expect("a C compiler is there; tests/run installs one");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::rename(&fresh, &output).expect("the library can be put into place");
    output
}

#[cfg(test)]
mod laws {
    use super::*;

    const SIGKILL: i32 = 9;

    /// Runs the probe until its power goes; answers the directory and the report.
    fn after_a_cut(moment: Moment, seed: u64, script: &[&str]) -> (tempfile::TempDir, String) {
        static PROBE: OnceLock<PathBuf> = OnceLock::new();
        let probe = PROBE.get_or_init(|| compile("probe.c", &[], "powerloss-probe"));
        let folder = tempfile::tempdir().expect("a temporary directory");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("a directory");
        let cut = PowerCut { data: data.clone(), moment, seed, report: folder.path().join("report") };
        let status = Command::new(probe).current_dir(&data).args(script).envs(cut.environment()).status();
        assert_eq!(status.expect("the probe runs").signal(), Some(SIGKILL), "the power went");
        let report = fs::read_to_string(&cut.report).expect("the cut reports");
        (folder, report)
    }

    fn content(folder: &tempfile::TempDir, name: &str) -> Option<String> {
        fs::read_to_string(folder.path().join("data").join(name)).ok()
    }

    #[test]
    fn what_was_synced_stays_and_what_was_not_goes() {
        let script = ["write:a:one", "sync:a", "write:a:two", "write:b:lost", "blow"];
        let (folder, report) = after_a_cut(Moment::OnSignal, 0, &script);
        assert_eq!(content(&folder, "a").as_deref(), Some("one"));
        assert_eq!(content(&folder, "b"), None, "neither it nor its directory was synced");
        assert!(report.starts_with("syncs 1 longest "), "{report}");
        assert!(report.ends_with(" ms files 1 vanished 1 pages 1\n"), "{report}");
    }

    #[test]
    fn a_synced_directory_keeps_the_name_but_not_the_content() {
        let (folder, _) = after_a_cut(Moment::OnSignal, 0, &["write:a:lost", "syncdir", "blow"]);
        assert_eq!(content(&folder, "a").as_deref(), Some(""));
    }

    #[test]
    fn a_rename_before_the_sync_shows_an_empty_file() {
        let (folder, _) = after_a_cut(Moment::OnSignal, 0, &["write:a.new:lost", "rename:a.new:a", "blow"]);
        assert_eq!((content(&folder, "a").as_deref(), content(&folder, "a.new")), (Some(""), None));
    }

    #[test]
    fn overwritten_and_cut_content_comes_back() {
        let script = ["fill:a:10000", "sync:a", "patch:a:5000:NEW", "cut:a:100", "blow"];
        let (folder, _) = after_a_cut(Moment::OnSignal, 0, &script);
        assert_eq!(content(&folder, "a"), Some("x".repeat(10_000)));
    }

    #[test]
    fn the_power_can_go_just_before_and_just_after_a_sync() {
        let script = ["write:a:one", "sync:a", "write:a:two", "sync:a", "write:a:three", "sync:a"];
        let (before, _) = after_a_cut(Moment::BeforeSync(2), 0, &script);
        assert_eq!(content(&before, "a").as_deref(), Some("one"));
        let (after, _) = after_a_cut(Moment::AfterSync(2), 0, &script);
        assert_eq!(content(&after, "a").as_deref(), Some("onetwo"));
    }

    #[test]
    fn with_a_seed_some_unsynced_pages_survive_the_same_ones_each_time() {
        let patches: Vec<String> = (0..90).map(|page| format!("patch:a:{}:NEW", page * 4096 + 7)).collect();
        let mut script = vec!["fill:a:400000", "sync:a"];
        script.extend(patches.iter().map(String::as_str));
        script.push("blow");
        let survivors = |seed| {
            let (folder, _) = after_a_cut(Moment::OnSignal, seed, &script);
            content(&folder, "a").expect("it was synced").matches("NEW").count()
        };
        let some = survivors(7);
        assert!((10..80).contains(&some), "about half of 90 survive, not {some}");
        assert_eq!(survivors(7), some);
        assert_eq!(survivors(0), 0);
    }
}
