# What the scripts of this folder share: names, places, and the Docker daemon. Sourced, not run.
# shellcheck shell=bash disable=SC2034 # used where it is sourced

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
cache=${VESTIBULE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vestibule}
# shellcheck source=e2e/retry.sh
source "$here/../retry.sh"

# The exit status for "not possible on this machine", which a test run counts as skipped.
readonly IMPOSSIBLE=77

say() { echo "cluster: $*" >&2; }
die() { say "$@"; exit 1; }
impossible() { say "$@"; exit "$IMPOSSIBLE"; }

tool() { "$here/../tools/get" "$1"; }
tool_version() { "$here/../tools/get" --version "$1"; }

# One cluster for each checkout, unless VESTIBULE_CLUSTER names another.
cluster_name() {
    local name=${VESTIBULE_CLUSTER:-v-$(sha256sum <<<"$repository" | cut -c1-8)}
    [[ $name =~ ^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$ ]] || die "VESTIBULE_CLUSTER is not a short DNS label: $name"
    echo "$name"
}

# --- Debian packages ---

# Installs what is missing of "command:package"; says what it lacks where it cannot.
packages() {
    local need missing=()
    for need in "$@"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${need%%:*}" >/dev/null || missing+=("${need##*:}")
    done
    ((${#missing[@]})) || return 0
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        say "not installed: ${missing[*]}"
        return 1
    fi
    say "installing ${missing[*]}"
    retry "installing ${missing[*]}" apt_install "${missing[@]}" >&2
}

apt_install() { # package...
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
}

# --- A Docker daemon of our own ---
#
# It lives in a network namespace that nothing leaves, with its own data, sockets, processes and control
# groups, so that it meets neither the machine's Docker nor another cluster's. Everything is found again
# by its name: after a crash the next run can clean up without any record.

readonly DOCKERD=/usr/sbin/dockerd DOCKER=/usr/bin/docker

# Sockets and daemon state: short paths, because a socket's path may have 108 characters at most.
daemon_run() { echo "/run/vestibule/$1"; }
daemon_netns() { echo "vestibule-$1"; }

# Whether this machine can run it, and if not, why.
daemon_possible() {
    [[ $(uname -s) == Linux ]] || { echo "not Linux"; return 1; }
    ((EUID == 0)) || { echo "not root"; return 1; }
    command -v apt-get >/dev/null || { echo "no apt-get to assemble a node image with"; return 1; }
    local probe
    probe=vestibule-probe-$$
    packages ip:iproute2 nsenter:util-linux >/dev/null 2>&1 || { echo "iproute2 cannot be installed"; return 1; }
    if ! ip netns add "$probe" 2>/dev/null; then
        echo "network namespaces cannot be made here"
        return 1
    fi
    ip netns del "$probe"
    grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || { echo "no overlay file system"; return 1; }
}

daemon_start() { # name data-root
    local name=$1 data=$2 run netns pid
    run=$(daemon_run "$name") netns=$(daemon_netns "$name")
    mkdir -p "$run" "$data"
    chmod 700 "$run"
    ip netns add "$netns"
    ip -n "$netns" link set lo up
    # Three nodes' worth of systemd and kubelet want more than the kernel's 128 instances.
    local limit
    for limit in max_user_instances:1024 max_user_watches:524288; do
        if (($(<"/proc/sys/fs/inotify/${limit%%:*}") < ${limit##*:})); then
            echo "${limit##*:}" >"/proc/sys/fs/inotify/${limit%%:*}" || true
        fi
    done
    # nsenter, not "ip netns exec": that one mounts a fresh /sys, in which control groups are gone.
    # The locks of the scripts (8, 9) are not inherited, or they would be held as long as it runs.
    setsid nsenter --net="/run/netns/$netns" "$DOCKERD" \
        --data-root "$data" --exec-root "$run/exec" --pidfile "$run/docker.pid" --host "unix://$run/docker.sock" \
        --storage-driver overlay2 --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "/$netns" \
        --add-runtime "vestibule=$here/runc" --default-runtime vestibule \
        --userland-proxy=false --bridge none --log-level warn >>"$run/dockerd.log" 2>&1 </dev/null 8>&- 9>&- &
    pid=$!
    disown
    local deadline=$((SECONDS + 60))
    until daemon_docker "$name" info >/dev/null 2>&1; do
        if ! kill -0 "$pid" 2>/dev/null || ((SECONDS >= deadline)); then
            tail -n 20 "$run/dockerd.log" >&2
            return 1
        fi
        sleep 0.1
    done
}

daemon_docker() { # name arguments...
    local name=$1
    shift
    DOCKER_HOST=unix://$(daemon_run "$name")/docker.sock "$DOCKER" "$@"
}

# The processes that belong to a daemon: those in its namespace (the daemon, its containerd and shims) and
# those in its control groups (the containers).
daemon_processes() { # name
    local netns
    netns=$(daemon_netns "$1")
    ip netns pids "$netns" 2>/dev/null || true
    find /sys/fs/cgroup -path "*/$netns/*" -name cgroup.procs -exec cat {} + 2>/dev/null || true
}

# Ends everything of that name, however much of it there is. Nothing is asked to end in good order: no
# part of it is kept.
daemon_destroy() { # name data-root
    local name=$1 data=$2 run netns pids deadline=$((SECONDS + 60))
    run=$(daemon_run "$name") netns=$(daemon_netns "$name")
    while pids=$(daemon_processes "$name" | sort -un) && [[ -n $pids ]]; do
        # shellcheck disable=SC2086 # one argument each
        kill -KILL $pids 2>/dev/null || true
        ((SECONDS < deadline)) || { say "cannot be ended: $(tr '\n' ' ' <<<"$pids")"; break; }
        sleep 0.1
    done
    awk -v run="$run" -v data="$data" '
        $5 == run || $5 == data || index($5, run "/") == 1 || index($5, data "/") == 1 {print $5}' /proc/self/mountinfo |
        sort -r |
        while read -r mount; do umount --lazy "$mount" 2>/dev/null || true; done
    [[ ! -e /run/netns/$netns ]] || ip netns del "$netns" || true
    find /sys/fs/cgroup -depth -type d \( -path "*/$netns" -o -path "*/$netns/*" \) -exec rmdir {} + 2>/dev/null || true
    rm -rf "$run" "$data"
}

# --- A cluster ---

# Everything that is kept of a cluster, under its name: how it was made, its configuration, its data.
cluster_state() { echo "$cache/clusters/$1"; }

# Address pool for Services of type LoadBalancer. It is nobody's network; kube-proxy serves it on every node.
readonly LOAD_BALANCER_POOL=172.31.240.0/24

# Sets name, state and provider of this checkout's cluster, which must be up.
the_cluster() {
    name=$(cluster_name) state=$(cluster_state "$name")
    [[ -s $state/provider ]] || die "the cluster $name is not up (e2e/cluster/up)"
    provider=$(<"$state/provider")
}

# The docker client of the provider of $name.
docker() {
    if [[ $provider == own ]]; then daemon_docker "$name" "$@"; else command docker "$@"; fi
}

# kind finds docker by name and its daemon by the environment.
# The lock of "up" is not passed on: killed, it must not stay locked by what it waited for.
kind() {
    local program
    program=$(tool kind)
    if [[ $provider == own ]]; then
        DOCKER_HOST=unix://$(daemon_run "$name")/docker.sock PATH=$state/bin:$PATH "$program" "$@" 8>&-
    else
        "$program" "$@" 8>&-
    fi
}

as_root() { if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi; }

# The process that a node's container starts with: its namespaces are under it.
node_process() { docker inspect --format '{{.State.Pid}}' "$1"; }

nodes() { cat "$state/nodes"; }
control_plane_node() { echo "$name-control-plane"; }
