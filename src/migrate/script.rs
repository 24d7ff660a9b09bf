//! Splits a migration file into its steps.
//!
//! A line `-- step: <title>` begins a step; the text before the first one is the file's own comment. The
//! beginning of the title determines how the step is run.

/// One file of `sql/migrations/`.
pub(super) struct Migration {
    pub version: i32,
    pub name: &'static str,
    pub sql: &'static str,
}

/// One unit that is executed, retried and reported on its own.
#[derive(Debug, PartialEq)]
pub(super) struct Step<'a> {
    pub title: &'a str,
    pub kind: StepKind<'a>,
    pub sql: &'a str,
}

/// How a step is run.
#[derive(Debug, PartialEq)]
pub(super) enum StepKind<'a> {
    /// Short statements that may need a table lock; one transaction.
    Locking,
    /// `always: …`: the same, but run by every migration, also after its file was applied: it repairs
    /// later changes, and takes no lock if there is nothing to repair.
    Always,
    /// `index <name>: …`: a concurrent index build.
    Index(&'a str),
    /// `repeat: …`: one statement, repeated in separate transactions. `$1` is the position that the
    /// previous one returned in its second column (0 at first); a NULL ends the step. The first column is
    /// the number of rows changed.
    Repeat,
}

const MARK: &str = "-- step: ";

/// Returns the steps of a migration file.
pub(super) fn steps(file: &str) -> impl Iterator<Item = Step<'_>> {
    let starts = file.match_indices(MARK).map(|(at, _)| at);
    let marks: Vec<usize> =
        starts.filter(|&at| at == 0 || file.as_bytes()[at - 1] == b'\n').collect();
    let ends: Vec<usize> = marks.iter().skip(1).copied().chain([file.len()]).collect();
    marks.into_iter().zip(ends).map(|(from, to)| step(&file[from + MARK.len()..to]))
}

fn step(text: &str) -> Step<'_> {
    let (title, sql) = text.split_once('\n').unwrap_or((text, ""));
    if let Some(title) = title.strip_prefix("repeat: ") {
        return Step { title, kind: StepKind::Repeat, sql };
    }
    if let Some(title) = title.strip_prefix("always: ") {
        return Step { title, kind: StepKind::Always, sql };
    }
    let index = title.strip_prefix("index ").and_then(|rest| rest.split_once(':'));
    let kind = index.map_or(StepKind::Locking, |(name, _)| StepKind::Index(name));
    Step { title, kind, sql }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_split_at_its_step_lines_and_the_title_determines_how_each_is_run() {
        let file = "-- About -- step: not here\n-- step: tables\nCREATE TABLE t ();\n\n\
                    -- step: index t_idx: finds things\nCREATE INDEX;\n-- step: repeat: fill\nX;\n\
                    -- step: always: fix\nY;\n";
        let found: Vec<Step<'_>> = steps(file).collect();
        assert_eq!(found.len(), 4);
        assert_eq!(found[0].title, "tables");
        assert_eq!(found[0].sql, "CREATE TABLE t ();\n\n");
        assert_eq!(found[1].kind, StepKind::Index("t_idx"));
        assert_eq!(found[2], Step { title: "fill", kind: StepKind::Repeat, sql: "X;\n" });
        assert_eq!(found[3], Step { title: "fix", kind: StepKind::Always, sql: "Y;\n" });
    }
}
