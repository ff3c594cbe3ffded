//! Damage to the files of the embedded store: a flipped byte, a cut or a missing file either refuses to open and names
//! the place, or has changed nothing that can be read.
//!
//! One store has tables in every keyspace, rolls, a clear, a catalog: each of its files is flipped at several places, cut
//! and removed. The other one has two journals, both needed. After each damage the store is opened as it is.

mod queues;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::embedded::{self, Embedded, OpenError, Options};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory::FastTable;
use tallystone::domain::counter::{
    Change, Counter, CounterName, DatasetId, Event, EventId, EventKey, NamespaceId, NamespaceName, Provenance,
};
use tallystone::domain::namespace::{Dataset, Namespace, NamespaceSpec};
use tallystone::domain::rollup::{Checkpoint, FoldRules, SliceStatus, TimeSlice, fold};
use tallystone::domain::time::Timestamp;
use tallystone::ports::{NamespaceChange, NamespaceRecord, NewEvent, RollWrite, ScanOrder, ScanRange, Stores};
use tempfile::TempDir;

const DATASET: DatasetId = DatasetId(1);
const NAMESPACE: NamespaceId = NamespaceId(1);
const SLICE: Duration = Duration::from_secs(3_600);
const COUNTERS: usize = 40;

fn options(dir: &Path) -> Options {
    Options { reserve_bytes: 0, block_bytes: 1 << 20, memtable_bytes: 1 << 14, ..Options::new(dir) }
}

fn open(dir: &Path) -> Result<(Embedded, Stores), OpenError> {
    open_as(options(dir))
}

fn open_as(options: Options) -> Result<(Embedded, Stores), OpenError> {
    let store = embedded::open(options)?;
    let stores = store.stores(Arc::new(FastTable::new(Arc::new(ManualClock::at(Timestamp::MIN)), 1 << 20)));
    Ok((store, stores))
}

fn counter(at: usize) -> Counter {
    Counter::new(NAMESPACE, CounterName::new(&format!("counter-{at}")).expect("a valid name"))
}

fn add(at: usize, micros: i64) -> NewEvent {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&micros.to_be_bytes());
    let key = EventKey { time: Timestamp::from_micros(micros), id: EventId::Uuid(id) };
    let provenance = Provenance::new(&format!("{at:0>256}")).expect("256 bytes");
    NewEvent { counter: counter(at), event: Event { key, change: Change::Add(1), provenance } }
}

async fn append(stores: &Stores, events: Vec<NewEvent>) {
    for outcome in stores.log.append(DATASET, events, Box::new(())).await {
        outcome.expect("the append is taken");
    }
}

async fn roll(stores: &Stores, at: usize, to: Timestamp) {
    let range = ScanRange { after: Timestamp::MIN, to, order: ScanOrder::OldestFirst, beyond: None, limit: usize::MAX };
    let events = stores.log.scan(DATASET, &counter(at), range).await.expect("readable");
    let rules = FoldRules::constant(Duration::from_secs(60), None, vec![10]);
    let rolled = fold(Checkpoint::empty(Timestamp::MIN), &events, to, &rules);
    let write = RollWrite {
        counter: counter(at),
        checkpoint: rolled.checkpoint,
        finished_buckets: rolled.finished_buckets,
        finished_steps: rolled.finished_steps,
    };
    stores.rollups.put(DATASET, vec![write]).await.expect("the roll is taken");
}

fn record(version: u64) -> NamespaceRecord {
    let name = NamespaceName::new("shop").expect("a valid name");
    let spec = NamespaceSpec::with_defaults(name.clone());
    let time = Timestamp::from_secs(1);
    NamespaceRecord {
        expected_version: None,
        entry: Some(Namespace {
            id: NAMESPACE,
            dataset_id: DATASET,
            version,
            spec: spec.clone(),
            created: time,
            updated: time,
            made_by: None,
        }),
        companion: Some(Dataset {
            id: DATASET,
            name: spec.storage.dataset.clone(),
            settings: spec.dataset,
            cluster: None,
        }),
        change: NamespaceChange {
            id: NAMESPACE,
            name,
            version,
            time,
            actor: "a test".to_owned(),
            reason: String::new(),
            differences: Vec::new(),
            spec: Some(spec),
            deletion: (),
        },
    }
}

async fn create_namespace(stores: &Stores) {
    stores.catalog.commit(record(1)).await.expect("the namespace is made");
}

