//! The second walk: does the content of every paste have a content row? Without one, the key of the
//! object is lost. Nothing is repaired: the paste is all that is left.

use super::{
    Audit, AuditError, Finding, Kind,
    missing_objects::{References, references},
};
use crate::format::thousands;

const PASTES: &str = sql!("audit/pastes");
const PAGE: i64 = 5000;

impl Audit {
    /// Checks one page of pastes. Returns its last hash, or `None` after the last page.
    pub(super) async fn pastes_page(
        &mut self,
        after: &[u8],
    ) -> Result<Option<Vec<u8>>, AuditError> {
        let rows = self.db.query(PASTES, &[&after, &PAGE]).await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let without_content = rows.iter().filter(|row| row.get("has_no_content"));
        let hashes: Vec<&[u8]> = without_content.map(|row| row.get("content_hash")).collect();
        self.confirm_without_content(&hashes).await?;
        self.report.pastes +=
            rows.iter().map(|row| row.get::<_, i64>("pastes")).sum::<i64>().unsigned_abs();
        Ok(Some(last.get("content_hash")))
    }

    /// Queries these hashes again, and reports those that pastes reference and no content row has.
    async fn confirm_without_content(&mut self, hashes: &[&[u8]]) -> Result<(), AuditError> {
        for (hash, references) in references(&self.db, hashes).await? {
            if !references.has_content && references.pastes > 0 {
                self.note(paste_without_content(&hash, references));
            }
        }
        Ok(())
    }
}

fn paste_without_content(hash: &[u8], references: References) -> Finding {
    let (pastes, live) = (thousands(references.pastes), thousands(references.live));
    let what = match references.pastes {
        1 => format!("1 paste ({live} live) has no content row"),
        _ => format!("{pastes} pastes ({live} live) have no content row"),
    };
    let remedy = match references.live {
        0 => "nothing to do: the next runs erase the pastes",
        _ => "store the body again and insert its content row, or expire the pastes",
    };
    let mut finding = Finding::new(Kind::PasteWithoutContent, what, remedy).content_hash(hash);
    finding.live_pastes = references.live.unsigned_abs();
    finding.short_codes = references.short_codes;
    finding
}
