//! Every alert is tested, and names its severity, a first command and its section of the runbook.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::prometheus::{Prometheus, promtool, shipped};

#[tokio::test(flavor = "multi_thread")]
async fn the_alert_rules_pass_their_own_tests() {
    let rules = shipped("prometheus/alerts.yml");
    promtool(&["check", "rules", &rules], "").await;
    promtool(&["test", "rules", &shipped("prometheus/alerts_test.yml")], "").await;
    let tests = std::fs::read_to_string(shipped("prometheus/alerts_test.yml")).expect("tests");
    let prometheus = Prometheus::start(None).await;
    for rule in prometheus.rules().await.iter().filter(|rule| rule["type"] == "alerting") {
        let name = rule["name"].as_str().expect("a name");
        let cases: Vec<&str> = tests.split(&format!("alertname: {name}\n")).skip(1).collect();
        let fires = cases.iter().any(|case| case.trim_start().starts_with("exp_alerts:\n"));
        let inactive = cases.iter().any(|case| case.trim_start().starts_with("exp_alerts: []"));
        assert!(fires && inactive, "{name} needs a test that fires and one that does not");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_alert_has_a_severity_a_first_command_and_a_runbook_section() {
    let runbook = std::fs::read_to_string(shipped("RUNBOOK.md")).expect("a runbook");
    let anchors: BTreeSet<String> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|heading| heading.to_lowercase().replace(' ', "-"))
        .collect();
    let prometheus = Prometheus::start(None).await;
    let rules = prometheus.rules().await;
    let alerts: Vec<&Value> = rules.iter().filter(|rule| rule["type"] == "alerting").collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        let severity = alert["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("page" | "ticket")), "{alert:#}");
        let annotation = |name: &str| alert["annotations"][name].as_str().unwrap_or_default();
        assert!(annotation("summary").contains("$value"), "{alert:#}");
        assert!(annotation("description").starts_with("Run: "), "{alert:#}");
        let anchor = annotation("runbook_url").strip_prefix("ops/RUNBOOK.md#").unwrap_or_default();
        assert!(anchors.contains(anchor), "the runbook has no such section: {alert:#}");
    }
}
