//! Background threads of low priority: they get CPU time only when no request needs it.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Niceness of such threads: about a tenth of the weight of a request thread. It is not the maximum, because the store
/// library holds locks in some of these threads.
const NICENESS: i32 = 10;

/// Starts a thread of low priority. Threads that it starts inherit the priority.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(|| {
        lower_priority();
        work()
    })
}

/// Only on Linux does this call change a single thread; elsewhere it changes the whole process.
#[cfg(target_os = "linux")]
fn lower_priority() {
    let lowered = rustix::process::getpriority_process(None).and_then(|niceness| {
        // A service that already runs at a lower priority keeps it.
        rustix::process::setpriority_process(None, NICENESS.max(niceness))
    });
    if let Err(error) = lowered {
        tracing::debug!(%error, "cannot lower the priority of a background thread");
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
