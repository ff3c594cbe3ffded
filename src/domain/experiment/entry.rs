//! Experiments that the service keeps under their names.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use super::spec::ExperimentSpec;
use super::verdict::FallenCounter;
use tallystone_domain::limits::DESCRIPTION_BYTES_MAX;
use tallystone_domain::time::Timestamp;
use tallystone_domain::{Reason, Reject};

/// The id of an experiment: random, and never used again. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExperimentId(pub u64);

impl fmt::Display for ExperimentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ExperimentId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// The parts of an experiment that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExperimentSettings {
    /// The definition of the experiment. Only its secondary metrics change after its creation.
    pub spec: ExperimentSpec,
    /// The subject of the experiment, at most 1,024 bytes.
    pub description: String,
    /// When it was stopped; none while it runs.
    pub stopped: Option<Timestamp>,
    /// The counters that became smaller while it ran, each once. The service notes them.
    pub falls: Vec<FallenCounter>,
    /// The exposures of all arms that its counters held when it was created; none if they could not be read. The
    /// service notes them.
    pub exposures_before: Option<u64>,
}

impl ExperimentSettings {
    /// Refuses what `ExperimentSpec::check` refuses, and a description that is too long.
    pub fn check(&self) -> Result<(), Reject> {
        self.spec.check()?;
        if self.description.len() > DESCRIPTION_BYTES_MAX {
            let what = format!("description has more than {DESCRIPTION_BYTES_MAX} bytes");
            return Err(Reject::new(Reason::InvalidArgument, what.clone()).at("description", what));
        }
        Ok(())
    }
}

/// An experiment that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogExperiment {
    /// The id.
    pub id: ExperimentId,
    /// The version of the settings, from 1.
    pub version: u64,
    /// The settings.
    pub settings: ExperimentSettings,
    /// When it was created, which is when it began.
    pub created: Timestamp,
    /// When it was changed last.
    pub updated: Timestamp,
}
