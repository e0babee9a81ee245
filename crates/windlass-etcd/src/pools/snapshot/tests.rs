use super::*;

fn pool_of(size: u32, entries: &[(i64, u32)]) -> PoolSnapshot {
    let entry = |&(created, weight): &(i64, u32)| ClaimEntry {
        owner: created.to_string(),
        stored: StoredClaim {
            weight,
            size,
            ..StoredClaim::default()
        },
        kv: KeyValue {
            create_revision: created,
            ..KeyValue::default()
        },
    };
    let mut pool = PoolSnapshot {
        entries: entries.iter().map(entry).collect(),
        stored: Some(StoredPool::of_size(size)),
        ..PoolSnapshot::default()
    };
    pool.held = pool.which_hold(SEM);
    pool
}

const SEM: Kind = Kind::Semaphore;

#[test]
fn the_oldest_claims_hold_and_none_overtakes() {
    let pool = pool_of(3, &[(1, 1), (2, 1), (3, 2), (4, 1)]);
    assert_eq!(pool.which_hold(SEM), [true, true, false, false]);
}

#[test]
fn claim_that_can_never_fit_blocks_no_other() {
    let pool = pool_of(3, &[(1, 4), (2, 3)]);
    assert_eq!(pool.which_hold(SEM), [false, true]);
}

