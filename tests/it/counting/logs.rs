//! What the engine logs: enough to see what it does, and nothing of what callers count.

use std::io;
use std::sync::{Arc, Mutex};

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::counter::{Counter, NamespaceId};
use tallystone::domain::rollup::{Freshness, ReadOptions};
use tallystone::engine::catalog::Author;
use tallystone::engine::namespaces::NamespaceDraft;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec};

/// What was logged on this thread.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logged {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let logged = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::TRACE);
        tracing::subscriber::set_default(subscriber.with_writer(move || logged.clone()).finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("logs are text")
    }
}

#[tokio::test]
async fn logs_tell_of_failed_rolls_without_names_of_counters() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let logged = Logged::default();
    let _listening = logged.listen();
    let house = House::on(spec("shop"), clock, stores, None).await;
    house.add("patient-4711", 1, None).await.expect("an add that works");
    log.spoil();
    house.pass(8 * SECOND).await;
    let wanted =
        ReadOptions { at_least_as_of: Some(house.now()), freshness: Freshness::RolledUp, ..Default::default() };
    // The read fails or answers what is known; what matters is what its inline roll leaves in the log.
    let _ = house.drive(house.counting.get(&house.shop, counter("patient-4711"), wanted)).await;
    house.rest().await;
    let text = logged.text();
    assert!(text.contains("a roll failed; retrying"), "{text}");
    let tag = Counter::new(NamespaceId(1), counter("patient-4711")).tag();
    assert!(text.contains(&format!("counter={tag}")), "{tag} is missing of {text}");
    assert!(!text.contains("4711"), "{text}");
}

#[tokio::test]
async fn logs_tell_who_changed_which_namespace() {
    let logged = Logged::default();
    let _listening = logged.listen();
    let house = House::new().await;
    let author = || Author { actor: "ada".to_owned(), reason: "tidying up".to_owned() };
    let mut draft = NamespaceDraft::from(spec("shop"));
    draft.description = Some("sold things".to_owned());
    house.engine.namespaces().update(draft, None, author()).await.expect("a valid change");
    house.engine.namespaces().delete(&house.shop, None, author()).await.expect("it is there");
    let text = logged.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("a namespace was changed")).collect();
    for (line, (version, action)) in lines.iter().zip([(1, "created"), (2, "updated"), (3, "deleted")]) {
        let words = format!("namespace=shop version={version}");
        assert!(line.contains("INFO") && line.contains(&words), "{line}");
        assert!(line.contains(&format!("action=\"{action}\"")), "{line}");
        assert_eq!(line.contains("actor=\"ada\""), version > 1, "{line}");
    }
    assert_eq!(lines.len(), 3, "{text}");
}
