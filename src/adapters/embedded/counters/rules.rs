//! Counter rules: decided in memory, stored in rows of the catalog's keyspace.
//!
//! ```text
//! g            the highest generation of a removed rule: u32
//! r name       live rule
//! ```

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::RwLock;

use crate::disk::library::Library;
use crate::disk::read::rows;
use crate::disk::writer::CommitBatch;
use crate::error::{ReadError, malformed_key};
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::rules::{decode_rule, encode_rule};
use tallystone_domain::rules::{Rule, RuleName};
use tallystone_ports::{RuleChange, RulesBefore, ScanOrder, StoreError};

const LAST_GENERATION: &[u8] = b"g";
const RULES: u8 = b'r';

/// The rules as last committed.
#[derive(Default)]
pub struct RuleIndex {
    state: RwLock<RuleIndexState>,
}

#[derive(Default)]
struct RuleIndexState {
    rules: BTreeMap<RuleName, Rule>,
    last_generation: u32,
}

impl RuleIndex {
    /// Reads the committed rules at startup.
    pub fn open(library: &Library) -> Result<Self, ReadError> {
        let mut state = RuleIndexState::default();
        let all = (Bound::Included(vec![RULES]), Bound::Excluded(vec![RULES + 1]));
        for row in rows(&library.catalog, all, ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let name = key.get(1..).and_then(|name| std::str::from_utf8(name).ok());
            let rule = decode_rule(name.ok_or_else(|| malformed_key("rule", &key))?, &value)?;
            state.rules.insert(rule.spec.name.clone(), rule);
        }
        if let Some(generation) = library.catalog.get(LAST_GENERATION)? {
            let wrong = || CorruptValue::new("generation of removed rules", "a value of another length");
            state.last_generation = u32::from_be_bytes(generation.as_ref().try_into().map_err(|_| wrong())?);
        }
        Ok(Self { state: RwLock::new(state) })
    }

    /// Returns all rules, by name.
    pub fn list(&self) -> Vec<Rule> {
        self.state.read().rules.values().cloned().collect()
    }

    pub fn get(&self, name: &RuleName) -> Option<Rule> {
        self.state.read().rules.get(name).cloned()
    }

    /// Decides a change on what is committed.
    pub fn decide(&self, change: &RuleChange, op: &'static str) -> Result<Option<Rule>, StoreError> {
        let state = self.state.read();
        let live = state.rules.get(change.name());
        change.decide(RulesBefore { live, count: state.rules.len(), last_generation: state.last_generation }, op)
    }

    /// Stages the rows of a decided change.
    pub fn stage(&self, library: &Library, batch: &mut CommitBatch, change: &RuleChange, after: Option<&Rule>) {
        let key = [&[RULES], change.name().as_str().as_bytes()].concat();
        match after {
            Some(rule) => batch.put(&library.catalog, key, encode_rule(rule)),
            None => {
                batch.remove(&library.catalog, key);
                let last_generation = self.state.read().last_generation_without(change.name());
                batch.put(&library.catalog, LAST_GENERATION, last_generation.to_be_bytes());
            }
        }
    }

    /// Applies a committed change.
    pub fn publish(&self, change: &RuleChange, after: Option<&Rule>) {
        let mut state = self.state.write();
        match after {
            Some(rule) => drop(state.rules.insert(change.name().clone(), rule.clone())),
            None => {
                state.last_generation = state.last_generation_without(change.name());
                state.rules.remove(change.name());
            }
        }
    }
}

impl RuleIndexState {
    /// The highest generation of a removed rule, once this rule is removed too.
    fn last_generation_without(&self, name: &RuleName) -> u32 {
        self.rules.get(name).map_or(0, |rule| rule.progress.generation).max(self.last_generation)
    }
}
