//! Checks the bucket: that deletes work, what versioning keeps, and that the database is bound to it.

use std::time::Duration;

use aws_sdk_s3::types::BucketVersioningStatus;
use axum::http::Uri;
use futures_util::future::join;
use tokio::time::timeout;
use tokio_postgres::Client;

use super::finding::{Outcome, failure, left_out, ok, warning};
use crate::{
    config::{Checksum, Settings},
    fleet,
    objects::{Objects, ObjectsError, S3_REMEDY},
    problem::Problem,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const UNAVAILABLE: &str = "S3 is unavailable";
const LIFECYCLE: &str = "set a lifecycle rule that expires noncurrent versions and delete markers";

/// Checks that deletes work, and returns the bucket for further checks, or why there is none. Probes
/// with a key that cannot exist, with either checksum: a store that takes only the other one would
/// refuse every batch.
pub(super) async fn deletes(settings: &Settings) -> (Outcome, Result<Objects, &'static str>) {
    let objects = match Objects::new(settings).await {
        Ok(objects) => objects,
        Err(error) => return (Problem::from(error).into(), Err("no bucket is set")),
    };
    let used = settings.s3.checksum;
    let other = objects.with_checksum(the_other(used));
    let Ok((checked, other)) = timeout(TIMEOUT, join(objects.check(), other.probe())).await else {
        let found = format!("S3 did not answer within {TIMEOUT:?}");
        return (failure(found, S3_REMEDY), Err(UNAVAILABLE));
    };
    let bucket = match checked {
        Err(ObjectsError::Unavailable { .. }) => Err(UNAVAILABLE),
        Err(ObjectsError::NoBucket { .. }) => Err("the bucket does not exist"),
        Err(ObjectsError::NoCredentials { .. }) => Err("no AWS credentials"),
        _ => Ok(objects.clone()),
    };
    let outcome = match (checked, objects.one_by_one()) {
        (Ok(Some(doubt)), _) => warning(doubt.problem, doubt.remedy),
        (Ok(None), Some(why)) => {
            ok(format!("deletes work in {:?}, one by one: {why}", objects.bucket()))
        }
        (checked, _) => {
            let probed = checked.map(|_| ());
            judge_deletes(objects.bucket(), used, probed, other.is_ok())
        }
    };
    (outcome, bucket)
}

fn the_other(used: Checksum) -> Checksum {
    match used {
        Checksum::Auto => Checksum::Md5,
        Checksum::Md5 => Checksum::Auto,
    }
}

fn name(checksum: Checksum) -> &'static str {
    match checksum {
        Checksum::Auto => "auto",
        Checksum::Md5 => "md5",
    }
}

fn judge_deletes(
    bucket: &str,
    used: Checksum,
    probed: Result<(), ObjectsError>,
    other_works: bool,
) -> Outcome {
    let (used, other) = (name(used), name(the_other(used)));
    match probed {
        Ok(()) if other_works => ok(format!("deletes work in {bucket:?}, with either checksum")),
        Ok(()) => ok(format!("deletes work in {bucket:?}, with s3.checksum {used} only")),
        // An outage: it proves nothing about checksums.
        Err(error @ ObjectsError::Unavailable { .. }) => Problem::from(&error).into(),
        Err(error) if other_works => failure(
            format!(
                "deletes work in {bucket:?} with s3.checksum {other}, but not with {used}: {}",
                error.reason()
            ),
            format!("set CLEANUP_S3_CHECKSUM={other}"),
        ),
        Err(error @ ObjectsError::Unsupported { .. }) => failure(
            format!("{bucket:?} accepts DeleteObjects with neither checksum: {}", error.reason()),
            "set CLEANUP_S3_BULK_DELETE=auto if it is \"always\", else check AWS_ENDPOINT_URL and \
             s3.path_style",
        ),
        Err(error) => Problem::from(&error).into(),
    }
}

