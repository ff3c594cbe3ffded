//! How experiments change: created, updated, stopped, deleted. What the statistics rest on is fixed when an experiment
//! is created, because an interval that is tuned after a look is not valid.

use std::sync::Arc;

use super::catalog::{ExperimentCatalog, ExperimentEtag, HeldExperiments, not_found};
use super::error::ExperimentError;
use super::update::ExperimentUpdate;
use crate::catalog::{
    Author, CommitOutcome, FIRST_VERSION, FollowedCatalog as _, SettingText, check_etag, differences_between, finish,
    refuse_fixed, setting,
};
use tallystone_domain::limits::EXPERIMENTS_MAX;
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_experiments::{
    CatalogExperiment, ExperimentId, ExperimentMode, ExperimentSettings, ExperimentUnit, ExperimentWord, FallenCounter,
};
use tallystone_ports::{ExperimentRecord, StoreError, StoreErrorKind};

const CHANGE_OP: &str = "change of an experiment";

impl ExperimentCatalog {
    /// Creates an experiment, which begins with it. A running one with the same settings is answered as it is, so that
    /// a call may be repeated.
    pub async fn create(
        &self,
        settings: ExperimentSettings,
        author: Author,
    ) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        settings.check()?;
        self.change(ExperimentIntent::Create(settings), author).await
    }

    /// Changes the description and the secondary metrics; `expected` is the version that the caller read.
    pub async fn update(
        &self,
        update: ExperimentUpdate,
        expected: Option<ExperimentEtag>,
        author: Author,
    ) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        self.change(ExperimentIntent::Update(Box::new(update), expected), author).await
    }

    /// Stops an experiment. One that was stopped is answered as it is.
    pub async fn stop(
        &self,
        name: ExperimentWord,
        expected: Option<ExperimentEtag>,
        author: Author,
    ) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        self.change(ExperimentIntent::Stop(name, expected), author).await
    }

    /// Deletes an experiment. Its counters stay. Answers it as it was.
    pub async fn delete(
        &self,
        name: ExperimentWord,
        expected: Option<ExperimentEtag>,
        author: Author,
    ) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        self.change(ExperimentIntent::Delete(name, expected), author).await
    }

    /// Notes counters that became smaller, each once. An experiment that has another id by then stays as it is.
    pub(super) async fn note_falls(
        &self,
        name: ExperimentWord,
        id: ExperimentId,
        falls: Vec<FallenCounter>,
    ) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        let author = Author { actor: "tallystone".to_owned(), reason: "a counter became smaller".to_owned() };
        self.change(ExperimentIntent::NoteFalls(name, id, falls), author).await
    }

    /// Runs a change to its end, even if the caller goes away.
    async fn change(
        &self,
        intent: ExperimentIntent,
        author: Author,
    ) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        author.check()?;
        // Where servers share the experiments, the change is decided on what the others left.
        self.follow().await?;
        let held = Arc::clone(&self.held);
        let start = |work| drop(self.held.tasks.spawn(work));
        finish(CHANGE_OP, start, async move { held.run(intent, author).await }).await
    }
}

/// The intent of a change.
#[derive(Clone, Debug)]
enum ExperimentIntent {
    Create(ExperimentSettings),
    Update(Box<ExperimentUpdate>, Option<ExperimentEtag>),
    Stop(ExperimentWord, Option<ExperimentEtag>),
    Delete(ExperimentWord, Option<ExperimentEtag>),
    NoteFalls(ExperimentWord, ExperimentId, Vec<FallenCounter>),
}

/// The decision about an intent.
enum ExperimentDecision {
    /// Nothing: the experiment is as it shall be.
    Keep(Arc<CatalogExperiment>),
    /// To commit this, which answers that.
    Commit(Box<ExperimentRecord>, Arc<CatalogExperiment>),
}

