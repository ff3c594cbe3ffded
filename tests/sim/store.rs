//! The seam of the adapter, over the simulated cluster: one request once, with everything that can happen to it.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tallystone_cassandra::RequestFailure;
use tallystone_cassandra::store::{
    ConditionalResult, ConflictingRow, PageState, PreparedCql, ReadConsistency, RowPage, WideStore, WriteRoute,
};
use tallystone_cassandra::value::{CqlRow, CqlValue};
use tallystone_ports::{EffectOutcome, StoreErrorKind};
use tokio::sync::oneshot;

use crate::cluster::net::Site;
use crate::cluster::paxos::Decided;
use crate::cluster::{Cluster, Name, Refusal};
use crate::cql::parse::{self, Definition};
use crate::cql::{Column, Datum, Kind, Plan, Reading, Table, Type, Writing};
use crate::late_clears::{Fate, LateClears, LateRow};
use crate::stops::Stops;
use crate::world::World;

/// How long the driver waits for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server sees of the cluster.
pub struct SimStore {
    pub cluster: Cluster,
    pub machine: usize,
    pub stops: Stops,
    pub late_clears: LateClears,
}

/// Statements by their text; they mean the same in every run.
static PLANS: LazyLock<Mutex<HashMap<String, Arc<Parsed>>>> = LazyLock::new(Mutex::default);

enum Parsed {
    Read(Arc<Reading>),
    Write(Arc<Writing>),
}

impl SimStore {
    fn world(&self) -> &World {
        &self.cluster.world
    }

    /// Sends a request to some node and waits for its answer.
    async fn request<T, W>(&self, work: impl FnOnce(Cluster, usize) -> W + Send + 'static) -> Result<T, RequestFailure>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        self.stops.step().await;
        let site = Site::Machine(self.machine);
        let Some(node) = self.cluster.coordinator_for(site) else {
            return Err(RequestFailure::not_sent("no node answers"));
        };
        let (told, answer) = oneshot::channel();
        let begun = self.world().now();
        if let Some(at) = self.cluster.net.send(site, Site::Node(node)) {
            let (cluster, process, pause) = (self.cluster.clone(), self.stops.process, self.stops.draw());
            self.world().spawn(async move {
                cluster.world.until(at).await;
                let result = work(cluster.clone(), node).await;
                let Some(back) = cluster.net.send(Site::Node(node), site) else {
                    // Nobody hears of it before the driver's time is over.
                    cluster.world.sleep(REQUEST_TIMEOUT * 2).await;
                    return;
                };
                cluster.world.until(back).await;
                // Whoever asked may have stopped waiting.
                let _ = told.send(result);
                if let Some(pause) = pause {
                    cluster.world.pause(process, pause);
                }
                cluster.world.stir(process);
            });
        } else {
            let world = self.world().clone();
            self.world().spawn(async move {
                world.sleep(REQUEST_TIMEOUT * 2).await;
                drop(told);
            });
        }
        tokio::select! {
            biased;
            answered = answer => answered.unwrap_or(Err(Refusal::Timeout)).map_err(fault),
            () = self.world().until_in(self.stops.process, begun + REQUEST_TIMEOUT) => Err(fault(Refusal::Timeout)),
        }
    }

    /// The clock of the driver, in microseconds, for writes that bring no timestamp of their own.
    fn clock(&self) -> i64 {
        i64::try_from(self.world().now().as_micros()).expect("a short run")
    }

    /// Writes rows through one coordinator, each partition for itself.
    async fn write_all(&self, rows: Vec<(&PreparedCql, Vec<Datum>)>) -> Result<(), RequestFailure> {
        let clock = self.clock();
        let mut changes: Vec<(Name, crate::cql::Partition)> = Vec::new();
        for (prepared, values) in rows {
            let writing = writing_of(prepared);
            let change = writing.change(&values, writing.timestamp(&values).unwrap_or(clock));
            let name: Name = Arc::new((Arc::clone(&writing.table.name), writing.key(&values)));
            match self.late_clears.fate(&writing.table, &values, self.world().now()) {
                Fate::Usual => {}
                Fate::Lost => return self.lose().await,
                Fate::Late { node, after } => {
                    self.late_clears.keep(&values, LateRow { node, name, change });
                    let (cluster, late_clears) = (self.cluster.clone(), self.late_clears.clone());
                    self.world().spawn(async move {
                        cluster.world.sleep(after).await;
                        if let Some(row) = late_clears.arrive(&values) {
                            cluster.bring(row.node, &row.name, &row.change);
                        }
                    });
                    return self.lose().await;
                }
            }
            match changes.iter_mut().find(|(known, _)| *known == name) {
                Some((_, all)) => all.merge(&change),
                None => changes.push((name, change)),
            }
        }
        self.request(move |cluster, node| async move {
            let writing = changes.into_iter().map(|(name, change)| cluster.write(node, name, change));
            let ended = futures_util::future::join_all(writing).await;
            let refused = ended.iter().filter(|ended| **ended == Err(Refusal::Unavailable)).count();
            match ended.iter().find(|ended| ended.is_err()) {
                None => Ok(()),
                Some(_) if refused == ended.len() => Err(Refusal::Unavailable),
                // Some are there, or may be.
                Some(_) => Err(Refusal::Timeout),
            }
        })
        .await
    }

