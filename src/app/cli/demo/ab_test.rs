//! `demo ab-test`: three experiments. In one an arm is higher, in one nothing differs, in one the arms are filled
//! wrongly.

use std::collections::BTreeMap;
use std::time::Duration;

use super::demo_queue::MADE_BY_DEMO;
use super::ledger::DemoLedger;
use super::seeded::SeededNumbers;
use crate::output::word;
use crate::{ClientContext, Exit, Failure};
use tallystone_app::notices::print_notice;
use tallystone_proto::counter::v1 as counters_pb;
use tallystone_proto::experiment::v1 as pb;

const USERS: u64 = 40_000;
/// The steps in which the users come.
const STEPS: u32 = 20;
const METRIC: &str = "bought";
const EXPOSURES: &str = "exposures";

/// An experiment of the demo, with arms A and B of equal weight.
struct DemoExperiment {
    name: &'static str,
    about: &'static str,
    /// The share of users that really get B.
    share_of_b: f64,
    /// The rates of A and B.
    rates: [f64; 2],
    expected: &'static str,
}

static EXPERIMENTS: [DemoExperiment; 3] = [
    DemoExperiment {
        name: "demo-button",
        about: "B is higher",
        share_of_b: 0.5,
        rates: [0.05, 0.07],
        expected: "HIGHER",
    },
    DemoExperiment {
        name: "demo-same",
        about: "A and B are the same",
        share_of_b: 0.5,
        rates: [0.05, 0.05],
        expected: "NO_DIFFERENCE_YET",
    },
    DemoExperiment {
        name: "demo-redirect",
        about: "a redirect loses users of B",
        share_of_b: 0.47,
        rates: [0.05, 0.07],
        expected: "NOT_TRUSTED",
    },
];

/// Creates the experiments, lets users come within `lasts`, and compares the arms.
pub async fn run(session: &ClientContext, seed: u64, namespace: &str, lasts: Duration) -> Result<DemoLedger, Failure> {
    remove(session, namespace).await?;
    for experiment in &EXPERIMENTS {
        let request =
            pb::CreateExperimentRequest { experiment: Some(experiment.declared(namespace)), reason: "demo".to_owned() };
        call!(session, experiments.create_experiment, &request)?;
    }
    let mut streams = EXPERIMENTS.each_ref().map(|experiment| SeededNumbers::new(seed, experiment.name));
    let mut added = BTreeMap::new();
    for _ in 0..STEPS {
        for (experiment, numbers) in EXPERIMENTS.iter().zip(&mut streams) {
            let counts = experiment.users(numbers, USERS / u64::from(STEPS));
            add(session, namespace, &counts).await?;
            for (counter, count) in counts {
                *added.entry(counter).or_insert(0) += count;
            }
        }
        tokio::time::sleep(lasts / STEPS).await;
    }
    let mut ledger = DemoLedger::default();
    for experiment in &EXPERIMENTS {
        compare(session, experiment, &added, &mut ledger).await?;
    }
    Ok(ledger)
}

impl DemoExperiment {
    fn declared(&self, namespace: &str) -> pb::Experiment {
        let arm = |name: &str| pb::ExperimentArm { name: name.to_owned(), weight: Some(1) };
        pb::Experiment {
            name: self.name.to_owned(),
            namespace: namespace.to_owned(),
            arms: vec![arm("A"), arm("B")],
            metric: METRIC.to_owned(),
            planned_exposures: Some(USERS),
            description: Some(MADE_BY_DEMO.to_owned()),
            ..Default::default()
        }
    }

    fn counter(&self, arm: &str, metric: &str) -> String {
        format!("exp/{}/{arm}/{metric}", self.name)
    }

    fn counters(&self) -> Vec<String> {
        let of_arm = |arm| [EXPOSURES, METRIC].map(|metric| self.counter(arm, metric));
        ["A", "B"].into_iter().flat_map(of_arm).collect()
    }

    /// The adds of so many users, exposures before conversions.
    fn users(&self, numbers: &mut SeededNumbers, users: u64) -> Vec<(String, i64)> {
        let (mut exposures, mut conversions) = ([0, 0], [0, 0]);
        for _ in 0..users {
            let arm = usize::from(numbers.happens(self.share_of_b));
            exposures[arm] += 1;
            conversions[arm] += i64::from(numbers.happens(self.rates[arm]));
        }
        let mut counts = Vec::with_capacity(4);
        for (metric, of_arms) in [(EXPOSURES, exposures), (METRIC, conversions)] {
            for (arm, count) in ["A", "B"].into_iter().zip(of_arms) {
                counts.push((self.counter(arm, metric), count));
            }
        }
        counts
    }
}

async fn add(session: &ClientContext, namespace: &str, counts: &[(String, i64)]) -> Result<(), Failure> {
    let item = |(counter, delta): &(String, i64)| counters_pb::AddItem {
        counter_name: counter.clone(),
        delta: Some(*delta),
        ..Default::default()
    };
    let items = counts.iter().filter(|(_, delta)| *delta > 0).map(item).collect();
    let request = counters_pb::BatchAddCountsRequest { namespace: namespace.to_owned(), items };
    let results = session.client.batch_add_counts(request).await.map_err(|error| session.failed(&error.error))?;
    match results.iter().find_map(|result| result.error.as_ref()) {
        None => Ok(()),
        Some(error) => Err(Failure::other(format!("an add was refused: {} ({})", error.message, error.reason))),
    }
}

