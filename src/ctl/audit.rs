//! `cleanupctl audit`: do bucket and tables agree? The audit itself is in [`crate::audit`].

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
    /// Repair what can be repaired: delete orphans, correct counts, remove bodies that nobody holds.
    #[arg(long)]
    repair: bool,
    /// Leave alone what is younger, by the store's clock (objects) and Postgres' (rows).
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// The brake: delete nothing at all when more objects than that are to be deleted.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    max_delete: u64,
    /// Ignore the safety brake: delete more than half of the objects or of the content rows, delete
    /// in a database where no paste was ever erased, or under an s3.prefix without a '/' at its end.
    #[arg(long)]
    override_brake: bool,
    /// Go on where an earlier audit ended; it printed this.
    #[arg(long, value_name = "POSITION")]
    after: Option<Position>,
    /// Show so many findings of each kind.
    #[arg(long, default_value_t = 20, value_name = "N")]
    list: usize,
    /// How the report is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Compares what is in the bucket (under s3.prefix) with content and pastes, while fleet and writers
go on. Reads page by page, needs some 30 MiB of memory however large the bucket is, and keeps no
transaction open. Whatever looks wrong is asked about again before it is reported. Changes nothing
without --repair.

  orphan                 no row knows the object: a writer died before it committed, a row was
                         deleted by hand. --repair keeps its key in content for good and deletes
                         the object: a writer who comes late is told, and uploads again
  missing_object         a content row without its object. Not repaired: a paste may need it
  wrong_count            ref_count is not the number of pastes that hold the body. --repair
                         recounts under the row's lock
  unreferenced_content            a content row that no paste holds. --repair removes row and object
  paste_without_content  pastes that hold a body without a content row. Not repaired
  pending_deletion              a content row whose object the fleet is about to delete. Not repaired
  ambiguous              the key of an orphan or of an unreferenced body may be another spelling of a
                         content row's key: /a/b, a//b, a\\b, Unicode in another form. In a store
                         that normalises keys they are one object. Not repaired

Counts are corrected at once; objects and rows are deleted when everything has been looked at. If
they are more than --max-delete, none is deleted: so many are a sign that something else is wrong,
such as a database that was restored from an old backup. Look first, then raise it. Nor is any
deleted when they are more than half of the objects listed or of the content rows, or when no worker
has ever erased a paste in this database: these may be the wrong tables (another schema, a copy) or
the wrong bucket. With an s3.prefix that does not end in '/', --repair is refused: \"a\" is also the
beginning of \"ab/…\", which may be another database's. --override-brake is the only way past these.
SIGINT or SIGTERM ends it after the current page, and before the deletions nothing is deleted; it
says how to go on. While the fleet is paused, --repair is refused.
Needs the role cleanup_auditor and ops/s3/audit-policy.json (list, and delete for --repair).

Exit codes: 0 nothing is wrong, or all of it was repaired; 1 something wrong is left, or failed;
2 usage or config; 3 stopped by a signal; 4 the safety brake: suspiciously much was to be deleted,
so nothing was.

Examples:
  cleanupctl audit                               look only
  cleanupctl audit --repair                      and repair
  cleanupctl audit --repair --max-delete 50000   there are many orphans, and you know why
  cleanupctl audit --grace 1h                    no upload takes longer than that here
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
        let mut report = audit.run(&shutdown).await;
        report.go_on = report.position.as_ref().map(|position| self.command(position));
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

    /// What to type to go on from there.
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
    let mut parts = vec![figures(report)];
    parts.extend(report.findings.iter().map(line));
    let told = report.findings.len() as u64;
    if report.found() > told {
        parts.push(format!("and {} more: --list shows them", thousands(report.found() - told)));
    }
    parts.extend(remarks(report));
    parts.push(verdict(report));
    parts.join("\n")
}

fn figures(report: &Report) -> String {
    let count = |name: &str, number: u64| (name.to_string(), thousands(number));
    let with_bytes = |number: u64, size: u64| format!("{} ({})", thousands(number), bytes(size));
    let rows = [
        ("objects".into(), with_bytes(report.objects, report.bytes)),
        count("content rows", report.content_rows),
        count("pastes looked at", report.pastes),
        count("fresh, left alone", report.fresh_objects + report.fresh_rows),
        ("orphans".into(), with_bytes(report.orphans, report.orphan_bytes)),
        count("missing objects", report.missing_objects),
        count("wrong counts", report.wrong_counts),
        count("bodies that nobody holds", report.unreferenced_content),
        count("bodies without a content row", report.bodies_without_content),
        count("bodies about to be deleted", report.pending_deletions),
        count("ambiguous keys", report.ambiguous),
        count("repaired", report.repaired),
        ("objects deleted".into(), with_bytes(report.objects_deleted, report.bytes_deleted)),
    ];
    table(&["audit", ""], rows.map(|(name, value)| vec![name, value]))
}

/// One finding in one line.
fn line(finding: &Finding) -> String {
    let kind = match finding.kind {
        Kind::Orphan => "orphan",
        Kind::MissingObject => "missing object",
        Kind::WrongCount => "wrong count",
        Kind::UnreferencedContent => "unreferenced body",
        Kind::PasteWithoutContent => "paste without content",
        Kind::PendingDeletion => "owed body",
        Kind::Ambiguous => "ambiguous",
    };
    let name = finding.key.as_ref().or(finding.content_hash.as_ref());
    let name = printable(name.map(String::as_str).unwrap_or_default());
    let what = &finding.what;
    let outcome = match &finding.remedy {
        Some(remedy) => remedy.clone(),
        None => "repaired".into(),
    };
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
            "{} content rows have keys outside s3.prefix: their objects were not looked for",
            thousands(report.outside_prefix)
        ));
    }
    if report.undecided > 0 {
        remarks.push(format!(
            "{} rows were locked all the time, so nothing can be said about them: audit again",
            thousands(report.undecided)
        ));
    }
    remarks.extend(report.warnings.iter().map(|warning| printable(warning)));
    remarks.extend(report.brake.iter().map(|reason| format!("brake: {reason}")));
    remarks
}

fn verdict(report: &Report) -> String {
    let told = match (report.found(), report.left()) {
        (0, _) => "nothing is wrong".to_string(),
        (found, 0) => format!("all {} found were repaired", thousands(found)),
        (_, left) => format!("wrong: {}", thousands(left)),
    };
    match &report.go_on {
        Some(command) => format!("so far, {told}; go on with: {command}"),
        None => told,
    }
}
