//! Owns the filter of the log: which lines a process writes, from the environment variable `RUST_LOG`.

use std::env;

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

/// The libraries for HTTP, of which only errors are logged.
const LIBRARIES: [&str; 2] = ["h2", "hyper"];

/// Why there is no filter.
#[derive(Debug, Error)]
pub enum FilterError {
    /// A directive is one word, and the word is no level.
    #[error(
        "RUST_LOG: {0:?} is no level; write off, error, warn, info, debug or trace, or PART=LEVEL for one part \
         of the program"
    )]
    NoLevel(String),
    /// A directive cannot be read.
    #[error("RUST_LOG: {0}")]
    Unreadable(#[from] tracing_subscriber::filter::ParseError),
}

/// The directives in `RUST_LOG`; `None` if there are none.
#[must_use]
pub fn asked() -> Option<String> {
    let asked = env::var("RUST_LOG").ok();
    asked.filter(|directives| !directives.trim().is_empty())
}

/// The filter for directives that are separated by commas.
///
/// For `tracing`, a single word that is no level is the name of a part of the program, and every line of the others is
/// left out. So a level with a typo, such as `warning`, would silence the process, its fatal errors included.
///
/// # Errors
///
/// A directive without `=` is no level, or a directive cannot be read.
pub fn filter(directives: &str) -> Result<EnvFilter, FilterError> {
    let words = directives.split(',').map(str::trim);
    let mut words = words.filter(|word| !word.is_empty() && !word.contains('='));
    if let Some(word) = words.find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(FilterError::NoLevel(word.to_owned()));
    }
    Ok(EnvFilter::try_new(directives)?)
}

/// Completes the filter for a process that serves the clients of tenants: it leaves out the warnings of libraries that it
/// does not name. Any client can make h2 warn with each frame, such as an answer to a PING that was never sent. These
/// lines belong to no tenant, so no rate bounds them, and they would fill the log for all tenants.
#[must_use]
pub fn bounded(filter: EnvFilter) -> EnvFilter {
    if filter.max_level_hint() == Some(LevelFilter::OFF) {
        return filter;
    }
    let asked = filter.to_string();
    let is_named = |library: &str| {
        let mut targets = asked.split(',').map(|directive| {
            let end = directive.find(['=', ':', '[']);
            end.and_then(|end| directive.get(..end))
                .unwrap_or(directive)
        });
        targets.any(|target| target == library)
    };
    let unnamed = LIBRARIES.into_iter().filter(|library| !is_named(library));
    let errors: Vec<Directive> = unnamed
        .filter_map(|library| format!("{library}=error").parse().ok())
        .collect();
    errors.into_iter().fold(filter, EnvFilter::add_directive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_say_nothing_below_errors_unless_they_are_named() {
        let bounded = |filter: &str| {
            let filter = bounded(EnvFilter::new(filter)).to_string();
            let mut all: Vec<_> = filter.split(',').map(str::to_owned).collect();
            all.sort();
            all.join(",")
        };
        assert_eq!(bounded("info"), "h2=error,hyper=error,info");
        assert_eq!(bounded("debug,h2=debug"), "debug,h2=debug,hyper=error");
        let module = "info,h2::proto=trace";
        assert_eq!(bounded(module), "h2::proto=trace,hyper=error,info");
        assert_eq!(
            bounded("warn,h20=info"),
            "h20=info,h2=error,hyper=error,warn"
        );
        assert_eq!(bounded("off"), "off");
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        let asked = [
            "info",
            "WARN",
            "off",
            "info,access=debug",
            "kube_client=error,kube_runtime=error,debug",
            "access[{listener=a}]=trace",
        ];
        for directives in asked {
            let made = filter(directives);
            assert!(made.is_ok(), "{directives}: {made:?}");
        }
        for (directives, word) in [
            ("warning", "warning"),
            ("kube_client=error,inof", "inof"),
            ("info, access", "access"),
        ] {
            let error = filter(directives).unwrap_err().to_string();
            let start = format!("RUST_LOG: {word:?} is no level; write off, error,");
            assert!(error.starts_with(&start), "{error}");
        }
        let error = filter("info,access=loud").unwrap_err();
        assert!(matches!(error, FilterError::Unreadable(_)), "{error}");
    }
}
