//! Dashboard, alerts and logs: a real Prometheus, which scraped a real watchdog, has data for every
//! query of the dashboard and every alert, and every batch logs one event.

mod alerts;
mod bad_night;
mod logs;
mod panels;

use serde_json::Value;

use crate::support::prometheus::shipped;

fn dashboard() -> Value {
    let text = std::fs::read_to_string(shipped("grafana/dashboard.json")).expect("a dashboard");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns all panels and rows of the dashboard in groups that share a grid: first those that are
/// visible when it is opened, then the panels of each collapsed row.
fn groups(dashboard: &Value) -> Vec<Vec<Value>> {
    let panels = |parent: &Value| parent["panels"].as_array().cloned().unwrap_or_default();
    let visible = panels(dashboard);
    assert!(!visible.is_empty(), "no panels");
    let nested: Vec<Vec<Value>> = visible.iter().map(panels).collect();
    [visible].into_iter().chain(nested).collect()
}
