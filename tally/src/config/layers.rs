//! Where each setting comes from, and reading it in its unit.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use tally_model::bucket::DAY_MS;
use toml::{Table, Value};

use crate::units;

const DEFAULTS: &str = include_str!("default.toml");
const PREFIX: &str = "TALLY__";

/// Who gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => path.display().fmt(f),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// What is wrong with a setting, and what would be right.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("{origin}: unknown setting `{key}`; {section} has {allowed}")]
    Unknown { origin: Origin, key: String, section: String, allowed: String },
    #[error("{origin}: {key} = {given} is not allowed; allowed: {allowed}")]
    Value { origin: Origin, key: String, given: String, allowed: String },
    #[error("cannot read the configuration {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not valid TOML")]
    Syntax {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
}

/// All settings by dotted key, each with the layer that it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    values: BTreeMap<String, (Value, Origin)>,
}

impl Layers {
    /// The defaults alone.
    pub(crate) fn defaults() -> Self {
        let table: Table =
            DEFAULTS.parse().expect("the compiled-in defaults are valid TOML, as a test shows");
        let mut values = BTreeMap::new();
        flatten("", &table, &Origin::Default, &mut values);
        Self { values }
    }

    /// Lays a file over what is there.
    ///
    /// # Errors
    /// [`SettingError`] if it cannot be read or holds a setting that does not exist.
    pub(crate) fn add_file(&mut self, path: &Path) -> Result<(), SettingError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingError::Read { path: path.to_owned(), source })?;
        let table: Table = text.parse().map_err(|source| SettingError::Syntax {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let mut values = BTreeMap::new();
        flatten("", &table, &Origin::File(path.to_owned()), &mut values);
        values.into_iter().try_for_each(|(key, (value, origin))| self.set(&key, value, origin))
    }

    /// Lays the variables `TALLY__SECTION__KEY` over what is there.
    ///
    /// # Errors
    /// [`SettingError::Unknown`] for a variable of that form that names no setting.
    pub(crate) fn add_environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), SettingError> {
        for (name, text) in variables {
            let Some(path) = name.strip_prefix(PREFIX) else { continue };
            let key = path.to_lowercase().replace("__", ".");
            // A number or a truth value as such, anything else as the text that it is.
            let value = match text.parse::<Value>() {
                Ok(value @ (Value::Integer(_) | Value::Boolean(_))) => value,
                Ok(_) | Err(_) => Value::String(text),
            };
            self.set(&key, value, Origin::Environment(name.clone()))?;
        }
        Ok(())
    }

    /// Lays one flag over what is there.
    ///
    /// # Errors
    /// [`SettingError::Unknown`] if the key does not exist.
    pub(crate) fn add_flag(
        &mut self,
        flag: &'static str,
        key: &str,
        value: impl Into<Value>,
    ) -> Result<(), SettingError> {
        self.set(key, value.into(), Origin::Flag(flag))
    }

    fn set(&mut self, key: &str, value: Value, origin: Origin) -> Result<(), SettingError> {
        match self.values.get_mut(key) {
            Some(slot) => *slot = (value, origin),
            None => return Err(self.unknown(key, origin)),
        }
        Ok(())
    }

    fn unknown(&self, key: &str, origin: Origin) -> SettingError {
        let known = |section: &str| {
            self.values
                .keys()
                .filter_map(|key| key.rsplit_once('.'))
                .filter(|(of, _)| *of == section)
                .map(|(_, name)| name)
                .collect::<Vec<_>>()
        };
        let section = key.rsplit_once('.').map_or("", |(section, _)| section);
        let names = known(section);
        let (section, allowed) = if names.is_empty() {
            let mut sections: Vec<_> =
                self.values.keys().filter_map(|key| key.rsplit_once('.')).map(|(s, _)| s).collect();
            sections.dedup();
            ("the configuration".to_owned(), format!("the sections {}", sections.join(", ")))
        } else {
            (format!("[{section}]"), names.join(", "))
        };
        SettingError::Unknown { origin, key: key.to_owned(), section, allowed }
    }

    /// Every setting with its value and where it comes from, ascending by key.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Value, &Origin)> {
        self.values.iter().map(|(key, (value, origin))| (key.as_str(), value, origin))
    }

    /// Whether a layer above the defaults gave this setting.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|(_, origin)| *origin != Origin::Default)
    }

    /// Who gave a setting its value.
    pub(crate) fn origin(&self, key: &str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// The error that a checked setting is refused with.
    pub(crate) fn refuse(&self, key: &str, allowed: String) -> SettingError {
        let given =
            self.values.get(key).map_or("nothing".to_owned(), |(value, _)| value.to_string());
        SettingError::Value { origin: self.origin(key), key: key.to_owned(), given, allowed }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, SettingError> {
        match self.values.get(key) {
            Some((Value::String(text), _)) => Ok(text),
            _ => Err(self.refuse(key, "a text in quotes".to_owned())),
        }
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<bool, SettingError> {
        match self.values.get(key) {
            Some((Value::Boolean(value), _)) => Ok(*value),
            _ => Err(self.refuse(key, "true or false".to_owned())),
        }
    }

    pub(crate) fn count(&self, key: &str, min: u64, max: u64) -> Result<u64, SettingError> {
        let value = match self.values.get(key) {
            Some((Value::Integer(value), _)) => u64::try_from(*value).ok(),
            _ => None,
        };
        value
            .filter(|value| (min..=max).contains(value))
            .ok_or_else(|| self.refuse(key, format!("a whole number from {min} to {max}")))
    }

    pub(crate) fn count_usize(&self, key: &str, min: u64, max: u64) -> Result<usize, SettingError> {
        Ok(usize::try_from(self.count(key, min, max)?).unwrap_or(usize::MAX))
    }

    pub(crate) fn duration(&self, key: &str, min: i64, max: i64) -> Result<i64, SettingError> {
        let value = self.text(key).ok().and_then(units::duration_ms);
        value.filter(|value| (min..=max).contains(value)).ok_or_else(|| {
            let (min, max) = (units::show_duration(min), units::show_duration(max));
            self.refuse(key, format!("a duration from {min} to {max}, like \"90s\" or \"15min\""))
        })
    }

    pub(crate) fn duration_u64(&self, key: &str, min: i64, max: i64) -> Result<u64, SettingError> {
        Ok(u64::try_from(self.duration(key, min, max)?).unwrap_or(0))
    }

    /// A duration of whole days.
    pub(crate) fn days(&self, key: &str) -> Result<i64, SettingError> {
        let ms = self.duration(key, DAY_MS, 36_500 * DAY_MS)?;
        if ms % DAY_MS != 0 {
            return Err(self.refuse(key, "a whole number of days, like \"60d\"".to_owned()));
        }
        Ok(ms / DAY_MS)
    }

    pub(crate) fn size(&self, key: &str, min: u64, max: u64) -> Result<u64, SettingError> {
        let value = self.text(key).ok().and_then(units::size_bytes);
        value.filter(|value| (min..=max).contains(value)).ok_or_else(|| {
            self.refuse(key, format!("a size from {min}B to {max}B, like \"64MiB\" or \"512B\""))
        })
    }

    pub(crate) fn size_usize(&self, key: &str, min: u64, max: u64) -> Result<usize, SettingError> {
        Ok(usize::try_from(self.size(key, min, max)?).unwrap_or(usize::MAX))
    }
}

fn flatten(
    prefix: &str,
    table: &Table,
    origin: &Origin,
    into: &mut BTreeMap<String, (Value, Origin)>,
) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) => flatten(&key, inner, origin, into),
            other => {
                into.insert(key, (other.clone(), origin.clone()));
            }
        }
    }
}
