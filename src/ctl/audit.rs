//! `cleanupctl audit`: compares bucket and tables, and prints the report. The audit itself is in
//! [`crate::audit`].

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::{
    audit::{self, Finding, Kind, Options, Position, Report, Stopped},
    cli::{Format, print},
    config::Settings,
    format::{bytes, table, thousands},
    printable::printable,
    shutdown::Shutdown,
};

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Audit {
    /// Repair: correct counts, delete orphans and unreferenced content
    #[arg(long)]
    repair: bool,
    /// Leave alone objects and rows that are younger, by the clocks of the store and of Postgres
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// Delete nothing if more objects than this are to be deleted
    #[arg(long, default_value_t = 1000, value_name = "N")]
    max_delete: u64,
    /// Ignore the safety brake, except --max-delete (see below)
    #[arg(long)]
    override_brake: bool,
    /// Resume at the position that an earlier audit printed
    #[arg(long, value_name = "POSITION")]
    after: Option<Position>,
    /// Maximum number of findings of each kind to show
    #[arg(long, default_value_t = 20, value_name = "N")]
    list: usize,
    /// Format of the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

// Lines of at most 80 columns: clap wraps longer ones again on a narrow terminal.
const HELP: &str = "\
Compares the bucket (under s3.prefix) with the tables content and pastes, while
workers and writers run. Reads page by page, needs about 30 MiB of memory for a
bucket of any size, and keeps no transaction open. Everything that looks wrong
is checked again before it is reported. Changes nothing without --repair.

Findings:
  orphan
      An object that no row references: a writer died before its commit, or a
      row was deleted by hand. --repair reserves the key with a permanent row
      in content and deletes the object. A writer that commits later gets a
      unique violation and uploads again.
  missing_object
      A content row without its object. Not repaired: a paste may need it.
  wrong_count
      A ref_count that is not the number of pastes that reference the content.
      --repair recounts under the row's lock.
  unreferenced_content
      A content row that no paste references. --repair deletes the row and its
      object.
  paste_without_content
      Pastes whose content has no content row. Not repaired.
  pending_deletion
      A content row whose object a claim or a paste is going to delete, because
      a key was reused. Not repaired.
  ambiguous
      An orphan or unreferenced content whose key may be another spelling of a
      content row's key: /a/b, a//b, a\\b, another Unicode form. In a store that
      normalizes keys they are one object. Not repaired.

Repair:
  Counts are corrected at once. Objects and rows are deleted at the end, and
  only if no limit is exceeded; otherwise nothing is deleted (exit code 4):
  - at most --max-delete objects: more are a sign of another problem, such as a
    database that was restored from an old backup. Find the cause, then raise
    the limit;
  - at most half of the listed objects, and half of the content rows;
  - a worker has erased a paste in this database before. If not, these may be
    the wrong tables (another schema, a copy) or the wrong bucket;
  - no orphan while a live paste has no content row: one of the orphans may be
    its body. Restore the content row, or expire the paste.
  --repair is refused with an s3.prefix that does not end in '/', because \"a\"
  also matches the keys of a database with the prefix \"ab/\". --override-brake
  ignores all of these but --max-delete and missing content rows.
  --repair is also refused while the fleet is paused.

SIGINT or SIGTERM stops the audit after the current page and prints the command
that resumes it. If it stops before the deletes begin, nothing was deleted.
Requires the role cleanup_auditor, and ops/s3/audit-policy.json (list, and
delete for --repair).

Exit codes: 0 nothing is wrong, or everything was repaired; 1 findings are left,
or the audit failed; 2 usage or config; 3 stopped by a signal; 4 stopped by the
safety brake, nothing was deleted.

Examples:
  cleanupctl audit                               report only
  cleanupctl audit --repair                      report and repair
  cleanupctl audit --repair --max-delete 50000   many orphans, cause known
  cleanupctl audit --grace 1h                    no upload takes longer
  cleanupctl audit --list 100000 --format json |
    jq -r '.findings[] | select(.kind == \"missing_object\") | .key'";

impl Audit {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let shutdown = Shutdown::on_signals()?;
        let options = Options {
            repair: self.repair,
            grace: self.grace,
            max_delete: self.max_delete,
            override_brake: self.override_brake,
            after: self.after.clone().unwrap_or_default(),
            list: self.list,
            ..Options::default()
        };
        let audit = tokio::select! {
            audit = audit::Audit::open(settings, options) => audit?,
            () = shutdown.stop.cancelled() => return Ok(3),
        };
        let mut report = Box::pin(audit.run(&shutdown)).await;
        report.resume_command = report.position.as_ref().map(|position| self.command(position));
        print(self.format, &report, show);
        if let Some(error) = &report.error {
            eprintln!("cleanupctl: {error}");
        }
        Ok(match report.stopped_because {
            Stopped::Signal => 3,
            Stopped::Failed => 1,
            Stopped::Brake => 4,
            Stopped::Done => u8::from(report.left() > 0 || report.undecided > 0),
        })
    }

    /// Returns the command that resumes at this position.
    fn command(&self, position: &str) -> String {
        let grace = humantime::format_duration(self.grace).to_string().replace(' ', "");
        let repair = if self.repair { " --repair" } else { "" };
        let brake = if self.override_brake { " --override-brake" } else { "" };
        let max_delete = self.max_delete;
        format!(
            "cleanupctl audit{repair} --grace {grace} --max-delete {max_delete}{brake} --after {position}"
        )
    }
}