/// Fills a store: every keyspace gets tables.
async fn fill(dir: &Path) {
    let (store, stores) = open(dir).expect("a new store opens");
    create_namespace(&stores).await;
    make_slices(&stores).await;
    for page in 0..20 {
        append(&stores, (0..COUNTERS).map(|at| add(at, 100_000 * page + at as i64)).collect()).await;
    }
    let clear = EventKey { time: Timestamp::from_micros(2_000_000), id: EventId::text("c") };
    let clear = Event { key: clear, change: Change::Clear, provenance: Provenance::default() };
    append(&stores, vec![NewEvent { counter: counter(0), event: clear }, add(1, 3_600_000_001)]).await;
    stores.progress.publish(DATASET, Timestamp::from_millis(200)).await.expect("the limit is taken");
    for at in 0..COUNTERS {
        roll(&stores, at, Timestamp::from_millis(100_000)).await;
    }
    stores.touches.put_watermarks(DATASET, vec![(3, Timestamp::from_millis(100))]).await.expect("taken");
    append(&stores, vec![add(2, 3_600_000_002)]).await;
    queues::fill(&store).await;
    store.close();
}

async fn make_slices(stores: &Stores) {
    for slice in 0..2 {
        let start = Timestamp::from_secs(0) + SLICE * slice;
        let slice = TimeSlice {
            dataset: DATASET,
            start,
            end: start + SLICE,
            status: SliceStatus::Open,
            versions: [(NAMESPACE, 1)].into(),
        };
        stores.slices.create(slice).await.expect("the slice is made");
    }
}

/// Fills a store until its journal is sealed and a second one begun. The rows of the first are still needed: only the
/// history of namespaces, which fills it quickly, is in tables.
async fn fill_two_journals(dir: &Path) {
    // The bound keeps the store from doing away with the first journal as soon as it is sealed.
    let roomy = Options { memtable_bytes: 16 << 20, journal_bytes: 1 << 30, ..options(dir) };
    let (store, stores) = open_as(roomy).expect("a new store opens");
    create_namespace(&stores).await;
    make_slices(&stores).await;
    append(&stores, vec![add(1, 1), add(2, 2)]).await;
    let mut version = 1;
    while journals(dir).len() < 2 {
        assert!(version < 300, "the journal is sealed at last");
        let mut record = record(version + 1);
        record.expected_version = Some(version);
        record.companion = None;
        record.change.reason = noise(1 << 20, version);
        stores.catalog.commit(record).await.expect("the change is taken");
        version += 1;
    }
    append(&stores, vec![add(1, 3), add(3, 4)]).await;
    append(&stores, vec![add(1, 5)]).await;
    store.close();
}

/// Text that cannot be compressed by much.
fn noise(bytes: usize, seed: u64) -> String {
    let hashes = (0..).map(|at: u64| format!("{:016x}", xxhash(&format!("{seed} {at}"))));
    hashes.take(bytes / 16).collect()
}

fn journals(dir: &Path) -> Vec<PathBuf> {
    let mut files = files(dir);
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jnl"));
    files
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("below it"));
        fs::create_dir_all(target.parent().expect("a folder")).expect("writable");
        fs::copy(&file, target).expect("writable");
    }
}

/// Whether the store needs a file: old version files lie about until they are swept.
fn is_in_use(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).expect("text");
    let Some(version) = name.strip_prefix('v').and_then(|version| version.parse::<u64>().ok()) else { return true };
    let current = fs::read(file.with_file_name("current")).expect("readable");
    current[..8] == version.to_le_bytes()
}

/// Everything that can be read, as text; long parts as their hash.
async fn content(store: &Embedded, stores: &Stores) -> String {
    let mut text = String::new();
    let mut show = |what: &str, value: &dyn std::fmt::Debug| {
        let value = format!("{value:?}");
        let hash = xxhash(&value);
        writeln!(text, "{what} {} {hash:x}", value.len()).expect("a string takes it");
    };
    let slices = stores.slices.list(DATASET).await.expect("readable");
    for slice in &slices {
        let rows = stores.log.scan_slice(DATASET, slice.start, None, usize::MAX).await.expect("readable");
        show("rows", &rows);
    }
    show("slices", &slices);
    for at in 0..COUNTERS {
        show("row", &stores.rollups.read(DATASET, &counter(at)).await.expect("readable"));
        let (from, to) = (Timestamp::MIN, Timestamp::MAX);
        show("buckets", &stores.rollups.buckets(DATASET, &counter(at), from, to).await.expect("readable"));
        show("series", &stores.rollups.series(&counter(at), 10, from, to).await.expect("readable"));
    }
    for shard in 0..64 {
        let touched = stores.touches.touched(DATASET, shard, Timestamp::MIN, Timestamp::MAX, None, usize::MAX).await;
        show("touched", &touched.expect("readable"));
    }
    show("names", &stores.rollups.names(NAMESPACE, "", None, usize::MAX).await.expect("readable"));
    show("watermarks", &stores.touches.watermarks(DATASET).await.expect("readable"));
    show("limit", &stores.progress.limit(DATASET).await.expect("readable"));
    show("catalog", &stores.catalog.load().await.expect("readable"));
    let name = NamespaceName::new("shop").expect("a valid name");
    show("history", &stores.catalog.history(&name, None, 9).await.expect("readable"));
    show("version", &stores.catalog.version_of(NAMESPACE, 1).await.expect("readable"));
    for (what, value) in queues::content(store).await {
        show(what, &value);
    }
    text
}

