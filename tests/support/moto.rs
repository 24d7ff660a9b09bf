//! A moto server for one test: an S3 that keeps every key as it is, as AWS does. SeaweedFS, which
//! the other tests use, normalises keys.

use std::{process::Stdio, time::Duration};

use tokio::process::{Child, Command};

use super::{World, servers::free_port};
use paste_cleanup::objects::Objects;

const START_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct Moto {
    _child: Child,
    pub url: String,
}

impl Moto {
    pub(crate) fn start() -> Self {
        let port = free_port().to_string();
        let url = format!("http://127.0.0.1:{port}");
        let mut command = Command::new(super::env("MOTO"));
        command.args(["-H", "127.0.0.1", "-p", &port]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.kill_on_drop(true).spawn().expect("start moto_server");
        Self { _child: child, url }
    }

    /// Moves this world's bucket to moto.
    pub(crate) async fn serve(&self, world: &mut World) {
        world.settings.s3.endpoint = Some(self.url.clone());
        let objects = Objects::new(&world.settings).await.expect("S3 client");
        world.s3 = objects.client().clone();
        let created = async {
            while world.s3.create_bucket().bucket(&world.bucket).send().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(START_WITHIN, created).await.expect("moto answers");
    }
}
