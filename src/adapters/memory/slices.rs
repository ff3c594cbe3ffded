//! The rows of the time slices; dropping a slice removes its contents.

use async_trait::async_trait;

use crate::memory::{MemoryStore, MemoryStoreState};
use tallystone_domain::counter::DatasetId;
use tallystone_domain::rollup::{SliceStatus, TimeSlice};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{StoreError, StoreErrorKind, TimeSlices};

#[async_trait]
impl TimeSlices for MemoryStore {
    async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        let state = self.state.lock();
        Ok(state.slices.values().filter(|slice| slice.dataset == dataset).cloned().collect())
    }

    async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError> {
        let mut state = self.state.lock();
        Ok(state.slices.entry((slice.dataset, slice.start)).or_insert(slice).clone())
    }

    async fn set_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let Some(slice) = state.slices.get_mut(&(dataset, start)) else {
            return Err(StoreError::not_applied(StoreErrorKind::Conflict, "set slice status")
                .with_source(format!("dataset {} has no slice that starts at {start:?}", dataset.0)));
        };
        slice.status = slice.status.max(status);
        if slice.status == SliceStatus::Dropped {
            let slice = slice.clone();
            state.drop_contents(&slice);
        }
        Ok(())
    }
}

impl MemoryStoreState {
    fn drop_contents(&mut self, slice: &TimeSlice) {
        let inside =
            |dataset: DatasetId, time: Timestamp| dataset == slice.dataset && slice.start <= time && time < slice.end;
        for ((dataset, _), events) in &mut self.events {
            events.retain(|key, _| !inside(*dataset, key.time));
        }
        self.events.retain(|_, events| !events.is_empty());
        self.touches.retain(|(dataset, _, step, _)| !inside(*dataset, *step));
        self.buckets.retain(|(dataset, _, start), _| !inside(*dataset, *start));
    }
}
