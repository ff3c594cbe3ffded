//! The body of a stream that the audit records: its line says how the stream ended.
//!
//! The line is written before the end is passed on, so a caller that saw the end finds the line. A body that is dropped
//! before its end lost its caller, or its connection. Invariant: each stream leaves one line. What the server cannot
//! know is whether a caller kept what it was given: a stream that was given out as a whole is `OK`.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::http::audit;
use tallystone_engine::audit::{Audit, OperatorAct};

/// The line at the end of a stream, and the audit in which it is written.
pub struct StreamLine {
    pub audit: Audit,
    /// The act, with the outcome of its begin.
    pub act: OperatorAct,
    /// The tracker that waits for lines of streams whose callers went away.
    pub tasks: TaskTracker,
}

/// The body of a stream that is recorded.
pub struct RecordedStream {
    inner: Body,
    /// None once the end is known.
    line: Option<StreamLine>,
    bytes: u64,
    /// The end, held back while its line is written.
    ending: Option<(Writing, Option<EndFrame>)>,
}

type EndFrame = Result<Frame<Bytes>, Status>;
type Writing = Pin<Box<dyn Future<Output = ()> + Send>>;

impl RecordedStream {
    pub fn new(inner: Body, line: StreamLine) -> Self {
        Self { inner, line: Some(line), bytes: 0, ending: None }
    }

    /// Begins to write the line, and holds the end back.
    fn end(&mut self, status: Option<&Status>, frame: Option<EndFrame>) {
        let Some(line) = self.line.take() else { return };
        self.ending = Some((Box::pin(write(line.audit, ended(line.act, status, self.bytes))), frame));
    }
}

/// The act with how its stream ended, and how much had been given out if that was not all.
fn ended(act: OperatorAct, status: Option<&Status>, bytes: u64) -> OperatorAct {
    let Some(status) = status.filter(|status| status.code() != Code::Ok) else { return act };
    let given = format!("{bytes} bytes were given out");
    let part = if act.part.is_empty() { given } else { format!("{}, {given}", act.part) };
    OperatorAct { outcome: audit::outcome_text(status), part, ..act }
}

async fn write(log: Audit, act: OperatorAct) {
    audit::record(&log, act).await;
}

impl HttpBody for RecordedStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.ending.is_none() {
            let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => return Poll::Pending,
            };
            match &frame {
                Some(Ok(data)) if data.is_data() => {
                    this.bytes += data.data_ref().map_or(0, |data| data.len() as u64);
                    return Poll::Ready(frame);
                }
                Some(Ok(trailers)) => {
                    let status = trailers.trailers_ref().and_then(Status::from_header_map);
                    this.end(status.as_ref(), frame);
                }
                Some(Err(status)) => {
                    let status = status.clone();
                    this.end(Some(&status), frame);
                }
                None => this.end(None, None),
            }
        }
        let Some((writing, frame)) = &mut this.ending else { return Poll::Ready(None) };
        if writing.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let frame = frame.take();
        this.ending = None;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.line.is_none() && self.ending.is_none() && self.inner.is_end_stream()
    }
}

impl Drop for RecordedStream {
    fn drop(&mut self) {
        // Outside the runtime the process ends, and nobody waits for the line.
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some((writing, _)) = self.ending.take() {
            // The end was known, and the caller went away while its line was written.
            return drop(runtime.spawn(writing));
        }
        let Some(StreamLine { audit, act, tasks }) = self.line.take() else { return };
        let gone = Status::cancelled("the caller went away, or its connection ended");
        tasks.spawn_on(write(audit, ended(act, Some(&gone), self.bytes)), &runtime);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::stream;
    use http::HeaderMap;
    use http_body_util::{BodyExt as _, StreamBody};
    use parking_lot::Mutex;
    use tallystone_domain::Timestamp;
    use tallystone_ports::{AdminAction, AdminLog, BootId, Clock, StoreError};

    use super::*;

    /// A log in memory.
    #[derive(Default)]
    struct Lines(Mutex<Vec<AdminAction>>);

    #[tonic::async_trait]
    impl AdminLog for Lines {
        async fn append(&self, action: &AdminAction) -> Result<(), StoreError> {
            self.0.lock().insert(0, action.clone());
            Ok(())
        }

        async fn newest(&self, _: Option<u64>, limit: usize) -> Result<Vec<AdminAction>, StoreError> {
            Ok(self.0.lock().iter().take(limit).cloned().collect())
        }
    }

    struct StillClock;

    #[tonic::async_trait]
    impl Clock for StillClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_secs(1)
        }

        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }

        fn boot(&self) -> BootId {
            BootId(1)
        }

        async fn sleep(&self, _: Duration) {}
    }

    fn audit() -> Audit {
        Audit::new(Arc::new(Lines::default()), Arc::new(StillClock))
    }

    /// A body of these frames, with its line.
    fn body(audit: &Audit, tasks: &TaskTracker, frames: Vec<EndFrame>) -> RecordedStream {
        let act = OperatorAct { action: "CreateBackup".to_owned(), outcome: "OK".to_owned(), ..OperatorAct::default() };
        let line = StreamLine { audit: audit.clone(), act, tasks: tasks.clone() };
        RecordedStream::new(Body::new(StreamBody::new(stream::iter(frames))), line)
    }

    fn trailers(code: &'static str) -> EndFrame {
        let mut trailers = HeaderMap::new();
        trailers.insert(Status::GRPC_STATUS, code.parse().expect("a value"));
        Ok(Frame::trailers(trailers))
    }

    async fn lines(audit: &Audit) -> Vec<(String, String)> {
        let (acts, _) = audit.list("", None, 10).await.expect("it is in memory");
        acts.into_iter().map(|act| (act.outcome, act.part)).collect()
    }

    #[tokio::test]
    async fn the_line_of_a_stream_says_how_it_ended_and_is_there_before_the_end() {
        let data = || Ok(Frame::data(Bytes::from_static(b"four")));
        for (end, outcome, part) in
            [(trailers("0"), "OK", ""), (trailers("14"), "Unavailable", "4 bytes were given out")]
        {
            let (audit, tasks) = (audit(), TaskTracker::new());
            let mut body = body(&audit, &tasks, vec![data(), end]);
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok_and(|frame| frame.is_data())));
            assert!(lines(&audit).await.is_empty(), "nothing is said before the end");
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok_and(|frame| frame.is_trailers())));
            assert_eq!(lines(&audit).await, [(outcome.to_owned(), part.to_owned())]);
            assert!(body.frame().await.is_none());
            drop(body);
            assert_eq!(lines(&audit).await.len(), 1);
        }
    }

    #[tokio::test]
    async fn the_line_of_a_stream_whose_caller_went_away_says_so() {
        let (audit, tasks) = (audit(), TaskTracker::new());
        let mut body = body(&audit, &tasks, vec![Ok(Frame::data(Bytes::from_static(b"four"))), trailers("0")]);
        assert!(body.frame().await.is_some());
        drop(body);
        tasks.close();
        tasks.wait().await;
        assert_eq!(lines(&audit).await, [("Cancelled".to_owned(), "4 bytes were given out".to_owned())]);
    }
}
