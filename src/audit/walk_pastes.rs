//! The second walk: does the content of every paste have a content row? Without one, the key of the
//! object is lost. Nothing is repaired: the paste is all that is left.

use tokio_util::sync::CancellationToken;

use super::{
    Audit, AuditError, Finding, Kind,
    missing_objects::{References, references},
};
use crate::format::thousands;

const PASTES: &str = sql!("audit/pastes");
const PAGE: i64 = 5000;

/// One page of pastes, in the order of their content hashes.
struct Page {
    last: Vec<u8>,
    pastes: u64,
    /// The hashes that pastes reference and no content row has.
    without_content: Vec<(Vec<u8>, References)>,
}

impl Audit {
    /// Checks one page of pastes. Returns its last hash, or `None` after the last page.
    pub(super) async fn pastes_page(
        &mut self,
        after: &[u8],
    ) -> Result<Option<Vec<u8>>, AuditError> {
        let Some(page) = self.read_pastes(after).await? else {
            return Ok(None);
        };
        for (hash, references) in page.without_content {
            self.note(paste_without_content(&hash, references));
        }
        self.report.pastes += page.pastes;
        Ok(Some(page.last))
    }

    /// Checks all pastes once more, up to the first live one without a content row, before orphans are
    /// deleted. Hours may have passed since the walk, and an audit with `--after` has skipped it.
    pub(super) async fn find_lost_rows(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<(), AuditError> {
        let mut after = Vec::new();
        while self.report.live_without_content == 0 && !stop.is_cancelled() {
            let Some(page) = self.read_pastes(&after).await? else {
                break;
            };
            let live = page.without_content.iter().map(|(_, references)| references.live);
            self.report.live_without_content = live.sum::<i64>().unsigned_abs();
            after = page.last;
        }
        Ok(())
    }

    async fn read_pastes(&self, after: &[u8]) -> Result<Option<Page>, AuditError> {
        let rows = self.db.query(PASTES, &[&after, &PAGE]).await?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        let suspects = rows.iter().filter(|row| row.get("has_no_content"));
        let suspects: Vec<&[u8]> = suspects.map(|row| row.get("content_hash")).collect();
        // Queried again: a decrement may have deleted pastes and content since.
        let mut without_content: Vec<_> =
            references(&self.db, &suspects).await?.into_iter().collect();
        without_content.retain(|(_, found)| !found.has_content && found.pastes > 0);
        let pastes = rows.iter().map(|row| row.get::<_, i64>("pastes")).sum::<i64>().unsigned_abs();
        Ok(Some(Page { last: last.get("content_hash"), pastes, without_content }))
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
