//! Whether a keyspace serves: it answers at a quorum, and its tables and its catalog are still there.
//!
//! A keyspace that was dropped, or came back without its data, answers every question with an error or with nothing.
//! Such an answer is no silence, and it does not pass by itself.

use crate::catalog::StoredStatics;
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::schema;
use crate::store::ReadConsistency;
use crate::value::FromRow as _;
use tallystone_ports::{CATALOG_LOST, StoreCheck, StoreErrorKind};

/// The tables that are named; the others are counted.
const TABLES_NAMED: usize = 5;

/// Asks a keyspace once, without retries.
pub async fn check(requests: &RequestRunner, keyspace: &str) -> StoreCheck {
    let catalog = requests.store.read(requests.statement("read_revision"), &[], ReadConsistency::Quorum).await;
    // Without its tables a keyspace answers all kinds of errors; only the list of tables says what is wrong.
    if let Ok(Some(tables)) = requests.store.tables(keyspace).await
        && let Some(loss) = tables_lost(&tables)
    {
        return StoreCheck::Lost(loss);
    }
    match catalog {
        Ok(rows) => match rows.into_iter().next().and_then(StoredStatics::from_row) {
            Some((Some(_), _, _)) => StoreCheck::Answered,
            Some((None, _, _)) | None => StoreCheck::Lost(CATALOG_LOST.to_owned()),
        },
        Err(RequestFailure { kind: StoreErrorKind::Forbidden, why, .. }) => StoreCheck::Refused(why),
        Err(_) => StoreCheck::NoAnswer,
    }
}

/// The tables of the schema that a keyspace lacks, with the remedy; none if it has all of them.
fn tables_lost(tables: &[String]) -> Option<String> {
    let expected = schema::tables();
    let missing: Vec<&str> = expected.into_iter().filter(|table| tables.iter().all(|has| has != table)).collect();
    let named = missing.iter().take(TABLES_NAMED).copied().collect::<Vec<_>>().join(", ");
    let what = match missing.len() {
        0 => return None,
        _ if tables.is_empty() => "the keyspace or all of its tables".to_owned(),
        1..=TABLES_NAMED => format!("the tables {named}"),
        all => format!("the tables {named} and {} more", all - TABLES_NAMED),
    };
    Some(format!(
        "STORE_LOST: {what} were dropped; restore a snapshot of the keyspace, or all of its data, and restart the servers"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_schema_that_are_gone_are_named_with_what_to_do() {
        let all: Vec<String> = schema::tables().into_iter().map(str::to_owned).collect();
        assert!(all.len() > TABLES_NAMED && all.iter().any(|table| table == "catalog"), "{all:?}");
        let slices = [&all[..], &["events_7".to_owned()]].concat();
        assert_eq!(tables_lost(&slices), None, "tables of slices come and go");
        let one = tables_lost(&all[1..]).expect("one is missing");
        assert!(one.contains(&format!("the tables {} were dropped; restore", all[0])), "{one}");
        let most = tables_lost(&all[..1]).expect("most are missing");
        assert!(most.contains(&format!("and {} more", all.len() - 1 - TABLES_NAMED)), "{most}");
        assert!(tables_lost(&[]).is_some_and(|all| all.contains("the keyspace or all of its tables")));
    }
}
