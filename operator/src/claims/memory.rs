//! Claims that are kept in memory alone: for `vestibule run`, where nothing survives the process anyway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vestibule_model::claim::ClaimKey;

use super::Time;
use super::book::Book;
use super::slab::Outcome;
use crate::translate::Standing;

/// A book whose writes are made at once.
#[derive(Debug)]
pub struct Memory {
    book: Book,
    version: u64,
}

impl Memory {
    /// Empty memory.
    #[must_use]
    pub fn new(grace: Duration, time: Time) -> Self {
        let mut book = Book::new(grace);
        book.begin(time);
        book.lead(true, time);
        Self { book, version: 0 }
    }

    /// Takes what translation says (nothing, if only time has passed), and returns what it is to be told.
    pub fn take(
        &mut self,
        standings: BTreeMap<ClaimKey, Option<Standing>>,
        time: Time,
    ) -> BTreeMap<ClaimKey, Option<Arc<str>>> {
        self.book.translated(standings, time);
        self.book.pass(time);
        // Nothing is gained by gathering.
        let soon = Time {
            now: time.now + Duration::from_mins(1),
            ..time
        };
        while let Some(write) = self.book.next_write(soon.now, |_| Some("".into())) {
            self.version += 1;
            let seen = write.stored(self.version);
            let gone = seen.is_none();
            self.book.done(&write.name, Outcome::Written(seen), time);
            if gone {
                // There is no watch to show it.
                self.book.observe(&write.name, None, time);
            }
        }
        self.book.take_news()
    }

    /// When it is to be asked again.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.book.deadline()
    }
}
