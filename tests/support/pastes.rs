//! Pastes, content rows and S3 objects, as a paste service writes and reads them.

use aws_sdk_s3::{
    Client as S3, error::SdkError, operation::put_object::PutObjectError, primitives::ByteStream,
};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use self::Expires::{Ago, In, Never};
use super::World;

/// When a paste expires, in seconds from now.
#[derive(Clone, Copy)]
pub(crate) enum Expires {
    Ago(f64),
    In(f64),
    Never,
}

impl World {
    /// Stores a paste by the writer's contract, with a real object. Returns the object's key.
    pub(crate) async fn put(&self, short_code: &str, body: &str, expires: Expires) -> String {
        let hash = hash(body);
        let fresh = format!("{}/{}", hex(&hash), Uuid::new_v4().simple());
        self.upload(&fresh, body).await;
        let row = self.put_row(short_code, &hash, Some(&fresh), body.len(), expires).await;
        if row.get("drop_upload") {
            self.s3.delete_object().bucket(&self.bucket).key(&fresh).send().await.expect("drop");
        }
        row.get("s3_key")
    }

    pub(crate) async fn put_row(
        &self,
        short_code: &str,
        hash: &[u8],
        key: Option<&str>,
        size: usize,
        expires: Expires,
    ) -> tokio_postgres::Row {
        let seconds = match expires {
            Ago(seconds) => Some(-seconds),
            In(seconds) => Some(seconds),
            Never => None,
        };
        let put = include_str!("../../sql/queries/ctl/put_paste.sql");
        let size = size as i64;
        self.db
            .query_one(put, &[&short_code, &hash, &key, &size, &seconds])
            .await
            .expect("paste_put")
    }

    /// Inserts `count` expired pastes with `contents` different contents and no objects, by plain
    /// SQL: for tests that are about rows.
    pub(crate) async fn put_many(&self, count: i32, contents: i32) {
        self.db
            .batch_execute(&format!(
                "INSERT INTO pastes (short_code, content_hash, expires_at)
                 SELECT 'p' || lpad(n::text, 8, '0'), sha256(('b' || n % {contents})::bytea),
                        now() - ({count} - n + 1) * interval '1 second'
                 FROM generate_series(1, {count}) n;
                 INSERT INTO content (content_hash, s3_key, size_bytes, ref_count)
                 SELECT content_hash, encode(content_hash, 'hex') || '/x', 10, count(*)
                 FROM pastes GROUP BY content_hash
                 ON CONFLICT DO NOTHING"
            ))
            .await
            .expect("put many");
    }

    pub(crate) async fn upload(&self, key: &str, body: &str) {
        assert!(self.try_upload(key, body).await, "upload {key:?}");
    }

    /// Returns whether the store accepts the key.
    pub(crate) async fn try_upload(&self, key: &str, body: &str) -> bool {
        let body = ByteStream::from(body.as_bytes().to_vec());
        let put = self.s3.put_object().bucket(&self.bucket).key(key).body(body).send().await;
        match put.map_err(SdkError::into_service_error) {
            Ok(_) => true,
            Err(PutObjectError::InvalidRequest(_)) => false,
            Err(error) => panic!("upload {key:?}: {error:?}"),
        }
    }

    /// The body of a live paste, as a reader of the paste service would fetch it.
    pub(crate) async fn read(&self, short_code: &str) -> Option<String> {
        let key = self
            .db
            .query_opt(
                "SELECT c.s3_key FROM pastes p JOIN content c USING (content_hash)
                 WHERE p.short_code = $1",
                &[&short_code],
            )
            .await
            .expect("select paste")?;
        self.object(key.get(0)).await
    }

    pub(crate) async fn object(&self, key: &str) -> Option<String> {
        let got = self.s3.get_object().bucket(&self.bucket).key(key).send().await.ok()?;
        let bytes = got.body.collect().await.ok()?.into_bytes();
        String::from_utf8(bytes.to_vec()).ok()
    }

    /// All keys in the bucket, sorted.
    pub(crate) async fn keys(&self) -> Vec<String> {
        list_keys(&self.s3, &self.bucket).await
    }
}

/// All keys in a bucket, sorted.
pub(crate) async fn list_keys(s3: &S3, bucket: &str) -> Vec<String> {
    let mut pages = s3.list_objects_v2().bucket(bucket).into_paginator().send();
    let mut keys: Vec<String> = Vec::new();
    while let Some(page) = pages.next().await {
        let objects = page.expect("list").contents.unwrap_or_default();
        keys.extend(objects.into_iter().filter_map(|object| object.key));
    }
    keys.sort();
    keys
}

pub(crate) fn hash(body: &str) -> Vec<u8> {
    Sha256::digest(body.as_bytes()).to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
