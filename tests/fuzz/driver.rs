//! Runs a target on its corpus and on changes of it.
//!
//! Invariant: the same seed, count and corpus give the same inputs, as far as the target's outcomes are the same.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Inputs above this are tried and not kept.
const KEPT_BYTES_MAX: usize = 16 * 1024;
/// Inputs of new outcomes that one run changes further.
const POOL_MAX: usize = 4_096;
/// How many times as many inputs the long form tries.
const LONG_FACTOR: u64 = 100;

/// Numbers for choices: splitmix64, the same on every machine.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`; 0 for 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The remainder of at most `end` fits.
        (self.next() % end.max(1) as u64) as usize
    }

    /// Whether one of so many chances has come.
    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// What a target is fed with.
pub struct Run {
    target: &'static str,
    inputs: u64,
}

impl Run {
    /// A run of a target; `inputs` is how many changes the short form tries.
    pub fn of(target: &'static str, inputs: u64) -> Self {
        let inputs = match (number_of("TALLYSTONE_FUZZ_INPUTS"), std::env::var_os("TALLYSTONE_LONG_TESTS")) {
            (Some(asked), _) => asked,
            (None, Some(_)) => inputs * LONG_FACTOR,
            (None, None) => inputs,
        };
        Self { target, inputs }
    }

    /// Judges the corpus and then inputs that `make` derives from it. `judge` answers the outcome and panics where the
    /// law of the target is broken.
    pub fn judge(self, mut make: impl FnMut(&mut Rng, &[Vec<u8>]) -> Vec<u8>, mut judge: impl FnMut(&[u8]) -> String) {
        let seed = number_of("TALLYSTONE_FUZZ_SEED").unwrap_or(1);
        println!("{}: seed {seed}, {} inputs (TALLYSTONE_FUZZ_SEED, TALLYSTONE_FUZZ_INPUTS)", self.target, self.inputs);
        let mut outcomes = BTreeSet::new();
        let mut pool = Vec::new();
        for (path, input) in self.corpus() {
            let outcome = catch_unwind(AssertUnwindSafe(|| judge(&input)));
            outcomes.insert(outcome.unwrap_or_else(|_panic| panic!("{} broke its target", path.display())));
            pool.push(input);
        }
        let kept = outcomes.len();
        let mut rng = Rng::new(seed);
        for at in 0..self.inputs {
            let input = make(&mut rng, &pool);
            let outcome = catch_unwind(AssertUnwindSafe(|| judge(&input)));
            let outcome = outcome.unwrap_or_else(|_panic| self.broken(seed, at, &input));
            if !outcomes.contains(&outcome) && input.len() <= KEPT_BYTES_MAX && pool.len() < POOL_MAX {
                self.keep(&outcome, &input);
                pool.push(input);
            }
            outcomes.insert(outcome);
        }
        println!("{}: {} outcomes, {kept} of them from the corpus", self.target, outcomes.len());
    }

    /// The kept inputs in the order of their names.
    fn corpus(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = folder(self.target);
        let Ok(entries) = fs::read_dir(&folder) else { panic!("{} holds the corpus of the target", folder.display()) };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{} holds at least one input", folder.display());
        let read = |path: PathBuf| (fs::read(&path).expect("an input can be read"), path);
        paths.into_iter().map(read).map(|(input, path)| (path, input)).collect()
    }

    /// Writes an input that broke the law, and says how to keep it.
    fn broken(&self, seed: u64, at: u64, input: &[u8]) -> ! {
        let target = self.target;
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}-{seed}-{at}"));
        fs::write(&path, input).expect("the target folder can be written");
        panic!(
            "{target}: input {at} of seed {seed} broke it; it is kept in {}: copy it into tests/fuzz/corpus/{target}/ and \
             mend what it found",
            path.display()
        )
    }

    /// With TALLYSTONE_FUZZ_KEEP, adds an input of a new outcome to the corpus.
    fn keep(&self, outcome: &str, input: &[u8]) {
        if std::env::var_os("TALLYSTONE_FUZZ_KEEP").is_none() {
            return;
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = outcome.chars().map(plain).take(100).collect();
        fs::write(folder(self.target).join(name), input).expect("the corpus can be written");
    }
}

/// Where the corpus of a target is.
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target)
}

/// A whole number in the environment.
pub fn number_of(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a whole number, not `{text}`")))
}

/// The head and the rest of an input whose first line says what it is.
pub fn split(input: &[u8]) -> (&str, &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let head = std::str::from_utf8(&input[..end]).unwrap_or_default();
    (head, input.get(end + 1..).unwrap_or_default())
}

/// Puts together what `split` takes apart.
pub fn joined(head: &str, rest: &[u8]) -> Vec<u8> {
    [head.as_bytes(), b"\n", rest].concat()
}
