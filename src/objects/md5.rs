//! Sends `Content-MD5` with DeleteObjects, for stores that know no newer checksum.

use aws_sdk_s3::{
    config::{
        ConfigBag, Intercept, RuntimeComponents, interceptors::BeforeTransmitInterceptorContextMut,
    },
    error::BoxError,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use md5::{Digest, Md5};

/// Replaces the SDK's checksum headers with the MD5 of the request body.
#[derive(Debug)]
pub(super) struct ContentMd5;

impl Intercept for ContentMd5 {
    fn name(&self) -> &'static str {
        "ContentMd5"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let request = context.request_mut();
        let Some(body) = request.body().bytes() else {
            return Ok(());
        };
        let sum = BASE64_STANDARD.encode(Md5::digest(body));
        let newer: Vec<String> = request
            .headers()
            .iter()
            .map(|(name, _)| name.to_string())
            .filter(|name| {
                name.starts_with("x-amz-checksum") || name.starts_with("x-amz-sdk-check")
            })
            .collect();
        for name in newer {
            request.headers_mut().remove(name.as_str());
        }
        request.headers_mut().insert("content-md5", sum);
        Ok(())
    }
}
