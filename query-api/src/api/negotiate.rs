//! Formats and entity tags: what the client accepts and what it has already.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, IF_NONE_MATCH};

use crate::ask::Format;
use crate::problem::{Code, Problem};

/// The media type of a format, in its two parts.
const fn media_type(format: Format) -> (&'static str, &'static str) {
    match format {
        Format::Json => ("application", "json"),
        Format::Csv => ("text", "csv"),
        Format::Arrow => ("application", "vnd.apache.arrow.stream"),
    }
}

/// The format of the answer: `format=` if given, else by `Accept`, else JSON. Of formats that the
/// client likes the same, the one that is offered first.
pub(super) fn format(
    asked: Option<Format>,
    offered: &[Format],
    headers: &HeaderMap,
) -> Result<Format, Problem> {
    if let Some(format) = asked {
        return Ok(format);
    }
    if !headers.contains_key(ACCEPT) {
        return Ok(Format::Json);
    }
    let ranges: Vec<&str> = values(headers, &ACCEPT).collect();
    let mut best: Option<(Format, u16)> = None;
    for format in offered.iter().copied() {
        let (kind, subtype) = media_type(format);
        let quality = quality_of(&ranges, kind, subtype);
        if quality > best.map_or(0, |(_, quality)| quality) {
            best = Some((format, quality));
        }
    }
    best.map(|(format, _)| format).ok_or_else(|| {
        let names = offered.iter().map(|format| {
            let (kind, subtype) = media_type(*format);
            format!("{kind}/{subtype}")
        });
        let names = names.collect::<Vec<_>>().join(", ");
        Problem::new(Code::NotAcceptable, format!("the formats are {names}"))
    })
}

/// How a body is packed on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Not at all.
    Identity,
    Gzip,
    Zstd,
}

/// The coding that the client likes best; zstd where it likes both the same.
pub(super) fn coding(headers: &HeaderMap) -> Coding {
    let mut best = (Coding::Identity, 0);
    for element in values(headers, &ACCEPT_ENCODING) {
        let mut fields = element.split(';').map(str::trim);
        let coding = match fields.next() {
            Some(name) if name.eq_ignore_ascii_case("zstd") => Coding::Zstd,
            Some(name) if name.eq_ignore_ascii_case("gzip") => Coding::Gzip,
            Some(_) | None => continue,
        };
        let quality = quality(fields);
        if quality > best.1 || (quality == best.1 && coding == Coding::Zstd && quality > 0) {
            best = (coding, quality);
        }
    }
    best.0
}

/// The parameter `q` in thousandths; 1,000 where there is none.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a str>) -> u16 {
    parameters
        .by_ref()
        .filter_map(|field| field.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
        .map_or(1_000, |(_, quality)| thousandths(quality.trim()))
}

/// The quality, in thousandths, that the most specific matching range gives to a media type.
fn quality_of(ranges: &[&str], kind: &str, subtype: &str) -> u16 {
    let mut found = (0, 0);
    for range in ranges {
        let mut fields = range.split(';').map(str::trim);
        let Some((range_kind, range_subtype)) = fields.next().and_then(|m| m.split_once('/'))
        else {
            continue;
        };
        let specificity = match (range_kind, range_subtype) {
            ("*", "*") => 1,
            (one, "*") if one.eq_ignore_ascii_case(kind) => 2,
            (one, two) if one.eq_ignore_ascii_case(kind) && two.eq_ignore_ascii_case(subtype) => 3,
            _ => continue,
        };
        let quality = quality(fields);
        if specificity > found.0 {
            found = (specificity, quality);
        }
    }
    found.1
}

/// A quality value like `0.8` in thousandths; anything else counts as 0.
fn thousandths(text: &str) -> u16 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 {
        return 0;
    }
    format!("{whole}{fraction:0<3}").parse().ok().filter(|quality| *quality <= 1_000).unwrap_or(0)
}

/// The entity tags of `If-None-Match`.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownTags {
    tags: Vec<String>,
}

impl KnownTags {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self { tags: values(headers, &IF_NONE_MATCH).map(str::to_owned).collect() }
    }

    /// Whether the client has the answer with this tag; weak and strong tags compare alike.
    pub(super) fn has(&self, tag: &str) -> bool {
        let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
        self.tags.iter().any(|known| known == "*" || opaque(known) == opaque(tag))
    }
}

/// All elements of a header that is a list, over all its lines. None of our tags or media types
/// holds a comma, so those that do are no match whichever way they are cut.
fn values<'a>(
    headers: &'a HeaderMap,
    name: &axum::http::HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_range_decides_and_quality_ranks() {
        let cases = [
            ("text/csv", Some(Format::Csv)),
            ("application/json", Some(Format::Json)),
            ("*/*", Some(Format::Json)),
            ("text/*", Some(Format::Csv)),
            ("TEXT/CSV; q=0.5, application/json;q=0.4", Some(Format::Csv)),
            ("application/json;q=0, */*;q=0.1", Some(Format::Csv)),
            ("text/html, */*;q=0.8", Some(Format::Json)),
            ("application/vnd.apache.arrow.stream", Some(Format::Arrow)),
            ("text/html", None),
            ("application/json;q=0", None),
            ("", None),
        ];
        for (accept, want) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(format(None, Format::OF_COUNTS, &headers).ok(), want, "{accept}");
        }
        let none = HeaderMap::new();
        assert_eq!(format(None, Format::OF_COUNTS, &none).ok(), Some(Format::Json));
        let mut arrow = HeaderMap::new();
        arrow.insert(ACCEPT, "application/vnd.apache.arrow.stream".parse().unwrap());
        assert_eq!(format(None, Format::OF_LISTS, &arrow).ok(), None);
    }

    #[test]
    fn the_liked_coding_is_taken_and_none_where_none_is_liked() {
        let cases = [
            ("gzip, deflate, br, zstd", Coding::Zstd),
            ("zstd;q=0.5, gzip", Coding::Gzip),
            ("gzip;q=0", Coding::Identity),
            ("br", Coding::Identity),
            ("GZIP", Coding::Gzip),
            ("", Coding::Identity),
        ];
        for (accepted, want) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, accepted.parse().unwrap());
            assert_eq!(coding(&headers), want, "{accepted}");
        }
        assert_eq!(coding(&HeaderMap::new()), Coding::Identity);
    }

    #[test]
    fn an_entity_tag_is_found_in_a_list_weak_or_strong() {
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, "\"a\", W/\"b\"".parse().unwrap());
        let known = KnownTags::of(&headers);
        assert!(known.has("W/\"a\"") && known.has("W/\"b\"") && !known.has("W/\"c\""));
        assert!(!KnownTags::default().has("W/\"a\""));
    }
}
