//! Recorded calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::model::{Answer, Call};

/// One call: what was asked, what was answered, and the moments between which it happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// What was asked.
    pub call: Call,
    /// What was answered; none if nobody knows whether it was applied.
    pub answer: Option<Answer>,
    /// Before it was sent.
    pub began: u64,
    /// After its answer came, or after which it cannot be applied any more.
    pub ended: u64,
}

/// The calls of one shard.
pub type History = Vec<Operation>;

/// Records calls from many tasks. Its moments are numbers that only grow.
#[derive(Clone, Default)]
pub struct Recorder {
    moment: Arc<AtomicU64>,
    operations: Arc<Mutex<History>>,
}

impl Recorder {
    fn tick(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes that a call is about to be sent; `answered` is given what this answers.
    pub fn begin(&self, call: Call) -> usize {
        let mut operations = self.operations.lock();
        operations.push(Operation { call, answer: None, began: self.tick(), ended: u64::MAX });
        operations.len() - 1
    }

    /// Notes the answer to a call.
    pub fn answered(&self, operation: usize, answer: Answer) {
        let ended = self.tick();
        let mut operations = self.operations.lock();
        operations[operation].answer = Some(answer);
        operations[operation].ended = ended;
    }

    /// Notes that from now on no call that has no answer can be applied any more: whoever had them is gone.
    pub fn cut(&self) {
        let ended = self.tick();
        for operation in self.operations.lock().iter_mut().filter(|operation| operation.ended == u64::MAX) {
            operation.ended = ended;
        }
    }

    /// What was recorded.
    pub fn history(&self) -> History {
        self.operations.lock().clone()
    }
}
