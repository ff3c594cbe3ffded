//! Encodings of experiments: protobuf by `stored_experiment.proto`, the same on every engine.

use prost::Message;

use super::{CorruptValue, decode};
use tallystone_domain::Reject;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::time::Timestamp;
use tallystone_experiments::{
    ArmWeights, CatalogExperiment, ExperimentDesign, ExperimentId, ExperimentMode, ExperimentSettings, ExperimentSpec,
    ExperimentUnit, ExperimentWord, FallenCounter, SignificanceLevel,
};
use tallystone_ports::ExperimentChange;
use tallystone_proto::internal::v1::{
    StoredExperiment, StoredExperimentArm, StoredExperimentChange, StoredExperimentSettings, StoredFallenCounter,
};

/// Encodes a live experiment.
pub fn encode_experiment(experiment: &CatalogExperiment) -> Vec<u8> {
    StoredExperiment {
        id: experiment.id.0,
        version: experiment.version,
        settings: Some(settings_of(&experiment.settings)),
        created: experiment.created.micros(),
        updated: experiment.updated.micros(),
    }
    .encode_to_vec()
}

/// Decodes a live experiment.
pub fn decode_experiment(bytes: &[u8]) -> Result<CatalogExperiment, CorruptValue> {
    const WHAT: &str = "experiment";
    let stored: StoredExperiment = decode(WHAT, bytes)?;
    let settings = stored.settings.ok_or_else(|| CorruptValue::new(WHAT, "its settings are missing"))?;
    Ok(CatalogExperiment {
        id: ExperimentId(stored.id),
        version: stored.version,
        settings: settings_from(WHAT, settings)?,
        created: Timestamp::from_micros(stored.created),
        updated: Timestamp::from_micros(stored.updated),
    })
}

/// Encodes an entry of the history.
pub fn encode_experiment_change(change: &ExperimentChange) -> Vec<u8> {
    StoredExperimentChange {
        id: change.id.0,
        name: change.name.as_str().to_owned(),
        version: change.version,
        time: change.time.micros(),
        actor: change.actor.clone(),
        reason: change.reason.clone(),
        differences: change.differences.clone(),
        settings: change.spec.as_ref().map(settings_of),
    }
    .encode_to_vec()
}

/// Decodes an entry of the history.
pub fn decode_experiment_change(bytes: &[u8]) -> Result<ExperimentChange, CorruptValue> {
    const WHAT: &str = "change of an experiment";
    let stored: StoredExperimentChange = decode(WHAT, bytes)?;
    Ok(ExperimentChange {
        id: ExperimentId(stored.id),
        name: word_from(WHAT, &stored.name)?,
        version: stored.version,
        time: Timestamp::from_micros(stored.time),
        actor: stored.actor,
        reason: stored.reason,
        differences: stored.differences,
        spec: stored.settings.map(|settings| settings_from(WHAT, settings)).transpose()?,
        deletion: (),
    })
}

fn settings_of(settings: &ExperimentSettings) -> StoredExperimentSettings {
    let ExperimentSettings { spec, description, stopped, falls, exposures_before } = settings;
    let fall_of = |fall: &FallenCounter| StoredFallenCounter {
        counter: fall.counter.to_string(),
        time: fall.time.micros(),
        lost: fall.lost,
    };
    let arms = spec.arms.iter().zip(spec.design.weights.weights());
    StoredExperimentSettings {
        name: spec.name.to_string(),
        namespace: spec.namespace.to_string(),
        arms: arms.map(|(name, &weight)| StoredExperimentArm { name: name.to_string(), weight }).collect(),
        metrics: spec.metrics.iter().map(ToString::to_string).collect(),
        unit: match spec.unit {
            ExperimentUnit::User => 1,
            ExperimentUnit::Session => 2,
            ExperimentUnit::Event => 3,
        },
        alpha: spec.design.level.value(),
        planned: spec.design.planned,
        mode: match spec.design.mode {
            ExperimentMode::AlwaysValid => 1,
            ExperimentMode::Fixed => 2,
        },
        description: description.clone(),
        stopped: stopped.map(Timestamp::micros),
        falls: falls.iter().map(fall_of).collect(),
        exposures_before: *exposures_before,
    }
}

