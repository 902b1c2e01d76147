//! The few calls into the kernel that the standard library does not offer: pinning, limits, signals.
//! The only module of the bench that uses `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Cores this process may run on, lowest first.
pub(crate) fn cores() -> Vec<usize> {
    // SAFETY: `cpu_set_t` is plain data for which all zeroes is the empty set, and the call writes at
    // most the size given.
    let (set, rc) = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        let rc = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        (set, rc)
    };
    if rc != 0 {
        return vec![0];
    }
    let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: the index stays below CPU_SETSIZE.
    (0..limit)
        .filter(|core| unsafe { libc::CPU_ISSET(*core, &set) })
        .collect()
}

/// Processor and cores.
pub(crate) fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("a machine", |name| {
        name.trim_start_matches([':', '\t', ' '])
    });
    format!("{name}, {} cores", cores().len())
}

/// Pins the child to the cores, if any are given, and has the kernel end it when this process ends however it ends.
///
/// The kernel watches the *thread* that spawned the child, so spawn from the main thread.
pub(crate) fn confine(command: &mut Command, cores: &[usize]) {
    let cores = cores.to_vec();
    // SAFETY: the closure runs between fork and exec and only makes async-signal-safe system calls.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            if cores.is_empty() {
                return Ok(());
            }
            let mut set: libc::cpu_set_t = mem::zeroed();
            for core in &cores {
                libc::CPU_SET(*core, &mut set);
            }
            if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Gives the child a place before or behind others that want the same core, from -20 (before all) to 19. Where
/// that is not allowed the child keeps the place it has.
///
/// The kernel may share cores between sessions first (autogroups), and then niceness says nothing to other
/// sessions. So the child gets a session of its own, which has the same place.
pub(crate) fn prioritise(command: &mut Command, nice: i32) {
    let text = nice.to_string();
    // SAFETY: the closure runs between fork and exec and only makes async-signal-safe system calls; the pointers are
    // to a literal that ends in a zero, and to a live text of the length given.
    unsafe {
        command.pre_exec(move || {
            libc::setpriority(libc::PRIO_PROCESS, 0, nice);
            libc::setsid();
            let file = libc::open(c"/proc/self/autogroup".as_ptr(), libc::O_WRONLY);
            if file >= 0 {
                libc::write(file, text.as_ptr().cast(), text.len());
                libc::close(file);
            }
            Ok(())
        });
    }
}

/// Raises the limit of open files as far as the machine lets us, and returns the new limit.
pub(crate) fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Above the hard limit is for root with CAP_SYS_RESOURCE only; where that fails, the hard limit.
    let above = libc::rlimit {
        rlim_cur: wanted.max(limit.rlim_max),
        rlim_max: wanted.max(limit.rlim_max),
    };
    let within = libc::rlimit {
        rlim_cur: limit.rlim_max,
        rlim_max: limit.rlim_max,
    };
    for attempt in [above, within] {
        // SAFETY: the pointer is to a live rlimit.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const attempt) } == 0 {
            return Ok(attempt.rlim_cur);
        }
    }
    Ok(limit.rlim_cur)
}

/// Asks the process to stop, or ends it.
pub(crate) fn signal(pid: u32, kill: bool) {
    let number = if kill { libc::SIGKILL } else { libc::SIGTERM };
    if let Ok(pid) = libc::pid_t::try_from(pid)
        && pid > 1
    {
        // SAFETY: no memory is passed; the pid is one of our own descendants.
        unsafe { libc::kill(pid, number) };
    }
}

/// Clock ticks per second of the times in `/proc`.
pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: no memory is passed.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// CPU used so far by this process and by the children it has waited for.
pub(crate) fn own_cpu() -> Duration {
    let mut total = Duration::ZERO;
    for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN] {
        // SAFETY: `rusage` is plain data, and the pointer is to a live one.
        let usage = unsafe {
            let mut usage: libc::rusage = mem::zeroed();
            if libc::getrusage(who, &raw mut usage) != 0 {
                continue;
            }
            usage
        };
        for time in [usage.ru_utime, usage.ru_stime] {
            total += Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
                + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0));
        }
    }
    total
}

/// Has the kernel wake the reader only once so many bytes are there (or the end).
pub(crate) fn set_low_water(socket: &impl AsRawFd, bytes: u32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<u32>()).unwrap_or(4);
    // SAFETY: the pointer is to a live integer of the length given; the descriptor is borrowed.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            length,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Moves this process and its children to come into a network namespace of their own, with nothing in
/// it but a loopback device. Needs the right to (root has it) and must come before any other thread.
pub(crate) fn own_network() -> io::Result<()> {
    // SAFETY: no memory is passed; there is no other thread yet that could be left behind.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: `ifreq` is plain data; the name is shorter than its field and ends in a zero.
    let rc = unsafe {
        let mut request: libc::ifreq = mem::zeroed();
        for (place, byte) in request.ifr_name.iter_mut().zip(*b"lo") {
            *place = libc::c_char::from_ne_bytes([byte]);
        }
        request.ifr_ifru.ifru_flags =
            libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(1);
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends up to `count` bytes of the file from its start, without a copy; returns how many.
pub(crate) fn send_file(
    socket: &impl AsRawFd,
    file: &impl AsRawFd,
    count: usize,
) -> io::Result<usize> {
    let mut offset: libc::off_t = 0;
    // SAFETY: both descriptors are borrowed, and the pointer is to a live offset.
    let sent =
        unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, count) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Waits until one of the sockets has something to read, or the time is over; a wait of zero only looks.
pub(crate) fn wait_readable(sockets: &mut [libc::pollfd], time: Duration) -> io::Result<()> {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
    };
    let count = libc::nfds_t::try_from(sockets.len()).unwrap_or(0);
    // SAFETY: the pointers are to live descriptors of the count given, and to a live time.
    let rc = unsafe {
        libc::ppoll(
            sockets.as_mut_ptr(),
            count,
            &raw const time,
            std::ptr::null(),
        )
    };
    match io::Error::last_os_error() {
        error if rc < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Has the kernel wake this thread when it asked for, and not up to 50 microseconds later.
pub(crate) fn wake_in_time() {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Sends the process the signal that Ctrl-C sends.
pub(crate) fn interrupt(pid: u32) {
    if let Ok(pid) = libc::pid_t::try_from(pid)
        && pid > 1
    {
        // SAFETY: no memory is passed; the pid is one of our own children.
        unsafe { libc::kill(pid, libc::SIGINT) };
    }
}
