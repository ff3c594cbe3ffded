//! The questions that settle what became of each token, and the comparisons of counts and readings with that.

use std::time::{Duration, Instant};

use tallystone::adapters::system::SystemClock;
use tallystone::ports::Clock as _;
use tallystone::proto::counter::v1::{CheckTokenRequest, EventKind, Exactness, Freshness, GetCountRequest, Verdict};
use tokio::runtime::Runtime;
use tonic::{Code, Status};

use super::Rng;
use super::ledger::{Fate, Ledger, Tagged, What};
use super::load::{Client, Heard, NAMESPACE, Records, connect, reason, send, token};
use crate::support::harness::{Server, eventually, next_poll};

/// What a server that is up must have settled by; in a fleet the lease of a member that was killed comes first.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
const ROLLED_UP_WITHIN: Duration = Duration::from_secs(120);
/// Tokens that are asked about again after they were settled, at most.
const ASKED_AGAIN_MAX: usize = 60;

/// Why a comparison did not come to its end.
pub enum CheckError {
    /// Something is wrong, in words.
    Mismatch(String),
    /// The server did not answer; whether it may be gone, the caller knows.
    NoAnswer(String),
}

impl From<Status> for CheckError {
    fn from(status: Status) -> Self {
        let text = format!("{status}");
        if reason(&status).is_empty() { Self::NoAnswer(text) } else { Self::Mismatch(text) }
    }
}

/// Asks for every token of unknown fate until it is settled, then reads the counters that were written since the last
/// check, and checks what was read meanwhile.
pub fn settle_and_compare(server: &Server, records: &mut Records, seed: u64) -> Result<(), CheckError> {
    settle_all(server, records, seed)?;
    let ledger = &mut records.ledger;
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let connected = connect(&[server]).await;
        let [mut client, ..] = connected.map_err(|error| CheckError::NoAnswer(error.to_string()))?;
        let mut wrong = Vec::new();
        for counter in ledger.unchecked() {
            let read = read(&mut client, &counter, Freshness::UpToDate).await?;
            wrong.extend(ledger.compare(&counter, read).err());
        }
        ledger.mark_all_checked();
        if wrong.is_empty() {
            return Ok(());
        }
        let shown = wrong.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        Err(CheckError::Mismatch(format!("{} counters are wrong\n{shown}", wrong.len())))
    })
}

/// Asks for every token of unknown fate until it is settled, for some of the others once more, and compares what was read
/// meanwhile with what became of the tokens.
pub fn settle_all(server: &Server, records: &mut Records, seed: u64) -> Result<(), CheckError> {
    let runtime = Runtime::new().expect("a runtime");
    let ledger = &mut records.ledger;
    runtime.block_on(async {
        let connected = connect(&[server]).await;
        let [mut client, ..] = connected.map_err(|error| CheckError::NoAnswer(error.to_string()))?;
        let mut rng = Rng::new(seed);
        for tagged in ledger.unknown() {
            let fate = settle(&mut client, &tagged, rng.below(2) == 0).await?;
            ledger.settle(&tagged, fate);
        }
        ask_again(&mut client, ledger, &mut rng).await
    })?;
    let mut history = records.history();
    let checked = history.check(&records.ledger);
    println!("{}", history.summary());
    history.forget();
    checked.map(|_| ()).map_err(CheckError::Mismatch)
}

/// Settles one token, by sending its change again or by CheckToken; both must be final.
async fn settle(client: &mut Client, tagged: &Tagged, by_sending: bool) -> Result<Fate, CheckError> {
    let began = Instant::now();
    loop {
        let by_sending = by_sending && tagged.what != What::Clear;
        let sent = if by_sending { send(client, std::slice::from_ref(tagged)).await[0] } else { Heard::Unknown };
        // CheckToken tells a server that is gone from a token that is pending.
        let fate = match sent {
            Heard::Applied | Heard::AlreadyApplied => Fate::Applied,
            Heard::NotApplied => Fate::NotApplied,
            Heard::Nothing | Heard::Unknown => check(client, tagged).await?,
        };
        if fate != Fate::Unknown {
            return Ok(fate);
        }
        if began.elapsed() > SETTLED_WITHIN {
            return Err(CheckError::Mismatch(format!("{tagged:?} is not settled within {SETTLED_WITHIN:?}")));
        }
        SystemClock.sleep(next_poll(began)).await;
    }
}

