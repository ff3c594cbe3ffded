//! Work that the store lost: a shard came back with fewer steps than this process was answered.
//!
//! A step is a number of its epoch, and a new life of the store begins above all earlier ones. So a loss shows only at
//! the moment when a shard is found by its next life: the refusal says how far the shard is. The server that is refused
//! notes that under a key of the shard. Servers that were answered more find out by it that they were.

use super::epoch::{ReturnedShard, ServerLife};
use super::functions::RedisQueues;
use super::keys::named_keys;
use super::limits::REDIS_RETURN_KEPT;
use super::wire::{WireCommand, WireReply};
use tallystone_domain::queue::activity::LostWork;
use tallystone_domain::queue::name::ShardId;

/// The steps of an epoch begin at this times it, as `lua/frame.lua` has it.
const EPOCH_STEPS: u64 = 134_217_728;

/// The changes that are lost, at least, of a shard that came back with one step after another one was answered. For
/// epochs between them the number of steps is not known.
fn steps_lost(stored: u64, answered: u64) -> u64 {
    match answered / EPOCH_STEPS == stored / EPOCH_STEPS {
        true => answered.saturating_sub(stored),
        false if answered > stored => (answered % EPOCH_STEPS).max(1),
        false => 0,
    }
}

/// The key under which a shard says how far it was when it came back.
fn key_of(shard: ShardId) -> Vec<u8> {
    let [header, _] = named_keys(shard);
    let tag = header.iter().position(|byte| *byte == b'}').map_or(&header[..], |end| &header[..=end]);
    [tag, b"back"].concat()
}

impl RedisQueues {
    /// Judges a shard that a new life of the store has with this step, once for each life, and notes it for other
    /// servers.
    pub(super) async fn judge_return(&self, shard: ShardId, life: ServerLife, stored: u64) {
        let answered = self.newest_step(shard);
        let from = {
            let mut returned = self.returned.lock();
            let known = returned.entry(shard).or_default();
            if known.life == life {
                return;
            }
            let from = stored.max(known.judged_to);
            *known = ReturnedShard { life, judged_to: answered.max(known.judged_to) };
            from
        };
        self.tell_loss(shard, from, answered);
        let key = key_of(shard);
        let kept = REDIS_RETURN_KEPT.as_secs().to_string().into_bytes();
        let arguments = vec![key.clone(), stored.to_string().into_bytes(), b"EX".to_vec(), kept];
        if let Err(error) = self.ask(&key, WireCommand { name: "SET", arguments }, "note the return of a shard").await {
            tracing::debug!(%error, "other servers do not hear how far a shard came back");
        }
    }

    /// Has it judged whether a shard lost work, if another server was the first to find it in its new life: an answer
    /// has a step of a later epoch than the answers before it.
    pub(super) fn judge_later_life(&self, shard: ShardId, answered: u64, step: u64) {
        let is_judged = || self.returned.lock().get(&shard).is_some_and(|known| known.judged_to >= answered);
        if step / EPOCH_STEPS <= answered / EPOCH_STEPS || is_judged() {
            return;
        }
        self.returned.lock().entry(shard).or_default().judged_to = answered;
        // Nobody waits for it.
        drop(self.begin(|this| async move {
            let key = key_of(shard);
            let command = WireCommand { name: "GET", arguments: vec![key.clone()] };
            match this.ask(&key, command, "read the return of a shard").await {
                Ok(WireReply::Bytes(stored)) => {
                    let stored = std::str::from_utf8(&stored).ok().and_then(|stored| stored.parse::<u64>().ok());
                    // A note of another epoch may be one of an earlier return.
                    let of_epoch = stored.filter(|stored| stored / EPOCH_STEPS == answered / EPOCH_STEPS);
                    this.tell_loss(shard, of_epoch.unwrap_or(answered), answered);
                }
                // Without a note nothing came back: another server only raised the epoch.
                Ok(WireReply::Nil | WireReply::Int(_) | WireReply::List(_)) => {}
                Err(error) => tracing::debug!(%error, "it is not known how far a shard came back"),
            }
        }));
    }

    fn tell_loss(&self, shard: ShardId, stored: u64, answered: u64) {
        let steps = steps_lost(stored, answered);
        if steps > 0 {
            let lost = LostWork { steps, at: self.clock.now() };
            let listeners = self.listeners.lock().known.clone();
            listeners.iter().for_each(|listener| listener.work_lost(shard, lost));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::QueueId;

    #[test]
    fn lost_are_the_steps_above_the_one_that_came_back() {
        let (one, two) = (EPOCH_STEPS, 2 * EPOCH_STEPS);
        assert_eq!(
            (steps_lost(one + 7, one + 10), steps_lost(one + 10, one + 10), steps_lost(one + 11, one + 10)),
            (3, 0, 0)
        );
        assert_eq!(
            (steps_lost(one + 7, two + 4), steps_lost(one + 7, two)),
            (4, 1),
            "at least those of the last epoch"
        );
        assert_eq!(steps_lost(two, one + 9), 0);
    }

    #[test]
    fn the_note_lies_in_the_slot_of_its_shard() {
        let shard = ShardId { queue: QueueId(7), number: 3 };
        let [header, _] = named_keys(shard);
        let tag = |key: &[u8]| key.split(|byte| *byte == b'}').next().map(<[u8]>::to_vec);
        assert_eq!(tag(&key_of(shard)), tag(&header));
    }
}
