//! SQL of the table owner and of other transactions in a scenario.

use super::scenario::Scenario;

/// Returns the owner's trigger on the paste `owners`, if the scenario has one.
pub(crate) fn owner_trigger(scenario: Scenario) -> String {
    let raise = "RAISE EXCEPTION 'refused by the test';";
    let (event, body) = match scenario {
        Scenario::Unclaimable => {
            ("UPDATE", format!("IF NEW.claim_id IS NOT NULL THEN {raise} END IF; RETURN NEW;"))
        }
        Scenario::ResetRefused => {
            ("UPDATE", format!("IF NEW.claim_id IS NULL THEN {raise} END IF; RETURN NEW;"))
        }
        Scenario::DeleteRefused => ("DELETE", raise.into()),
        Scenario::DeleteSuppressed => ("DELETE", "RETURN NULL;".into()),
        Scenario::StrandedRow | Scenario::PendingKeyKept | Scenario::PendingKeyReset => (
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

/// Drops the trigger of `owner_trigger`.
pub(crate) const DROP_OWNER_TRIGGER: &str = "DROP TRIGGER IF EXISTS owners ON pastes";

/// Leaves rows as a reset does whose content rows were locked, some time ago.
pub(crate) const DEFER_ROWS: &str = "
    UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
           deletion_initiated_at = now() - interval '1 h', retry_at = now() - interval '1 s',
           last_error = 'waits for its content row'
    WHERE expires_at <= now()";

/// Makes deferred and unclaimable rows due. Skips rows that a zombie still has locked.
pub(crate) const END_DEFERRALS: &str = "
    DELETE FROM cleanup_unclaimable;
    UPDATE pastes SET deletion_initiated_at = now() - interval '1 h',
                      retry_at = now() - interval '1 s'
    WHERE short_code IN (SELECT short_code FROM pastes
                         WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL
                           AND retry_at > deletion_initiated_at
                         FOR UPDATE SKIP LOCKED)";

/// Lets every write of one content row fail.
pub(crate) const REFUSE_CONTENT: &str = "
    CREATE FUNCTION refuse_content() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'refused by the test' USING ERRCODE = '23514'; END $$;
    CREATE TRIGGER refuse_content BEFORE UPDATE OR DELETE ON content FOR EACH ROW
    WHEN (OLD.content_hash = sha256('bad'::bytea)) EXECUTE FUNCTION refuse_content()";

/// Marks rows as another system would, some of them without a time.
pub(crate) const MARK_ROWS: &str = "
    UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
           deletion_initiated_at = CASE WHEN short_code < 'expired 6' THEN now() - interval '3 h' END
    WHERE expires_at <= now()";

/// Inserts old claims and tombstones that a watchdog prunes.
pub(crate) const INSERT_HISTORY: &str = "
    INSERT INTO deletion_claims (worker, rows_claimed, claimed_at, decremented_at, finished_at)
    SELECT gen_random_uuid(), 1, now() - interval '90 d', now() - interval '90 d',
           now() - interval '90 d' FROM generate_series(1, 20);
    INSERT INTO pastes (short_code, expires_at, deletion_status, deletion_initiated_at)
    SELECT 'tombstone ' || n, now() - interval '9 h', 'DELETED', now() - interval '8 h'
    FROM generate_series(1, 20) n";