fn xxhash(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

/// One damage to one file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip { at: u64 },
    Cut { to: u64 },
    Remove,
}

impl Damage {
    /// A few of each kind for a file.
    fn of(file: &Path) -> Vec<Self> {
        let length = fs::metadata(file).expect("it is there").len();
        let used = used_length(file);
        let mut places: Vec<u64> = vec![0, used / 3, used.saturating_sub(1), length.saturating_sub(1)];
        places.retain(|at| *at < length);
        places.sort_unstable();
        places.dedup();
        let flips = places.iter().map(|at| Self::Flip { at: *at });
        let mut cuts = vec![0, used.saturating_sub(1)];
        cuts.retain(|to| *to < length);
        cuts.dedup();
        flips.chain(cuts.into_iter().map(|to| Self::Cut { to })).chain([Self::Remove]).collect()
    }

    fn apply(self, file: &Path) {
        match self {
            Self::Flip { at } => {
                let mut bytes = fs::read(file).expect("readable");
                bytes[usize::try_from(at).expect("a short file")] ^= 0x10;
                fs::write(file, bytes).expect("writable");
            }
            Self::Cut { to } => {
                fs::OpenOptions::new().write(true).open(file).and_then(|file| file.set_len(to)).expect("writable");
            }
            Self::Remove => fs::remove_file(file).expect("writable"),
        }
    }
}

/// The length up to the last byte that is not zero: a journal is made long in advance.
fn used_length(file: &Path) -> u64 {
    let bytes = fs::read(file).expect("readable");
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1)
}

/// A store that is damaged again and again.
struct Bench {
    pristine: TempDir,
    work: TempDir,
    expected: String,
    refused: Vec<String>,
    harmless: Vec<String>,
}

impl Bench {
    async fn new(pristine: TempDir) -> Self {
        let work = tempfile::tempdir().expect("a temporary folder");
        let mut bench = Self { pristine, work, expected: String::new(), refused: Vec::new(), harmless: Vec::new() };
        bench.restore();
        let (store, stores) = open(&bench.dir()).expect("a copy opens");
        bench.expected = content(&store, &stores).await;
        drop(stores);
        drop(store);
        bench.restore();
        bench
    }

    fn dir(&self) -> PathBuf {
        self.work.path().join("data")
    }

    fn restore(&self) {
        // It is not there the first time.
        let _ = fs::remove_dir_all(self.dir());
        copy(self.pristine.path(), &self.dir());
    }

    /// Damages a file of a whole store and opens it.
    async fn try_out(&mut self, file: &Path, damage: Damage) {
        let dir = self.dir();
        let name = file.strip_prefix(self.pristine.path()).expect("below it");
        damage.apply(&dir.join(name));
        let what = format!("{damage:?} of {}", name.display());
        let harmless = self.harmless.len();
        match open(&dir) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(dir.to_str().expect("text")), "{what}: {text}");
                if let Damage::Flip { .. } = damage {
                    // A `current` that names another version of its folder leads to a file that is not there.
                    let place = if name.ends_with("current") { name.parent() } else { Some(name) };
                    let place = place.and_then(Path::to_str).expect("text");
                    assert!(text.contains(place), "it names the file that was flipped: {what}: {text}");
                }
                self.refused.push(format!("{what}: {text}"));
                // Nothing else was changed by a store that did not open.
                fs::copy(file, dir.join(name)).expect("writable");
            }
            Ok((store, stores)) => {
                assert_eq!(content(&store, &stores).await, self.expected, "{what} went unseen");
                self.harmless.push(what);
            }
        }
        if self.harmless.len() > harmless {
            self.restore();
        }
    }

    fn report(&self) {
        println!("refused:\n{}\nharmless:\n{}", self.refused.join("\n"), self.harmless.join("\n"));
    }
}

#[tokio::test]
async fn any_damage_refuses_to_open_or_has_changed_nothing() {
    let pristine = tempfile::tempdir().expect("a temporary folder");
    fill(pristine.path()).await;
    let mut bench = Bench::new(pristine).await;
    let mut files = files(bench.pristine.path());
    files.retain(|file| is_in_use(file));
    for file in files {
        for damage in Damage::of(&file) {
            bench.try_out(&file, damage).await;
        }
    }
    bench.report();
    let tables = bench.refused.iter().filter(|refused| refused.contains("/tables/")).count();
    assert!(tables > 10, "tables were damaged too");
}