impl HeldExperiments {
    async fn run(&self, intent: ExperimentIntent, author: Author) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        let Some(mut turn) = self.catalog.begin(self).await else {
            return Err(StoreError::not_applied(StoreErrorKind::Closed, CHANGE_OP).into());
        };
        loop {
            let (record, answer) = match self.decide(&intent, &author)? {
                ExperimentDecision::Keep(experiment) => return Ok(experiment),
                ExperimentDecision::Commit(record, answer) => (record, answer),
            };
            if turn.commit((*record).clone()).await? == CommitOutcome::Overtaken {
                continue;
            }
            self.serve(*record);
            return Ok(answer);
        }
    }

    fn decide(&self, intent: &ExperimentIntent, author: &Author) -> Result<ExperimentDecision, Reject> {
        let now = self.context.now();
        match intent {
            ExperimentIntent::Create(settings) => self.creation(settings, author, now),
            ExperimentIntent::Update(update, expected) => {
                let live = self.live(&update.name, *expected)?;
                let after = update.over(&live.settings)?;
                refuse_fixed::<CatalogExperiment>(&differences_between(fixed(&live.settings), fixed(&after)))?;
                let differences = differences_between(changing(&live.settings), changing(&after));
                Ok(changed(&live, after, author, now, differences))
            }
            ExperimentIntent::Stop(name, expected) => {
                let live = self.live(name, *expected)?;
                let stopped = Some(live.settings.stopped.unwrap_or(now));
                let after = ExperimentSettings { stopped, ..live.settings.clone() };
                Ok(changed(&live, after, author, now, vec!["state: RUNNING -> STOPPED".to_owned()]))
            }
            ExperimentIntent::NoteFalls(name, id, falls) => {
                let live = self.live(name, None)?;
                Ok(if live.id == *id { noted(&live, falls, author, now) } else { ExperimentDecision::Keep(live) })
            }
            ExperimentIntent::Delete(name, expected) => {
                let live = self.live(name, *expected)?;
                let mut change = author.deletion(&*live, now, ());
                change.differences.push("the experiment was deleted".to_owned());
                let expected_version = Some(live.version);
                let record = ExperimentRecord { expected_version, entry: None, companion: (), change };
                Ok(ExperimentDecision::Commit(Box::new(record), live))
            }
        }
    }

    fn creation(
        &self,
        settings: &ExperimentSettings,
        author: &Author,
        now: Timestamp,
    ) -> Result<ExperimentDecision, Reject> {
        let by_name = self.by_name.load();
        let name = &settings.spec.name;
        if let Some(live) = by_name.get(name) {
            // What the service noted was not sent.
            let (falls, exposures_before) = (live.settings.falls.clone(), live.settings.exposures_before);
            if live.settings == (ExperimentSettings { falls, exposures_before, ..settings.clone() }) {
                return Ok(ExperimentDecision::Keep(Arc::clone(live)));
            }
            let what = format!("experiment {name} exists with other settings, or was stopped");
            return Err(Reject::new(Reason::ExperimentExists, what));
        }
        if by_name.len() >= EXPERIMENTS_MAX {
            let what = format!("there are {EXPERIMENTS_MAX} experiments, the maximum; delete some first");
            return Err(Reject::new(Reason::InvalidArgument, what));
        }
        let id = ExperimentId(u64::from_be_bytes(self.context.random()));
        let settings = settings.clone();
        let experiment = CatalogExperiment { id, version: FIRST_VERSION, settings, created: now, updated: now };
        let change = author.change(&experiment, now, vec!["the experiment was created".to_owned()]);
        let answer = Arc::new(experiment.clone());
        let record = ExperimentRecord { expected_version: None, entry: Some(experiment), companion: (), change };
        Ok(ExperimentDecision::Commit(Box::new(record), answer))
    }

    fn live(&self, name: &ExperimentWord, expected: Option<ExperimentEtag>) -> Result<Arc<CatalogExperiment>, Reject> {
        let live = self.by_name.load().get(name).cloned().ok_or_else(|| not_found(name))?;
        check_etag(&*live, expected)?;
        Ok(live)
    }

    /// Takes a committed change into memory. Only one change runs at a time, and `take_in` only between changes.
    fn serve(&self, record: ExperimentRecord) {
        let ExperimentRecord { entry, change, .. } = record;
        tracing::info!(
            experiment = %change.name,
            version = change.version,
            actor = change.actor,
            differences = change.differences.join("; "),
            "an experiment was changed"
        );
        let mut by_name = (**self.by_name.load()).clone();
        match entry {
            Some(experiment) => by_name.insert(change.name, Arc::new(experiment)),
            None => by_name.remove(&change.name),
        };
        self.by_name.store(Arc::new(by_name));
    }
}

