//! Owns a list whose places are used again: what waits on a thread leaves itself in one.

use std::num::NonZeroU32;

/// Values at places that stay theirs until they are taken out.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

/// A place in four bytes, for what every connection has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(NonZeroU32);

impl Ticket {
    /// None beyond four billion places, which no memory holds.
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

    /// Puts `value` at a place of its own.
    pub(crate) fn insert(&mut self, value: T) -> usize {
        if let Some(place) = self.free.pop() {
            self.set(place, Some(value));
            return place;
        }
        self.entries.push(Some(value));
        self.entries.len() - 1
    }

    /// What is at `place`.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.entries.get_mut(place)?.as_mut()
    }

    /// Puts another value at a place that [`Self::insert`] gave.
    pub(crate) fn set(&mut self, place: usize, value: Option<T>) {
        if let Some(slot) = self.entries.get_mut(place) {
            *slot = value;
        }
    }

    /// Gives a place back.
    pub(crate) fn remove(&mut self, place: usize) {
        self.set(place, None);
        self.free.push(place);
    }

    /// Every place that is not given back, for taking values out of them.
    pub(crate) fn slots_mut(&mut self) -> impl Iterator<Item = &mut Option<T>> {
        self.entries.iter_mut()
    }

    /// Lets go of the memory if no place is in use: a burst must not keep it.
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
