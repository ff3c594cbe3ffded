//! The driver's session as a store of wide rows.
//!
//! Neither this module nor the driver retries: only the layers above know what an unknown outcome means.

use std::sync::Arc;

use async_trait::async_trait;
use scylla::client::session::Session;
use scylla::deserialize::row::ColumnIterator;
use scylla::deserialize::value::DeserializeValue;
use scylla::deserialize::{DeserializationError, FrameSlice};
use scylla::frame::response::result::{ColumnType, NativeType};
use scylla::response::PagingState;
use scylla::response::query_result::QueryResult;
use scylla::serialize::SerializationError;
use scylla::serialize::value::SerializeValue;
use scylla::serialize::writers::{CellWriter, WrittenCellProof};
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::{Consistency, prepared::PreparedStatement};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::request_failure::RequestFailure;
use crate::schema::{self, define};
use crate::startup_deadline::StartupDeadline;
use crate::store::{
    ConditionalResult, ConflictingRow, PageState, PreparedCql, ReadConsistency, RowPage, WideStore, WriteRoute,
};
use crate::value::{CqlRow, CqlValue};

/// A session of a keyspace.
pub struct CqlStore {
    session: Session,
    /// The data centre whose replicas answer.
    data_center: Option<String>,
    /// The startup deadline, extended with each table that is created.
    startup_deadline: Arc<StartupDeadline>,
    /// One schema change at a time: nodes must agree on each before the next, and concurrent changes are no faster.
    defining: Semaphore,
}

/// A prepared statement at each consistency level.
struct PreparedVariants {
    quorum: PreparedStatement,
    /// A serial read: it sees every answered conditional write.
    serial: PreparedStatement,
    /// A read of every replica.
    all: PreparedStatement,
}

impl CqlStore {
    /// Creates the store from a driver session.
    pub fn new(session: Session, data_center: Option<String>, startup_deadline: Arc<StartupDeadline>) -> Self {
        Self { session, data_center, startup_deadline, defining: Semaphore::new(1) }
    }
}

fn at(statement: &PreparedCql, level: ReadConsistency) -> &PreparedStatement {
    let statement: &PreparedVariants = statement.inner();
    match level {
        ReadConsistency::Quorum => &statement.quorum,
        ReadConsistency::Serial => &statement.serial,
        ReadConsistency::All => &statement.all,
    }
}

#[async_trait]
impl WideStore for CqlStore {
    async fn prepare(&self, text: &str) -> Result<PreparedCql, RequestFailure> {
        let mut quorum = self.session.prepare(text).await?;
        // Plain writes carry their own timestamps, so a second send changes nothing. Conditional requests have their
        // own retry rules.
        quorum.set_is_idempotent(!text.contains(" IF "));
        let mut serial = quorum.clone();
        serial.set_consistency(Consistency::LocalSerial);
        let mut all = quorum.clone();
        all.set_consistency(Consistency::All);
        Ok(PreparedCql::new(text, PreparedVariants { quorum, serial, all }))
    }

    async fn define(&self, text: &str) -> Result<(), RequestFailure> {
        let _turn = self.defining.acquire().await.expect("the semaphore is never closed");
        define(&self.session, text.to_owned()).await?;
        self.startup_deadline.extend();
        Ok(())
    }

    async fn tables(&self, keyspace: &str) -> Result<Option<Vec<String>>, RequestFailure> {
        schema::tables_of(&self.session, keyspace).await.map(Some)
    }

    async fn write(&self, statement: &PreparedCql, values: &[CqlValue]) -> Result<(), RequestFailure> {
        let statement = at(statement, ReadConsistency::Quorum);
        self.session.execute_unpaged(statement, values).await.map(|_| ()).map_err(RequestFailure::from)
    }

    async fn write_many(&self, rows: &[(&PreparedCql, &[CqlValue])]) -> Result<(), RequestFailure> {
        let mut batch = Batch::new(BatchType::Unlogged);
        let mut values = Vec::with_capacity(rows.len());
        for (statement, of_row) in rows {
            batch.append_statement(at(statement, ReadConsistency::Quorum).clone());
            values.push(*of_row);
        }
        batch.set_is_idempotent(true);
        self.session.batch(&batch, values).await.map(|_| ()).map_err(|error| {
            let mut partitions = rows.iter().map(|(statement, values)| self.route(statement, values).partition);
            let first = partitions.next();
            let is_one = partitions.all(|partition| Some(partition) == first);
            if is_one { RequestFailure::from(error) } else { RequestFailure::of_several(error) }
        })
    }

    fn route(&self, statement: &PreparedCql, values: &[CqlValue]) -> WriteRoute {
        let statement = at(statement, ReadConsistency::Quorum);
        // A statement without a token shares the route of other such statements; the driver reports the error on send.
        let token = statement.calculate_token(&values).ok().flatten();
        let cluster = self.session.get_cluster_state();
        let replica = token.filter(|_| cluster.get_nodes_info().len() > 1).and_then(|token| {
            let table = statement.get_table_spec()?;
            let replicas = cluster.get_token_endpoints(table.ks_name(), table.table_name(), token);
            let near = replicas.iter().find(|(node, _)| node.datacenter == self.data_center);
            near.or(replicas.first()).map(|(node, _)| xxhash_rust::xxh3::xxh3_64(node.host_id.as_bytes()))
        });
        WriteRoute { replica: replica.unwrap_or_default(), partition: token.map_or(0, |token| token.value()) }
    }

