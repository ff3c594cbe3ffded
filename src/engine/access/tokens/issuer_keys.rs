//! The signing keys of one issuer: read from time to time, and kept for a while when they cannot be read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::access::tokens::TrustedIssuer;
use crate::stats::Count;
use tallystone_domain::access::IssuerPolicy;
use tallystone_domain::limits::{
    ISSUER_KEYS_KEPT_MAX, ISSUER_KEYS_MISSED_MAX, ISSUER_KEYS_PAUSE, ISSUER_KEYS_READ_MAX,
};
use tallystone_ports::{Clock, KeyDocument, KeyDocumentError, SigningKeys, TokenFormat};

/// An issuer with its keys.
pub struct IssuerKeys {
    /// The identity of the issuer, and how its tokens are understood.
    pub policy: IssuerPolicy,
    document: Arc<dyn KeyDocument>,
    read_every: Duration,
    held: ArcSwapOption<HeldKeys>,
    asked: Mutex<AskedReading>,
    missed: Mutex<MissedKeys>,
    /// How many readings have ended.
    readings: watch::Sender<u64>,
    /// Wakes whoever reads the keys.
    wanted: Notify,
    failures: Count,
}

/// How the keys of an issuer are at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct IssuerGauges {
    /// Keys that count.
    pub keys: usize,
    /// How long ago they were read; none if they never were.
    pub age: Option<Duration>,
    /// Readings that ended, with keys or without.
    pub readings: u64,
    /// Readings without keys.
    pub failures: u64,
}

struct HeldKeys {
    keys: Arc<dyn SigningKeys>,
    document: Vec<u8>,
    read_at: Duration,
}

#[derive(Default)]
struct AskedReading {
    /// When a caller last had the keys read, by elapsed time.
    at: Option<Duration>,
    /// Whether they are being read.
    is_under_way: bool,
    /// How many readings have begun.
    begun: u64,
}

/// Ids of keys that the issuer did not publish when a token named them first, each with how many readings had begun
/// then. The oldest is first.
#[derive(Default)]
struct MissedKeys(VecDeque<(String, u64)>);

/// Whether keys are read anew for a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeysAnew {
    /// They were.
    Read,
    /// Not before this time is over: they were read just now.
    In(Duration),
    /// Not: nobody reads them.
    No,
}

impl IssuerKeys {
    pub(super) fn new(issuer: TrustedIssuer) -> Self {
        let TrustedIssuer { policy, document, read_every } = issuer;
        Self {
            policy,
            document,
            read_every,
            held: ArcSwapOption::empty(),
            asked: Mutex::default(),
            missed: Mutex::default(),
            readings: watch::Sender::default(),
            wanted: Notify::new(),
            failures: Count::default(),
        }
    }

    /// The keys, if they count at an elapsed time.
    pub(super) fn keys(&self, elapsed: Duration) -> Option<Arc<dyn SigningKeys>> {
        let held = self.held.load();
        let counting = held.as_ref().filter(|held| elapsed.saturating_sub(held.read_at) < ISSUER_KEYS_KEPT_MAX);
        counting.map(|held| Arc::clone(&held.keys))
    }

    /// Waits until somebody wants the keys to be read anew.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits for a reading of the keys: the one under way, or one that this caller asks for. If they were read just
    /// now, `within` says how long it may wait for the next time.
    pub(super) async fn wait_for_keys(&self, clock: &dyn Clock, within: Duration) -> KeysAnew {
        let mut readings = self.readings.subscribe();
        if let Some(left) = self.ask(clock.elapsed()) {
            if left > within {
                return KeysAnew::In(left);
            }
            clock.sleep(left).await;
            if let Some(left) = self.ask(clock.elapsed()) {
                // Another caller has had them read meanwhile.
                return if readings.has_changed().is_ok_and(|has| has) { KeysAnew::Read } else { KeysAnew::In(left) };
            }
        }
        tokio::select! {
            ended = readings.changed() => if ended.is_ok() { KeysAnew::Read } else { KeysAnew::No },
            () = clock.sleep(ISSUER_KEYS_READ_MAX + ISSUER_KEYS_READ_MAX / 5) => KeysAnew::No,
        }
    }