/// Rows of events by slice, or what kept them from being read.
async fn events(stores: &Stores) -> Vec<Result<String, String>> {
    let mut events = Vec::new();
    for slice in stores.slices.list(DATASET).await.expect("readable") {
        let rows = stores.log.scan_slice(DATASET, slice.start, None, usize::MAX).await;
        events.push(rows.map(|rows| format!("{rows:?}")).map_err(|error| error.to_string()));
    }
    events
}

/// A store with more table files than a start compares with their checksums.
#[tokio::test]
async fn a_damaged_table_that_no_start_has_read_is_found_by_the_read_that_meets_it() {
    let pristine = tempfile::tempdir().expect("a temporary folder");
    fill(pristine.path()).await;
    let bench = Bench::new(pristine).await;
    let dir = bench.dir();
    let unread = || Options { verify_bytes: 0, tail_bytes: 0, ..options(&dir) };
    let (store, stores) = open_as(unread()).expect("it opens");
    let expected = events(&stores).await;
    assert!(expected.iter().all(Result::is_ok), "{expected:?}");
    drop((stores, store));
    bench.restore();
    let mut found = 0;
    let tables = files(bench.pristine.path()).into_iter().filter(|file| file.to_string_lossy().contains("/tables/"));
    for file in tables {
        let name = file.strip_prefix(bench.pristine.path()).expect("below it");
        Damage::Flip { at: used_length(&file) / 8 }.apply(&dir.join(name));
        if let Ok((store, stores)) = open_as(unread()) {
            for (read, expected) in events(&stores).await.into_iter().zip(&expected) {
                match read {
                    Ok(read) => assert_eq!(Ok(read), *expected, "{} was read wrongly", name.display()),
                    Err(_) => found += 1,
                }
            }
            drop((stores, store));
        }
        bench.restore();
    }
    assert!(found > 0, "tables of events were damaged, and reads said so");
}

#[tokio::test]
async fn a_lost_or_cut_journal_refuses_to_open() {
    let pristine = tempfile::tempdir().expect("a temporary folder");
    fill_two_journals(pristine.path()).await;
    let mut bench = Bench::new(pristine).await;
    let journals = journals(bench.pristine.path());
    assert_eq!(journals.len(), 2);
    for journal in &journals {
        let used = used_length(journal);
        for damage in
            [Damage::Remove, Damage::Flip { at: used / 2 }, Damage::Cut { to: used / 2 }, Damage::Cut { to: 0 }]
        {
            bench.try_out(journal, damage).await;
        }
    }
    bench.report();
    assert_eq!((bench.refused.len(), bench.harmless.len()), (8, 0));
}

#[tokio::test]
async fn a_torn_tail_that_was_never_acknowledged_is_cut() {
    let pristine = tempfile::tempdir().expect("a temporary folder");
    fill(pristine.path()).await;
    let bench = Bench::new(pristine).await;
    let journal = journals(&bench.dir()).pop().expect("a journal");
    let bytes = fs::read(&journal).expect("readable");
    let used = usize::try_from(used_length(&journal)).expect("a short journal");
    // The beginning of a batch, as a process leaves it that ends in the middle of writing one; then zeros, or the end.
    for (torn, zeros) in [(100, true), (1, true), (13, false), (60, false)] {
        let mut tail = bytes[..used].to_vec();
        tail.extend_from_slice(&bytes[..torn]);
        if zeros {
            tail.resize(bytes.len(), 0);
        }
        fs::write(&journal, &tail).expect("writable");
        let (store, stores) = open(&bench.dir()).expect("a torn tail is cut");
        assert_eq!(content(&store, &stores).await, bench.expected, "{torn} bytes");
        append(&stores, vec![add(3, 3_700_000_000)]).await;
        drop(stores);
        drop(store);
        let (store, stores) = open(&bench.dir()).expect("what follows the cut is whole");
        assert_ne!(content(&store, &stores).await, bench.expected, "the event behind the cut is there");
        bench.restore();
    }
}

#[tokio::test]
async fn files_of_a_newer_store_library_are_told_from_damage_and_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (store, _stores) = open(folder.path()).expect("a new store");
    store.close();
    let version = folder.path().join("store").join("version");
    fs::write(&version, [b'F', b'J', b'L', 4]).expect("writable");
    let before: Vec<_> = files(folder.path()).into_iter().map(|file| fs::read(file).expect("readable")).collect();
    let refused = open(folder.path()).map(drop).expect_err("a newer format");
    assert!(matches!(refused, OpenError::Newer { found: 4, known: 3, .. }), "{refused}");
    let after: Vec<_> = files(folder.path()).into_iter().map(|file| fs::read(file).expect("readable")).collect();
    assert!(before == after, "nothing is changed");
    for other in [&b"FJL"[..], b"FJL\x02", b"XYZ\x03", b""] {
        fs::write(&version, other).expect("writable");
        let refused = open(folder.path()).map(drop).expect_err("no version of the library");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    }
}
