//! What the bridge costs: the same load without it, with counters alone, and with counters and history, in turns.

use std::path::Path;

use anyhow::Result;
use tallystone_client::proto::queue::v1::{History, Queue};
use tempfile::TempDir;

use super::Scale;
use crate::client::Connections;
use crate::figures::{Figure, figure};
use crate::load::{closed, open};
use crate::queues::calls::{Enqueue, Pair, Take};
use crate::queues::cycles;
use crate::queues::messages::{Kind, Queues, create, fill};
use crate::queues::{CONNECTIONS, IN_FLIGHT};
use crate::report::{Report, median};
use crate::target::Target;

/// Messages that are always pending while cycles are measured.
const BACKLOG: u64 = 100_000;

/// How much of the bridge runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Counters,
    All,
}

const MODES: [Mode; 3] = [Mode::Off, Mode::Counters, Mode::All];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Counters => "counters",
            Self::All => "counters and history",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Off => &["--set", "bridge.enabled=false"],
            Self::Counters | Self::All => &[],
        }
    }

    fn queue(self, name: &str) -> Queue {
        let history = if self == Self::All { History::All } else { History::None };
        Queue { history: history.into(), ..Queues::simple(name) }
    }
}

/// What the rounds of one mode measured.
#[derive(Default)]
struct Rounds {
    enqueues: Vec<f64>,
    pairs: Vec<f64>,
    cycles: Vec<f64>,
    p99s: Vec<f64>,
}

/// Runs the rounds, each with every mode on a fresh server.
pub async fn run(binary: &Path, folder: &impl Fn() -> Result<TempDir>, scale: &Scale) -> Result<Vec<Figure>> {
    let mut rounds = MODES.map(|_| Rounds::default());
    for _ in 0..scale.rounds {
        let mut half = None;
        for (mode, into) in MODES.into_iter().zip(&mut rounds) {
            half = Some(one(binary, &folder()?, scale, mode, half, into).await?);
        }
    }
    let [off, counters, all] = &rounds;
    Ok(vec![
        compared("counters alone: Enqueue", |rounds| &rounds.enqueues, (off, counters), ">= 0.9 of off", 0.9),
        compared("counters alone: Dequeue and Complete", |rounds| &rounds.pairs, (off, counters), ">= 0.9 of off", 0.9),
        compared("counters alone: cycles of streams", |rounds| &rounds.cycles, (off, counters), ">= 0.9 of off", 0.9),
        compared("with history: Enqueue", |rounds| &rounds.enqueues, (off, all), ">= 0.75, goal 0.85", 0.75),
        compared("with history: Dequeue and Complete", |rounds| &rounds.pairs, (off, all), ">= 0.75, goal 0.85", 0.75),
        compared("with history: cycles of streams", |rounds| &rounds.cycles, (off, all), ">= 0.6, goal 0.8", 0.6),
        slower(off, all),
    ])
}

/// Measures one mode; dequeues at half load run at the rate of the round's first mode, which is answered.
async fn one(
    binary: &Path,
    folder: &TempDir,
    scale: &Scale,
    mode: Mode,
    half: Option<f64>,
    into: &mut Rounds,
) -> Result<f64> {
    let server = Target::server_with(binary, folder.path(), mode.arguments())?;
    let connections = Connections::open(&server.url(), CONNECTIONS).await?;
    let (queue, span) = ("bridge", scale.span());
    create(&connections, mode.queue(queue)).await?;
    let tell = |what: &str, report: &Report| eprintln!("{}", report.line(&format!("{}: {what}", mode.name())));
    let enqueue = closed(Enqueue::workers(&connections, queue, IN_FLIGHT), span).await;
    tell("enqueue", &enqueue);
    fill(&connections, queue, Kind::Plain, enqueue.done / 4).await?; // so that the pairs never run dry
    let pair = closed(Pair::workers(&connections, queue, IN_FLIGHT), span).await;
    tell("dequeue and complete", &pair);
    let half = half.unwrap_or(pair.rate() / 2.0);
    let at_half = open(Take::workers(&connections, queue, 256, Kind::Plain), half, span).await;
    tell("dequeue at half load", &at_half);
    let streams = "cycles";
    create(&connections, mode.queue(streams)).await?;
    fill(&connections, streams, Kind::Plain, BACKLOG).await?;
    let cycle = cycles::run(&connections, streams, Kind::Plain, span).await?;
    tell("cycles of streams", &cycle);
    into.enqueues.push(enqueue.rate());
    into.pairs.push(pair.rate());
    into.p99s.push(at_half.quantile_ms(0.99));
    into.cycles.push(cycle.rate());
    Ok(half)
}

/// A rate beside that without the bridge: the middle one of the ratios, round by round.
fn compared(
    what: &str,
    rates: impl Fn(&Rounds) -> &Vec<f64>,
    (off, on): (&Rounds, &Rounds),
    wanted: &'static str,
    least: f64,
) -> Figure {
    let ratios: Vec<f64> = rates(on).iter().zip(rates(off)).map(|(on, off)| on / off).collect();
    let each = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(", ");
    let (with, without, ratio) = (median(rates(on).clone()), median(rates(off).clone()), median(ratios));
    let text = format!("{with:.0}/s beside {without:.0}/s: {ratio:.2} ({each})");
    figure(what, text, wanted, ratio >= least)
}

fn slower(off: &Rounds, all: &Rounds) -> Figure {
    let (with, without) = (median(all.p99s.clone()), median(off.p99s.clone()));
    let ratio = median(all.p99s.iter().zip(&off.p99s).map(|(on, off)| on / off).collect());
    let text = format!("{with:.1} ms beside {without:.1} ms: {ratio:.2}");
    figure("with history: Dequeue p99 at half load", text, "<= 1.3 of off", ratio <= 1.3)
}
