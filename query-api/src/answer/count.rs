//! Counts in JSON.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A count in JSON: a number up to 2^53, which every reader holds exactly, above it a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const EXACT_MAX: u64 = 1 << 53;
        if self.0 <= EXACT_MAX {
            serializer.serialize_u64(self.0)
        } else {
            serializer.collect_str(&self.0)
        }
    }
}

impl PartialSchema for Count {
    fn schema() -> RefOr<Schema> {
        let one = |kind| ObjectBuilder::new().schema_type(SchemaType::new(kind));
        OneOfBuilder::new()
            .item(one(Type::Integer).minimum(Some(0)))
            .item(one(Type::String).pattern(Some("^[0-9]+$")))
            .description(Some("A number up to 2^53, above it a string of digits"))
            .into()
    }
}

impl ToSchema for Count {
    fn name() -> Cow<'static, str> {
        "Count".into()
    }
}
