//! `tallystone.admin.v1.BackupService`: streams the bytes of a backup to a caller, who writes them to disk.
//!
//! The server writes no backup files. A backup contains all data, so only admins of the server get one, and only on the
//! same machine. Only one backup runs at a time, because each keeps the store from freeing space.

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::rights_of;
use tallystone_domain::Reason;
use tallystone_domain::access::{ResourceKind, Sealed};
use tallystone_ports::Backups;
use tallystone_proto::admin::v1::backup_service_server::BackupService;
use tallystone_proto::admin::v1::{CreateBackupRequest, CreateBackupResponse};

/// The backup service.
pub struct BackupsApi {
    backups: Sealed<Option<Arc<dyn Backups>>>,
    one_at_a_time: Arc<Semaphore>,
    drain: CancellationToken,
}

impl BackupsApi {
    /// Serves backups of a store, if the store supports them. Backup streams end when `drain` is cancelled.
    pub fn new(backups: Option<Arc<dyn Backups>>, drain: CancellationToken) -> Self {
        Self { backups: Sealed::new(backups), one_at_a_time: Arc::new(Semaphore::new(1)), drain }
    }
}

#[tonic::async_trait]
impl BackupService for BackupsApi {
    type CreateBackupStream = BoxStream<'static, Result<CreateBackupResponse, Status>>;

    async fn create_backup(
        &self,
        request: Request<CreateBackupRequest>,
    ) -> Result<Response<Self::CreateBackupStream>, Status> {
        let proof = rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?;
        if !request.remote_addr().is_some_and(|address| is_of_this_machine(address.ip())) {
            let what = "backups are only for callers on the server's machine: run `tallystone backup` there";
            return Err(ApiError::new(Reason::UnknownMethod, what).into());
        }
        let Some(backups) = self.backups.with(&proof) else {
            let what = "this server has no embedded store; back up the configured store with its own tools";
            return Err(ApiError::new(Reason::UnknownMethod, what).into());
        };
        let permit = Arc::clone(&self.one_at_a_time).try_acquire_owned();
        let permit = permit.map_err(|_| {
            ApiError::new(Reason::RetryLater, "another backup is running; wait for its end, then retry")
        })?;
        let pieces = backups.begin().await.map_err(ApiError::from)?;
        let answers = stream::try_unfold((pieces, permit), |(mut pieces, permit)| async move {
            match pieces.next().await {
                Ok(Some(piece)) => Ok(Some((CreateBackupResponse { piece }, (pieces, permit)))),
                Ok(None) => Ok(None),
                Err(error) => Err(Status::from(ApiError::from(error))),
            }
        });
        let stopping =
            || Err(ApiError::new(Reason::ShuttingDown, "the server is stopping; the backup is incomplete").into());
        let told = self.drain.clone().cancelled_owned().map(move |()| stopping()).into_stream();
        // Ends at the first of the two; nothing follows an error.
        let ends = stream::select(answers.map(Some).chain(stream::once(async { None })), told.map(Some));
        let answers = ends.take_while(|answer| std::future::ready(answer.is_some())).filter_map(std::future::ready);
        Ok(Response::new(answers.boxed()))
    }
}

fn is_of_this_machine(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_alone_is_of_this_machine() {
        let is = |text: &str| is_of_this_machine(text.parse().expect("an address"));
        assert!(is("127.0.0.1") && is("127.8.0.1") && is("::1") && is("::ffff:127.0.0.1"));
        assert!(!is("192.0.2.1") && !is("0.0.0.0") && !is("::ffff:192.0.2.1") && !is("2001:db8::1"));
    }
}