fn settings_from(what: &'static str, stored: StoredExperimentSettings) -> Result<ExperimentSettings, CorruptValue> {
    let refused = |reject: Reject| CorruptValue::new(what, reject.message);
    let weights: Vec<u32> = stored.arms.iter().map(|arm| arm.weight).collect();
    let unit = match stored.unit {
        1 => ExperimentUnit::User,
        2 => ExperimentUnit::Session,
        3 => ExperimentUnit::Event,
        other => return Err(CorruptValue::new(what, format!("unit {other}"))),
    };
    let mode = match stored.mode {
        1 => ExperimentMode::AlwaysValid,
        2 => ExperimentMode::Fixed,
        other => return Err(CorruptValue::new(what, format!("mode {other}"))),
    };
    let spec = ExperimentSpec {
        name: word_from(what, &stored.name)?,
        namespace: NamespaceName::new(&stored.namespace).map_err(refused)?,
        arms: stored.arms.iter().map(|arm| word_from(what, &arm.name)).collect::<Result<_, _>>()?,
        metrics: stored.metrics.iter().map(|metric| word_from(what, metric)).collect::<Result<_, _>>()?,
        unit,
        design: ExperimentDesign {
            weights: ArmWeights::new(&weights).map_err(refused)?,
            level: SignificanceLevel::new(stored.alpha).map_err(refused)?,
            planned: stored.planned,
            mode,
        },
    };
    spec.check().map_err(refused)?;
    let stopped = stored.stopped.map(Timestamp::from_micros);
    let fall_from = |fall: StoredFallenCounter| FallenCounter {
        counter: fall.counter.into(),
        time: Timestamp::from_micros(fall.time),
        lost: fall.lost,
    };
    let falls = stored.falls.into_iter().map(fall_from).collect();
    let (description, exposures_before) = (stored.description, stored.exposures_before);
    Ok(ExperimentSettings { spec, description, stopped, falls, exposures_before })
}

fn word_from(what: &'static str, text: &str) -> Result<ExperimentWord, CorruptValue> {
    ExperimentWord::new(text, "name").map_err(|reject| CorruptValue::new(what, reject.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> ExperimentWord {
        ExperimentWord::new(text, "name").expect("a valid name")
    }

    #[test]
    fn experiments_are_read_as_they_were_written() {
        let at = Timestamp::from_secs;
        let spec = ExperimentSpec {
            name: word("checkout"),
            namespace: NamespaceName::new("shop").expect("a valid name"),
            arms: vec![word("A"), word("B")],
            metrics: vec![word("bought"), word("opened")],
            unit: ExperimentUnit::Session,
            design: ExperimentDesign {
                weights: ArmWeights::new(&[9, 1]).expect("valid weights"),
                level: SignificanceLevel::new(0.01).expect("a valid level"),
                planned: u64::MAX,
                mode: ExperimentMode::Fixed,
            },
        };
        let falls = vec![FallenCounter { counter: "B/exposures".into(), time: at(5), lost: 8_112 }];
        let description = "the new button".to_owned();
        let settings = ExperimentSettings { spec, description, stopped: Some(at(7)), falls, exposures_before: Some(9) };
        let id = ExperimentId(u64::MAX - 1);
        let experiment = CatalogExperiment { id, version: 3, settings, created: at(1), updated: at(2) };
        assert_eq!(decode_experiment(&encode_experiment(&experiment)), Ok(experiment.clone()));
        let mut change = ExperimentChange {
            id,
            name: word("checkout"),
            version: 3,
            time: at(2),
            actor: "ann".to_owned(),
            reason: "because".to_owned(),
            differences: vec!["stopped".to_owned()],
            spec: Some(experiment.settings),
            deletion: (),
        };
        assert_eq!(decode_experiment_change(&encode_experiment_change(&change)), Ok(change.clone()));
        change.spec = None;
        assert_eq!(decode_experiment_change(&encode_experiment_change(&change)), Ok(change));
        assert!(decode_experiment(&[]).is_err(), "an empty cell is no experiment");
    }
}
