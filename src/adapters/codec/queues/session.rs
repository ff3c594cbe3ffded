//! Encodings of the sessions of a shard, and of the session in a lease.

use prost::Message as _;

use super::{CorruptValue, decode, duration, micros};
use tallystone_domain::queue::messages::message::{LeaseSession, SessionId};
use tallystone_domain::queue::session_records::{Ending, SessionRecord};
use tallystone_domain::time::Timestamp;
use tallystone_proto::internal::v1::{StoredBar, StoredLeaseSession, StoredSession};

const WHAT: &str = "queue session";

/// Encodes a session; its id is in its key.
pub fn encode_session(session: &SessionRecord) -> Vec<u8> {
    let SessionRecord { lease, expires, ended, answered, bars, floor, idle_since } = session;
    StoredSession {
        lease: lease.map(micros),
        expires: (*expires != Timestamp::MAX).then(|| expires.micros()),
        ended: ended.map_or(0, |(how, _)| number_of(how)),
        ended_at: ended.map_or(0, |(_, at)| at.micros()),
        answered: answered.iter().copied().collect(),
        bars: bars.iter().map(|(call, attempt)| StoredBar { call: *call, attempt: *attempt }).collect(),
        floor: *floor,
        idle_since: idle_since.micros(),
    }
    .encode_to_vec()
}

pub fn decode_session(bytes: &[u8]) -> Result<SessionRecord, CorruptValue> {
    let stored: StoredSession = decode(WHAT, bytes)?;
    let ended_at = Timestamp::from_micros(stored.ended_at);
    Ok(SessionRecord {
        lease: stored.lease.map(duration),
        expires: stored.expires.map_or(Timestamp::MAX, Timestamp::from_micros),
        ended: ending_from(stored.ended)?.map(|how| (how, ended_at)),
        answered: stored.answered.into_iter().collect(),
        bars: stored.bars.into_iter().map(|bar| (bar.call, bar.attempt)).collect(),
        floor: stored.floor,
        idle_since: Timestamp::from_micros(stored.idle_since),
    })
}

fn number_of(ending: Ending) -> u32 {
    match ending {
        Ending::Closed => 1,
        Ending::Replaced => 2,
        Ending::Expired => 3,
    }
}

fn ending_from(number: u32) -> Result<Option<Ending>, CorruptValue> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(Ending::Closed)),
        2 => Ok(Some(Ending::Replaced)),
        3 => Ok(Some(Ending::Expired)),
        // No release that this one can read wrote such a number.
        _ => Err(CorruptValue::new(WHAT, format!("ending {number}"))),
    }
}

pub(super) fn lease_session_of(session: LeaseSession) -> StoredLeaseSession {
    let LeaseSession { id, call, confirmed } = session;
    StoredLeaseSession { id: id.0.to_be_bytes().to_vec(), call, confirmed }
}

pub(super) fn lease_session_from(stored: StoredLeaseSession) -> Result<LeaseSession, CorruptValue> {
    let id =
        <[u8; 16]>::try_from(&*stored.id).map_err(|_| CorruptValue::new("message", "a session of another length"))?;
    Ok(LeaseSession { id: SessionId(u128::from_be_bytes(id)), call: stored.call, confirmed: stored.confirmed })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_session_is_read_as_it_was_stored() {
        let at = Timestamp::from_secs;
        let whole = SessionRecord {
            lease: Some(Duration::from_secs(30)),
            expires: at(5),
            ended: None,
            answered: [3, 4].into(),
            bars: [(4, 2), (5, 3)].into(),
            floor: 2,
            idle_since: at(4),
        };
        let endings = [None, Some(Ending::Closed), Some(Ending::Replaced), Some(Ending::Expired)];
        for ending in endings {
            let session = SessionRecord { ended: ending.map(|how| (how, at(6))), ..whole.clone() };
            assert_eq!(decode_session(&encode_session(&session)), Ok(session));
        }
        let replaying = SessionRecord { lease: None, expires: Timestamp::MAX, ..whole };
        assert_eq!(decode_session(&encode_session(&replaying)), Ok(replaying));
    }

    #[test]
    fn what_no_session_was_stored_as_is_refused() {
        let unknown = StoredSession { ended: 4, ..StoredSession::default() };
        assert!(decode_session(&unknown.encode_to_vec()).is_err());
        assert!(decode_session(&[7]).is_err());
        assert!(lease_session_from(StoredLeaseSession { id: vec![1; 15], call: 1, confirmed: false }).is_err());
    }
}
