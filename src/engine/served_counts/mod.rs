//! The values that readers of counters were or will be served: rolls write them, and calls read them.

pub mod as_of_floor;
pub mod rankings;
pub mod watchers;

use as_of_floor::AsOfFloor;
use rankings::TopTables;
use watchers::CounterWatchers;

/// The state between rolls and readers.
#[derive(Default)]
pub struct ServedCounts {
    /// The highest `as_of` served of each counter, where another server could make a later read look older.
    pub as_of_floor: AsOfFloor,
    /// The greatest counters.
    pub rankings: TopTables,
    /// The watches of counters.
    pub watchers: CounterWatchers,
}
