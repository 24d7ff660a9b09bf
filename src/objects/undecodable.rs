//! Reads listings of stores that ignore `encoding-type=url`: XML cannot express every key, and one such
//! key would make its whole page unreadable.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use aws_sdk_s3::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::BeforeDeserializationInterceptorContextMut,
    },
    error::BoxError,
    primitives::SdkBody,
};
use http_body_util::BodyExt;

/// Stands for a control character.
const CONTROL: u8 = 0x7f;

/// Replaces what XML cannot express with other characters of the same length.
#[derive(Debug, Clone, Default)]
pub(super) struct Undecodable {
    replaced: Arc<AtomicBool>,
}

impl Undecodable {
    /// Whether this key may stand for another one.
    pub(super) fn may_have_changed(&self, key: &str) -> bool {
        self.replaced.load(Relaxed) && key.contains([char::from(CONTROL), '\u{fffd}'])
    }
}

impl Intercept for Undecodable {
    fn name(&self) -> &'static str {
        "Undecodable"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = std::mem::replace(context.response_mut().body_mut(), SdkBody::taken());
        let (replaced, mut before) = (Arc::clone(&self.replaced), [0; 2]);
        let body = body.map_frame(move |frame| {
            frame.map_data(|data| {
                let mut bytes = data.to_vec();
                if replace(&mut bytes, &mut before) {
                    replaced.store(true, Relaxed);
                }
                bytes.into()
            })
        });
        *context.response_mut().body_mut() = SdkBody::from_body_1_x(body);
        Ok(())
    }
}

/// Replaces control characters, U+FFFE and U+FFFF. `before`: the two bytes before these.
fn replace(bytes: &mut [u8], before: &mut [u8; 2]) -> bool {
    let mut replaced = false;
    for byte in bytes {
        let expressible = match *byte {
            b'\t' | b'\n' | b'\r' => *byte,
            0..b' ' => CONTROL,
            0xbe | 0xbf if *before == [0xef, 0xbf] => 0xbd,
            _ => *byte,
        };
        replaced |= expressible != *byte;
        *before = [before[1], expressible];
        *byte = expressible;
    }
    replaced
}

/// Returns this key as such a listing shows it.
pub(super) fn as_listed(key: &str) -> String {
    let mut bytes = key.as_bytes().to_vec();
    replace(&mut bytes, &mut [0; 2]);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_cannot_express_is_replaced_also_across_frames() {
        assert_eq!(
            as_listed("a\u{1}b\tc\u{fffe}\u{ffff}\u{fffd}ä"),
            "a\u{7f}b\tc\u{fffd}\u{fffd}\u{fffd}ä"
        );
        let (mut first, mut second, mut before) = ([b'a', 0xef], [0xbf, 0xbe], [0; 2]);
        assert!(!replace(&mut first, &mut before));
        assert!(replace(&mut second, &mut before));
        assert_eq!((first, second), ([b'a', 0xef], [0xbf, 0xbd]));
    }
}
