//! Runs `cleanupctl doctor` and checks its findings.

use serde_json::Value;

use super::process::{Ended, Process};

/// The output of `cleanupctl doctor --format json`.
pub(crate) struct Findings(pub Ended);

impl Findings {
    /// Returns the finding of this check.
    pub(crate) fn of(&self, check: &str) -> Value {
        let all = self.0.json()["findings"].as_array().expect("findings").clone();
        let found = all.into_iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("no {check} in {}", self.0.stdout()))
    }

    /// Asserts the verdict of a check, and that its finding contains these words.
    #[track_caller]
    pub(crate) fn assert_says(&self, check: &str, verdict: &str, words: &[&str]) {
        let finding = self.of(check);
        assert_eq!(finding["verdict"], verdict, "{finding}");
        for word in words {
            assert!(finding.to_string().contains(word), "{word:?} is not in {finding}");
        }
        let needs_no_remedy = matches!(verdict, "ok" | "left_out");
        assert_eq!(
            finding["remedy"].is_null(),
            needs_no_remedy,
            "a remedy if and only if needed: {finding}"
        );
    }

    /// Asserts the exit code, and that all checks are ok except these.
    #[track_caller]
    pub(crate) fn assert_only(&self, code: i32, exceptions: &[&str]) {
        assert_eq!((self.0.code(), self.0.stderr()), (code, String::new()));
        for finding in self.0.json()["findings"].as_array().expect("findings") {
            let check = finding["check"].as_str().expect("a name");
            assert_eq!(finding["verdict"] != "ok", exceptions.contains(&check), "{finding}");
        }
    }
}

pub(crate) async fn diagnose(doctor: Process) -> Findings {
    diagnose_with(doctor, &[]).await
}

/// Runs `doctor` with additional arguments.
pub(crate) async fn diagnose_with(doctor: Process, args: &[&str]) -> Findings {
    Findings(doctor.args(&["doctor", "--format", "json"]).args(args).output().await)
}
