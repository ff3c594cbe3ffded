//! The words of the Sentinels: the address of the primary and the config epoch, which tells a later failover from an
//! earlier one; and the choice of the one that is believed where they differ.
//!
//! Invariant: a Sentinel that has not heard of a failover yet never moves a caller back. Among Sentinels the newest
//! config epoch counts, so a single one that names it is enough.

use std::sync::Arc;
use std::time::Duration;

use crate::client::command::RedisCommand;
use crate::client::failure::{CallFailure, FailureCause};
use crate::client::reply::RedisReply;
use crate::client::slot_map::address_of;
use crate::limits::{REDIS_OLDER_VIEW_AFTER, REDIS_SENTINEL_WORD_COUNTS};

/// The word of a Sentinel on its primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SentinelWord {
    /// The number of its last failover; none if the Sentinel does not tell it.
    pub(super) epoch: Option<u64>,
    pub(super) address: Arc<str>,
}

/// The questions that a Sentinel is asked together. The epoch comes first: if a failover ends between both answers, its
/// address is with an older epoch, and not the other way round.
pub(super) fn questions(primary: &str) -> Vec<RedisCommand> {
    let of = |what: &str| RedisCommand::new("SENTINEL").arg(what).arg(primary);
    vec![of("master"), of("get-master-addr-by-name")]
}

/// Reads the answers to them.
pub(super) fn read(
    answers: Vec<Result<RedisReply, CallFailure>>,
    sentinel: &str,
    primary: &str,
) -> Result<SentinelWord, CallFailure> {
    let incomplete = || CallFailure::new(FailureCause::Protocol, "the answer of a Sentinel is not complete");
    let mut answers = answers.into_iter();
    // Whoever may not ask for it goes by the majority.
    let epoch = answers.next().ok_or_else(incomplete)?.ok().and_then(epoch_of);
    let address = answers.next().ok_or_else(incomplete)??;
    if address.is_nil() {
        let text = format!("the Sentinel at {sentinel} does not know the primary {primary}");
        return Err(CallFailure::new(FailureCause::Unreachable, text));
    }
    let mut parts = address.into_list()?.into_iter();
    let (host, port) = parts.next().zip(parts.next()).ok_or_else(incomplete)?;
    let address = address_of(&host.into_text()?, &port.into_text()?);
    Ok(SentinelWord { epoch, address: Arc::from(address) })
}

/// The config epoch among the fields of SENTINEL MASTER.
fn epoch_of(reply: RedisReply) -> Option<u64> {
    let words: Vec<String> = reply.into_list().ok()?.into_iter().filter_map(|word| word.into_text().ok()).collect();
    words.chunks_exact(2).find(|pair| pair[0] == "config-epoch")?[1].parse().ok()
}

/// The last words of all Sentinels, and the primary that is believed.
pub(super) struct Believed {
    /// For each Sentinel its last word and when it came, on `Clock::elapsed`.
    words: Vec<Option<(SentinelWord, Duration)>>,
    /// The primary, and when a Sentinel said so last.
    primary: Option<(SentinelWord, Duration)>,
}

impl Believed {
    pub(super) fn new(sentinels: usize) -> Self {
        Self { words: vec![None; sentinels], primary: None }
    }

    /// Takes in the word of a Sentinel, by its place.
    pub(super) fn hear(&mut self, sentinel: usize, word: SentinelWord, now: Duration) {
        if let Some((primary, heard_at)) = &mut self.primary
            && *primary == word
        {
            *heard_at = now;
        }
        self.words[sentinel] = Some((word, now));
    }

    /// The primary to go by.
    ///
    /// - A newer epoch counts at once.
    /// - At the same epoch another address counts if more than half of all Sentinels name it.
    /// - At an older epoch too, but only if no Sentinel has named the believed primary for `REDIS_OLDER_VIEW_AFTER`:
    ///   the Sentinels were set up again.
    pub(super) fn primary(&mut self, now: Duration) -> Option<Arc<str>> {
        let is_fresh = |heard_at: &Duration| now.saturating_sub(*heard_at) <= REDIS_SENTINEL_WORD_COUNTS;
        let fresh: Vec<&SentinelWord> =
            self.words.iter().flatten().filter(|(_, heard_at)| is_fresh(heard_at)).map(|(word, _)| word).collect();
        let Some(newest) = fresh.iter().map(|word| word.epoch).max() else { return self.address() };
        let most_named = |at_epoch: Option<Option<u64>>| {
            let counted = || fresh.iter().filter(|word| at_epoch.is_none_or(|epoch| word.epoch == epoch));
            let votes = |word: &SentinelWord| counted().filter(|other| other.address == word.address).count();
            counted().map(|word| (votes(word), *word)).max_by_key(|(votes, _)| *votes)
        };
        let next = match &self.primary {
            Some((known, heard_at)) if newest <= known.epoch => {
                let is_same = newest == known.epoch;
                let is_forgotten = now.saturating_sub(*heard_at) >= REDIS_OLDER_VIEW_AFTER;
                let named = most_named(is_same.then_some(newest)).filter(|(votes, _)| 2 * votes > self.words.len());
                named.filter(|_| is_same || is_forgotten)
            }
            _ => most_named(Some(newest)), // nobody is believed yet, or the epoch is newer
        };
        if let Some((_, word)) = next.filter(|(_, word)| self.primary.as_ref().is_none_or(|(known, _)| known != *word))
        {
            self.primary = Some((word.clone(), now));
        }
        self.address()
    }

