//! The panels of the dashboard have descriptions, fit its grid, and are few until a row is opened.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{dashboard, groups};

#[test]
fn every_panel_has_a_description_and_a_configurable_data_source() {
    let mut ids = BTreeSet::new();
    for panel in groups(&dashboard()).into_iter().flatten() {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "an id twice: {panel:#}");
        if panel["type"] == "row" {
            continue;
        }
        let description = panel["description"].as_str().unwrap_or_default();
        assert!(description.len() > 20, "what does it mean, what is normal? {panel:#}");
        for target in panel["targets"].as_array().expect("targets") {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel:#}");
        }
    }
}

#[test]
fn at_most_16_panels_are_visible_until_a_row_is_opened() {
    let dashboard = dashboard();
    let (rows, visible): (Vec<Value>, Vec<Value>) =
        groups(&dashboard).swap_remove(0).into_iter().partition(|panel| panel["type"] == "row");
    assert!(visible.len() <= 16, "{} panels: move some into a collapsed row", visible.len());
    for row in rows {
        // Grafana keeps the panels of a collapsed row in the row, those of an open one beside it.
        let nested = row["panels"].as_array().expect("the panels of a row");
        assert_eq!(row["collapsed"], !nested.is_empty(), "{row:#}");
    }
}

#[test]
fn no_panel_overlaps_another_or_leaves_the_24_columns() {
    for group in groups(&dashboard()) {
        let mut cells = BTreeSet::new();
        for panel in &group {
            let side = |name: &str| panel["gridPos"][name].as_u64().expect(name);
            let (x, y) = (side("x"), side("y"));
            assert!(x + side("w") <= 24, "too wide: {panel:#}");
            for cell in (y..y + side("h")).flat_map(|y| (x..x + side("w")).map(move |x| (x, y))) {
                assert!(cells.insert(cell), "overlaps another panel: {panel:#}");
            }
        }
    }
}
