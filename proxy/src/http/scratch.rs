//! Owns the buffer of each thread into which bytes are read that are used at once, so that nothing that waits holds a buffer.

use std::cell::RefCell;

/// Most bytes that are read at one time.
pub(super) const SCRATCH: usize = 16 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

/// Calls `use_it` with the buffer of this thread. It must not call this function again.
pub(super) fn with_scratch<R>(use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    BUFFER.with_borrow_mut(|buffer| use_it(buffer))
}
