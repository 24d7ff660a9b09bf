//! The files under `sql/queries`: Postgres accepts each one on the migrated schema, and the code uses it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::*;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The statements of a file; a few have several.
fn statements(query: &Path) -> Vec<(&Path, String)> {
    let text = fs::read_to_string(query).expect("a query");
    let code: Vec<&str> = text.lines().filter(|line| !line.starts_with("--")).collect();
    let code = code.join("\n");
    let statements = code.split(";\n").filter(|statement| !statement.trim().is_empty());
    statements.map(|statement| (query, statement.to_string())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_can_be_prepared_on_the_migrated_schema() {
    let world = World::new().await;
    let queries = files(&Path::new(ROOT).join("sql/queries"));
    assert!(queries.len() > 50, "only {} files of queries", queries.len());
    let mut refused = Vec::new();
    for (query, statement) in queries.iter().flat_map(|query| statements(query)) {
        if let Err(error) = world.db.prepare(&statement).await {
            let reason = paste_cleanup::postgres::describe(&error);
            refused.push(format!("{}: {reason}", query.display()));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn every_query_is_used_by_the_code() {
    let folder = Path::new(ROOT).join("sql/queries");
    let code: String = ["src", "tests", "benches"]
        .iter()
        .flat_map(|part| files(&Path::new(ROOT).join(part)))
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .map(|file| fs::read_to_string(file).expect("a source file"))
        .collect();
    for query in files(&folder) {
        let name = query.strip_prefix(&folder).expect("a query").with_extension("");
        let name = name.to_str().expect("a name");
        assert!(code.contains(&format!("sql!(\"{name}\")")), "nothing uses sql/queries/{name}.sql");
    }
}
