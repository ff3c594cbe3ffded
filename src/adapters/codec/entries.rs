//! Entries of catalogs that stand alone, as API keys and experiments do. The engines store them alike.

use super::CorruptValue;
use super::experiments::{decode_experiment, decode_experiment_change, encode_experiment, encode_experiment_change};
use super::keys::{decode_key, decode_key_change, encode_key, encode_key_change};
use tallystone_domain::access::{AccessKey, KeyId, PrincipalName};
use tallystone_experiments::{CatalogExperiment, ExperimentId, ExperimentWord};
use tallystone_ports::{CatalogChange, CatalogEntry};

/// An entry that is committed without a companion, and loaded as a list in the order of names. Its names contain no 0
/// byte.
pub trait StoredEntry: CatalogEntry<State = Vec<Self>, Companion = (), Deletion = (), HistoryStart = usize> {
    /// The name of the operation that loads all entries, for errors.
    const LOAD: &'static str;
    /// The name of the operation that commits a change.
    const COMMIT: &'static str;

    /// Encodes a live entry.
    fn encode(&self) -> Vec<u8>;
    /// Decodes a live entry.
    fn decode(bytes: &[u8]) -> Result<Self, CorruptValue>;
    /// Encodes an entry of the history.
    fn encode_change(change: &CatalogChange<Self>) -> Vec<u8>;
    /// Decodes an entry of the history.
    fn decode_change(bytes: &[u8]) -> Result<CatalogChange<Self>, CorruptValue>;
    /// The text of a name.
    fn text_of(name: &Self::Name) -> &str;
    /// The number of an id.
    fn number_of(id: Self::Id) -> u64;
}

impl StoredEntry for AccessKey {
    const LOAD: &'static str = "load keys";
    const COMMIT: &'static str = "commit key";

    fn encode(&self) -> Vec<u8> {
        encode_key(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CorruptValue> {
        decode_key(bytes)
    }

    fn encode_change(change: &CatalogChange<Self>) -> Vec<u8> {
        encode_key_change(change)
    }

    fn decode_change(bytes: &[u8]) -> Result<CatalogChange<Self>, CorruptValue> {
        decode_key_change(bytes)
    }

    fn text_of(name: &PrincipalName) -> &str {
        name.as_str()
    }

    fn number_of(id: KeyId) -> u64 {
        id.0
    }
}

impl StoredEntry for CatalogExperiment {
    const LOAD: &'static str = "load experiments";
    const COMMIT: &'static str = "commit experiment";

    fn encode(&self) -> Vec<u8> {
        encode_experiment(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CorruptValue> {
        decode_experiment(bytes)
    }

    fn encode_change(change: &CatalogChange<Self>) -> Vec<u8> {
        encode_experiment_change(change)
    }

    fn decode_change(bytes: &[u8]) -> Result<CatalogChange<Self>, CorruptValue> {
        decode_experiment_change(bytes)
    }

    fn text_of(name: &ExperimentWord) -> &str {
        name.as_str()
    }

    fn number_of(id: ExperimentId) -> u64 {
        id.0
    }
}
