//! Owns the settings for the memory of a process.

/// Has the kernel give this process no transparent huge pages, whatever the machine is set to.
///
/// mimalloc asks for huge pages. With them, a process that needs a few bytes more holds 2 MiB more, and waits until the kernel has
/// cleared all of it, which took 10 ms on a virtual machine and held up all connections of a worker. Without them, the
/// proxy holds half as much (ADR 27).
///
/// Where the kernel has no such setting, the process goes on as it is.
pub fn refuse_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_can_refuse_huge_pages() {
        super::refuse_huge_pages();
        assert!(rustix::thread::transparent_huge_pages_are_disabled().unwrap());
    }
}
