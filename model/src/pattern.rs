//! Regular expressions of routes: a tenant writes them, clients choose what they are matched against, and neither
//! may cost anybody else anything.
//!
//! A pattern is compiled to a deterministic automaton, whole and ahead of time: matching takes one step per byte and
//! stops where nothing can match any more, whatever the pattern and the value are. There is no backtracking, no set
//! of states to simulate and no cache to fill. Patterns whose automaton would be large (`[01]*1[01]{600}` would need
//! 2⁶⁰⁰ states) are refused where they are written. [`Steps`] bounds all that one request may cost.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};
use regex_syntax::hir::{Hir, Look};

/// Bytes that the automaton of one pattern may take: about a thousand states.
pub const MAX_PATTERN: usize = 64 << 10;
/// Bytes for what the automaton is made from, and for making it. They bound the time that it takes as well: some
/// milliseconds for the worst.
const MAX_NFA: usize = 64 << 10;
const MAX_DETERMINIZING: usize = 256 << 10;
/// Groups within groups in a pattern.
const MAX_NESTING: u32 = 32;

/// A regular expression that compiles within bounds: RE2's syntax, as Rust's `regex` has it, on bytes (`\w` and the
/// like are ASCII). [`Matcher`] matches by it.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Arc<str>,
    size: usize,
}

impl Pattern {
    /// Takes a pattern that compiles.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let size = Matcher::compile(text)?.size();
        Ok(Self {
            text: text.into(),
            size,
        })
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Bytes that a [`Matcher`] of it takes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// A compiled [`Pattern`]. It matches whole values only.
#[derive(Clone)]
pub struct Matcher {
    text: Arc<str>,
    automaton: Arc<dense::DFA<Vec<u32>>>,
    start: StateID,
}

impl Matcher {
    /// Compiles a pattern.
    pub fn compile(text: &str) -> Result<Self, PatternError> {
        let syntax = syntax::Config::new()
            .unicode(false)
            .utf8(false)
            .nest_limit(MAX_NESTING);
        let pattern = syntax::parse_with(text, &syntax).map_err(|_| PatternError::Syntax)?;
        // What holds the end is no text, so the pattern cannot get out of it.
        let whole = Hir::concat(vec![pattern, Hir::look(Look::End)]);
        let nfa = NFA::compiler()
            .configure(
                thompson::Config::new()
                    .utf8(false)
                    .which_captures(thompson::WhichCaptures::None)
                    .nfa_size_limit(Some(MAX_NFA)),
            )
            .build_from_hir(&whole)
            .map_err(|error| PatternError::too_large_if(error.size_limit().is_some()))?;
        let automaton = dense::Builder::new()
            .configure(
                dense::Config::new()
                    .start_kind(StartKind::Anchored)
                    .match_kind(MatchKind::All)
                    .accelerate(false)
                    .dfa_size_limit(Some(MAX_PATTERN))
                    .determinize_size_limit(Some(MAX_DETERMINIZING)),
            )
            .build_from_nfa(&nfa)
            .map_err(|error| PatternError::too_large_if(error.is_size_limit_exceeded()))?;
        let beginning = start::Config::new().anchored(Anchored::Yes);
        let start = automaton
            .start_state(&beginning)
            .map_err(|_| PatternError::Syntax)?;
        Ok(Self {
            text: text.into(),
            automaton: Arc::new(automaton),
            start,
        })
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.automaton.memory_usage()
    }

    /// Whether it matches the whole of `value`: not, if that takes more steps than are left. Each byte that is looked
    /// at is one.
    #[must_use]
    pub fn is_match(&self, value: &[u8], steps: &Steps) -> bool {
        let automaton = &*self.automaton;
        let mut state = self.start;
        let most = steps.left();
        let mut taken = 0;
        for byte in value {
            if automaton.is_dead_state(state) {
                break;
            }
            if taken == most {
                steps.run_out();
                return false;
            }
            taken += 1;
            state = automaton.next_state(state, *byte);
        }
        steps.take(taken);
        automaton.is_match_state(automaton.next_eoi_state(state))
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// How much may still be done to find out which rule takes one request, in steps of about a nanosecond or two.
#[derive(Debug)]
pub struct Steps {
    left: Cell<u32>,
    /// Whether more was asked for than was left.
    ran_out: Cell<bool>,
}

impl Steps {
    /// As many as one request has: one or two milliseconds' worth.
    pub const OF_A_REQUEST: u32 = 1 << 20;

    /// So many.
    #[must_use]
    pub fn new(left: u32) -> Self {
        Self {
            left: Cell::new(left),
            ran_out: Cell::new(false),
        }
    }

    /// How many are left.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left.get()
    }

    /// Takes some. `false`: there are not as many, and none is left.
    pub fn take(&self, steps: u32) -> bool {
        match self.left.get().checked_sub(steps) {
            Some(left) => self.left.set(left),
            None => self.run_out(),
        }
        !self.ran_out.get()
    }

    /// Whether more were asked for than there were: what was found is not to be relied on.
    #[must_use]
    pub fn have_run_out(&self) -> bool {
        self.ran_out.get()
    }

    fn run_out(&self) {
        self.left.set(0);
        self.ran_out.set(true);
    }
}

impl Default for Steps {
    fn default() -> Self {
        Self::new(Self::OF_A_REQUEST)
    }
}

/// Why a text is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Not in RE2's syntax.
    #[error("is not a regular expression in RE2's syntax")]
    Syntax,
    /// Over the bound on compiled patterns.
    #[error(
        "is a regular expression that takes more than {} KiB when it is compiled",
        MAX_PATTERN >> 10
    )]
    TooLarge,
}

impl PatternError {
    fn too_large_if(size: bool) -> Self {
        if size { Self::TooLarge } else { Self::Syntax }
    }

    /// What whoever wrote it should do.
    #[must_use]
    pub fn action(self) -> &'static str {
        match self {
            Self::Syntax => "correct it",
            Self::TooLarge => {
                "write smaller counts, such as + or * in place of {600}, or fewer parts that repeat side by side"
            }
        }
    }
}
