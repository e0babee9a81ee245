use super::*;

fn view(size: u32, seats: &[(i64, u32)]) -> View {
    let seat = |&(created, weight): &(i64, u32)| Seat {
        owner: created.to_string(),
        record: Record {
            weight,
            size,
            ..Record::default()
        },
        kv: KeyValue {
            create_revision: created,
            ..KeyValue::default()
        },
    };
    let mut view = View {
        seats: seats.iter().map(seat).collect(),
        room: Some(Room::of_size(size)),
        ..View::default()
    };
    view.held = view.who_holds(SEM);
    view
}

const SEM: Kind = Kind::Semaphore;

#[test]
fn the_oldest_hold_as_many_as_fit_and_nobody_overtakes() {
    let room = view(3, &[(1, 1), (2, 1), (3, 2), (4, 1)]);
    assert_eq!(room.who_holds(SEM), [true, true, false, false]);
}

#[test]
fn one_that_can_never_fit_is_in_nobodys_way() {
    let room = view(3, &[(1, 4), (2, 3)]);
    assert_eq!(room.who_holds(SEM), [false, true]);
}

#[test]
fn those_who_held_when_it_shrank_hold_on() {
    let mut room = view(2, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
    room.room = Some(Room {
        through: Some(3),
        ..Room::of_size(2)
    });
    assert_eq!(room.who_holds(SEM), [true, true, true, false]);
    room.seats.remove(0);
    assert_eq!(room.who_holds(SEM), [true, true, false]);
    room.seats.remove(0);
    assert_eq!(room.who_holds(SEM), [true, true]);
}

#[test]
fn one_who_barged_in_takes_room() {
    let mut room = view(3, &[(1, 2), (2, 2), (3, 1)]);
    room.seats[2].record.admitted = true;
    assert_eq!(room.who_holds(SEM), [true, false, true]);
    room.seats.remove(0);
    assert_eq!(room.who_holds(SEM), [true, true]);
}

#[test]
fn who_keeps_the_first_out_is_known() {
    let kept = |size, seats: &[(i64, u32)]| -> Vec<i64> {
        let room = view(size, seats);
        let kept = room.keeps_out(SEM);
        kept.into_iter().map(Seat::created).collect()
    };
    assert!(kept(4, &[(1, 1), (2, 3)]).is_empty());
    // 3 waits for as long as 2 is there, whatever becomes of 1; and 4 for as long as 3 is.
    assert_eq!(kept(4, &[(1, 1), (2, 2), (3, 3), (4, 1)]), [3, 2]);
    assert_eq!(kept(4, &[(1, 1), (2, 2), (3, 2), (4, 1)]), [3, 2, 1]);
    let crowd: Vec<(i64, u32)> = (1..=64).map(|n| (n, 1)).chain([(65, 64)]).collect();
    assert_eq!(kept(64, &crowd), [65, 1]);
    // As many as it can be: they fit into a transaction.
    let crowd: Vec<(i64, u32)> = (1..=65).map(|n| (n, 1)).collect();
    assert_eq!(kept(64, &crowd).len(), 65);
}

#[test]
fn one_who_waits_watches_no_more_than_keeps_it_out() {
    let kept = |size, seats: &[(i64, u32)], at: usize| -> Option<Vec<i64>> {
        let room = view(size, seats);
        let kept = room.kept_out_by(SEM, room.seats[at].wait())?;
        Some(kept.into_iter().map(Seat::created).collect())
    };
    // Of three who hold and many who wait: as many as there are shares, right before it.
    let crowd: Vec<(i64, u32)> = (1..=50).map(|n| (n, 1)).collect();
    assert_eq!(kept(3, &crowd, 49), Some(vec![49, 48, 47]));
    assert_eq!(kept(3, &crowd, 3), Some(vec![3, 2, 1]));
    // A writer is kept out by any reader, and a reader by any writer.
    assert_eq!(kept(9, &[(1, 1), (2, 1), (3, 9)], 2), Some(vec![2]));
    assert_eq!(kept(9, &[(1, 9), (2, 1), (3, 1)], 2), Some(vec![2, 1]));
    // One that is too heavy is in nobody's way.
    assert_eq!(kept(2, &[(1, 2), (2, 3), (3, 1)], 2), Some(vec![1]));
    // As many as can be watched.
    let crowd: Vec<(i64, u32)> = (1..=200).map(|n| (n, 1)).collect();
    assert_eq!(kept(64, &crowd, 150).unwrap().len(), 64);
    // Many readers behind a writer need not watch each other.
    let writer = [(1, 1), (2, 1000)].into_iter();
    let readers: Vec<(i64, u32)> = writer.chain((3..=200).map(|n| (n, 1))).collect();
    let room = view(1000, &readers);
    let out = room.kept_out_by(Kind::ReadWrite, room.seats[150].wait());
    let out: Vec<i64> = out.unwrap().into_iter().map(Seat::created).collect();
    assert_eq!(out, [2]);
    // One who barged in takes room, though it came later.
    let mut room = view(2, &[(2, 2), (3, 1)]);
    room.seats[1].record.admitted = true;
    let out = room.kept_out_by(SEM, room.seats[0].wait()).unwrap();
    assert_eq!(out[0].created(), 3);
    assert!(
        room.kept_out_by(Kind::Barrier, room.seats[0].wait())
            .is_none()
    );
}

#[test]
fn one_who_waits_for_a_large_room_watches_two_before_it() {
    let kept = |room: &View, at: usize| -> Option<Vec<i64>> {
        let kept = room.kept_out_by(SEM, room.seats[at].wait())?;
        Some(kept.into_iter().map(Seat::created).collect())
    };
    let crowd: Vec<(i64, u32)> = (1..=300).map(|n| (n, 1)).collect();
    let mut room = view(65, &crowd);
    // The one right before it, and one half-way to the first who waits.
    assert_eq!(kept(&room, 299), Some(vec![182, 299]));
    assert_eq!(kept(&room, 67), Some(vec![66, 67]));
    // Who comes in next, and one more, watch all that happens.
    assert_eq!(kept(&room, 66), None);
    assert_eq!(kept(&room, 65), None);
    // One that can never fit does not stand in the way, nor does one who was let in.
    room.seats[298].record.weight = 66;
    assert_eq!(kept(&room, 299), Some(vec![182, 298]));
    room.seats[297].record.admitted = true;
    room.held = room.who_holds(SEM);
    assert_eq!(kept(&room, 299), Some(vec![181, 297]));
    // However heavy they are: if each watched all who keep it out, one who is let in would wake many.
    let heavy: Vec<(i64, u32)> = (1..=200).map(|n| (n, 2)).collect();
    assert_eq!(kept(&view(100, &heavy), 199), Some(vec![125, 199]));
}

#[test]
fn into_a_large_room_whoever_waited_is_let_in_by_writing() {
    let must = |size, revision, kind| {
        let mut room = view(size, &[(1, 1), (2, 1)]);
        room.revision = revision;
        room.must_be_written(kind, &room.seats[1])
    };
    assert!(must(65, 3, SEM));
    assert!(!must(64, 3, SEM));
    assert!(!must(100, 2, SEM), "it fits as it comes");
    assert!(!must(100, 3, Kind::ReadWrite));
    let mut room = view(100, &[(1, 1), (2, 1)]);
    room.revision = 3;
    room.room = Some(Room {
        through: Some(1),
        ..Room::of_size(100)
    });
    assert!(!room.must_be_written(SEM, &room.seats[0]), "certain anyway");
    assert!(room.must_be_written(SEM, &room.seats[1]));
    room.seats[1].record.admitted = true;
    assert!(!room.must_be_written(SEM, &room.seats[1]));
}

#[test]
fn one_that_was_too_heavy_does_not_come_to_hold_by_a_resize() {
    let room = view(3, &[(1, 2), (2, 4), (3, 1)]);
    assert_eq!(room.held, [true, false, true]);
    let out: Vec<i64> = room
        .left_out(SEM, room.held_through())
        .map(Seat::created)
        .collect();
    assert_eq!(out, [2]);
}

#[test]
fn an_open_barrier_lets_nobody_in_until_all_have_gone() {
    let mut room = view(2, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
    room.room = Some(Room {
        through: Some(2),
        open: Some(9),
        ..Room::of_size(2)
    });
    assert_eq!(room.who_holds(Kind::Barrier), [true, true, false, false]);
    room.seats.remove(0);
    assert_eq!(room.who_holds(Kind::Barrier), [true, false, false]);
    assert!(room.round().is_some());
    room.seats.remove(0);
    assert!(room.round().is_none());
    assert_eq!(room.who_holds(Kind::Barrier), [true, true]);
}