/// The decision that notes falls which are not known yet.
fn noted(
    live: &Arc<CatalogExperiment>,
    falls: &[FallenCounter],
    author: &Author,
    now: Timestamp,
) -> ExperimentDecision {
    let mut after = live.settings.clone();
    let mut differences = Vec::new();
    for fall in falls {
        if after.falls.iter().all(|known| known.counter != fall.counter) {
            differences.push(format!("{} fell by {}", fall.counter, fall.lost));
            after.falls.push(fall.clone());
        }
    }
    changed(live, after, author, now, differences)
}

/// The decision for settings after a change; none is needed if they are the same.
fn changed(
    live: &Arc<CatalogExperiment>,
    after: ExperimentSettings,
    author: &Author,
    now: Timestamp,
    differences: Vec<String>,
) -> ExperimentDecision {
    if after == live.settings {
        return ExperimentDecision::Keep(Arc::clone(live));
    }
    let version = live.version + 1;
    let experiment = CatalogExperiment { id: live.id, version, settings: after, created: live.created, updated: now };
    let change = author.change(&experiment, now, differences);
    let answer = Arc::new(experiment.clone());
    let expected_version = Some(live.version);
    let record = ExperimentRecord { expected_version, entry: Some(experiment), companion: (), change };
    ExperimentDecision::Commit(Box::new(record), answer)
}

/// The settings that are fixed at the start.
fn fixed(settings: &ExperimentSettings) -> Vec<SettingText> {
    let spec = &settings.spec;
    let arms = spec.arms.iter().zip(spec.design.weights.weights());
    let arms: Vec<String> = arms.map(|(arm, weight)| format!("{arm}={weight}")).collect();
    let unit = match spec.unit {
        ExperimentUnit::User => "USER",
        ExperimentUnit::Session => "SESSION",
        ExperimentUnit::Event => "EVENT",
    };
    let mode = match spec.design.mode {
        ExperimentMode::AlwaysValid => "ALWAYS_VALID",
        ExperimentMode::Fixed => "FIXED",
    };
    vec![
        setting("namespace", &spec.namespace),
        setting("arms", arms.join(", ")),
        setting("metric", spec.metrics[0].to_string()),
        setting("unit", unit),
        setting("alpha", spec.design.level.value().to_string()),
        setting("planned_exposures", spec.design.planned),
        setting("mode", mode),
    ]
}

/// The settings that may change.
fn changing(settings: &ExperimentSettings) -> Vec<SettingText> {
    let secondary: Vec<&str> = settings.spec.metrics.iter().skip(1).map(ExperimentWord::as_str).collect();
    vec![setting("secondary_metrics", secondary.join(", ")), setting("description", settings.description.as_str())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::counter::NamespaceName;
    use tallystone_experiments::{ArmWeights, ExperimentDesign, ExperimentSpec, SignificanceLevel};

    fn word(text: &str) -> ExperimentWord {
        ExperimentWord::new(text, "name").expect("a valid name")
    }

    fn settings(weights: &[u32], metrics: &[&str], planned: u64) -> ExperimentSettings {
        let spec = ExperimentSpec {
            name: word("checkout"),
            namespace: NamespaceName::new("default").expect("a valid name"),
            arms: vec![word("A"), word("B")],
            metrics: metrics.iter().copied().map(word).collect(),
            unit: ExperimentUnit::User,
            design: ExperimentDesign {
                weights: ArmWeights::new(weights).expect("valid weights"),
                level: SignificanceLevel::new(0.05).expect("a valid level"),
                planned,
                mode: ExperimentMode::AlwaysValid,
            },
        };
        ExperimentSettings {
            spec,
            description: String::new(),
            stopped: None,
            falls: Vec::new(),
            exposures_before: None,
        }
    }

    #[test]
    fn what_the_statistics_rest_on_is_fixed() {
        let begun = settings(&[1, 1], &["bought"], 100);
        let differs = |after: &ExperimentSettings| differences_between(fixed(&begun), fixed(after));
        assert_eq!(differs(&settings(&[9, 1], &["bought"], 100)), ["arms: A=1, B=1 -> A=9, B=1"]);
        assert_eq!(differs(&settings(&[1, 1], &["opened"], 100)), ["metric: bought -> opened"]);
        assert_eq!(differs(&settings(&[1, 1], &["bought"], 99)), ["planned_exposures: 100 -> 99"]);
        let shown_too = settings(&[1, 1], &["bought", "opened"], 100);
        assert!(differs(&shown_too).is_empty());
        let differences = differences_between(changing(&begun), changing(&shown_too));
        assert_eq!(differences, ["secondary_metrics:  -> opened"]);
    }
}
