//! A bound that many share, so that one that floods leaves room for the others.
//!
//! A holder of something may hold no more than what is free. One holder that floods gets half of the bound, two get a
//! third each, and a holder of nothing finds room. No holder has to know how many there are. Source: Choudhury and
//! Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking
//! 6(2), 1998, with a factor of 1.

use hashbrown::HashMap;

use super::flow_key::FlowKey;

/// Whether a flow of this much leaves room for others if it takes more of a bound. `held` is what all hold together,
/// the flow included. A flow that holds nothing always does: the bound itself is checked apart.
pub fn leaves_room(own: usize, more: usize, held: usize, most: usize) -> bool {
    own == 0 || own + more <= most.saturating_sub(held)
}

/// The usage of each flow. The process itself has no share, and is bounded by the whole.
#[derive(Default)]
pub struct PerFlowUsage(HashMap<FlowKey, usize>);

impl PerFlowUsage {
    /// The usage of a flow.
    pub fn of(&self, flow: Option<FlowKey>) -> usize {
        flow.and_then(|flow| self.0.get(&flow).copied()).unwrap_or(0)
    }

    /// A flow takes more.
    pub fn add(&mut self, flow: Option<FlowKey>, more: usize) {
        if let Some(flow) = flow.filter(|_| more > 0) {
            *self.0.entry(flow).or_default() += more;
        }
    }

    /// A flow gives some back. Holders of nothing are forgotten.
    pub fn remove(&mut self, flow: Option<FlowKey>, less: usize) {
        let Some(flow) = flow else { return };
        if let Some(own) = self.0.get_mut(&flow) {
            *own = own.saturating_sub(less);
            if *own == 0 {
                self.0.remove(&flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 1_200;

    fn may_take(own: usize, piece: usize, held: usize) -> bool {
        held + piece <= MOST && leaves_room(own, piece, held, MOST)
    }

    /// Lets each flood take all that it may, a little at a time.
    fn flood(floods: usize, piece: usize) -> Vec<usize> {
        let mut own = vec![0; floods];
        loop {
            let before = own.clone();
            for at in 0..floods {
                if may_take(own[at], piece, own.iter().sum()) {
                    own[at] += piece;
                }
            }
            if own == before {
                return own;
            }
        }
    }

    #[test]
    fn floods_share_alike_and_leave_as_much_as_each_has() {
        for (floods, each) in [(1, 600), (2, 400), (3, 300), (9, 120)] {
            assert_eq!(flood(floods, 1), vec![each; floods]);
        }
    }

    proptest! {
        #[test]
        fn whoever_holds_nothing_finds_room_beside_any_floods(pieces in vec((0..5_usize, 1..50_usize), 1..500)) {
            let mut own = [0; 5];
            for (flow, piece) in pieces {
                let held: usize = own.iter().sum();
                if may_take(own[flow], piece, held) {
                    own[flow] += piece;
                }
                let held: usize = own.iter().sum();
                prop_assert!(held <= MOST);
                // Each flood holds no more than what was free, so what is free is at least a share of one more.
                prop_assert!(may_take(0, 1, held), "{own:?}");
            }
        }

        #[test]
        fn shares_are_the_sums_of_what_was_taken_and_given_back(steps in vec((0..4_u64, 0..50_usize, any::<bool>()), 0..200)) {
            let (mut shares, mut oracle) = (PerFlowUsage::default(), [0_usize; 4]);
            for (flow, amount, takes) in steps {
                let place = &mut oracle[flow as usize];
                let amount = if takes { amount } else { amount.min(*place) };
                match takes {
                    true => shares.add(Some(FlowKey(flow)), amount),
                    false => shares.remove(Some(FlowKey(flow)), amount),
                }
                *place = if takes { *place + amount } else { *place - amount };
                for (flow, own) in (0..).zip(oracle) {
                    prop_assert_eq!(shares.of(Some(FlowKey(flow))), own);
                }
                prop_assert_eq!(shares.0.len(), oracle.iter().filter(|own| **own > 0).count());
            }
        }
    }
}
