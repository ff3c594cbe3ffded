//! The catalog of experiments, and the history of their changes.

use crate::{CatalogChange, CatalogEntry, CatalogRecord};
use tallystone_experiments::{CatalogExperiment, ExperimentId, ExperimentSettings, ExperimentWord};

/// One change of an experiment.
pub type ExperimentChange = CatalogChange<CatalogExperiment>;

/// A change of an experiment to commit.
pub type ExperimentRecord = CatalogRecord<CatalogExperiment>;

impl CatalogEntry for CatalogExperiment {
    const WORD: &'static str = "experiment";
    type Id = ExperimentId;
    type Name = ExperimentWord;
    type Spec = ExperimentSettings;
    /// In the order of names.
    type State = Vec<Self>;
    type Companion = ();
    type Deletion = ();
    /// The number of newer changes that are skipped.
    type HistoryStart = usize;

    fn id(&self) -> ExperimentId {
        self.id
    }

    fn name(&self) -> &ExperimentWord {
        &self.settings.spec.name
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn spec(&self) -> &ExperimentSettings {
        &self.settings
    }
}
