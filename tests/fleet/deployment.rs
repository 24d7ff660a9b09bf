//! Checks the deployment files in `ops/` and docker-compose.yml against the programs: every variable that they
//! name exists, every value and every command line is accepted, and cron mails only what matters.
//! (`ops/check-deployment` checks them with the tools that they are written for.)

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::*;
use paste_cleanup::config::default_toml;

/// Nothing listens there.
const NOWHERE: &str = "127.0.0.1:1";

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All deployment files and the README, with their texts.
fn deployment_files() -> Vec<(PathBuf, String)> {
    let mut files = vec![root("docker-compose.yml"), root("README.md")];
    let mut folders = vec![root("ops")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { &mut folders } else { &mut files }.push(path);
        }
    }
    files
        .into_iter()
        .filter_map(|path| fs::read_to_string(&path).ok().map(|text| (path, text)))
        .collect()
}

/// The `CLEANUP_…` names in a text, not those that are a part of a longer name or a mere prefix.
fn variables(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("CLEANUP_") && !word.ends_with('_')).collect()
}

#[test]
fn every_variable_in_the_deployment_files_exists() {
    let known = default_toml();
    let mut named = 0;
    for (path, text) in deployment_files() {
        for name in variables(&text) {
            let exists = name == "CLEANUP_CONFIG" || known.contains(&format!("`{name}`"));
            assert!(exists, "{} names {name}, which is no setting", path.display());
            named += 1;
        }
    }
    assert!(named > 30, "only {named} were found: were the deployment files moved?");
}

/// The `NAME: value` lines of a YAML file, for these prefixes.
fn environment(yaml: &str) -> Vec<(&str, &str)> {
    let pairs = yaml.lines().filter_map(|line| line.trim().split_once(": "));
    pairs
        .filter(|(name, _)| name.starts_with("CLEANUP_"))
        .map(|(name, value)| (name, value.trim_matches('"')))
        .collect()
}

#[tokio::test]
async fn every_value_in_the_deployment_files_is_accepted() {
    for file in ["docker-compose.yml", "ops/kubernetes/settings.yaml"] {
        let yaml = read(file);
        let settings = environment(&yaml);
        assert!(settings.len() > 3, "{file}: only {settings:?}");
        let mut worker = Process::new("cleanup-worker").args(&["run", "--dry-run"]);
        for (name, value) in settings {
            worker = worker.env(name, value);
        }
        let worker = worker
            .env("CLEANUP_POSTGRES_URL", &format!("postgres://u@{NOWHERE}/d"))
            .env("CLEANUP_REDIS_URL", &format!("redis://{NOWHERE}"));
        let ended = worker.output().await;
        assert_eq!(ended.code(), 1, "{file}: {}", ended.stderr());
        assert!(ended.stderr().contains("Postgres"), "{file}: {}", ended.stderr());
    }
}

/// The programs that a file starts: `["cleanup…", …]`, or `ExecStart=` of a unit.
fn command_lines(text: &str) -> Vec<Vec<String>> {
    let of_line = |line: &str| -> Option<Vec<String>> {
        if let Some(command) = line.strip_prefix("ExecStart=/usr/local/bin/") {
            return Some(command.split_whitespace().map(String::from).collect());
        }
        let list = &line[line.find("[\"cleanup")?..];
        Some(
            serde_json::from_str(list.trim_end()).unwrap_or_else(|error| panic!("{list}: {error}")),
        )
    };
    text.lines().filter_map(of_line).collect()
}

#[tokio::test]
async fn every_command_line_of_the_deployment_files_is_accepted() {
    let mut seen = 0;
    for (path, text) in deployment_files() {
        for line in command_lines(&text) {
            // Flags and values are parsed in order: a wrong one is refused before `--help` is reached.
            let arguments: Vec<&str> =
                line[1..].iter().map(String::as_str).chain(["--help"]).collect();
            let ended = Process::new(&line[0]).args(&arguments).output().await;
            assert_eq!(ended.code(), 0, "{}: {line:?}: {}", path.display(), ended.stderr());
            seen += 1;
        }
    }
    assert!(seen >= 10, "only {seen} were found");
}

/// The programs' command lines in a document: in `…`, or after `$ `. Names in capitals are placeholders.
fn shown_commands(text: &str) -> Vec<Vec<String>> {
    let inline = text.split('`').skip(1).step_by(2);
    let console = text.lines().filter_map(|line| line.trim().strip_prefix("$ "));
    let programs = ["cleanup-worker", "cleanup-watchdog", "cleanupctl"];
    let words = |command: &str| -> Option<Vec<String>> {
        let command = command.split(['#', '|', '>', ';', '…', '\n']).next()?;
        let mut words = command.split_whitespace().map(|word| match word {
            "CLAIM" => "1".to_string(),
            "UUID" => uuid::Uuid::nil().to_string(),
            "POSITION" => "objects:a".to_string(),
            word => word.trim_matches(['\'', '"']).to_string(),
        });
        let program = words.by_ref().find(|word| !word.contains('='))?;
        let line: Vec<String> = std::iter::once(program).chain(words).collect();
        programs.contains(&&*line[0]).then_some(line)
    };
    inline.chain(console).filter_map(words).filter(|line| line.len() > 1).collect()
}

#[tokio::test]
async fn every_command_that_the_documents_show_is_accepted() {
    let mut seen = 0;
    for (path, text) in deployment_files() {
        let is_document = path.extension().is_some_and(|ending| ending == "md" || ending == "yml");
        for line in shown_commands(&text).into_iter().filter(|_| is_document) {
            let arguments: Vec<&str> =
                line[1..].iter().map(String::as_str).chain(["--help"]).collect();
            let ended = Process::new(&line[0]).args(&arguments).output().await;
            assert_eq!(ended.code(), 0, "{}: {line:?}: {}", path.display(), ended.stderr());
            seen += 1;
        }
    }
    assert!(seen >= 30, "only {seen} were found");
}

