//! Crash tests: the server is stopped at random moments by kill -9 or a simulated power cut, under load with retries. After
//! the restart every acknowledged add must count exactly once, and every other add at most once.
//!
//! The k-th token of a counter adds 2^k, so a wrong sum identifies the lost or duplicated adds. Each add is sent three
//! times, while readers read the counters. All rounds use the same data directory, so a recovered store must survive the
//! next crash too.

mod backups;
mod changing;
mod checks;
mod cut_off_cache;
mod fast_on_redis;
mod fleet;
mod history;
mod ledger;
mod linear;
mod linear_on_redis;
pub mod load;
mod lost_answers;
mod not_rolled_up;
mod on_cassandra;
mod on_three_nodes;
mod paused_mid_request;
mod queues;
mod repeats;
mod rolling;
mod rules;
mod sessions;
mod skewed;
mod values;
mod watching;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::harness::{Launch, Server};
use crate::support::powerloss::{Moment, PowerCut};
use crate::support::usual_or_long;
use checks::CheckError;
use load::{FAULT_PAUSE, Plan, Records, WORKERS, WhenGone};

/// The kills that an add is safe from: those of a usual run, and of `--long`.
const KILLS: u32 = 15;
const KILLS_LONG: u32 = 500;

/// The same of power cuts. Few of them lose anything, so a usual run has more of them than of kills.
const POWER_CUTS: u32 = 24;
const POWER_CUTS_LONG: u32 = 300;

/// The number of rounds: `usual` for a normal run, `long` for `tests/run --long`.
fn rounds(usual: u32, long: u32) -> u32 {
    usual_or_long(usual, long)
}

#[test]
fn no_kill_loses_or_doubles_an_add() {
    let mut test = CrashTest::new("no_kill_loses_or_doubles_an_add");
    for round in 0..rounds(KILLS, KILLS_LONG) {
        test.round = round;
        if round % 5 == 4 {
            test.kill_in_recovery();
        }
        let mut server = Launch::dev(&test.data).start();
        assert!(test.check(&mut server), "the server answers, because it was not killed yet");
        let acknowledgements = 1 + test.rng.below(400);
        let plan = test.plan(acknowledgements);
        load::run(&server, &mut test.records, plan, |server| server.signal(libc::SIGKILL));
        server.kill();
    }
    test.finish();
}

#[test]
fn no_power_cut_loses_or_doubles_an_add() {
    let mut test = CrashTest::new("no_power_cut_loses_or_doubles_an_add");
    let mut cuts = 0;
    for round in 0..rounds(POWER_CUTS, POWER_CUTS_LONG) {
        test.round = round;
        let cut = test.power_cut();
        cuts += 1;
        let Some(mut server) = start_under(Launch::dev(&test.data), &cut) else {
            continue; // the power cut came before the server was ready
        };
        if !test.check(&mut server) {
            continue; // the power cut came during the checks
        }
        // A power cut at the n-th fsync triggers itself. If there are fewer fsyncs, the signal below triggers it.
        let on_signal = matches!(cut.moment, Moment::OnSignal);
        let acknowledgements = if on_signal { 1 + test.rng.below(400) } else { 5_000 };
        let plan = test.plan(acknowledgements);
        load::run(&server, &mut test.records, plan, |server| server.signal(libc::SIGUSR2));
        server.signal(libc::SIGUSR2); // the workers may have stopped before enough acknowledgements
        let status = server.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "round {round}: the power cut ends the process: {status}");
    }
    test.check_power_cuts(cuts);
    test.finish();
}

/// Starts a server with a scheduled power cut; returns `None` if the cut came before the server was ready.
fn start_under(mut launch: Launch, cut: &PowerCut) -> Option<Server> {
    for (name, value) in cut.environment() {
        launch = launch.env(name, &value);
    }
    match launch.try_start() {
        Ok(server) => Some(server),
        Err((status, _)) if status.signal() == Some(libc::SIGKILL) => None,
        Err((status, printed)) => panic!("the server ended with {status} before it was ready:\n{printed}"),
    }
}

/// One data directory, the record of its expected contents, and the random generator of this run.
struct CrashTest {
    folder: TempDir,
    data: PathBuf,
    records: Records,
    rng: Rng,
    round: u32,
}

