//! How many bytes a thread holds, and the most that it held: the allocator of this test binary counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: every call goes on to the allocator of the system as it came; the counters hold plain numbers and allocate
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(at, layout) }
    }
}

fn count(bytes: isize) {
    // A thread that ends has no counters any more, and nobody who asks for them.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

/// The answer of a function of this thread, and how many bytes it held at most beyond what was held before.
pub fn most_during<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let answer = work();
    (answer, usize::try_from(MOST.get() - before).unwrap_or(0))
}

/// Fails where reading an input held far more than the input has.
pub fn bounded<T>(input: &[u8], per_byte: usize, work: impl FnOnce() -> T) -> T {
    const ALWAYS_ALLOWED: usize = 1024 * 1024;
    let (answer, most) = most_during(work);
    let allowed = ALWAYS_ALLOWED + per_byte * input.len();
    assert!(most <= allowed, "{} bytes made the reader hold {most} bytes, at most {allowed} are right", input.len());
    answer
}

#[test]
fn what_is_held_is_counted() {
    let (_, most) = most_during(|| drop(std::hint::black_box(vec![0_u8; 1_000_000])));
    assert!((1_000_000..1_001_000).contains(&most), "{most}");
    let refused = std::panic::catch_unwind(|| bounded(b"x", 8, || std::hint::black_box(vec![0_u8; 4 << 20])));
    assert!(refused.is_err(), "four MiB for one byte are too many");
}
