//! The forms that were posted, so that each acts once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::http::console::in_process_client::InProcessClient;
use tallystone_domain::limits::CONSOLE_FORMS_MAX;

/// The forms that were posted, by their tokens.
#[derive(Default)]
pub struct PostedForms {
    posted: Mutex<VecDeque<(String, Arc<PostedForm>)>>,
    made: AtomicU64,
}

/// The result of a form: a hash of its content, and how it ended. None before it is done. Locked while it is being
/// done, so that a second post waits for the first.
pub(super) type PostedForm = tokio::sync::Mutex<Option<(u64, FormEnd)>>;

/// How a form ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FormEnd {
    Done,
    /// An operation has ended, with so many messages.
    Took(i64),
    /// An operation continues, by its id.
    Started(String),
    /// Each of the selected messages of a queue has its answer; what is said of them.
    Selected {
        queue: String,
        said: String,
    },
}

impl PostedForms {
    /// A token that no other form has. It is no secret: a foreign page cannot post at all.
    pub fn token(&self, calls: &InProcessClient) -> String {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        format!("console-{:x}-{number:x}", calls.context.calls.clock.now().micros())
    }

    /// The form of a token, new or posted before.
    pub(super) fn of(&self, token: &str) -> Arc<PostedForm> {
        let mut posted = self.posted.lock();
        if let Some((_, form)) = posted.iter().find(|(known, _)| known == token) {
            return Arc::clone(form);
        }
        let form = Arc::<PostedForm>::default();
        posted.push_back((token.to_owned(), Arc::clone(&form)));
        if posted.len() > CONSOLE_FORMS_MAX {
            let is_done = |(_, form): &(String, Arc<PostedForm>)| form.try_lock().is_ok_and(|form| form.is_some());
            let oldest = posted.iter().position(is_done).unwrap_or(0);
            posted.remove(oldest);
        }
        form
    }

    /// The sentence about the messages of a queue that a form selected; none for any other form.
    pub fn said_of(&self, token: &str, of_queue: &str) -> Option<String> {
        let found = self.posted.lock().iter().find(|(known, _)| known == token).map(|(_, form)| Arc::clone(form))?;
        match &*found.try_lock().ok()? {
            Some((_, FormEnd::Selected { queue, said })) if queue == of_queue => Some(said.clone()),
            _ => None, // it is about something else, or is not done
        }
    }

    /// Takes out a form that failed, unless it was done before or another post of it waits. So failures cost no place.
    pub(super) fn forget(&self, token: &str) {
        let is_kept =
            |form: &Arc<PostedForm>| Arc::strong_count(form) > 1 || form.try_lock().is_ok_and(|form| form.is_some());
        self.posted.lock().retain(|(known, form)| known != token || is_kept(form));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_kept_for_forms_that_are_being_done_and_not_for_those_that_failed() {
        let forms = PostedForms::default();
        let first = forms.of("first");
        assert!(Arc::ptr_eq(&first, &forms.of("first")), "a second post waits for the first");
        forms.forget("first");
        assert!(Arc::ptr_eq(&first, &forms.of("first")), "another post of it waits");
        for number in 0..CONSOLE_FORMS_MAX {
            let form = forms.of(&format!("done {number}"));
            *form.try_lock().expect("nobody else has it") = Some((0, FormEnd::Done));
        }
        assert!(Arc::ptr_eq(&first, &forms.of("first")), "those that are done make room");
        let newest = format!("done {}", CONSOLE_FORMS_MAX - 1);
        forms.forget(&newest);
        let is_done = forms.of(&newest).try_lock().expect("nobody else has it").is_some();
        assert!(is_done, "a refusal of other content forgets nothing");
        drop(first);
        forms.forget("first");
        assert!(!forms.posted.lock().iter().any(|(known, _)| known == "first"));
    }
}
