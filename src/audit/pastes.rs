//! The second walk: has each body that a paste holds a content row? Without one nobody knows where the
//! object is. Nothing is repaired: the paste is all that is left of it.

use super::{Audit, AuditError, Finding, Kind, missing::holders};

const PASTES: &str = sql!("audit/pastes");
const PAGE: i64 = 5000;

impl Audit {
    /// One page of pastes. Returns the last hash; `None`: there are no more.
    pub(super) async fn pastes_page(
        &mut self,
        after: &[u8],
    ) -> Result<Option<Vec<u8>>, AuditError> {
        let rows = self.db.query(PASTES, &[&after, &PAGE]).await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let unowned = rows.iter().filter(|row| row.get("has_no_content"));
        let hashes: Vec<&[u8]> = unowned.map(|row| row.get("content_hash")).collect();
        self.judge_unowned(&hashes).await?;
        self.report.pastes +=
            rows.iter().map(|row| row.get::<_, i64>("pastes")).sum::<i64>().unsigned_abs();
        Ok(Some(last.get("content_hash")))
    }

    async fn judge_unowned(&mut self, hashes: &[&[u8]]) -> Result<(), AuditError> {
        let asked_again = holders(&self.db, hashes).await?;
        for (hash, held) in asked_again {
            if held.has_content || held.pastes == 0 {
                continue;
            }
            let what = format!(
                "{} pastes ({} of them live) hold a body that has no content row",
                held.pastes, held.live
            );
            let remedy = match held.live {
                0 => "nothing: the next runs erase them",
                _ => "store the body anew and insert its content row, or expire the pastes",
            };
            let mut finding =
                Finding::new(Kind::PasteWithoutContent, what, remedy).content_hash(&hash);
            finding.live_pastes = held.live.unsigned_abs();
            finding.short_codes = held.short_codes;
            self.note(finding);
        }
        Ok(())
    }
}
