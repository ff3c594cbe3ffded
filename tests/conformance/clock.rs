//! The laws of `Clock` and `Entropy`, on the system's and on the manual ones.

use std::time::Duration;

use tallystone_adapters::manual::{ManualClock, SeededEntropy};
use tallystone_adapters::system::{SystemClock, SystemEntropy};
use tallystone_ports::{Clock, Entropy};
use tokio::task::JoinSet;

use crate::given::{T0, at};

#[test]
fn clock_law_1_wall_time_may_jump_either_way() {
    let clock = ManualClock::at(T0);
    for millis in [5_000, -5_000, 0] {
        clock.set_wall(at(millis));
        assert_eq!(clock.now(), at(millis));
    }
}

#[test]
fn clock_law_2_elapsed_never_goes_back_and_feels_no_wall_step() {
    let clock = ManualClock::at(T0);
    clock.advance(Duration::from_secs(3));
    clock.set_wall(at(-99_000));
    assert_eq!(clock.elapsed(), Duration::from_secs(3));
    let system: Vec<_> = (0..1_000).map(|_| SystemClock.elapsed()).collect();
    assert!(system.is_sorted());
}

#[tokio::test]
async fn clock_law_3_a_sleep_ends_no_earlier_than_its_time_on_elapsed() {
    let clock = ManualClock::at(T0);
    let mut sleepers = JoinSet::new();
    for secs in [3, 1, 2, 5] {
        let clock = clock.clone();
        sleepers.spawn(async move {
            clock.sleep(Duration::from_secs(secs)).await;
            (secs, clock.elapsed())
        });
    }
    clock.wait_for_sleepers(4).await;
    for second in 1..=5 {
        clock.advance(Duration::from_secs(1));
        if second != 4 {
            let woken = sleepers.join_next().await.expect("one wakes each second").expect("no panic");
            assert_eq!(woken, (second, Duration::from_secs(second)));
        }
    }
    clock.sleep(Duration::ZERO).await;
    let before = SystemClock.elapsed();
    SystemClock.sleep(Duration::from_millis(2)).await;
    assert!(SystemClock.elapsed() - before >= Duration::from_millis(2));
}

#[test]
fn entropy_fills_every_byte_and_repeats_only_for_a_seed() {
    let draw = |entropy: &dyn Entropy| {
        let mut bytes = [0_u8; 37];
        entropy.fill(&mut bytes);
        bytes
    };
    assert_ne!(draw(&SystemEntropy), draw(&SystemEntropy));
    assert_eq!(draw(&SeededEntropy::new(7)), draw(&SeededEntropy::new(7)));
    let seeded = SeededEntropy::new(7);
    assert_ne!(draw(&seeded), draw(&seeded), "a sequence goes on");
    SystemEntropy.fill(&mut []);
}
