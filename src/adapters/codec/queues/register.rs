//! The encoding of the registers beside the cursors of histories.

use prost::Message as _;

use tallystone_domain::history::audit::rows::{AuditRegister, CountedRows};
use tallystone_domain::queue::tally::flows::ROWS;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::time::Timestamp;
use tallystone_ports::RegisterCodec;
use tallystone_proto::internal::v1::{StoredCountedRows, StoredHistoryRegister};

/// Encodes registers as `StoredHistoryRegister`.
#[derive(Clone, Copy, Debug)]
pub struct ProtobufRegisters;

impl RegisterCodec for ProtobufRegisters {
    fn encode(&self, register: &AuditRegister) -> Box<[u8]> {
        let AuditRegister { at, baseline, written } = register;
        let stored = StoredHistoryRegister {
            at: at.micros(),
            baseline: baseline.as_ref().map(|CountedRows { position: RowPosition { epoch, position }, rows }| {
                StoredCountedRows { epoch: *epoch, position: *position, rows: rows.into() }
            }),
            written: written.into(),
        };
        stored.encode_to_vec().into()
    }

    fn decode(&self, bytes: &[u8]) -> Option<AuditRegister> {
        let stored = StoredHistoryRegister::decode(bytes).ok().filter(|_| !bytes.is_empty())?;
        let baseline = match stored.baseline {
            None => None,
            Some(StoredCountedRows { epoch, position, rows }) => {
                Some(CountedRows { position: RowPosition { epoch, position }, rows: padded(&rows)? })
            }
        };
        Some(AuditRegister { at: Timestamp::from_micros(stored.at), baseline, written: padded(&stored.written)? })
    }
}

/// The counts of a build with at most as many rows.
fn padded(stored: &[u64]) -> Option<[u64; ROWS]> {
    let mut rows = [0; ROWS];
    rows.get_mut(..stored.len())?.copy_from_slice(stored);
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::limits::REGISTER_BYTES_MAX;

    #[test]
    fn a_register_comes_back_as_it_was_and_is_short() {
        let position = RowPosition { epoch: u32::MAX, position: u64::MAX };
        let baseline = Some(CountedRows { position, rows: [u64::MAX; ROWS] });
        let longest = AuditRegister { at: Timestamp::MAX, baseline, written: [u64::MAX; ROWS] };
        for register in [AuditRegister::default(), longest] {
            let bytes = ProtobufRegisters.encode(&register);
            assert!(bytes.len() <= REGISTER_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(ProtobufRegisters.decode(&bytes), Some(register));
        }
    }

    #[test]
    fn a_shorter_table_is_padded_and_other_bytes_are_no_register() {
        let of_rows = |rows: usize| StoredHistoryRegister { at: 5, baseline: None, written: vec![1; rows] };
        let decode = |rows: usize| ProtobufRegisters.decode(&of_rows(rows).encode_to_vec());
        let older = decode(3).expect("an older build had fewer rows");
        assert_eq!((older.at, older.written[..4].to_vec()), (Timestamp::from_micros(5), vec![1, 1, 1, 0]));
        assert_eq!(decode(ROWS + 1), None);
        assert_eq!(ProtobufRegisters.decode(b"\xff\xff\xff"), None);
        assert_eq!(ProtobufRegisters.decode(b""), None);
    }
}
