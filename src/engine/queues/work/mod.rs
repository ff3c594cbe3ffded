//! The work with messages: enqueues, dequeues, settlements, and work streams.

pub(in crate::queues) mod dequeue;
pub(in crate::queues) mod enqueue;
pub(in crate::queues) mod rule_messages;
pub(in crate::queues) mod settle;
pub(in crate::queues) mod streams;

use std::sync::Arc;

use crate::caller_quota::CallerQuota;
use crate::queues::catalog::CatalogService;
use crate::queues::inspect::InspectService;
use crate::queues::sessions::SessionService;
use crate::queues::state::context::QueueContext;
use tallystone_domain::limits::{CALLER_WORK_STREAMS_MAX, WORK_STREAMS_MAX};

/// The work with messages. Cheap to clone.
#[derive(Clone)]
pub struct WorkService {
    context: Arc<QueueContext>,
    catalog: Arc<CatalogService>,
    sessions: Arc<SessionService>,
    inspect: Arc<InspectService>,
    /// The open work streams.
    streams: CallerQuota,
    /// Whether a first enqueue may make its queue by a template.
    makes_queues: bool,
}

impl WorkService {
    pub(in crate::queues) fn new(
        context: Arc<QueueContext>,
        catalog: Arc<CatalogService>,
        sessions: Arc<SessionService>,
        inspect: Arc<InspectService>,
    ) -> Self {
        Self {
            context,
            catalog,
            sessions,
            inspect,
            streams: CallerQuota::new(WORK_STREAMS_MAX, CALLER_WORK_STREAMS_MAX),
            makes_queues: true,
        }
    }

    /// The same work for callers who may make queues by template, or may not: then an enqueue to a queue that does not
    /// exist is refused as one without a template.
    #[must_use]
    pub fn making_queues(&self, allowed: bool) -> Self {
        Self { makes_queues: allowed, ..self.clone() }
    }
}