#[test]
fn holders_keep_holding_when_the_size_is_reduced() {
    let mut pool = pool_of(2, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
    pool.stored = Some(StoredPool {
        through: Some(3),
        ..StoredPool::of_size(2)
    });
    assert_eq!(pool.which_hold(SEM), [true, true, true, false]);
    pool.entries.remove(0);
    assert_eq!(pool.which_hold(SEM), [true, true, false]);
    pool.entries.remove(0);
    assert_eq!(pool.which_hold(SEM), [true, true]);
}

#[test]
fn barging_claim_takes_capacity() {
    let mut pool = pool_of(3, &[(1, 2), (2, 2), (3, 1)]);
    pool.entries[2].stored.admitted = true;
    assert_eq!(pool.which_hold(SEM), [true, false, true]);
    pool.entries.remove(0);
    assert_eq!(pool.which_hold(SEM), [true, true]);
}

#[test]
fn blockers_of_the_first_waiter() {
    let kept = |size, entries: &[(i64, u32)]| -> Vec<i64> {
        let pool = pool_of(size, entries);
        let kept = pool.blockers_of_first(SEM);
        kept.into_iter().map(ClaimEntry::created).collect()
    };
    assert!(kept(4, &[(1, 1), (2, 3)]).is_empty());
    // 3 waits as long as 2 stays, with or without 1; and 4 as long as 3 waits.
    assert_eq!(kept(4, &[(1, 1), (2, 2), (3, 3), (4, 1)]), [3, 2]);
    assert_eq!(kept(4, &[(1, 1), (2, 2), (3, 2), (4, 1)]), [3, 2, 1]);
    let crowd: Vec<(i64, u32)> = (1..=64).map(|n| (n, 1)).chain([(65, 64)]).collect();
    assert_eq!(kept(64, &crowd), [65, 1]);
    // The most there can be: they fit into one transaction.
    let crowd: Vec<(i64, u32)> = (1..=65).map(|n| (n, 1)).collect();
    assert_eq!(kept(64, &crowd).len(), 65);
}

#[test]
fn waiter_watches_only_enough_blockers() {
    let kept = |size, entries: &[(i64, u32)], at: usize| -> Option<Vec<i64>> {
        let pool = pool_of(size, entries);
        let kept = pool.blockers_of(SEM, pool.entries[at].waiting())?;
        Some(kept.into_iter().map(ClaimEntry::created).collect())
    };
    // With three holders and many waiters: the last three ahead.
    let crowd: Vec<(i64, u32)> = (1..=50).map(|n| (n, 1)).collect();
    assert_eq!(kept(3, &crowd, 49), Some(vec![49, 48, 47]));
    assert_eq!(kept(3, &crowd, 3), Some(vec![3, 2, 1]));
    // Any reader blocks a writer, and any writer a reader.
    assert_eq!(kept(9, &[(1, 1), (2, 1), (3, 9)], 2), Some(vec![2]));
    assert_eq!(kept(9, &[(1, 9), (2, 1), (3, 1)], 2), Some(vec![2, 1]));
    // A claim that is too heavy blocks none.
    assert_eq!(kept(2, &[(1, 2), (2, 3), (3, 1)], 2), Some(vec![1]));
    // The most that are watched.
    let crowd: Vec<(i64, u32)> = (1..=200).map(|n| (n, 1)).collect();
    assert_eq!(kept(64, &crowd, 150).unwrap().len(), 64);
    // Readers behind a writer watch the writer only.
    let writer = [(1, 1), (2, 1000)].into_iter();
    let readers: Vec<(i64, u32)> = writer.chain((3..=200).map(|n| (n, 1))).collect();
    let pool = pool_of(1000, &readers);
    let out = pool.blockers_of(Kind::ReadWrite, pool.entries[150].waiting());
    let out: Vec<i64> = out.unwrap().into_iter().map(ClaimEntry::created).collect();
    assert_eq!(out, [2]);
    // A claim that barged in takes capacity, though it is newer.
    let mut pool = pool_of(2, &[(2, 2), (3, 1)]);
    pool.entries[1].stored.admitted = true;
    let out = pool.blockers_of(SEM, pool.entries[0].waiting()).unwrap();
    assert_eq!(out[0].created(), 3);
    assert!(
        pool.blockers_of(Kind::Barrier, pool.entries[0].waiting())
            .is_none()
    );
}

#[test]
fn waiter_for_a_large_semaphore_watches_two_ahead() {
    let kept = |pool: &PoolSnapshot, at: usize| -> Option<Vec<i64>> {
        let kept = pool.blockers_of(SEM, pool.entries[at].waiting())?;
        Some(kept.into_iter().map(ClaimEntry::created).collect())
    };
    let crowd: Vec<(i64, u32)> = (1..=300).map(|n| (n, 1)).collect();
    let mut pool = pool_of(65, &crowd);
    // The last ahead of it, and one half-way to the first waiter.
    assert_eq!(kept(&pool, 299), Some(vec![182, 299]));
    assert_eq!(kept(&pool, 67), Some(vec![66, 67]));
    // The first two waiters watch the whole pool.
    assert_eq!(kept(&pool, 66), None);
    assert_eq!(kept(&pool, 65), None);
    // Neither a claim that can never fit nor an admitted one counts.
    pool.entries[298].stored.weight = 66;
    assert_eq!(kept(&pool, 299), Some(vec![182, 298]));
    pool.entries[297].stored.admitted = true;
    pool.held = pool.which_hold(SEM);
    assert_eq!(kept(&pool, 299), Some(vec![181, 297]));
    // Whatever their weight: if each watched all its blockers, one grant would wake many.
    let heavy: Vec<(i64, u32)> = (1..=200).map(|n| (n, 2)).collect();
    assert_eq!(kept(&pool_of(100, &heavy), 199), Some(vec![125, 199]));
}

#[test]
fn waiter_for_a_large_semaphore_holds_by_a_write() {
    let must = |size, revision, kind| {
        let mut pool = pool_of(size, &[(1, 1), (2, 1)]);
        pool.revision = revision;
        pool.must_be_recorded(kind, &pool.entries[1])
    };
    assert!(must(65, 3, SEM));
    assert!(!must(64, 3, SEM));
    assert!(!must(100, 2, SEM), "it fits at once");
    assert!(!must(100, 3, Kind::ReadWrite));
    let mut pool = pool_of(100, &[(1, 1), (2, 1)]);
    pool.revision = 3;
    pool.stored = Some(StoredPool {
        through: Some(1),
        ..StoredPool::of_size(100)
    });
    assert!(
        !pool.must_be_recorded(SEM, &pool.entries[0]),
        "it holds for certain"
    );
    assert!(pool.must_be_recorded(SEM, &pool.entries[1]));
    pool.entries[1].stored.admitted = true;
    assert!(!pool.must_be_recorded(SEM, &pool.entries[1]));
}

#[test]
fn resize_removes_waiters_that_were_passed_over() {
    let pool = pool_of(3, &[(1, 2), (2, 4), (3, 1)]);
    assert_eq!(pool.held, [true, false, true]);
    let out: Vec<i64> = pool
        .passed_over(SEM, pool.held_through())
        .map(ClaimEntry::created)
        .collect();
    assert_eq!(out, [2]);
}

#[test]
fn open_barrier_admits_no_claim_until_all_are_gone() {
    let mut pool = pool_of(2, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
    pool.stored = Some(StoredPool {
        through: Some(2),
        open: Some(9),
        ..StoredPool::of_size(2)
    });
    assert_eq!(pool.which_hold(Kind::Barrier), [true, true, false, false]);
    pool.entries.remove(0);
    assert_eq!(pool.which_hold(Kind::Barrier), [true, false, false]);
    assert!(pool.round().is_some());
    pool.entries.remove(0);
    assert!(pool.round().is_none());
    assert_eq!(pool.which_hold(Kind::Barrier), [true, true]);
}
