//! Killed at any moment, by kill -9 and by a power cut, under load with retries: every acknowledged add counts exactly
//! once after the restart, and no other one more than once.
//!
//! Token k of a counter adds 2^k, so a wrong sum names what was lost or doubled. Each add is sent three times, and readers
//! look at the counters meanwhile. One data directory lives through all rounds, so what a crash leaves behind has to bear
//! the next one.

mod asking;
mod backups;
mod changing;
mod cut_off_cache;
mod history;
mod in_between;
mod linear;
mod load;
mod lost_answers;
mod on_a_fleet;
mod on_cassandra;
mod on_three_nodes;
mod queues;
mod repeats;
mod rolling;
mod sessions;
mod skewed;
mod tagged;
mod unrolled;
mod values;
mod watching;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::harness::{Launch, Server};
use crate::support::powerloss::{Moment, PowerCut};
use asking::Broken;
use load::{Plan, Records, WORKERS, WhenGone};

/// Rounds of a run: enough for every change, and many more for `tests/run --long`.
fn rounds(usual: u32, long: u32) -> u32 {
    if std::env::var_os("TALLYSTONE_LONG_TESTS").is_some() { long } else { usual }
}

#[test]
fn no_kill_loses_or_doubles_an_add() {
    let mut world = World::new("no_kill_loses_or_doubles_an_add");
    for round in 0..rounds(50, 500) {
        world.round = round;
        if round % 5 == 4 {
            world.kill_in_recovery();
        }
        let mut server = Launch::dev(&world.data).start();
        assert!(world.checked(&mut server), "nobody has killed it yet");
        let acknowledgements = 1 + world.chance.below(400);
        let plan = world.plan(acknowledgements);
        load::run(&server, &mut world.records, plan, |server| server.signal(libc::SIGKILL));
        server.kill();
    }
    world.finish();
}

#[test]
fn no_power_cut_loses_or_doubles_an_add() {
    let mut world = World::new("no_power_cut_loses_or_doubles_an_add");
    let mut cuts = 0;
    for round in 0..rounds(30, 300) {
        world.round = round;
        let cut = world.power_cut();
        cuts += 1;
        let Some(mut server) = start_under(&world.data, &cut) else {
            continue; // the power went before it was ready
        };
        if !world.checked(&mut server) {
            continue; // the power went while we asked
        }
        // A cut at some fsync comes by itself; if there are not as many, it comes by signal in the end.
        let on_signal = matches!(cut.moment, Moment::OnSignal);
        let acknowledgements = if on_signal { 1 + world.chance.below(400) } else { 5_000 };
        let plan = world.plan(acknowledgements);
        load::run(&server, &mut world.records, plan, |server| server.signal(libc::SIGUSR2));
        server.signal(libc::SIGUSR2); // the workers may have given up before there were enough answers
        let status = server.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "round {round}: the power went: {status}");
    }
    world.hold_cuts(cuts);
    world.finish();
}

/// The server under a power cut; none if it went before the server was ready.
fn start_under(data: &Path, cut: &PowerCut) -> Option<Server> {
    let mut launch = Launch::dev(data);
    for (name, value) in cut.environment() {
        launch = launch.env(name, &value);
    }
    match launch.try_start() {
        Ok(server) => Some(server),
        Err((status, _)) if status.signal() == Some(libc::SIGKILL) => None,
        Err((status, printed)) => panic!("the server ended with {status} before it was ready:\n{printed}"),
    }
}

/// One data directory, what it must hold, and the chance of this run.
struct World {
    folder: TempDir,
    data: PathBuf,
    records: Records,
    chance: Chance,
    round: u32,
}

impl World {
    fn new(test: &str) -> Self {
        let seed = std::env::var("TALLYSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| uuid::Uuid::now_v7().as_u64_pair().1);
        println!(
            "to replay: TALLYSTONE_SEED={seed} cargo test --test it {test} (the load's interleaving is not replayed)"
        );
        let folder = tempfile::Builder::new()
            .prefix("crash-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a directory on a disk, because a temporary one may be memory");
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("the data directory can be made");
        Self { folder, data, records: Records::default(), chance: Chance::new(seed), round: 0 }
    }

    fn plan(&mut self, acknowledgements: u64) -> Plan {
        Plan {
            seed: self.chance.below(u64::MAX),
            round: self.round,
            workers: WORKERS,
            acknowledgements,
            then: u64::MAX,
            when_gone: WhenGone::End,
        }
    }

    /// Settles what the last crash left open, then compares counters with the ledger. False: the server is gone.
    fn checked(&mut self, server: &mut Server) -> bool {
        let seed = self.chance.below(u64::MAX);
        let wrong = match asking::settle_and_compare(server, &mut self.records, seed) {
            Ok(()) => return true,
            Err(Broken::NoAnswer(_)) if server.wait().signal() == Some(libc::SIGKILL) => return false,
            Err(Broken::Wrong(wrong) | Broken::NoAnswer(wrong)) => wrong,
        };
        self.fail(&format!("in round {}: {wrong}\n{}", self.round, server.printed()));
    }

    /// Starts and kills before it is ready: the recovery has to survive being killed as well.
    fn kill_in_recovery(&mut self) {
        let moment = Duration::from_micros(self.chance.below(150_000));
        Launch::dev(&self.data).start_and_kill_after(moment);
    }

    fn power_cut(&mut self) -> PowerCut {
        let moment = match self.chance.below(3) {
            0 => Moment::OnSignal,
            1 => Moment::BeforeSync(1 + u32::try_from(self.chance.below(300)).expect("below 300")),
            _ => Moment::AfterSync(1 + u32::try_from(self.chance.below(300)).expect("below 300")),
        };
        let seed = if self.chance.below(2) == 0 { 0 } else { self.chance.below(u64::MAX) };
        PowerCut { data: self.data.clone(), moment, seed, report: self.folder.path().join("report") }
    }

    /// Every cut has said what it took, and enough of them took pages away that no sync had kept.
    fn hold_cuts(&self, cuts: usize) {
        let report = std::fs::read_to_string(self.folder.path().join("report")).expect("the cuts report");
        assert_eq!(report.lines().count(), cuts, "every cut says what it took");
        let took = report.lines().filter(|line| !line.ends_with("pages 0")).count();
        println!("{took} of {cuts} cuts took unsynced pages away");
        assert!(took > cuts / 8, "cuts take unsynced pages away:\n{report}");
    }

    /// After the last round: every counter, up to date, then rolled up, then after an orderly stop.
    fn finish(mut self) {
        self.records.ledger.look_at_all();
        let mut server = Launch::dev(&self.data).start();
        assert!(self.checked(&mut server), "nobody kills it any more");
        if let Err(wrong) = asking::wait_until_rolled_up(&server, &self.records.ledger) {
            self.fail(&format!("rolled up: {wrong}\n{}", server.printed()));
        }
        let status = server.stop();
        assert!(status.success(), "an orderly stop: {status}");
        self.records.ledger.look_at_all();
        let mut server = Launch::dev(&self.data).start();
        assert!(self.checked(&mut server), "nobody kills it any more");
        assert!(self.records.ledger.applied() > 1_000, "the rounds had load: {}", self.records.ledger.applied());
    }

    /// Fails and keeps the directory for whoever looks into it.
    fn fail(&mut self, message: &str) -> ! {
        self.folder.disable_cleanup(true);
        panic!("{message}\nthe directory is kept: {}", self.data.display());
    }
}

/// Small seeded chance.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// A place among so many.
    fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("below a usize")
    }
}