    /// Waits for an answer that never comes.
    async fn lose(&self) -> Result<(), RequestFailure> {
        self.world().until_in(self.stops.process, self.world().now() + REQUEST_TIMEOUT).await;
        Err(fault(Refusal::Timeout))
    }

    async fn read_all(
        &self,
        prepared: &PreparedCql,
        values: &[CqlValue],
        level: ReadConsistency,
    ) -> Result<Vec<CqlRow>, RequestFailure> {
        let Parsed::Read(reading) = parsed_of(prepared) else { panic!("{} is no read", prepared.text()) };
        let types = reading.clone();
        let (reading, values) = (Arc::clone(reading), Arc::new(data_of(values)));
        let all = match level {
            ReadConsistency::Quorum | ReadConsistency::Serial => false,
            ReadConsistency::All => true,
        };
        let answered =
            self.request(move |cluster, node| async move { cluster.read(node, &reading, &values, all).await });
        let rows = answered.await.map_err(|fault| RequestFailure { outcome: EffectOutcome::NotApplied, ..fault })?;
        let row = |row: Vec<Datum>| {
            row.into_iter().zip(&types.columns).map(|(datum, (_, column_type))| value_of(datum, *column_type)).collect()
        };
        Ok(rows.into_iter().map(row).collect())
    }
}

#[async_trait]
impl WideStore for SimStore {
    async fn prepare(&self, text: &str) -> Result<PreparedCql, RequestFailure> {
        let schema = self.cluster.schema();
        let known = PLANS.lock().get(text).cloned();
        let parsed = match known {
            Some(parsed) => parsed,
            None => {
                let refused = |why| RequestFailure { is_retryable: false, ..RequestFailure::not_sent(why) };
                let parsed = Arc::new(match parse::statement(text, &schema).map_err(refused)? {
                    Plan::Read(reading) => Parsed::Read(Arc::new(reading)),
                    Plan::Write(writing) => Parsed::Write(Arc::new(writing)),
                });
                PLANS.lock().insert(text.to_owned(), Arc::clone(&parsed));
                parsed
            }
        };
        let table = match &*parsed {
            Parsed::Read(reading) => &reading.table,
            Parsed::Write(writing) => &writing.table,
        };
        if !schema.contains_key(&table.name) {
            return Err(RequestFailure {
                is_retryable: false,
                ..RequestFailure::not_sent(format!("there is no table {}", table.name))
            });
        }
        Ok(PreparedCql::new(text, parsed))
    }

    async fn define(&self, text: &str) -> Result<(), RequestFailure> {
        self.stops.step().await;
        let definition = parse::definition(text).map_err(RequestFailure::corrupt)?;
        self.cluster.change_schema(|schema| match definition {
            Definition::Create(table) => {
                schema.entry(Arc::clone(&table.name)).or_insert_with(|| Arc::new(table));
            }
            Definition::Drop(name) => {
                schema.remove(name.as_str());
            }
            Definition::AddColumn(name, column, column_type, is_static) => {
                if let Some(table) = schema.get_mut(name.as_str()) {
                    *table = Arc::new(with_column(table, column, column_type, is_static));
                }
            }
        });
        Ok(())
    }

    async fn write(&self, prepared: &PreparedCql, values: &[CqlValue]) -> Result<(), RequestFailure> {
        self.write_all(vec![(prepared, data_of(values))]).await
    }

    async fn write_many(&self, rows: &[(&PreparedCql, &[CqlValue])]) -> Result<(), RequestFailure> {
        self.write_all(rows.iter().map(|(prepared, values)| (*prepared, data_of(values))).collect()).await
    }

    /// Every replica has everything, so any node is as good as another.
    fn route(&self, prepared: &PreparedCql, values: &[CqlValue]) -> WriteRoute {
        let writing = writing_of(prepared);
        let mut hasher = DefaultHasher::new();
        (&writing.table.name, writing.key(&data_of(values))).hash(&mut hasher);
        WriteRoute { replica: 0, partition: hasher.finish().cast_signed() }
    }

