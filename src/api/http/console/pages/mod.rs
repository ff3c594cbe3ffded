//! The pages of the console, one file for each question.

pub mod audit;
mod chart;
pub mod control;
pub mod counters;
mod errors;
pub mod experiment;
pub mod experiments;
pub mod health;
mod looks;
pub mod messages;
pub mod operations;
pub mod overview;
pub mod queue;
mod queue_counts;
pub mod runbook;
mod times;

/// The methods that the pages call.
mod methods {
    pub const LIST_ACTIVITY: &str = "tallystone.queue.v1.QueueService/ListQueueActivity";
    pub const GET_ACTIVITY: &str = "tallystone.queue.v1.QueueService/GetQueueActivity";
    pub const GET_DEPTH: &str = "tallystone.queue.v1.QueueService/GetDepth";
    pub const GET_QUEUE: &str = "tallystone.queue.v1.QueueService/GetQueue";
    pub const LIST_QUEUE_CHANGES: &str = "tallystone.queue.v1.QueueService/ListQueueChanges";
    pub const EXPLAIN_QUEUE: &str = "tallystone.queue.v1.QueueService/ExplainQueue";
    pub const LIST_OPERATIONS: &str = "tallystone.queue.v1.QueueService/ListOperations";
    pub const LIST_SESSIONS: &str = "tallystone.queue.v1.QueueService/ListSessions";
    pub const LIST_MESSAGES: &str = "tallystone.queue.v1.QueueService/ListMessages";
    pub const EXPLAIN_MESSAGE: &str = "tallystone.queue.v1.QueueService/ExplainMessage";
    pub const TRACE: &str = "tallystone.history.v1.HistoryService/GetMessageTrace";
    pub const LIST_COUNTERS: &str = "tallystone.counter.v1.CounterService/ListCounters";
    pub const BATCH_GET_COUNTS: &str = "tallystone.counter.v1.CounterService/BatchGetCounts";
    pub const BATCH_GET_SERIES: &str = "tallystone.counter.v1.CounterService/BatchGetCountSeries";
    pub const GET_COUNT: &str = "tallystone.counter.v1.CounterService/GetCount";
    pub const LIST_EVENTS: &str = "tallystone.counter.v1.CounterService/ListCountEvents";
    pub const GET_EXPERIMENT: &str = "tallystone.experiment.v1.ExperimentService/GetExperiment";
    pub const LIST_EXPERIMENTS: &str = "tallystone.experiment.v1.ExperimentService/ListExperiments";
    pub const PLAN_EXPERIMENT: &str = "tallystone.experiment.v1.ExperimentService/PlanExperiment";
    pub const COMPARE_EXPERIMENT: &str = "tallystone.experiment.v1.ExperimentService/CompareExperiment";
    pub const LIST_LOOKS: &str = "tallystone.experiment.v1.ExperimentService/ListExperimentLooks";
    pub const LIST_NAMESPACES: &str = "tallystone.admin.v1.NamespaceService/ListNamespaces";
    pub const LIST_NAMESPACE_CHANGES: &str = "tallystone.admin.v1.NamespaceService/ListNamespaceChanges";
    pub const LIST_ADMIN_ACTIONS: &str = "tallystone.admin.v1.AuditService/ListAdminActions";
    pub const GET_STATUS: &str = "tallystone.admin.v1.StatusService/GetStatus";
}