/// Checks whether deleted objects are really gone. With versions they are not: a DeleteObjects that
/// names no version succeeds and adds a delete marker, whether versioning is on or suspended, and
/// under object lock, too.
pub(super) async fn versions(objects: &Objects, settings: &Settings) -> Result<Outcome, Problem> {
    let Ok(checked) = timeout(TIMEOUT, check_versions(objects)).await else {
        return Ok(left_out(UNAVAILABLE));
    };
    Ok(match is_google(settings.s3.endpoint.as_deref().unwrap_or_default()) {
        true if checked.is_ok() => warning(
            "Google Cloud Storage keeps deleted objects for 7 days, unless soft delete is off for the \
             bucket: the S3 API does not report it",
            format!("gcloud storage buckets update gs://{} --clear-soft-delete", objects.bucket()),
        ),
        _ => checked,
    })
}

fn is_google(endpoint: &str) -> bool {
    let host = endpoint.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_lowercase));
    host.is_some_and(|host| host.ends_with("storage.googleapis.com"))
}

async fn check_versions(objects: &Objects) -> Outcome {
    let (s3, bucket) = (objects.client(), objects.bucket());
    let lock = s3.get_object_lock_configuration().bucket(bucket).send().await;
    let locked = lock.is_ok_and(|lock| {
        lock.object_lock_configuration.is_some_and(|lock| lock.object_lock_enabled.is_some())
    });
    if locked {
        return warning(
            "object lock is on: a delete succeeds and adds a delete marker, and the object stays as a \
             noncurrent version, at least until its retention or legal hold ends",
            format!("{LIFECYCLE}, or keep pastes in a bucket without object lock"),
        );
    }
    match objects.versioning().await {
        Ok(Some(BucketVersioningStatus::Enabled)) => {
            warning("versioning is on: a deleted object stays as a noncurrent version", LIFECYCLE)
        }
        Ok(Some(BucketVersioningStatus::Suspended)) => warning(
            "versioning is suspended: a deleted object that was uploaded while it was on stays as a \
             noncurrent version, and each delete leaves a delete marker",
            LIFECYCLE,
        ),
        Ok(_) => ok("not versioned, no object lock"),
        Err(reason) => left_out(format!("cannot read the versioning of the bucket: {reason}")),
    }
}

/// Checks that the database is bound to the bucket and prefix of the settings.
pub(super) async fn binding(db: &Client, settings: &Settings) -> Result<Outcome, Problem> {
    let fleet = fleet::read(db).await?;
    let bucket = settings.bucket()?;
    if fleet.bucket.is_none() {
        return Ok(ok(format!("none yet; the first run binds this database to {bucket:?}")));
    }
    fleet.belongs_to(bucket, &settings.s3.prefix).map_err(|other| Problem::from(&other))?;
    Ok(ok(format!("this database is bound to {bucket:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Action;

    #[test]
    fn only_googles_own_endpoints_have_soft_delete() {
        for google in ["https://storage.googleapis.com", "https://b.storage.googleapis.com:443/"] {
            assert!(is_google(google), "{google}");
        }
        for other in ["", "http://minio:9000", "https://storage.googleapis.com.example.com"] {
            assert!(!is_google(other), "{other}");
        }
    }

    #[test]
    fn only_a_refusal_is_blamed_on_the_checksum() {
        let (bucket, reason) = (String::from("b"), String::from("S3 400 InvalidRequest: no"));
        let judged = |error: ObjectsError, other_works: bool| {
            format!("{:?}", judge_deletes("b", Checksum::Md5, Err(error), other_works))
        };
        let denied = ObjectsError::Denied {
            bucket: bucket.clone(),
            reason: reason.clone(),
            action: Action::Delete,
        };
        assert!(judged(denied.clone(), true).contains("CLEANUP_S3_CHECKSUM=auto"));
        assert!(judged(denied, false).contains("s3:DeleteObject"));
        let unavailable = ObjectsError::Unavailable { bucket, reason };
        assert!(!judged(unavailable, true).contains("CHECKSUM"));
    }
}