    fn address(&self) -> Option<Arc<str>> {
        self.primary.as_ref().map(|(word, _)| Arc::clone(&word.address))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Three Sentinels, and the clock.
    struct Three(Believed, Duration);

    impl Three {
        fn new() -> Self {
            Self(Believed::new(3), Duration::ZERO)
        }

        /// A second later these Sentinels name primaries, each with an epoch. The primary that is believed then.
        fn after(&mut self, words: &[(usize, Option<u64>, &str)]) -> String {
            self.1 += SECOND;
            let mut named = None;
            for (sentinel, epoch, address) in words {
                self.0.hear(*sentinel, SentinelWord { epoch: *epoch, address: Arc::from(*address) }, self.1);
                named = self.0.primary(self.1);
            }
            named.or_else(|| self.0.primary(self.1)).expect("somebody is believed").to_string()
        }
    }

    #[test]
    fn the_first_sentinel_that_tells_of_a_failover_is_believed_and_a_stale_one_is_not() {
        let mut three = Three::new();
        assert_eq!(three.after(&[(0, Some(4), "old"), (1, Some(4), "old"), (2, Some(4), "old")]), "old");
        assert_eq!(three.after(&[(0, Some(5), "new"), (1, Some(4), "old"), (2, Some(4), "old")]), "new");
        for _ in 0..60 {
            assert_eq!(three.after(&[(0, Some(5), "new"), (1, Some(4), "old"), (2, Some(4), "old")]), "new");
        }
        // The one that knows is silent for a moment, or only a stale one is left.
        for _ in 0..9 {
            assert_eq!(three.after(&[(1, Some(4), "old"), (2, Some(4), "old")]), "new");
        }
        let mut three = Three::new();
        three.after(&[(0, Some(5), "new")]);
        for _ in 0..60 {
            assert_eq!(three.after(&[(2, Some(4), "old")]), "new", "it is one of three");
        }
    }

    #[test]
    fn sentinels_that_were_set_up_anew_are_believed_after_a_while() {
        let mut three = Three::new();
        three.after(&[(0, Some(5), "old"), (1, Some(5), "old"), (2, Some(5), "old")]);
        let mut named = Vec::new();
        for _ in 0..20 {
            named.push(three.after(&[(0, Some(0), "new"), (1, Some(0), "new")]));
        }
        assert_eq!((named[5].as_str(), named[19].as_str()), ("old", "new"));
        assert_eq!(three.after(&[(2, Some(5), "old")]), "old", "a newer epoch counts at once");
    }

    #[test]
    fn without_epochs_more_than_half_of_all_decide() {
        let mut three = Three::new();
        assert_eq!(three.after(&[(0, None, "old")]), "old");
        assert_eq!(three.after(&[(1, None, "new")]), "old", "one of three");
        assert_eq!(three.after(&[(2, None, "new")]), "new");
        assert_eq!(three.after(&[(0, None, "old")]), "new");
        assert_eq!(three.after(&[(1, None, "old")]), "old");
    }

    #[test]
    fn a_word_is_read_with_and_without_its_epoch() {
        let text = |text: &str| RedisReply::Bytes(Bytes::copy_from_slice(text.as_bytes()));
        let address = || Ok(RedisReply::List(vec![text("10.0.0.1"), text("6379")]));
        let fields = ["name", "queues", "config-epoch", "7", "ip", "10.0.0.2"].map(text).to_vec();
        let word = read(vec![Ok(RedisReply::List(fields)), address()], "s:1", "queues").expect("a word");
        assert_eq!(word, SentinelWord { epoch: Some(7), address: Arc::from("10.0.0.1:6379") });
        let denied = CallFailure::new(FailureCause::Denied, "NOPERM");
        let word = read(vec![Err(denied.clone()), address()], "s:1", "queues").expect("a word");
        assert_eq!(word.epoch, None);
        let unknown = read(vec![Err(denied), Ok(RedisReply::Nil)], "s:1", "queues").expect_err("no primary");
        assert!(unknown.text.contains("s:1") && unknown.text.contains("queues"), "{unknown}");
        assert!(read(vec![address()], "s:1", "queues").is_err());
    }
}
