//! Builds the histogram of the time from expiry to deletion, which a finish stores in its claim
//! row.

use std::collections::HashSet;

use serde_json::{Map, json};

use crate::{claim::Claim, metrics::AGE_BOUNDS_S};

/// Counts by upper bound in seconds, and their "sum", as JSON. Left out: those that failed.
pub(in crate::worker) fn at_deletion(claim: &Claim, failed: &[(String, String)]) -> String {
    let failed: HashSet<&str> = failed.iter().map(|(code, _)| &**code).collect();
    let since_claimed = claim.requested_at.elapsed().as_secs_f64();
    let mut counts = [0_u32; AGE_BOUNDS_S.len() + 1];
    let mut sum = 0.0;
    for paste in claim.pastes.iter().filter(|paste| !failed.contains(&*paste.short_code)) {
        let age = paste.overdue.as_secs_f64() + since_claimed;
        counts[AGE_BOUNDS_S.partition_point(|bound| *bound < age)] += 1;
        sum += age;
    }
    let bounds = AGE_BOUNDS_S.iter().map(ToString::to_string).chain(["+Inf".to_string()]);
    let used = bounds.zip(counts).filter(|(_, count)| *count > 0);
    let mut ages: Map<_, _> = used.map(|(bound, count)| (bound, json!(count))).collect();
    if !ages.is_empty() {
        ages.insert("sum".into(), json!(sum));
    }
    serde_json::Value::Object(ages).to_string()
}