    async fn apply_conditionally(
        &self,
        writes: &[(&PreparedCql, Vec<CqlValue>)],
    ) -> Result<ConditionalResult, RequestFailure> {
        let of =
            |(prepared, values): &(&PreparedCql, Vec<CqlValue>)| (Arc::clone(writing_of(prepared)), data_of(values));
        let writes: Arc<Vec<_>> = Arc::new(writes.iter().map(of).collect());
        let (first, values) = &writes[0];
        if let Some((row, after)) = self.late_clears.meet(values) {
            let cluster = self.cluster.clone();
            self.world().spawn(async move {
                cluster.world.sleep(after).await;
                cluster.bring(row.node, &row.name, &row.change);
            });
        }
        let name = Arc::new((Arc::clone(&first.table.name), first.key(values)));
        let table = Arc::clone(&first.table);
        let decided =
            self.request(move |cluster, node| async move { cluster.decide(node, name, writes).await }).await?;
        Ok(match decided {
            Decided::Applied => ConditionalResult::Applied,
            Decided::Held(row) => {
                let value = |(name, datum): (String, Datum)| {
                    let column_type = table.column(&name).map_or(Type::Blob, |column| column.column_type);
                    (name, value_of(datum, column_type))
                };
                ConditionalResult::NotApplied(ConflictingRow::new(row.into_iter().map(value).collect()))
            }
        })
    }

    async fn read(
        &self,
        prepared: &PreparedCql,
        values: &[CqlValue],
        level: ReadConsistency,
    ) -> Result<Vec<CqlRow>, RequestFailure> {
        self.read_all(prepared, values, level).await
    }

    async fn read_page(&self, prepared: &PreparedCql, _after: Option<&PageState>) -> Result<RowPage, RequestFailure> {
        Ok((self.read_all(prepared, &[], ReadConsistency::Quorum).await?, None))
    }
}

fn parsed_of(prepared: &PreparedCql) -> &Parsed {
    prepared.inner::<Arc<Parsed>>()
}

fn writing_of(prepared: &PreparedCql) -> &Arc<Writing> {
    match parsed_of(prepared) {
        Parsed::Write(writing) => writing,
        Parsed::Read(_) => panic!("{} is no write", prepared.text()),
    }
}

fn fault(refusal: Refusal) -> RequestFailure {
    let outcome = match refusal {
        Refusal::Unavailable => EffectOutcome::NotApplied,
        Refusal::Timeout => EffectOutcome::Unknown,
    };
    RequestFailure { kind: StoreErrorKind::Unavailable, outcome, is_retryable: true, why: format!("{refusal:?}") }
}

fn data_of(values: &[CqlValue]) -> Vec<Datum> {
    let datum = |value: &CqlValue| match value {
        CqlValue::Null => Datum::Null,
        CqlValue::BigInt(int) => Datum::Int(*int),
        CqlValue::Int(int) => Datum::Int(i64::from(*int)),
        CqlValue::Bool(is) => Datum::Bool(*is),
        CqlValue::Text(text) => Datum::Text(text.as_str().into()),
        CqlValue::Blob(bytes) => Datum::Blob(bytes.as_slice().into()),
        CqlValue::Uuid(bytes) => Datum::Uuid(*bytes),
    };
    values.iter().map(datum).collect()
}

fn value_of(datum: Datum, column_type: Type) -> CqlValue {
    match datum {
        Datum::Null => CqlValue::Null,
        Datum::Int(int) if column_type == Type::Int => CqlValue::Int(i32::try_from(int).expect("it came from an int")),
        Datum::Int(int) => CqlValue::BigInt(int),
        Datum::Bool(is) => CqlValue::Bool(is),
        Datum::Text(text) => CqlValue::Text(text.to_string()),
        Datum::Blob(bytes) => CqlValue::Blob(bytes.to_vec()),
        Datum::Uuid(bytes) => CqlValue::Uuid(bytes),
    }
}

/// A table with one more column.
pub fn with_column(table: &Table, name: String, column_type: Type, is_static: bool) -> Table {
    let mut table = table.clone();
    if table.column(&name).is_ok() {
        return table;
    }
    let kind = match is_static {
        true => Kind::Static(table.count(|kind| matches!(kind, Kind::Static(_)))),
        false => Kind::Regular(table.count(|kind| matches!(kind, Kind::Regular(_)))),
    };
    table.columns.push(Column { name, column_type, kind });
    table
}