/// A verdict that was given, and an answer that was final, stand for ever: asks about some tokens again.
async fn ask_again(client: &mut Client, ledger: &Ledger, rng: &mut Rng) -> Result<(), CheckError> {
    let counters = ledger.unchecked();
    let known: Vec<&(Tagged, Fate)> = counters.iter().flat_map(|counter| ledger.of(counter)).collect();
    for _ in 0..ASKED_AGAIN_MAX.min(known.len()) {
        let (tagged, fate) = known[rng.index(known.len())];
        let wanted = if *fate == Fate::Refused { Fate::NotApplied } else { *fate };
        let began = Instant::now();
        let mut told = check(client, tagged).await?;
        while told == Fate::Unknown && began.elapsed() < SETTLED_WITHIN {
            SystemClock.sleep(next_poll(began)).await;
            told = check(client, tagged).await?;
        }
        if told != wanted {
            return Err(CheckError::Mismatch(format!("{tagged:?} was {fate:?}, and is told {told:?} later")));
        }
    }
    Ok(())
}

async fn check(client: &mut Client, tagged: &Tagged) -> Result<Fate, CheckError> {
    let request = CheckTokenRequest {
        namespace: NAMESPACE.to_owned(),
        counter_name: tagged.counter.clone(),
        idempotency_token: token(tagged),
    };
    let answer = match client.check_token(request).await {
        Ok(answer) => answer.into_inner(),
        // It says nothing of the token, and something is wrong only if it stays so.
        Err(status) if may_pass(&status) => return Ok(Fate::Unknown),
        Err(status) => return Err(status.into()),
    };
    let is_it = match tagged.what {
        What::Bit(_) => answer.kind() == EventKind::Add && answer.delta == tagged.delta(),
        What::Clear => answer.kind() == EventKind::Clear,
    };
    match answer.verdict() {
        Verdict::Applied if is_it => Ok(Fate::Applied),
        Verdict::NotApplied => Ok(Fate::NotApplied),
        Verdict::Pending => Ok(Fate::Unknown),
        Verdict::Applied | Verdict::TooOld | Verdict::Unspecified => {
            Err(CheckError::Mismatch(format!("{tagged:?}: {answer:?}")))
        }
    }
}

/// Refusals that end by themselves when a store or a server is back.
const MAY_PASS: [&str; 4] = ["STORE_UNAVAILABLE", "OUTCOME_UNKNOWN", "RETRY_LATER", "DEADLINE_EXCEEDED"];

/// Also where the client gave the call up. Whether the server is gone, the next call tells.
fn may_pass(status: &Status) -> bool {
    status.code() == Code::Cancelled || MAY_PASS.contains(&reason(status).as_str())
}

async fn read(client: &mut Client, counter: &str, freshness: Freshness) -> Result<i64, CheckError> {
    let request = GetCountRequest {
        namespace: NAMESPACE.to_owned(),
        counter_name: counter.to_owned(),
        freshness: freshness.into(),
        ..GetCountRequest::default()
    };
    let began = Instant::now();
    let answer = loop {
        match client.get_count(request.clone()).await {
            Ok(answer) => break answer.into_inner(),
            // It says nothing of the count, and something is wrong only if it stays so.
            Err(status) if may_pass(&status) && began.elapsed() < SETTLED_WITHIN => {}
            Err(status) => return Err(status.into()),
        }
        SystemClock.sleep(next_poll(began)).await;
    };
    if freshness == Freshness::UpToDate && answer.exactness() != Exactness::UpToDate {
        return Err(CheckError::Mismatch(format!("{counter}: asked for UP_TO_DATE, got {:?}", answer.exactness())));
    }
    Ok(answer.count)
}

/// Waits until the rolled-up counts of all counters are what the ledger says.
pub fn wait_until_rolled_up(server: &Server, ledger: &Ledger) -> Result<(), String> {
    let runtime = Runtime::new().expect("a runtime");
    let [mut client, ..] = runtime.block_on(connect(&[server])).map_err(|error| error.to_string())?;
    for counter in ledger.counters() {
        let mut last = Ok(());
        let rolled_up = eventually(ROLLED_UP_WITHIN, || {
            let read = runtime.block_on(read(&mut client, &counter, Freshness::RolledUp));
            last = match read {
                Ok(read) => ledger.compare(&counter, read),
                Err(CheckError::Mismatch(text) | CheckError::NoAnswer(text)) => Err(text),
            };
            last.is_ok()
        });
        if !rolled_up {
            last?;
        }
    }
    Ok(())
}