fn show(report: &Report) -> String {
    let mut parts = vec![totals(report)];
    parts.extend(report.findings.iter().map(line));
    let shown = report.findings.len() as u64;
    if report.found() > shown {
        let more = thousands(report.found() - shown);
        parts.push(format!("and {more} more: --list N shows up to N findings of each kind"));
    }
    parts.extend(remarks(report));
    parts.push(verdict(report));
    parts.join("\n")
}

fn totals(report: &Report) -> String {
    let count = |name: &str, number: u64| (name.to_string(), thousands(number));
    let with_bytes = |number: u64, size: u64| format!("{} ({})", thousands(number), bytes(size));
    let rows = [
        ("objects".into(), with_bytes(report.objects, report.bytes)),
        count("content rows", report.content_rows),
        count("pastes checked", report.pastes),
        count("fresh (younger than --grace)", report.fresh_objects + report.fresh_rows),
        ("orphans".into(), with_bytes(report.orphans, report.orphan_bytes)),
        count("missing objects", report.missing_objects),
        count("wrong counts", report.wrong_counts),
        count("unreferenced content rows", report.unreferenced_content),
        count("missing content rows", report.missing_content_rows),
        count("pending deletions", report.pending_deletions),
        count("ambiguous keys", report.ambiguous),
        count("repaired", report.repaired),
        ("objects deleted".into(), with_bytes(report.objects_deleted, report.bytes_deleted)),
    ];
    table(&["audit", ""], rows.map(|(name, value)| vec![name, value]))
}

/// Formats one finding as one line.
fn line(finding: &Finding) -> String {
    let kind = match finding.kind {
        Kind::Orphan => "orphan",
        Kind::MissingObject => "missing object",
        Kind::WrongCount => "wrong count",
        Kind::UnreferencedContent => "unreferenced content",
        Kind::PasteWithoutContent => "paste without content",
        Kind::PendingDeletion => "pending deletion",
        Kind::Ambiguous => "ambiguous",
    };
    let name = finding.key.as_ref().or(finding.content_hash.as_ref());
    let name = printable(name.map(String::as_str).unwrap_or_default());
    let what = &finding.what;
    let outcome = finding.remedy.as_deref().unwrap_or("repaired");
    let mut codes: Vec<String> = finding.short_codes.iter().map(|code| printable(code)).collect();
    if finding.live_pastes > codes.len() as u64 {
        codes.push(format!("and {} more", thousands(finding.live_pastes - codes.len() as u64)));
    }
    let codes = if codes.is_empty() { String::new() } else { format!(" ({})", codes.join(", ")) };
    format!("{kind}: {name}: {what}{codes}; {outcome}")
}

fn remarks(report: &Report) -> Vec<String> {
    let mut remarks = Vec::new();
    if report.outside_prefix > 0 {
        remarks.push(format!(
            "content rows with keys outside s3.prefix: {}; their objects were not checked",
            thousands(report.outside_prefix)
        ));
    }
    if report.unchecked_objects > 0 {
        remarks.push(format!(
            "objects not checked for orphans, because this store cannot list their keys (control \
             characters): {}",
            thousands(report.unchecked_objects)
        ));
    }
    if report.undecided > 0 {
        remarks.push(format!(
            "content rows not checked, because other transactions had locked them: {}; audit again",
            thousands(report.undecided)
        ));
    }
    remarks
        .extend(report.warnings.iter().map(|warning| format!("warning: {}", printable(warning))));
    remarks.extend(report.brake.iter().map(|reason| format!("safety brake: {reason}")));
    remarks
}

fn verdict(report: &Report) -> String {
    let verdict = match (report.found(), report.left()) {
        (0, _) => "nothing is wrong".to_string(),
        (found, 0) => format!("{}, all repaired", findings(found)),
        (_, left) => format!("{} not repaired", findings(left)),
    };
    match &report.resume_command {
        Some(command) => format!("incomplete, so far {verdict}; resume with: {command}"),
        None => verdict,
    }
}

fn findings(number: u64) -> String {
    match number {
        1 => "1 finding".into(),
        number => format!("{} findings", thousands(number)),
    }
}