    async fn apply_conditionally(
        &self,
        statements: &[(&PreparedCql, Vec<CqlValue>)],
    ) -> Result<ConditionalResult, RequestFailure> {
        let result = if let [(statement, values)] = statements {
            self.session.execute_unpaged(at(statement, ReadConsistency::Quorum), values).await?
        } else {
            let mut batch = Batch::new(BatchType::Unlogged);
            let mut values = Vec::with_capacity(statements.len());
            for (statement, of_statement) in statements {
                batch.append_statement(at(statement, ReadConsistency::Quorum).clone());
                values.push(of_statement);
            }
            self.session.batch(&batch, values).await?
        };
        decision(result)
    }

    async fn read(
        &self,
        statement: &PreparedCql,
        values: &[CqlValue],
        level: ReadConsistency,
    ) -> Result<Vec<CqlRow>, RequestFailure> {
        rows(self.session.execute_unpaged(at(statement, level), values).await?)
    }

    async fn read_page(&self, statement: &PreparedCql, after: Option<&PageState>) -> Result<RowPage, RequestFailure> {
        let after = after.map_or_else(PagingState::start, |state| PagingState::new_from_raw_bytes(state.as_slice()));
        let statement = at(statement, ReadConsistency::Quorum);
        let (result, next) = self.session.execute_single_page(statement, (), after).await?;
        let next = next.into_paging_control_flow().continue_value();
        let next = next.and_then(|state| state.as_bytes_slice().map(|bytes| bytes.to_vec()));
        Ok((rows(result)?, next))
    }
}

fn rows(result: QueryResult) -> Result<Vec<CqlRow>, RequestFailure> {
    let result = result.into_rows_result().map_err(RequestFailure::corrupt)?;
    let rows = result.rows::<ColumnIterator<'_, '_>>().map_err(RequestFailure::corrupt)?;
    rows.map(|row| values(row.map_err(RequestFailure::corrupt)?)).collect()
}

fn values(columns: ColumnIterator<'_, '_>) -> Result<CqlRow, RequestFailure> {
    let value = |column: Result<_, DeserializationError>| {
        let column: scylla::deserialize::row::RawColumn<'_, '_> = column.map_err(RequestFailure::corrupt)?;
        value(column.spec.typ(), column.slice).map_err(RequestFailure::corrupt)
    };
    columns.map(value).collect()
}

fn value<'frame, 'metadata>(
    typ: &'metadata ColumnType<'metadata>,
    slice: Option<FrameSlice<'frame>>,
) -> Result<CqlValue, DeserializationError> {
    if slice.is_none() {
        return Ok(CqlValue::Null);
    }
    Ok(match typ {
        ColumnType::Native(NativeType::BigInt) => CqlValue::BigInt(i64::deserialize(typ, slice)?),
        ColumnType::Native(NativeType::Int) => CqlValue::Int(i32::deserialize(typ, slice)?),
        ColumnType::Native(NativeType::Boolean) => CqlValue::Bool(bool::deserialize(typ, slice)?),
        ColumnType::Native(NativeType::Text) => CqlValue::Text(String::deserialize(typ, slice)?),
        ColumnType::Native(NativeType::Blob) => CqlValue::Blob(Vec::<u8>::deserialize(typ, slice)?),
        ColumnType::Native(NativeType::Uuid) => CqlValue::Uuid(Uuid::deserialize(typ, slice)?.into_bytes()),
        _ => CqlValue::Null, // our tables have no column of another type
    })
}

/// Whether the condition held, from the first column of the answer.
fn decision(result: QueryResult) -> Result<ConditionalResult, RequestFailure> {
    let result = result.into_rows_result().map_err(RequestFailure::corrupt)?;
    let names: Vec<String> = result.column_specs().iter().map(|spec| spec.name().to_owned()).collect();
    let row = values(result.first_row::<ColumnIterator<'_, '_>>().map_err(RequestFailure::corrupt)?)?;
    match row.first() {
        Some(CqlValue::Bool(true)) => Ok(ConditionalResult::Applied),
        Some(CqlValue::Bool(false)) => {
            Ok(ConditionalResult::NotApplied(ConflictingRow::new(names.into_iter().zip(row).collect())))
        }
        _ => Err(RequestFailure::corrupt("a conditional request was answered without saying whether it was applied")),
    }
}

impl SerializeValue for CqlValue {
    fn serialize<'b>(
        &self,
        typ: &ColumnType<'_>,
        writer: CellWriter<'b>,
    ) -> Result<WrittenCellProof<'b>, SerializationError> {
        match self {
            Self::Null => Ok(writer.set_null()),
            Self::BigInt(value) => value.serialize(typ, writer),
            Self::Int(value) => value.serialize(typ, writer),
            Self::Bool(value) => value.serialize(typ, writer),
            Self::Text(value) => value.serialize(typ, writer),
            Self::Blob(value) => value.serialize(typ, writer),
            Self::Uuid(bytes) => Uuid::from_bytes(*bytes).serialize(typ, writer),
        }
    }
}
