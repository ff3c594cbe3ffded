//! Stored values of fleets: heartbeats, and the values of repaired counters.

use prost::Message;

use crate::codec::{CorruptValue, bucket_from, bucket_of, checkpoint_from, checkpoint_of, decode};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::fleet::{FleetSecret, Heartbeat, Roles};
use tallystone_domain::rollup::VerifiedBase;
use tallystone_proto::internal::v1::{StoredBeat, StoredClosed, StoredSealed};

pub fn encode_beat(beat: &Heartbeat) -> Vec<u8> {
    let closed = beat
        .closed
        .iter()
        .map(|(dataset, to)| StoredClosed { dataset_id: dataset.0, closed_to: to.micros() })
        .collect();
    StoredBeat {
        number: beat.number,
        writer: beat.roles.writer,
        roller: beat.roles.roller,
        address: beat.address.clone(),
        closed,
        secret: beat.secret.map_or_else(Vec::new, |secret| secret.0.to_vec()),
        queues_reported_to: beat.queues_reported_to.map(Timestamp::micros),
    }
    .encode_to_vec()
}

pub fn decode_beat(bytes: &[u8]) -> Result<Heartbeat, CorruptValue> {
    let stored: StoredBeat = decode("heartbeat", bytes)?;
    let closed = |one: StoredClosed| (DatasetId(one.dataset_id), Timestamp::from_micros(one.closed_to));
    Ok(Heartbeat {
        number: stored.number,
        roles: Roles { writer: stored.writer, roller: stored.roller },
        address: stored.address,
        closed: stored.closed.into_iter().map(closed).collect(),
        // A secret of another length is from a release that this one cannot know; its signals are not trusted.
        secret: FleetSecret::from_bytes(&stored.secret),
        queues_reported_to: stored.queues_reported_to.map(Timestamp::from_micros),
    })
}

/// Encodes the value of a repaired counter. The encoding is unique, because stored values are compared as bytes.
pub fn encode_sealed(sealed: &VerifiedBase) -> Vec<u8> {
    StoredSealed {
        checkpoint: Some(checkpoint_of(&sealed.checkpoint)),
        repaired: sealed.repaired.iter().map(bucket_of).collect(),
        verified_to: Some(sealed.verified_to.micros()).filter(|_| sealed.verified_to > Timestamp::MIN),
    }
    .encode_to_vec()
}

/// Decodes the value of a repaired counter.
pub fn decode_sealed(bytes: &[u8]) -> Result<VerifiedBase, CorruptValue> {
    const WHAT: &str = "sealed value";
    let stored: StoredSealed = decode(WHAT, bytes)?;
    let checkpoint = stored.checkpoint.ok_or_else(|| CorruptValue::new(WHAT, "no checkpoint"))?;
    let repaired = stored.repaired.into_iter().map(bucket_from).collect::<Result<_, _>>()?;
    let verified_to = stored.verified_to.map_or(Timestamp::MIN, Timestamp::from_micros);
    Ok(VerifiedBase { checkpoint: checkpoint_from(checkpoint)?, repaired, verified_to })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::fleet::SECRET_BYTES;
    use tallystone_domain::rollup::{BucketRecord, Checkpoint};

    #[test]
    fn a_heartbeat_comes_back_as_it_was() {
        let closed = [(DatasetId(1), Timestamp::MIN), (DatasetId(7), Timestamp::from_secs(12))].into();
        let roles = Roles { writer: true, roller: false };
        let secret = Some(FleetSecret([7; SECRET_BYTES]));
        let address = "10.0.0.7:7450".to_owned();
        let queues_reported_to = Some(Timestamp::from_secs(11));
        let beat = Heartbeat { number: u64::MAX, roles, address, closed, secret, queues_reported_to };
        assert_eq!(decode_beat(&encode_beat(&beat)), Ok(beat));
        let joining = Heartbeat { queues_reported_to: Some(Timestamp::MIN), ..Heartbeat::default() };
        assert_eq!(decode_beat(&encode_beat(&joining)), Ok(joining));
        assert_eq!(decode_beat(&encode_beat(&Heartbeat::default())), Ok(Heartbeat::default()));
    }

    #[test]
    fn what_a_newer_release_adds_to_a_heartbeat_is_passed_over() {
        let beat = Heartbeat { number: 3, closed: [(DatasetId(1), Timestamp::MIN)].into(), ..Heartbeat::default() };
        // Field 99, a varint and some bytes (protobuf encoding: number << 3 | wire type).
        let added = [[0x98, 0x06, 0x07].as_slice(), [0x9A, 0x06, 0x02, b'h', b'i'].as_slice()].concat();
        assert_eq!(decode_beat(&[encode_beat(&beat), added].concat()), Ok(beat));
    }

    #[test]
    fn a_sealed_value_comes_back_as_it_was_and_has_one_encoding() {
        let start = Timestamp::from_secs(600);
        let repaired = vec![BucketRecord { rows: 3, sum: -5, digest: 9, ..BucketRecord::empty(start) }];
        let checkpoint = Checkpoint { count: -5, repairs: 2, ..Checkpoint::empty(Timestamp::from_secs(900)) };
        for verified_to in [Timestamp::MIN, Timestamp::from_secs(1_200)] {
            let sealed = VerifiedBase { checkpoint: checkpoint.clone(), repaired: repaired.clone(), verified_to };
            let bytes = encode_sealed(&sealed);
            let back = decode_sealed(&bytes).expect("our own bytes");
            assert_eq!(encode_sealed(&back), bytes);
            assert_eq!(back, sealed);
        }
        assert!(decode_sealed(&[]).is_err(), "a value without a checkpoint is none");
    }
}
