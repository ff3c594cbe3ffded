//! Reads that never go back in time, whichever server responds.
//!
//! A single read asks for the newest `as_of` that this client has seen of the counter. A server that has already
//! reached it, such as the one of the last read, needs no roll. A batch reads first and compares afterwards, because
//! one time for all its counters would make the server roll counters that are new enough. Older results are read once
//! more. A server that cannot reach the time within its budget returns the present count, with `behind`.

use std::time::{Duration, Instant};

use crate::as_of_cache::{is_before, newest};
use crate::retry::CallKind;
use crate::{CallError, Client, counters_on};
use tallystone_proto::counter::v1::{
    BatchGetCountSeriesRequest, BatchGetCountSeriesResponse, BatchGetCountsRequest, BatchGetCountsResponse,
    CheckTokenRequest, CheckTokenResponse, GetCountRequest, GetCountResponse, GetResult, Verdict,
};

impl Client {
    /// Reads a count, at least as new as the last read of the counter by this client or its clones.
    pub async fn get_count(&self, mut request: GetCountRequest) -> Result<GetCountResponse, CallError> {
        let seen = self.newest_as_of.as_of(&request.namespace, &request.counter_name);
        request.at_least_as_of = newest(request.at_least_as_of, seen);
        let call = |channel, request| async move { counters_on(channel).get_count(request).await };
        let reading = self.call_with_retries(CallKind::Read, &request, call).await?;
        self.newest_as_of.note(&request.namespace, &request.counter_name, reading.as_of);
        Ok(reading)
    }

    /// Reads counts, each at least as new as the last read of the counter by this client or its clones.
    pub async fn batch_get_counts(
        &self,
        mut request: BatchGetCountsRequest,
    ) -> Result<BatchGetCountsResponse, CallError> {
        let mut answer = self.batch_get_once(&request).await?;
        let older: Vec<usize> = (0..answer.results.len())
            .filter(|at| {
                let (name, as_of) = read_of(&answer.results[*at]);
                as_of.is_some() && is_before(as_of.as_ref(), self.newest_as_of.as_of(&request.namespace, name).as_ref())
            })
            .collect();
        if !older.is_empty() {
            request.counter_names = older.iter().map(|at| answer.results[*at].counter_name.clone()).collect();
            for name in &request.counter_names {
                request.at_least_as_of =
                    newest(request.at_least_as_of, self.newest_as_of.as_of(&request.namespace, name));
            }
            let again = self.batch_get_once(&request).await?;
            for (at, result) in older.into_iter().zip(again.results) {
                answer.results[at] = result;
            }
        }
        for result in &answer.results {
            let (name, as_of) = read_of(result);
            self.newest_as_of.note(&request.namespace, name, as_of);
        }
        Ok(answer)
    }

    async fn batch_get_once(&self, request: &BatchGetCountsRequest) -> Result<BatchGetCountsResponse, CallError> {
        let call = |channel, request| async move { counters_on(channel).batch_get_counts(request).await };
        self.call_with_retries(CallKind::Read, request, call).await
    }

    /// Reads the series of counters, over one range and in one step.
    pub async fn batch_get_count_series(
        &self,
        request: BatchGetCountSeriesRequest,
    ) -> Result<BatchGetCountSeriesResponse, CallError> {
        let call = |channel, request| async move { counters_on(channel).batch_get_count_series(request).await };
        self.call_with_retries(CallKind::Read, &request, call).await
    }

    /// Gets the final verdict on a token: asks until it is known or the time is over, and returns PENDING only then. A
    /// token that was not applied never will be.
    pub async fn check_token(&self, request: CheckTokenRequest) -> Result<CheckTokenResponse, CallError> {
        let call = |channel, request| async move { counters_on(channel).check_token(request).await };
        let deadline = Instant::now() + self.policy.total;
        loop {
            let answer = self.call_with_retries(CallKind::Read, &request, call).await?;
            let wait = answer.retry_after.and_then(|wait| Duration::try_from(wait).ok());
            let wait = wait.unwrap_or(self.policy.pause_first);
            if answer.verdict() != Verdict::Pending || Instant::now() + wait > deadline {
                return Ok(answer);
            }
            tokio::time::sleep(wait).await;
        }
    }
}

fn read_of(result: &GetResult) -> (&str, Option<prost_types::Timestamp>) {
    (&result.counter_name, result.reading.as_ref().and_then(|reading| reading.as_of))
}
