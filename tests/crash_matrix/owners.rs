//! What the owner of the tables, and transactions of others, do to a scene.

use super::scene::Scene;

/// The owner of the tables has something against the paste `owners`.
pub fn owners_trigger(scene: Scene) -> String {
    let raise = "RAISE EXCEPTION 'told to';";
    let (event, body) = match scene {
        Scene::Unclaimable => {
            ("UPDATE", format!("IF NEW.claim_id IS NOT NULL THEN {raise} END IF; RETURN NEW;"))
        }
        Scene::BlockedRow => {
            ("UPDATE", format!("IF NEW.claim_id IS NULL THEN {raise} END IF; RETURN NEW;"))
        }
        Scene::KeptRow => ("DELETE", raise.into()),
        Scene::SwallowedRow => ("DELETE", "RETURN NULL;".into()),
        Scene::Leftover | Scene::KeptKey | Scene::KeyTaken => (
            "UPDATE OR DELETE",
            format!("IF OLD.claim_id IS NOT NULL THEN {raise} END IF; RETURN NEW;"),
        ),
        _ => return String::new(),
    };
    format!(
        "CREATE FUNCTION owners() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
         CREATE TRIGGER owners BEFORE {event} ON pastes FOR EACH ROW
         WHEN (OLD.short_code = 'owners') EXECUTE FUNCTION owners()"
    )
}

pub const RELENT: &str = "DROP TRIGGER IF EXISTS owners ON pastes";

/// As a reset leaves them whose content rows are locked, some time ago.
pub const LEAVE_WAITING: &str = "
    UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
           deletion_initiated_at = now() - interval '1 h', retry_at = now() - interval '1 s'
    WHERE expires_at <= now()";

/// What a zombie still holds is left alone.
pub const END_WAITING: &str = "
    DELETE FROM cleanup_unclaimable;
    UPDATE pastes SET deletion_initiated_at = now() - interval '1 h',
                      retry_at = now() - interval '1 s'
    WHERE short_code IN (SELECT short_code FROM pastes
                         WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL
                           AND retry_at > deletion_initiated_at
                         FOR UPDATE SKIP LOCKED)";
