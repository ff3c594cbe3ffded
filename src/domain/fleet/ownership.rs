//! Ownership of shards by rendezvous hashing over the members, so that a leaving member moves only its own shards
//! (Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous", 1996).

use xxhash_rust::xxh3::xxh3_64;

use crate::fleet::MemberId;

/// Returns the owner of a shard among the members; `None` without members. Cost: O(members).
///
/// Readers with different views of the members may name different owners for a while. Two owners are harmless; they
/// only duplicate work.
pub fn owner_of(shard: u32, members: impl IntoIterator<Item = MemberId>) -> Option<MemberId> {
    members.into_iter().max_by_key(|id| (weight(shard, *id), *id))
}

/// Returns how many members come before one for a shard: 0 for the owner. The next in rank owns the shard once those
/// before it have left. `None` if it is not among the members. Cost: O(members).
pub fn rank_of(shard: u32, member: MemberId, members: impl IntoIterator<Item = MemberId>) -> Option<usize> {
    let own = (weight(shard, member), member);
    let (mut is_listed, mut before) = (false, 0);
    for other in members {
        is_listed |= other == member;
        before += usize::from((weight(shard, other), other) > own);
    }
    is_listed.then_some(before)
}

fn weight(shard: u32, id: MemberId) -> u64 {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&id.0);
    bytes[16..].copy_from_slice(&shard.to_be_bytes());
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::TOUCH_SHARDS;

    proptest! {
        #[test]
        fn a_member_that_leaves_moves_only_its_own_shards(ids in btree_set(any::<[u8; 16]>(), 1..8), gone in any::<prop::sample::Index>()) {
            let members: Vec<MemberId> = ids.into_iter().map(MemberId).collect();
            let gone = members[gone.index(members.len())];
            let rest: Vec<MemberId> = members.iter().copied().filter(|id| *id != gone).collect();
            for shard in 0..TOUCH_SHARDS {
                let owner = owner_of(shard, members.iter().copied());
                let reversed = owner_of(shard, members.iter().rev().copied());
                prop_assert_eq!(owner, reversed, "the order of the members does not matter");
                let then = owner_of(shard, rest.iter().copied());
                prop_assert!(owner == Some(gone) || owner == then);
                prop_assert_eq!(then.is_none(), rest.is_empty());
            }
        }

        #[test]
        fn ranks_are_the_order_in_which_members_come_to_own_a_shard(
            ids in btree_set(any::<[u8; 16]>(), 1..8),
            shard in any::<u32>(),
        ) {
            let mut members: Vec<MemberId> = ids.into_iter().map(MemberId).collect();
            let ranks: Vec<_> = members.iter().map(|id| rank_of(shard, *id, members.iter().copied())).collect();
            let by_rank = |rank| ranks.iter().position(|of| *of == Some(rank)).map(|at| members[at]);
            let order: Vec<_> = (0..members.len()).map(|rank| by_rank(rank).expect("every rank is held")).collect();
            for owner in order {
                prop_assert_eq!(owner_of(shard, members.iter().copied()), Some(owner));
                members.retain(|id| *id != owner);
                prop_assert_eq!(rank_of(shard, owner, members.iter().copied()), None, "it has left");
            }
        }
    }

    #[test]
    fn shards_are_shared_out_about_evenly() {
        let members = [3, 5, 7, 11].map(|byte| MemberId([byte; 16]));
        for member in members {
            let owned = (0..TOUCH_SHARDS).filter(|shard| owner_of(*shard, members) == Some(member)).count();
            assert!((6..=28).contains(&owned), "{member:?} owns {owned} of {TOUCH_SHARDS}");
        }
    }
}
