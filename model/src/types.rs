//! Event types: slots and names.

use std::fmt;

use serde::{Deserialize, Serialize};
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// The id of an event type = its slot, that is its place in every count vector. Never reused and
/// never renumbered.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct TypeId(pub u16);

impl TypeId {
    /// Slot 0, `__other`: events whose type the registry does not know.
    pub const OTHER: Self = Self(0);
    /// How many slots a registry can have, slot 0 included.
    pub const CAP: u16 = 4_000;
}

impl fmt::Display for TypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of slot 0.
pub const OTHER_NAME: &str = "__other";

/// Why a text is no event type name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTypeName {
    /// Nothing, or nothing but blanks.
    #[error("an event type name must not be empty")]
    Empty,
    /// Longer than the limit in bytes.
    #[error("an event type name has at most {max_bytes} bytes")]
    TooLong {
        /// The limit.
        max_bytes: usize,
    },
    /// A control character.
    #[error("an event type name must not hold control characters")]
    Control,
    /// A blank at the start or the end.
    #[error("an event type name must not start or end with a blank")]
    OuterBlank,
    /// The name of slot 0.
    #[error("{OTHER_NAME} is reserved")]
    Reserved,
}

/// Brings a name into the form in which names are compared: Unicode NFC, case-sensitive.
/// Borrows when nothing has to change, which is the common case.
///
/// # Errors
/// [`BadTypeName`] says which rule the name breaks.
pub fn normal_name(name: &str, max_bytes: usize) -> Result<std::borrow::Cow<'_, str>, BadTypeName> {
    use std::borrow::Cow;
    let name: Cow<'_, str> = if name.is_ascii() || is_nfc(name) {
        name.into()
    } else {
        name.nfc().collect::<String>().into()
    };
    if name.trim().is_empty() {
        return Err(BadTypeName::Empty);
    }
    if name.len() > max_bytes {
        return Err(BadTypeName::TooLong { max_bytes });
    }
    if name.chars().any(char::is_control) {
        return Err(BadTypeName::Control);
    }
    if name.trim().len() != name.len() {
        return Err(BadTypeName::OuterBlank);
    }
    if name == OTHER_NAME {
        return Err(BadTypeName::Reserved);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_compared_in_one_form_and_with_case() {
        let cases = [
            ("page_view", "page_view"),
            ("Page View", "Page View"),
            ("caf\u{e9}", "caf\u{e9}"),
            ("cafe\u{301}", "caf\u{e9}"),
            ("\u{212b}", "\u{c5}"),
            ("\u{8cfc}\u{5165} \u{1f6d2}", "\u{8cfc}\u{5165} \u{1f6d2}"),
            ("__other2", "__other2"),
            ("__OTHER", "__OTHER"),
        ];
        for (name, want) in cases {
            assert_eq!(normal_name(name, 128).as_deref(), Ok(want), "{name}");
        }
        assert_ne!(normal_name("page_view", 128), normal_name("Page_View", 128));
    }

    #[test]
    fn a_name_that_breaks_a_rule_is_refused_and_says_which() {
        let cases = [
            ("", BadTypeName::Empty),
            ("   ", BadTypeName::Empty),
            ("\u{3000}", BadTypeName::Empty),
            ("a\u{0}b", BadTypeName::Control),
            ("a\nb", BadTypeName::Control),
            ("a\u{7f}", BadTypeName::Control),
            ("a\u{85}b", BadTypeName::Control),
            (" a", BadTypeName::OuterBlank),
            ("a ", BadTypeName::OuterBlank),
            ("a\u{a0}", BadTypeName::OuterBlank),
            ("__other", BadTypeName::Reserved),
            ("123456789", BadTypeName::TooLong { max_bytes: 8 }),
            // Bytes, not characters.
            ("\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}", BadTypeName::TooLong { max_bytes: 8 }),
        ];
        for (name, want) in cases {
            assert_eq!(normal_name(name, 8), Err(want), "{name:?}");
        }
    }

    #[test]
    fn the_limit_holds_for_the_normal_form() {
        // Nine bytes as sent, six in NFC.
        assert_eq!(normal_name("e\u{301}e\u{301}e\u{301}", 6).as_deref(), Ok("\u{e9}\u{e9}\u{e9}"));
        assert_eq!(normal_name("12345678", 8).as_deref(), Ok("12345678"));
    }

    #[test]
    fn a_name_in_normal_form_is_not_copied() {
        assert!(matches!(normal_name("page_view", 128), Ok(Cow::Borrowed(_))));
        assert!(matches!(normal_name("caf\u{e9}", 128), Ok(Cow::Borrowed(_))));
    }

    proptest! {
        #[test]
        fn a_normal_name_is_its_own_normal_form(name in ".{0,40}") {
            if let Ok(once) = normal_name(&name, 128) {
                prop_assert_eq!(&normal_name(&once, 128).unwrap(), &once);
            }
        }
    }
}
