//! Owns values to which the rest of a snapshot refers by number. A value can so be replaced without building anything
//! else again: a route has the slots of its backends, and an edit of a backend's endpoints replaces one value.
//!
//! A [`SlotMap`] is persistent: cloning it costs almost nothing, and a clone never changes. So a slot that is freed can
//! be given to another value at once, because holders of an older map still find the older value there.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use rpds::VectorSync;

/// The number of a value in the [`SlotMap`] of the same snapshot. It has no meaning in another snapshot.
pub(crate) struct Slot<T> {
    index: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Slot<T> {
    fn new(index: u32) -> Self {
        Self {
            index,
            of: PhantomData,
        }
    }

    fn index(self) -> usize {
        self.index as usize
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slot<T> {}

impl<T> PartialEq for Slot<T> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl<T> Eq for Slot<T> {}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.index)
    }
}

/// Values by slot.
pub(crate) struct SlotMap<T> {
    values: VectorSync<Option<Arc<T>>>,
}

impl<T> Clone for SlotMap<T> {
    fn clone(&self) -> Self {
        Self {
            values: self.values.clone(),
        }
    }
}

impl<T> Default for SlotMap<T> {
    fn default() -> Self {
        Self {
            values: VectorSync::new_sync(),
        }
    }
}

impl<T> SlotMap<T> {
    /// The value in `slot`, if there is one.
    pub(crate) fn get(&self, slot: Slot<T>) -> Option<&Arc<T>> {
        self.values.get(slot.index())?.as_ref()
    }

    /// Replaces the value in `slot`; `None` empties it.
    pub(crate) fn set(&mut self, slot: Slot<T>, value: Option<Arc<T>>) {
        while self.values.len() <= slot.index() {
            self.values.push_back_mut(None);
        }
        self.values.set_mut(slot.index(), value);
    }
}

/// Allocates slots. There is one allocator for all versions of a [`SlotMap`].
#[derive(Debug)]
pub(crate) struct SlotAllocator<T> {
    next: u32,
    free: Vec<Slot<T>>,
}

impl<T> Default for SlotAllocator<T> {
    fn default() -> Self {
        Self {
            next: 0,
            free: Vec::new(),
        }
    }
}

impl<T> SlotAllocator<T> {
    /// A slot that is not in use.
    pub(crate) fn allocate(&mut self) -> Slot<T> {
        self.free.pop().unwrap_or_else(|| {
            let slot = Slot::new(self.next);
            self.next += 1;
            slot
        })
    }

    /// Frees a slot to which the next snapshot does not refer.
    pub(crate) fn free(&mut self, slot: Slot<T>) {
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_map_keeps_its_values_when_a_slot_is_used_again() {
        let mut allocator = SlotAllocator::default();
        let mut map = SlotMap::default();
        let slots: Vec<Slot<String>> = (0..100).map(|_| allocator.allocate()).collect();
        for (n, slot) in slots.iter().enumerate() {
            map.set(*slot, Some(Arc::new(n.to_string())));
        }
        let older = map.clone();
        map.set(slots[7], None);
        assert_eq!(map.get(slots[7]), None);
        allocator.free(slots[7]);
        let again = allocator.allocate();
        assert_eq!(again, slots[7]);
        map.set(again, Some(Arc::new("another".to_owned())));
        assert_eq!(**map.get(again).unwrap(), "another");
        assert_eq!(**older.get(slots[7]).unwrap(), "7");
        assert_eq!(**map.get(slots[99]).unwrap(), "99");
    }

    #[test]
    fn a_slot_without_a_value_is_empty() {
        let mut allocator = SlotAllocator::<String>::default();
        let (first, second) = (allocator.allocate(), allocator.allocate());
        let mut map = SlotMap::default();
        assert_eq!(map.get(second), None);
        map.set(second, Some(Arc::new(String::new())));
        assert_eq!(map.get(first), None);
    }
}