impl CrashTest {
    fn new(test: &str) -> Self {
        let seed = std::env::var("TALLYSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| uuid::Uuid::now_v7().as_u64_pair().1);
        println!(
            "to replay: TALLYSTONE_SEED={seed} cargo test --test it {test} (the load's interleaving is not replayed)"
        );
        let folder = tempfile::Builder::new()
            .prefix("crash-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("the test directory can be created on disk (the system's temporary directory may be in memory)");
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("the data directory can be made");
        Self { folder, data, records: Records::default(), rng: Rng::new(seed), round: 0 }
    }

    fn plan(&mut self, acknowledgements: u64) -> Plan {
        Plan {
            seed: self.rng.below(u64::MAX),
            round: self.round,
            workers: WORKERS,
            acknowledgements,
            then: u64::MAX,
            when_gone: WhenGone::End,
            pause: FAULT_PAUSE,
        }
    }

    /// Resolves the unknown outcomes of the last crash, then compares the counters with the ledger. Returns false if the
    /// server was killed meanwhile.
    fn check(&mut self, server: &mut Server) -> bool {
        let seed = self.rng.below(u64::MAX);
        let wrong = match checks::settle_and_compare(server, &mut self.records, seed) {
            Ok(()) => return true,
            Err(CheckError::NoAnswer(_)) if server.wait().signal() == Some(libc::SIGKILL) => return false,
            Err(CheckError::Mismatch(wrong) | CheckError::NoAnswer(wrong)) => wrong,
        };
        self.fail(&format!("in round {}: {wrong}\n{}", self.round, server.printed()));
    }

    /// Starts a server and kills it during recovery, which must be crash-safe too.
    fn kill_in_recovery(&mut self) {
        let moment = Duration::from_micros(self.rng.below(150_000));
        Launch::dev(&self.data).start_and_kill_after(moment);
    }

    fn power_cut(&mut self) -> PowerCut {
        let moment = match self.rng.below(3) {
            0 => Moment::OnSignal,
            1 => Moment::BeforeSync(1 + u32::try_from(self.rng.below(300)).expect("below 300")),
            _ => Moment::AfterSync(1 + u32::try_from(self.rng.below(300)).expect("below 300")),
        };
        let seed = if self.rng.below(2) == 0 { 0 } else { self.rng.below(u64::MAX) };
        PowerCut { data: self.data.clone(), moment, seed, report: self.folder.path().join("report") }
    }

    /// Checks that every power cut wrote its report line, and that enough of them discarded unsynced pages.
    fn check_power_cuts(&self, cuts: usize) {
        let report = std::fs::read_to_string(self.folder.path().join("report")).expect("the report exists");
        assert_eq!(report.lines().count(), cuts, "every power cut wrote one report line");
        let effective = report.lines().filter(|line| !line.ends_with("pages 0")).count();
        println!("{effective} of {cuts} power cuts discarded unsynced pages");
        assert!(effective > cuts / 8, "enough power cuts discarded unsynced pages:\n{report}");
    }

    /// Checks every counter after the last round: with up-to-date reads, after the rollup, and after an orderly restart.
    fn finish(mut self) {
        self.records.ledger.mark_all_unchecked();
        let mut server = Launch::dev(&self.data).start();
        assert!(self.check(&mut server), "the server answers, because nothing kills it any more");
        if let Err(wrong) = checks::wait_until_rolled_up(&server, &self.records.ledger) {
            self.fail(&format!("rolled up: {wrong}\n{}", server.printed()));
        }
        let status = server.stop();
        assert!(status.success(), "an orderly stop: {status}");
        self.records.ledger.mark_all_unchecked();
        let mut server = Launch::dev(&self.data).start();
        assert!(self.check(&mut server), "the server answers after an orderly stop");
        assert!(self.records.ledger.applied() > 1_000, "too few adds: {}", self.records.ledger.applied());
    }

    /// Fails the test and keeps the data directory for debugging.
    fn fail(&mut self, message: &str) -> ! {
        self.folder.disable_cleanup(true);
        panic!("{message}\nthe directory is kept: {}", self.data.display());
    }
}

/// A small seeded random generator (xorshift).
pub struct Rng(u64);

impl Rng {
    /// A generator that repeats itself with its seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A random number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// A random index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("below a usize")
    }
}
