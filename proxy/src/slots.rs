//! Owns a list whose free places are used again. Futures that wait on a thread have their wakers in such a list.

use std::num::NonZeroU32;

/// Values at fixed places. A value keeps its place until it is removed.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

/// A place in four bytes, because every connection has some of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(NonZeroU32);

impl Ticket {
    /// The ticket of a place. It is `None` beyond four billion places, for which there is not enough memory.
    pub(crate) fn of(place: usize) -> Option<Self> {
        let number = u32::try_from(place.checked_add(1)?).ok()?;
        NonZeroU32::new(number).map(Self)
    }

    pub(crate) fn place(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Puts `value` at a free place, and returns the place.
    pub(crate) fn insert(&mut self, value: T) -> usize {
        if let Some(place) = self.free.pop() {
            self.set(place, Some(value));
            return place;
        }
        self.entries.push(Some(value));
        self.entries.len() - 1
    }

    /// The value at `place`.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.entries.get_mut(place)?.as_mut()
    }

    /// Replaces the value at a place that [`Self::insert`] returned.
    pub(crate) fn set(&mut self, place: usize, value: Option<T>) {
        if let Some(slot) = self.entries.get_mut(place) {
            *slot = value;
        }
    }

    /// Frees a place.
    pub(crate) fn remove(&mut self, place: usize) {
        self.set(place, None);
        self.free.push(place);
    }

    /// All places that are not freed, so that values can be taken out of them.
    pub(crate) fn slots_mut(&mut self) -> impl Iterator<Item = &mut Option<T>> {
        self.entries.iter_mut()
    }

    /// Frees the memory if no place is in use, so that a burst of connections does not keep it.
    pub(crate) fn shrink(&mut self) {
        if self.free.len() == self.entries.len() {
            self.entries = Vec::new();
            self.free = Vec::new();
        }
    }

    /// How many values there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }
}
