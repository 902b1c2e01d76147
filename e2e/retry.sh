# What every script that fetches something shares. Sourced, not run.
# shellcheck shell=bash

# Runs a command until it succeeds: a server or a mirror that fails is often there again a moment later, and
# sometimes a few minutes later. It makes eight attempts, and waits 2, 4, 8, 16, 32, 64 and 64 seconds between them
# (VESTIBULE_RETRY_SECONDS is the first wait).
# What a failed attempt leaves behind is the command's own to clean up.
retry() { # what command...
    local what=$1 attempt=1 pause=${VESTIBULE_RETRY_SECONDS:-2} status
    shift
    until "$@"; do
        status=$?
        if ((attempt == 8)); then
            echo "$what: failed, $attempt attempts made" >&2
            return "$status"
        fi
        echo "$what: attempt $attempt failed; trying again in $pause s" >&2
        sleep "$pause"
        attempt=$((attempt + 1)) pause=$((pause < 64 ? pause * 2 : pause))
    done
}

# Ends in an error inside the cluster's network (e2e/cluster/run), where nothing can be fetched.
may_fetch() { # what
    [[ -n ${VESTIBULE_CLUSTER_NETWORK-} ]] || return 0
    echo "$1 is not in the cache, and inside the cluster's network nothing can be fetched:" \
        "run e2e/prepare outside of it, then this again" >&2
    return 1
}

# Runs a command without the open files that this shell has besides its input, output and errors. mmdebstrap has
# apt write to the next free descriptor by way of `sh`, and dash takes no number above 9: who starts with nine open
# files would be told "apt download failed" of packages that could be had.
closed() { (
    for fd in /proc/self/fd/*; do
        fd=${fd##*/}
        ((fd <= 2)) || exec {fd}>&-
    done
    exec "$@"
); }
