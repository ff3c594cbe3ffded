//! `demo`: fills queues and experiments of a running server with telling examples, and says what to look at.
//!
//! Each scenario makes its queues and experiments anew, and ends with a ledger of what it did. The command fails if the
//! server counts something else. What is not the demo's own is never touched.

mod ab_test;
mod backlog;
mod demo_queue;
mod hot_key;
mod ledger;
mod poison;
mod seeded;

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::output::Format;
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs, arguments};
use ledger::DemoLedger;
use tallystone_app::notices::print_notice;

/// Fill a running server with telling examples, and say what to look at; ends with a JSON ledger of what was done.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone demo hot-key --seed 7")]
pub struct DemoArgs {
    /// What to show.
    #[arg(value_enum)]
    scenario: DemoScenario,
    /// The same seed gives the same messages and users.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// How long `backlog` stays blocked; a time to drain is known after a minute.
    #[arg(long, default_value = "65s", value_name = "TIME", value_parser = arguments::duration)]
    hold: Duration,
    /// How long the workers of `backlog` and the users of `ab-test` take.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = arguments::duration)]
    lasts: Duration,
    /// The namespace of the counters of `ab-test`.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    namespace: String,
    #[command(flatten)]
    client: ClientArgs,
}

/// What the demo shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum DemoScenario {
    /// Messages pile up behind a blocked queue, and are worked off.
    Backlog,
    /// One exclusivity value holds back its messages; a raised limit cures it.
    HotKey,
    /// Messages fail in three groups; one group is redriven.
    Poison,
    /// Three experiments: one arm is higher, nothing differs, the arms are filled wrongly.
    AbTest,
    /// All of these at once.
    Busy,
    /// Remove what the demo made.
    Clean,
}

impl DemoScenario {
    fn name(self) -> &'static str {
        match self {
            Self::Backlog => "backlog",
            Self::HotKey => "hot-key",
            Self::Poison => "poison",
            Self::AbTest => "ab-test",
            Self::Busy => "busy",
            Self::Clean => "clean",
        }
    }
}

impl DemoArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        let is_line = match session.output.format() {
            Format::Jsonl => true,
            Format::Table | Format::Json => false,
            Format::Csv => return Err(Failure::usage("the ledger of a demo is JSON; use -o json or -o jsonl")),
        };
        let ledger = self.play(&session).await?;
        let json = ledger.json(self.scenario.name(), self.seed);
        let text = if is_line { json.to_string() } else { format!("{json:#}") };
        session.output.bytes(format!("{text}\n").as_bytes())?;
        ledger.check()
    }

    async fn play(&self, session: &ClientContext) -> Result<DemoLedger, Failure> {
        let Self { seed, hold, lasts, ref namespace, .. } = *self;
        match self.scenario {
            DemoScenario::Backlog => Box::pin(backlog::run(session, seed, hold, lasts)).await,
            DemoScenario::HotKey => Box::pin(hot_key::run(session, seed)).await,
            DemoScenario::Poison => Box::pin(poison::run(session, seed)).await,
            DemoScenario::AbTest => Box::pin(ab_test::run(session, seed, namespace, lasts)).await,
            DemoScenario::Busy => {
                let (mut all, hot_key, poison, ab_test) = tokio::try_join!(
                    Box::pin(backlog::run(session, seed, hold, lasts)),
                    Box::pin(hot_key::run(session, seed)),
                    Box::pin(poison::run(session, seed)),
                    Box::pin(ab_test::run(session, seed, namespace, lasts)),
                )?;
                [hot_key, poison, ab_test].into_iter().for_each(|ledger| all.append(ledger));
                Ok(all)
            }
            DemoScenario::Clean => clean(session, namespace).await,
        }
    }
}

/// Removes what the demo made.
async fn clean(session: &ClientContext, namespace: &str) -> Result<DemoLedger, Failure> {
    let mut ledger = DemoLedger::default();
    for queue in [backlog::BACKLOG, hot_key::HOT_KEY, poison::POISON] {
        if demo_queue::remove(session, queue).await? {
            ledger.add_removed(format!("queue {queue}"));
        }
    }
    ab_test::remove(session, namespace).await?.into_iter().for_each(|experiment| ledger.add_removed(experiment));
    print_notice("the queues and experiments of the demo are gone; its counters are 0");
    Ok(ledger)
}
