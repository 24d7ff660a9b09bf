//! An S3 that enforces the shipped policies.

use std::path::Path;

use paste_cleanup::objects::Objects;
use serde_json::{Value, json};

use super::{
    World,
    process::Process,
    seaweedfs::{SeaweedFs, s3_answers},
};

pub(crate) const WORKER_POLICY: &str = include_str!("../../ops/s3/worker-policy.json");
pub(crate) const AUDIT_POLICY: &str = include_str!("../../ops/s3/audit-policy.json");
pub(crate) const SECRET: &str = "secret-of-all-identities";

/// The identities of the store; each has the policy of the same name.
pub(crate) const WORKER: &str = "worker";
pub(crate) const PREFIXED_WORKER: &str = "prefixed-worker";
pub(crate) const AUDITOR: &str = "auditor";
/// May list, read and upload, but not delete.
pub(crate) const READER: &str = "reader";

/// A world with its own S3, which enforces the policies. Only the test itself is an administrator.
pub(crate) struct Guarded {
    pub world: World,
    pub store: SeaweedFs,
}

impl Guarded {
    pub(crate) async fn new() -> Self {
        let mut world = World::new().await;
        let folder = std::env::var("PASTE_CLEANUP_TEST_DIR").expect("a folder");
        let folder = Path::new(&folder).join(&world.name);
        let store = SeaweedFs::start_with(&folder, Some(&identities(&world.bucket).to_string()));
        world.settings.s3.endpoint = Some(store.url.clone());
        world.s3 = Objects::new(&world.settings).await.expect("client").client().clone();
        while world.s3.create_bucket().bucket(&world.bucket).send().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        s3_answers(&world.s3, &world.bucket).await;
        Self { world, store }
    }

    /// A program with the credentials of an identity.
    pub(crate) fn program(&self, name: &str, identity: &str) -> Process {
        self.world
            .program(name)
            .env("AWS_ENDPOINT_URL", &self.store.url)
            .env("AWS_ACCESS_KEY_ID", identity)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
    }
}

/// The store's configuration: the identities, and the shipped policies for this bucket.
fn identities(bucket: &str) -> Value {
    let own = |variable: &str| std::env::var(variable).expect("the test's own credentials");
    let identity = |name: &str, policy: &str| {
        json!({"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}],
               "policyNames": [policy]})
    };
    let (worker, audit) =
        (WORKER_POLICY.replace("YOUR-BUCKET", bucket), AUDIT_POLICY.replace("YOUR-BUCKET", bucket));
    let policy = |name: &str, content: &str| json!({"name": name, "content": content});
    let reader = audit.replace("s3:DeleteObject\"", "s3:GetObject\", \"s3:PutObject\"");
    json!({
        "identities": [
            {"name": "test", "actions": ["Admin"], "credentials": [{
                "accessKey": own("AWS_ACCESS_KEY_ID"), "secretKey": own("AWS_SECRET_ACCESS_KEY")}]},
            identity(WORKER, WORKER),
            identity(PREFIXED_WORKER, PREFIXED_WORKER),
            identity(AUDITOR, AUDITOR),
            identity(READER, READER),
        ],
        "policies": [
            policy(WORKER, &worker),
            policy(PREFIXED_WORKER, &worker.replace("/*", "/pastes/*")),
            policy(AUDITOR, &audit),
            policy(READER, &reader),
        ],
    })
}