/// A line of the crontab.
enum Line<'a> {
    Variable(&'a str, &'a str),
    Job(&'a str),
}

/// As cron reads it: five fields and the rest, or a variable whose value is not expanded.
fn crontab(text: &str) -> Vec<Line<'_>> {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| job(line).unwrap_or_else(|| variable(line))).collect()
}

fn variable(line: &str) -> Line<'_> {
    let (name, value) =
        line.split_once('=').unwrap_or_else(|| panic!("no job, no variable: {line}"));
    Line::Variable(name, value)
}

fn job(line: &str) -> Option<Line<'_>> {
    let mut rest = line;
    for _ in 0..5 {
        let (field, more) = rest.split_once(char::is_whitespace)?;
        let is_time = field.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c));
        if !is_time {
            return None;
        }
        rest = more.trim_start();
    }
    assert!(!rest.contains('%'), "cron would make a line break of it: {line}");
    Some(Line::Job(rest))
}

/// The crontab's user: a home with credentials, a settings file and a folder for logs.
struct Cron {
    home: PathBuf,
}

impl Cron {
    fn new(world: &World) -> Self {
        let home = PathBuf::from(crate::support::env("DIR")).join(format!("cron-{}", world.name));
        fs::create_dir_all(home.join(".aws")).expect("a home");
        let aws = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("no {name}"));
        let credentials = format!(
            "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\nregion = {}\n",
            aws("AWS_ACCESS_KEY_ID"),
            aws("AWS_SECRET_ACCESS_KEY"),
            aws("AWS_REGION"),
        );
        fs::write(home.join(".aws/credentials"), credentials).expect("credentials");
        let cron = Self { home };
        cron.configure(&world.worker_url(), world);
        cron
    }

    fn configure(&self, database_url: &str, world: &World) {
        let settings = format!(
            "[postgres]\nurl = {database_url:?}\n[redis]\nurl = {:?}\n[s3]\nbucket = {:?}\nendpoint = {:?}\n",
            crate::support::env("REDIS_URL"),
            world.bucket,
            crate::support::env("S3_ENDPOINT"),
        );
        fs::write(self.home.join("cleanup.toml"), settings).expect("settings");
    }

    /// Runs the jobs that start this program, and returns what cron would mail.
    async fn mail(&self, program: &str) -> String {
        let text = read("ops/crontab");
        let mut mail = String::new();
        let mut ran = 0;
        let mut set = Vec::new();
        for line in crontab(&text) {
            match line {
                Line::Variable(name, value) => set.push((name, value)),
                Line::Job(command) if command.contains(program) => {
                    mail += &self.run(command, &set).await;
                    ran += 1;
                }
                Line::Job(_) => {}
            }
        }
        assert!(ran > 0, "no job starts {program}");
        mail
    }

    /// Runs a job with cron's shell, and with only the variables that cron and the crontab set.
    async fn run(&self, command: &str, set: &[(&str, &str)]) -> String {
        let home = self.home.to_str().expect("a path");
        let programs = Path::new(env!("CARGO_BIN_EXE_cleanup-worker")).parent().expect("a folder");
        let mut shell = tokio::process::Command::new("/bin/sh");
        shell.args(["-c", command]).env_clear().envs(set.iter().copied());
        shell.envs([("HOME", home), ("LOGNAME", "cleanup"), ("SHELL", "/bin/sh"), ("LOGS", home)]);
        shell.env("CLEANUP_CONFIG", self.home.join("cleanup.toml"));
        shell.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        let output = shell.current_dir(home).output().await.expect("run sh");
        let printed = [output.stdout, output.stderr].concat();
        String::from_utf8(printed).expect("text")
    }
}

#[tokio::test]
async fn cron_mails_nothing_after_a_good_night() {
    let world = World::new().await;
    world.put("gone", "one", Ago(10.0)).await;
    let cron = Cron::new(&world);
    assert_eq!(cron.mail("cleanup-worker").await, "");
    assert_eq!(world.keys().await, Vec::<String>::new());
    let runs = fs::read_to_string(cron.home.join("runs.txt")).expect("what the runs said");
    assert!(runs.contains("deleted 1 paste"), "{runs}");
    cron.configure(&world.watchdog_url, &world);
    assert_eq!(cron.mail("cleanup-watchdog").await, "");
}

#[tokio::test]
async fn cron_mails_nothing_while_the_fleet_is_paused() {
    let world = World::new().await;
    let paused = world.program("cleanupctl").args(&["pause", "--reason", "a test"]).output().await;
    assert_eq!(paused.code(), 0, "{}", paused.stderr());
    world.put("stays", "one", Ago(10.0)).await;
    let cron = Cron::new(&world);
    assert_eq!(cron.mail("cleanup-worker").await, "");
    assert_eq!(world.keys().await.len(), 1);
}

#[tokio::test]
async fn cron_mails_a_few_lines_with_the_reason_after_a_failed_night() {
    let world = World::new().await;
    let cron = Cron::new(&world);
    cron.configure(&format!("postgres://u@{NOWHERE}/d"), &world);
    // Three workers share a log, and each mails the end of it.
    for (program, most) in [("cleanup-worker", 6), ("cleanup-watchdog", 1), ("cleanupctl", 40)] {
        let mail = cron.mail(program).await;
        assert!(mail.contains("Postgres"), "{program}: {mail}");
        assert!(mail.lines().count() <= most, "{program}: {mail}");
    }
}
