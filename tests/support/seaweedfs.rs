//! A SeaweedFS of a test's own: to kill it, or to tell it who may do what.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use aws_sdk_s3::Client as S3;
use tokio::process::{Child, Command};

use super::servers::free_ports;

const START_WITHIN: Duration = Duration::from_secs(60);
const IDENTITIES: &str = "identities.json";

/// SeaweedFS. Killed with SIGKILL it neither loses an acknowledged upload nor brings an
/// acknowledged deletion back (tried: a dozen kills under load, some ten thousand objects), so a
/// missing or a risen object is always a fault of the fleet.
pub struct SeaweedFs {
    folder: PathBuf,
    ports: [u16; 5],
    child: Child,
    pub url: String,
}

impl SeaweedFs {
    /// In a folder of its own within this one.
    pub fn start(folder: &Path) -> Self {
        Self::start_with(folder, None)
    }

    /// Nobody may do anything but what this file of identities and policies says.
    pub fn start_with(folder: &Path, identities: Option<&str>) -> Self {
        let folder = folder.join("seaweedfs");
        fs::create_dir_all(&folder).expect("folder");
        if let Some(identities) = identities {
            fs::write(folder.join(IDENTITIES), identities).expect("identities");
        }
        let ports = free_ports();
        let url = format!("http://127.0.0.1:{}", ports[0]);
        let child = spawn(&folder, ports);
        Self { folder, ports, child, url }
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.expect("kill SeaweedFS");
        self.sweep_sockets();
    }

    pub fn start_again(&mut self) {
        self.child = spawn(&self.folder, self.ports);
    }

    /// It removes these itself, but not when it is killed.
    fn sweep_sockets(&self) {
        let left = |name: &str| {
            let of = |port: &u16| name.ends_with(&format!("-{}.sock", port + 10000));
            name.starts_with("seaweedfs-") && self.ports.iter().any(of)
        };
        for file in fs::read_dir("/tmp").into_iter().flatten().flatten() {
            if left(&file.file_name().to_string_lossy()) {
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
        self.sweep_sockets();
    }
}

/// Waits until the store keeps and releases, and has the bucket: it answers before it has found
/// all its parts.
pub async fn s3_answers(s3: &S3, bucket: &str) {
    let tries = async {
        while !takes_an_object(s3, bucket).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(START_WITHIN, tries).await.expect("SeaweedFS answers");
}

async fn takes_an_object(s3: &S3, bucket: &str) -> bool {
    // Not in the bucket that is checked: an upload that timed out may be carried out later.
    const PROBE: &str = "answers-probe";
    let _ = s3.create_bucket().bucket(PROBE).send().await;
    let body = aws_sdk_s3::primitives::ByteStream::from_static(b"probe");
    s3.put_object().bucket(PROBE).key(PROBE).body(body).send().await.is_ok()
        && s3.get_object().bucket(PROBE).key(PROBE).send().await.is_ok()
        && s3.head_bucket().bucket(bucket).send().await.is_ok()
}
