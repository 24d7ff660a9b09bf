//! Does the bucket have this object? Every check for a single object is here; workers make none.
//!
//! A listing needs only `s3:ListBucket`, which the audit's policy has. HEAD needs `s3:GetObject`, the
//! right to read every body, but it cannot lag behind and cannot spell a key in another way.

use super::{Action, Listed, Objects, ObjectsError, Start, classify::CallError, request};

impl Objects {
    /// Lists one object. Retries until the deadline. For the audit, which may list and not read.
    pub async fn find(&self, key: &str) -> Result<Option<Listed>, ObjectsError> {
        let mut start = Start::After(String::new());
        loop {
            let page = self.list_under(key, &start, super::KEYS_PER_CALL).await?;
            let found = page.objects.into_iter().find(|object| object.is(key));
            let found = found.map(|object| Listed { key: key.into(), ..object });
            match page.next {
                Some(next) if found.is_none() && next != start => start = next,
                _ => return Ok(found),
            }
        }
    }

    /// Checks for one object with all rights that the caller has, without retries, for an operator's
    /// question. The listing comes first, because the
    /// audit's policy allows it; what it does not show is checked by HEAD.
    pub async fn exists(&self, key: &str) -> Result<bool, ObjectsError> {
        // A listing cannot show these keys unchanged.
        let is_listable = request::is_expressible_in_xml(key) && !key.contains('\r');
        if is_listable && self.is_listed(key).await? {
            return Ok(true);
        }
        match self.head(key).await {
            // Without the right to read, the listing decides.
            Err(CallError::Denied(_)) if is_listable => Ok(false),
            answered => answered.map_err(|error| self.error(error, Action::Read)),
        }
    }

    /// Whether HEAD finds this object. False also if the caller may not read, or if S3 fails: use it
    /// only to confirm an object that a listing did not show.
    pub(crate) async fn is_confirmed_by_head(&self, key: &str) -> bool {
        self.head(key).await.unwrap_or(false)
    }

    async fn head(&self, key: &str) -> Result<bool, CallError> {
        match self.client.head_object().bucket(&self.bucket).key(key).send().await {
            Ok(_) => Ok(true),
            Err(error) if error.as_service_error().is_some_and(|error| error.is_not_found()) => {
                Ok(false)
            }
            Err(error) => Err(CallError::from(error)),
        }
    }

    async fn is_listed(&self, key: &str) -> Result<bool, ObjectsError> {
        let list = self.client.list_objects_v2().bucket(&self.bucket).prefix(key).max_keys(2);
        let listed = list.send().await;
        let listed = listed.map_err(|error| self.error(error.into(), Action::List))?;
        Ok(listed.contents().iter().any(|object| object.key() == Some(key)))
    }
}
