//! Threads that work where nobody waits: they take a core only when no request wants it.

use std::io;
use std::thread::{Builder, JoinHandle};

/// What the scheduler is told of such threads: about a tenth of the weight of a thread that answers requests. Not the
/// least there is, because the store library holds locks in some of them.
const NICENESS: i32 = 10;

/// Starts a thread of low priority. Threads that it starts are of low priority, too.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(|| {
        lower_priority();
        work()
    })
}

/// Elsewhere than on Linux this call speaks of the whole process.
#[cfg(target_os = "linux")]
fn lower_priority() {
    let lowered = rustix::process::getpriority_process(None).and_then(|niceness| {
        // A whole service that runs with less stays there.
        rustix::process::setpriority_process(None, NICENESS.max(niceness))
    });
    if let Err(error) = lowered {
        tracing::debug!(%error, "a background thread keeps its priority");
    }
}

#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_background_thread_and_its_own_have_low_priority_and_their_starter_keeps_its() {
        let niceness = || rustix::process::getpriority_process(None).expect("known");
        let before = niceness();
        let inner = spawn("outer", move || (niceness(), std::thread::spawn(niceness).join().expect("no panic")));
        let (outer, inner) = inner.expect("started").join().expect("no panic");
        let low = before.max(NICENESS);
        assert_eq!((outer, inner, niceness()), (low, low, before));
    }
}