/// Compares the arms, and writes down what was added and what the server counts.
async fn compare(
    session: &ClientContext,
    experiment: &DemoExperiment,
    added: &BTreeMap<String, i64>,
    ledger: &mut DemoLedger,
) -> Result<(), Failure> {
    let name = experiment.name;
    let request = pb::CompareExperimentRequest { name: name.to_owned(), experiment: None };
    let found = call!(ask session, experiments.compare_experiment, &request)?;
    let verdict = found
        .contrasts
        .first()
        .map(|contrast| word(contrast.verdict, "EXPERIMENT_VERDICT_", pb::ExperimentVerdict::as_str_name));
    let verdict = verdict.unwrap_or_default();
    let mut counters = Vec::new();
    let mut counted = |arm: &str, metric: &str, count: u64| {
        let counter = experiment.counter(arm, metric);
        let was_added = added.get(&counter).copied().unwrap_or_default();
        counters.push((counter, was_added, i64::try_from(count).unwrap_or(i64::MAX)));
    };
    for arm in &found.arms {
        counted(&arm.arm, EXPOSURES, arm.exposures);
        arm.metrics.iter().for_each(|metric| counted(&arm.arm, &metric.metric, metric.conversions));
    }
    ledger.add_experiment(name, &verdict, experiment.expected, &counters);
    let doubt = found.doubts.first().map(|doubt| format!(" ({})", doubt.text)).unwrap_or_default();
    let look = session.hint(&format!("exp compare {name}"));
    print_notice(&format!("{name}: {verdict}{doubt}; {}. Look at: {look}", experiment.about));
    if verdict != experiment.expected {
        print_notice(&format!("{name}: chance has it that this seed does not show {}", experiment.expected));
    }
    Ok(())
}

/// Removes the experiments of the demo and clears their counters. Returns what there was. An experiment that the demo
/// did not make is refused.
pub async fn remove(session: &ClientContext, namespace: &str) -> Result<Vec<String>, Failure> {
    let mut removed = Vec::new();
    for experiment in &EXPERIMENTS {
        let name = experiment.name;
        let request = pb::GetExperimentRequest { name: name.to_owned() };
        match call!(ask session, experiments.get_experiment, &request) {
            Ok(found) => {
                let found = found.experiment.unwrap_or_default();
                if found.description() != MADE_BY_DEMO {
                    let what = format!("experiment {name} exists, and the demo did not make it");
                    return Err(Failure::new(Exit::Precondition, what));
                }
                let request =
                    pb::DeleteExperimentRequest { name: name.to_owned(), etag: found.etag, reason: "demo".to_owned() };
                call!(session, experiments.delete_experiment, &request)?;
                clear(session, &found.namespace, experiment).await?;
                removed.push(format!("experiment {name}"));
            }
            Err(failure) if failure.exit() == Exit::NotFound => clear(session, namespace, experiment).await?,
            Err(failure) => return Err(failure),
        }
    }
    Ok(removed)
}

/// Clears the counters of an experiment that are not 0.
async fn clear(session: &ClientContext, namespace: &str, experiment: &DemoExperiment) -> Result<(), Failure> {
    let request = counters_pb::BatchGetCountsRequest {
        namespace: namespace.to_owned(),
        counter_names: experiment.counters(),
        freshness: counters_pb::Freshness::UpToDate.into(),
        ..Default::default()
    };
    let read = call!(ask session, counters.batch_get_counts, &request)?;
    for result in read.results {
        if result.reading.is_none_or(|reading| reading.count == 0) {
            continue;
        }
        let request = counters_pb::ClearCountRequest {
            namespace: namespace.to_owned(),
            counter_name: result.counter_name,
            ..Default::default()
        };
        session.client.clear_count(request).await.map_err(|error| session.failed(&error.error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_seed_are_shown_an_arm_each_and_convert_at_its_rate() {
        for experiment in &EXPERIMENTS {
            let counts = experiment.users(&mut SeededNumbers::new(1, experiment.name), USERS);
            let again = experiment.users(&mut SeededNumbers::new(1, experiment.name), USERS);
            assert_eq!(counts, again);
            let [a, b, a_bought, b_bought] = counts.iter().map(|(_, count)| *count as f64).collect::<Vec<_>>()[..]
            else {
                panic!("four counters: {counts:?}")
            };
            assert_eq!(a + b, USERS as f64);
            // Six standard deviations of a share among 40,000 users, and of a rate among 18,000.
            assert!((b / (a + b) - experiment.share_of_b).abs() < 0.015, "{counts:?}");
            assert!((a_bought / a - experiment.rates[0]).abs() < 0.012, "{counts:?}");
            assert!((b_bought / b - experiment.rates[1]).abs() < 0.012, "{counts:?}");
        }
    }
}
