//! Reads and checks of the history of messages, on any server that has it.

use crate::retry::CallKind;
use crate::{CallError, Client, Connection, MESSAGE_BYTES_MAX};
use tallystone_proto::history::v1 as pb;
use tallystone_proto::history::v1::history_service_client::HistoryServiceClient;

/// The history service over a connection.
pub(super) fn history_on(channel: Connection) -> HistoryServiceClient<Connection> {
    HistoryServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

impl Client {
    /// Reads a page of the trace of a message: every change, every attempt.
    pub async fn get_message_trace(
        &self,
        request: pb::GetMessageTraceRequest,
    ) -> Result<pb::GetMessageTraceResponse, CallError> {
        let call = |channel, request| async move { history_on(channel).get_message_trace(request).await };
        self.call_with_retries(CallKind::Read, &request, call).await
    }

    /// Searches messages by state, error and metadata. A page may be PARTIAL: then continue with its page token.
    pub async fn search_messages(
        &self,
        request: pb::SearchMessagesRequest,
    ) -> Result<pb::SearchMessagesResponse, CallError> {
        let call = |channel, request| async move { history_on(channel).search_messages(request).await };
        self.call_with_retries(CallKind::Read, &request, call).await
    }

    /// Begins to compare queues with their counts and their history. Send a `request_token`: a retry returns the same
    /// operation.
    pub async fn check_queues(&self, request: pb::CheckQueuesRequest) -> Result<pb::CheckQueuesResponse, CallError> {
        let call = |channel, request| async move { history_on(channel).check_queues(request).await };
        self.call_with_retries(CallKind::Change, &request, call).await
    }

    /// Lists what a check has found so far.
    pub async fn list_findings(&self, request: pb::ListFindingsRequest) -> Result<pb::ListFindingsResponse, CallError> {
        let call = |channel, request| async move { history_on(channel).list_findings(request).await };
        self.call_with_retries(CallKind::Read, &request, call).await
    }
}
