//! The part of the oracle that chooses the messages of a dequeue, with or without filters.

use std::collections::BTreeMap;
use std::time::Duration;

use super::oracle::{Item, Oracle};
use crate::queue::command::{Cursor, Dequeue, LeaseGrant};
use crate::queue::filter::{Filter, ShapeKeys};
use crate::queue::messages::message::{LeaseSession, Rank, RoutingValue};
use crate::queue::messages::state_machine::MessageState;
use crate::time::Timestamp;

/// A dequeue in progress.
pub struct Round {
    pub max: usize,
    pub lease: Option<Duration>,
    pub session: Option<LeaseSession>,
    pub due_left: usize,
    pub leases: Vec<LeaseGrant>,
    pub stopped: bool,
}

fn rank(item: &Item) -> Rank {
    (item.priority, item.sequence)
}

/// The pairs of a filter that belong to the keys of a shape.
fn part(filter: &Filter, keys: &ShapeKeys) -> Filter {
    let shared = filter.metadata().pairs().filter(|(key, _)| keys.iter().any(|own| own == *key));
    Filter::new(shared).expect("part of a legal filter")
}

impl Oracle {
    /// Leases the messages that the round may have; returns the position to continue from.
    pub fn choose(&mut self, asked: &Dequeue, round: &mut Round, now: Timestamp) -> Option<Cursor> {
        let filter = &asked.filter;
        let complete = self.settings.shapes.iter().zip(&self.filled).filter(|(_, filled)| filled.is_none());
        let inside: Vec<Filter> =
            complete.filter(|(keys, _)| keys.is_inside(filter)).map(|(keys, _)| part(filter, keys)).collect();
        let of = |part: &Filter, state: Option<MessageState>| {
            let mine =
                |item: &&Item| part.matches(&item.sent.metadata) && state.is_none_or(|state| item.state == state);
            self.items.iter().filter(mine).count()
        };
        if inside.iter().any(|part| of(part, None) == 0) {
            return None;
        }
        if *filter == Filter::default() || inside.contains(filter) {
            while round.leases.len() < round.max
                && !round.stopped
                && let Some(at) = self.best(filter)
            {
                self.take(at, round, now);
            }
            return None;
        }
        let mut within = Filter::default();
        for part in inside {
            if of(&part, Some(MessageState::Pending)) < of(&within, Some(MessageState::Pending)) {
                within = part;
            }
        }
        self.walk(&within, asked, round, now)
    }

    /// The best servable message that matches a filter.
    fn best(&self, filter: &Filter) -> Option<usize> {
        let servable = |item: &Item| item.state == MessageState::Pending && self.may_serve(item);
        let met = (0..self.items.len()).filter(|at| filter.matches(&self.items[*at].sent.metadata));
        met.filter(|at| servable(&self.items[*at])).min_by_key(|at| rank(&self.items[*at]))
    }

    fn take(&mut self, at: usize, round: &mut Round, now: Timestamp) {
        let over = self.items[at].ttl_at.is_some_and(|ttl_at| ttl_at <= now);
        match over {
            false => round.leases.push(self.lease(at, round.lease, round.session, now)),
            true if round.due_left == 0 => round.stopped = true,
            true => {
                round.due_left -= 1;
                self.catch_up(at, now);
            }
        }
    }

    fn walk(&mut self, within: &Filter, asked: &Dequeue, round: &mut Round, now: Timestamp) -> Option<Cursor> {
        let mut cursor = asked.cursor.clone().unwrap_or_else(|| Cursor::start(now));
        let look_at = if asked.look_at == 0 { 256 } else { asked.look_at };
        let mut seen = 0;
        while round.leases.len() < round.max {
            let before = cursor.clone();
            let Some(at) = self.next(within, &mut cursor) else {
                let restart = asked.cursor.is_some() && self.moved_at >= cursor.since;
                return restart.then(|| Cursor::start(now));
            };
            if seen == look_at {
                return Some(before);
            }
            seen += 1;
            if asked.filter.matches(&self.items[at].sent.metadata) {
                self.take(at, round, now);
                if round.stopped {
                    return Some(before);
                }
            }
        }
        None
    }

    /// The next message of a walk: by rank, or by values in the order of their first messages.
    fn next(&self, within: &Filter, cursor: &mut Cursor) -> Option<usize> {
        let all = 0..self.items.len();
        let mine = |at: &usize| {
            self.items[*at].state == MessageState::Pending && within.matches(&self.items[*at].sent.metadata)
        };
        let pending: Vec<usize> = all.filter(mine).collect();
        let first = |from: &mut dyn Iterator<Item = usize>| from.min_by_key(|at| rank(&self.items[*at]));
        let value = |at: usize| self.items[at].sent.routing.clone();
        if self.settings.exclusivity.is_none() {
            let at = first(&mut pending.iter().copied().filter(|at| rank(&self.items[*at]) > cursor.after))?;
            cursor.after = rank(&self.items[at]);
            return Some(at);
        }
        loop {
            if let Some((inside, after)) = cursor.inside.take() {
                let own = |at: &usize| value(*at).as_ref() == Some(&inside) && rank(&self.items[*at]) > after;
                if let Some(at) = first(&mut pending.iter().copied().filter(own))
                    && self.may_serve(&self.items[at])
                {
                    cursor.inside = Some((inside, rank(&self.items[at])));
                    return Some(at);
                }
            }
            let mut heads: BTreeMap<Option<RoutingValue>, usize> = BTreeMap::new();
            for at in &pending {
                let head = heads.entry(value(*at)).or_insert(*at);
                *head = if rank(&self.items[*at]) < rank(&self.items[*head]) { *at } else { *head };
            }
            let further = |at: &usize| rank(&self.items[*at]) > cursor.after && self.may_serve(&self.items[*at]);
            let head = first(&mut heads.into_values().filter(further))?;
            let entered: RoutingValue = value(head)?;
            cursor.after = rank(&self.items[head]);
            cursor.inside = Some((entered, (i64::MIN, 0)));
        }
    }
}
