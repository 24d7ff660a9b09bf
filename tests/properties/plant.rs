//! The beginning of a story: its graph, in the reference.

use super::{
    reference::{Blame, Content, Paste, Reference, Status, When},
    story::{BODIES, Drift, Kind, Planted, Story},
};

/// The reference at the beginning.
pub fn plant(story: &Story) -> Reference {
    let mut reference = Reference { owner: story.owner, ..Reference::default() };
    for (n, planted) in story.graph.iter().enumerate() {
        // Due times are all different, and in another order than the short codes.
        let overdue = (n as i64 * 37) % 101;
        let paste = plant_paste(&mut reference, planted, overdue);
        reference.pastes.insert(format!("p{n}"), paste);
    }
    for body in 0..BODIES {
        let holders = reference.holders(body);
        let drift = story.drift.get(usize::from(body)).copied().unwrap_or(Drift::Off(0));
        if holders == 0 {
            continue;
        }
        let key = reference.fresh_key(body);
        reference.objects.insert(key.clone());
        if let Drift::Off(by) = drift {
            let ref_count = (holders + by).max(0);
            reference.content.insert(body, Content { key, ref_count });
        }
    }
    reference
}

fn plant_paste(reference: &mut Reference, planted: &Planted, overdue: i64) -> Paste {
    let mut paste = Paste::new(Some(planted.body), When::Past(overdue));
    match planted.kind {
        Kind::Expired => {}
        Kind::ExpiresLater => paste.expires = When::Later(0),
        Kind::NeverExpires => paste.expires = When::Unset,
        Kind::CameBack(attempts) | Kind::BacksOff(attempts) => {
            let backs_off = matches!(planted.kind, Kind::BacksOff(_));
            // A retry is due in another order than the expiry was.
            paste.retry = if backs_off { When::Later(0) } else { When::Past(500 - overdue) };
            (paste.attempts, paste.blame) = (attempts, Blame::Worker);
        }
        Kind::Owes(attempts) => {
            let key = reference.fresh_key(planted.body);
            reference.objects.insert(key.clone());
            (paste.body, paste.pending_s3_key) = (None, Some(key));
            (paste.attempts, paste.blame) = (attempts, Blame::S3);
            paste.retry = When::Past(500 - overdue);
        }
        Kind::Tombstone => (paste.status, paste.body) = (Status::Deleted, None),
        Kind::Stray => paste.status = Status::InProgress(None),
        Kind::Forgotten(claim) => paste.status = Status::Stale(claim),
        Kind::Deferred => {
            (paste.status, paste.retry) = (Status::InProgress(None), When::Later(0));
            paste.blame = Blame::Locked;
        }
    }
    paste
}
