//! Regular expressions of routes, with bounds on their cost. A tenant writes the expression, and a client chooses the
//! value that is matched. Neither of them may slow down others.
//!
//! A pattern is compiled in advance to a complete deterministic automaton (DFA). So matching takes one step for each
//! byte, and ends as soon as nothing can match any more, for every pattern and every value. There is no backtracking,
//! no simulation of sets of states, and no cache to fill. A pattern with too large an automaton is refused in the
//! object that has it (`[01]*1[01]{600}` would need 2⁶⁰⁰ states). [`Steps`] bounds the cost of all matches for one
//! request.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};
use regex_syntax::hir::{Hir, Look};

/// How many bytes the automaton of one pattern may take. This is enough for about a thousand states.
pub const MAX_PATTERN: usize = 64 << 10;
/// How many bytes the nondeterministic automaton may take, from which the other is made. Together with the bound on the
/// memory for making it, this also bounds the time to compile a pattern: a few milliseconds at worst.
const MAX_NFA: usize = 64 << 10;
const MAX_DETERMINIZING: usize = 256 << 10;
/// How deeply groups may be nested in a pattern.
const MAX_NESTING: u32 = 32;

/// A regular expression that compiles within the bounds. It has RE2's syntax as in Rust's `regex`, and works on bytes
/// (`\w` and the like are ASCII). Compile it to a [`Matcher`] to match with it.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Arc<str>,
    size: usize,
}

impl Pattern {
    /// Reads a pattern, and checks that it compiles within the bounds.
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

    /// How many bytes a [`Matcher`] of it takes.
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
        // The end anchor is added to the parsed expression and not to the text. So a pattern such as `a|b` cannot
        // escape it.
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

    /// How many bytes it takes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.automaton.memory_usage()
    }

    /// Whether it matches the whole of `value`. Each byte that is read takes one of the `steps`. If they run out, the
    /// result is false.
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

/// The budget for finding the rule that takes one request, in steps of about three nanoseconds. A step takes longer if the
/// automata do not fit into the fastest cache of the processor.
///
/// The number of states of a pattern does not count, because a deterministic automaton is in one state at a time. What
/// counts is the bytes that are read, once for each pattern that reads them. One automaton for all patterns of a route
/// would read them once. But some patterns do not fit into one automaton of any bounded size (`.*a.*`, `.*b.*` and so on
/// need 2ⁿ states), and a hostname may have many routes. So only a budget bounds the cost for every configuration.
#[derive(Debug)]
pub struct Steps {
    left: Cell<u32>,
    /// Whether more steps were needed than were left.
    ran_out: Cell<bool>,
}

impl Steps {
    /// The budget of one request: about one millisecond. It is enough for all 128 matches of a route with regular
    /// expressions that read a path of 2,000 bytes to its end.
    pub const OF_A_REQUEST: u32 = 1 << 18;
    /// The steps that a request may take at once, before it waits for its turn: about 12 microseconds. Few requests need
    /// more. A turn of the gate lets 64 requests pass, or one search with the whole budget. So all requests of a turn
    /// together take as many steps as one such search.
    pub const AT_ONCE: u32 = Self::OF_A_REQUEST / 64;
    /// By how much the next try of a search has more steps, if they ran out in the one before.
    pub const GROWTH: u32 = 8;

    /// A budget of `left` steps.
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

    /// Takes some steps. If there are not as many, it returns false, and none is left.
    pub fn take(&self, steps: u32) -> bool {
        match self.left.get().checked_sub(steps) {
            Some(left) => self.left.set(left),
            None => self.run_out(),
        }
        !self.ran_out.get()
    }

    /// Whether more steps were needed than there were. Then the result of the search is not valid.
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

/// Why a text is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is not in RE2's syntax.
    #[error("is not a regular expression in RE2's syntax")]
    Syntax,
    /// It takes too many bytes when it is compiled.
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

    /// The remedy for the author.
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
