//! Builds the reference at the beginning of a scenario.

use crate::{
    reference::{Content, LastError, Paste, Reference, Status, When},
    scenario::{CONTENT_ROWS, Drift, InitialPaste, Kind, Scenario},
};

/// Returns the reference with the initial pastes, and with content and objects to match.
pub(crate) fn initial_state(scenario: &Scenario) -> Reference {
    let mut reference = Reference { owner: scenario.owner, ..Reference::default() };
    for (n, initial) in scenario.initial.iter().enumerate() {
        // Due times are all different, and in another order than the short codes.
        let overdue = (n as i64 * 37) % 101;
        let paste = paste(&mut reference, initial, overdue);
        reference.pastes.insert(format!("p{n}"), paste);
    }
    for content_id in 0..CONTENT_ROWS {
        let references = reference.reference_count(content_id);
        let drift = scenario.drift.get(usize::from(content_id)).copied().unwrap_or(Drift::Off(0));
        if references == 0 {
            continue;
        }
        let key = reference.fresh_key(content_id);
        reference.objects.insert(key.clone());
        if let Drift::Off(by) = drift {
            let ref_count = (references + by).max(0);
            reference.content.insert(content_id, Content { key, ref_count });
        }
    }
    reference
}

fn paste(reference: &mut Reference, initial: &InitialPaste, overdue: i64) -> Paste {
    let mut paste = Paste::new(Some(initial.content_id), When::Past(overdue));
    match initial.kind {
        Kind::Expired => {}
        Kind::ExpiresLater => paste.expires = When::Later(0),
        Kind::NeverExpires => paste.expires = When::Unset,
        Kind::WasReset(attempts) | Kind::BacksOff(attempts) => {
            let backs_off = matches!(initial.kind, Kind::BacksOff(_));
            // A retry is due in another order than the expiry was.
            paste.retry = if backs_off { When::Later(0) } else { When::Past(500 - overdue) };
            (paste.attempts, paste.last_error) = (attempts, LastError::Worker);
        }
        Kind::PendingDelete(attempts) => {
            let key = reference.fresh_key(initial.content_id);
            reference.objects.insert(key.clone());
            (paste.content_id, paste.pending_s3_key) = (None, Some(key));
            (paste.attempts, paste.last_error) = (attempts, LastError::S3);
            paste.retry = When::Past(500 - overdue);
        }
        Kind::Tombstone => (paste.status, paste.content_id) = (Status::Deleted, None),
        Kind::MarkedByOther => paste.status = Status::InProgress(None),
        Kind::UnknownClaim(claim) => paste.status = Status::UnknownClaim(claim),
        Kind::Deferred => {
            (paste.status, paste.retry) = (Status::InProgress(None), When::Later(0));
            paste.last_error = LastError::Locked;
        }
    }
    paste
}
