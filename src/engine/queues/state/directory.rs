//! The directory of served queues and templates: by id, by name, in the order of names, and templates by prefix.
//!
//! Any caller may name a missing queue, or list queues page by page. So both operations cost the length of the name
//! or of the page, however many queues there are.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::queue::{QueueId, QueueName};

/// The queues of a server.
#[derive(Default)]
pub struct QueueDirectory {
    by_name: DashMap<QueueName, Arc<ServedQueue>>,
    by_id: DashMap<QueueId, Arc<ServedQueue>>,
    order: RwLock<QueuesByName>,
    /// Changes with every queue that comes or goes.
    generation: AtomicU64,
}

#[derive(Default)]
struct QueuesByName {
    by_name: BTreeMap<Box<str>, Arc<ServedQueue>>,
    /// The template of each prefix.
    templates: HashMap<Box<str>, Arc<ServedQueue>>,
}

impl QueueDirectory {
    /// Adds a queue or template. O(log n).
    pub fn put(&self, queue: &Arc<ServedQueue>) {
        let record = queue.record.load();
        let spec = &record.spec;
        let mut order = self.order.write();
        order.by_name.insert(spec.name.as_str().into(), Arc::clone(queue));
        if let Some(prefix) = &spec.template_for {
            order.templates.insert(prefix.clone(), Arc::clone(queue));
        }
        self.by_id.insert(record.id, Arc::clone(queue));
        self.by_name.insert(spec.name.clone(), Arc::clone(queue));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// A number that changes when a queue comes or goes.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Removes a queue or template. O(log n).
    pub fn remove(&self, queue: &ServedQueue) {
        let record = queue.record.load();
        let spec = &record.spec;
        let mut order = self.order.write();
        order.by_name.remove(spec.name.as_str());
        // The next template of the prefix may have come before this one goes.
        if let Some(prefix) = &spec.template_for
            && order.templates.get(prefix).is_some_and(|of_prefix| of_prefix.record.load().id == record.id)
        {
            order.templates.remove(prefix);
        }
        self.by_name.remove(&spec.name);
        self.by_id.remove(&record.id);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Finds a queue or template by its name.
    pub fn find(&self, name: &QueueName) -> Option<Arc<ServedQueue>> {
        self.by_name.get(name).map(|queue| Arc::clone(queue.value()))
    }

    /// Finds a queue by its id.
    pub fn by_id(&self, id: QueueId) -> Option<Arc<ServedQueue>> {
        self.by_id.get(&id).map(|queue| Arc::clone(queue.value()))
    }

    /// The number of queues and templates.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All queues and templates, by name. O(n).
    pub fn all(&self) -> Vec<Arc<ServedQueue>> {
        self.order.read().by_name.values().map(Arc::clone).collect()
    }

    /// Lists the queues with a name prefix, in the order of names, after the name `above`. O(log n + size of the
    /// answer).
    pub fn list(&self, prefix: &str, above: Option<&QueueName>, limit: usize) -> Vec<Arc<ServedQueue>> {
        let from = match above {
            Some(above) if above.as_str() >= prefix => Bound::Excluded(above.as_str()),
            Some(_) | None => Bound::Included(prefix),
        };
        let order = self.order.read();
        let listed = order.by_name.range::<str, _>((from, Bound::Unbounded));
        listed
            .take_while(|(name, _)| name.starts_with(prefix))
            .take(limit)
            .map(|(_, queue)| Arc::clone(queue))
            .collect()
    }

    pub fn template_for(&self, prefix: &str) -> Option<Arc<ServedQueue>> {
        let order = self.order.read();
        order.templates.get(prefix).map(Arc::clone)
    }

    /// The template with the longest prefix of a name. O(length of the name).
    pub fn template_of(&self, name: &QueueName) -> Option<Arc<ServedQueue>> {
        let name = name.as_str();
        let order = self.order.read();
        let ends = (1..=name.len()).rev().filter(|end| name.is_char_boundary(*end));
        let mut of_prefix = ends.filter_map(|end| order.templates.get(&name[..end]));
        of_prefix.next().map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::QueueDraft;
    use tallystone_domain::Timestamp;
    use tallystone_domain::limits::QUEUES_MAX;
    use tallystone_domain::queue::{CatalogQueue, QueueSpec};

    fn name(text: &str) -> QueueName {
        QueueName::new(text).expect("a name")
    }

    fn queue(id: u128, text: &str, template_for: Option<&str>) -> Arc<ServedQueue> {
        let spec = QueueDraft::of(name(text)).resolve_new(None).expect("defaults are valid");
        let spec = QueueSpec { template_for: template_for.map(Into::into), ..spec };
        let (created, updated) = (Timestamp::MIN, Timestamp::MIN);
        Arc::new(ServedQueue::new(CatalogQueue { id: QueueId(id), spec, version: 1, created, updated, made_by: None }))
    }

    fn names(listed: Vec<Arc<ServedQueue>>) -> Vec<String> {
        listed.iter().map(|queue| queue.record.load().spec.name.to_string()).collect()
    }

    #[test]
    fn a_page_begins_above_its_name_and_ends_with_its_prefix() {
        let directory = QueueDirectory::default();
        for (id, text) in (1..).zip(["b", "a/2", "a", "a/1", "a/3", "b/1"]) {
            directory.put(&queue(id, text, None));
        }
        assert_eq!(names(directory.list("", None, 9)), ["a", "a/1", "a/2", "a/3", "b", "b/1"]);
        assert_eq!(names(directory.list("a/", None, 2)), ["a/1", "a/2"]);
        assert_eq!(names(directory.list("a/", Some(&name("a/2")), 2)), ["a/3"]);
        assert_eq!(names(directory.list("a/", Some(&name("a")), 1)), ["a/1"], "below the prefix is before all");
        assert!(directory.list("a/", Some(&name("b")), 9).is_empty());
        directory.remove(&directory.find(&name("a/2")).expect("it is there"));
        assert_eq!(names(directory.list("a/", None, 9)), ["a/1", "a/3"]);
        assert_eq!((directory.len(), directory.by_id(QueueId(2)).is_none()), (5, true));
    }

    #[test]
    fn the_longest_prefix_of_a_template_counts_until_the_template_is_gone() {
        let directory = QueueDirectory::default();
        for (id, text, prefix) in [(1, "any", "t"), (2, "timed", "timed/"), (3, "daily", "timed/day/")] {
            directory.put(&queue(id, text, Some(prefix)));
        }
        let of = |text: &str| directory.template_of(&name(text)).map(|found| found.record.load().id.0);
        let texts = ["timed/day/1", "timed/day/", "timed/da", "timed", "t", "s"];
        assert_eq!(texts.map(of), [Some(3), Some(3), Some(2), Some(1), Some(1), None]);
        assert!(directory.template_for("timed/").is_some() && directory.template_for("timed").is_none());
        directory.remove(&directory.find(&name("daily")).expect("it is there"));
        assert_eq!(of("timed/day/1"), Some(2));
    }

    /// A lookup of a missing name once took 5 ms among so many queues, in an optimized build: a minute for this test.
    #[test]
    fn a_name_that_is_not_there_costs_the_same_among_the_most_queues() {
        let directory = QueueDirectory::default();
        for id in 0..QUEUES_MAX {
            let prefix = format!("p{id}/");
            directory.put(&queue(id as u128, &format!("t{id}"), Some(&prefix).filter(|_| id % 2 == 0).map(|p| &**p)));
        }
        for id in 0..QUEUES_MAX {
            assert_eq!(directory.template_of(&name(&format!("p{id}/x"))).is_some(), id % 2 == 0);
            assert!(directory.list("x", None, 100).is_empty());
        }
    }
}
