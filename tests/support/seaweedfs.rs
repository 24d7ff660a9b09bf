//! A SeaweedFS for one test: to kill it, or to give it access policies.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use aws_sdk_s3::Client as S3;
use tokio::process::{Child, Command};

use super::servers::free_ports;

const START_WITHIN: Duration = Duration::from_secs(60);
const IDENTITIES: &str = "identities.json";

/// A SeaweedFS process.
///
/// After SIGKILL it neither loses an acknowledged upload nor restores a deleted object (tried with a
/// dozen kills under load and some ten thousand objects), so a missing or reappearing object is
/// always a bug in the fleet.
pub(crate) struct SeaweedFs {
    folder: PathBuf,
    ports: [u16; 5],
    child: Child,
    /// When it was last started.
    pub started: Instant,
    pub url: String,
}

impl SeaweedFs {
    /// Starts it with its data in a subfolder of this folder.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_with(folder, None)
    }

    /// Starts it with a file of identities and policies, which it enforces.
    pub(crate) fn start_with(folder: &Path, identities: Option<&str>) -> Self {
        let folder = folder.join("seaweedfs");
        fs::create_dir_all(&folder).expect("folder");
        if let Some(identities) = identities {
            fs::write(folder.join(IDENTITIES), identities).expect("identities");
        }
        let ports = free_ports();
        let url = format!("http://127.0.0.1:{}", ports[0]);
        let child = spawn(&folder, ports);
        Self { folder, ports, child, started: Instant::now(), url }
    }

    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.expect("kill SeaweedFS");
        self.remove_sockets();
    }

    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.folder, self.ports);
        self.started = Instant::now();
    }

    /// Removes the sockets that it leaves behind when it is killed.
    fn remove_sockets(&self) {
        let is_ours = |name: &str| {
            let of = |port: &u16| name.ends_with(&format!("-{}.sock", port + 10000));
            name.starts_with("seaweedfs-") && self.ports.iter().any(of)
        };
        for file in fs::read_dir("/tmp").into_iter().flatten().flatten() {
            if is_ours(&file.file_name().to_string_lossy()) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

fn spawn(folder: &Path, ports: [u16; 5]) -> Child {
    let home = folder.display();
    let [s3, master, volume, filer, admin] = ports;
    let log = fs::File::options().create(true).append(true).open(folder.join("weed.log"));
    let log = log.expect("log");
    let mut command = Command::new(super::env("WEED"));
    command.arg("mini").args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
    command.arg(format!("-dir={home}")).arg(format!("-s3.port={s3}"));
    command.arg(format!("-master.port={master}")).arg(format!("-volume.port={volume}"));
    command.arg(format!("-filer.port={filer}")).arg(format!("-admin.port={admin}"));
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false"]);
    command.args(["-admin.ui=false", "-master.telemetry=false"]);
    command.arg(format!("-s3.localSocket={home}/s3.sock"));
    command.arg(format!("-filer.localSocket={home}/filer.sock"));
    command.args(["-volume.max=50", "-master.volumeSizeLimitMB=128"]);
    if folder.join(IDENTITIES).exists() {
        command.arg(format!("-s3.config={home}/{IDENTITIES}"));
    }
    command.env("TMPDIR", folder).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("log")).stderr(log);
    command.kill_on_drop(true).spawn().expect("start weed")
}

impl Drop for SeaweedFs {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        self.remove_sockets();
    }
}

/// Waits until the store accepts an upload, returns it, and knows the bucket. It answers requests
/// before all its parts are connected.
pub(crate) async fn s3_answers(s3: &S3, bucket: &str) {
    let tries = async {
        while !stores_an_object(s3, bucket).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(START_WITHIN, tries).await.expect("SeaweedFS answers");
}

async fn stores_an_object(s3: &S3, bucket: &str) -> bool {
    // In another bucket than the test's: an upload that timed out may still be stored later.
    const PROBE: &str = "answers-probe";
    let _ = s3.create_bucket().bucket(PROBE).send().await;
    let body = aws_sdk_s3::primitives::ByteStream::from_static(b"probe");
    s3.put_object().bucket(PROBE).key(PROBE).body(body).send().await.is_ok()
        && s3.get_object().bucket(PROBE).key(PROBE).send().await.is_ok()
        && s3.head_bucket().bucket(bucket).send().await.is_ok()
}