    /// Asks for a reading, unless one is under way. If they were read just now, answers how long nobody may ask.
    fn ask(&self, elapsed: Duration) -> Option<Duration> {
        let mut asked = self.asked.lock();
        if asked.is_under_way {
            return None;
        }
        let left = asked.at.and_then(|at| ISSUER_KEYS_PAUSE.checked_sub(elapsed.saturating_sub(at)));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return Some(left);
        }
        asked.at = Some(elapsed);
        self.wanted.notify_one();
        None
    }

    /// Notes that a token names a key that is not known. Answers whether a reading that began after the key was named
    /// first has ended: the issuer does not publish it, then.
    pub(super) fn is_unpublished(&self, key: &str) -> bool {
        let (begun, ended) = (self.asked.lock().begun, *self.readings.borrow());
        let mut missed = self.missed.lock();
        if let Some((_, first)) = missed.0.iter().find(|(known, _)| known == key) {
            return ended > *first;
        }
        if missed.0.len() >= ISSUER_KEYS_MISSED_MAX {
            missed.0.pop_front();
        }
        missed.0.push_back((key.to_owned(), begun));
        false
    }

    /// Reads the keys. Answers the new ones if others count from now on, and how long to wait before the next time.
    pub(super) async fn read(
        &self,
        format: &dyn TokenFormat,
        clock: &dyn Clock,
    ) -> (Option<Arc<dyn SigningKeys>>, Duration) {
        {
            let mut asked = self.asked.lock();
            asked.is_under_way = true;
            asked.begun += 1;
        }
        let read = tokio::select! {
            biased;
            read = self.document.read() => read,
            () = clock.sleep(ISSUER_KEYS_READ_MAX) => {
                Err(KeyDocumentError(format!("no answer within {} s", ISSUER_KEYS_READ_MAX.as_secs())))
            }
        };
        let taken = read.and_then(|document| self.take(document, format, clock.elapsed()));
        let answer = match taken {
            Ok(changed) => (changed, self.read_every),
            Err(error) => {
                self.failures.increment();
                let (issuer, kept) = (&self.policy.name, self.keys(clock.elapsed()).is_some());
                tracing::warn!(%issuer, %error, kept, "cannot read the signing keys of an issuer");
                (None, ISSUER_KEYS_PAUSE)
            }
        };
        self.asked.lock().is_under_way = false;
        self.readings.send_modify(|readings| *readings += 1);
        answer
    }

    fn take(
        &self,
        document: Vec<u8>,
        format: &dyn TokenFormat,
        read_at: Duration,
    ) -> Result<Option<Arc<dyn SigningKeys>>, KeyDocumentError> {
        if let Some(held) = self.held.load_full().filter(|held| held.document == document) {
            self.held.store(Some(Arc::new(HeldKeys { keys: Arc::clone(&held.keys), document, read_at })));
            return Ok(None);
        }
        let keys = format.keys(&document, &self.policy)?;
        tracing::info!(issuer = %self.policy.name, keys = keys.count(), "the signing keys of an issuer were read");
        self.held.store(Some(Arc::new(HeldKeys { keys: Arc::clone(&keys), document, read_at })));
        Ok(Some(keys))
    }

    pub(super) fn gauges(&self, elapsed: Duration) -> IssuerGauges {
        let held = self.held.load();
        IssuerGauges {
            keys: self.keys(elapsed).map_or(0, |keys| keys.count()),
            age: held.as_ref().map(|held| elapsed.saturating_sub(held.read_at)),
            readings: *self.readings.borrow(),
            failures: self.failures.get(),
        }
    }
}
