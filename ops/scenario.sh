# shellcheck shell=bash
# Shared by ops/demo and ops/compat: starts workers and the watchdog, and kills a
# worker in the middle of a batch. Source it after ops/lib.sh; BIN is the folder of
# the programs.

# Short times, so that a dead worker is reset within seconds. Few small batches at a
# low rate: at full speed one worker would delete all pastes before it could be
# killed. The dead worker may hold the claim lock; the others wait until it expires.
export_scenario_settings() {
  export CLEANUP_WORKER_HEARTBEAT_INTERVAL=1s CLEANUP_WATCHDOG_STUCK_AFTER=6s CLEANUP_WATCHDOG_TICK=1s
  export CLEANUP_WORKER_BATCH_SIZE=$1 CLEANUP_WORKER_CONCURRENCY=4 CLEANUP_S3_MAX_KEYS_PER_SECOND=400
  export CLEANUP_LOCK_TTL=4s
}

# Builds the programs, unless a folder that has them is passed.
find_programs() {
  BIN=${1:-}
  [[ -z $BIN ]] || return 0
  phase "cargo build"
  run cargo build --bins
  BIN=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')/debug
}

# --- reading the tables ------------------------------------------------------

sql() { psql "$DATABASE_URL" -X -q -A -t -F ' | ' -P pager=off -v ON_ERROR_STOP=1 -c "$1"; }

microseconds() { echo "${EPOCHREALTIME/[.,]/}"; }
log() {
  local tenths=$((($(microseconds) - T0) / 100000))
  printf '  T+%-5s %s\n' "$((tenths / 10)).$((tenths % 10))" "$*"
}

open_claims() { sql "SELECT count(*) FROM deletion_claims WHERE worker = '$VICTIM' AND finished_at IS NULL AND reset_at IS NULL"; }

# --- workers and watchdog ----------------------------------------------------

declare -A PIDS=()
start_worker() {
  spawn "$BIN/cleanup-worker" run --format json >"$PASTE_CLEANUP_RUN/$1.json" 2>"$PASTE_CLEANUP_RUN/$1.log"
  PIDS[$1]=$!
}

start_watchdog() {
  local port
  port=$(free_ports 1)
  export CLEANUP_WATCHDOG_LISTEN=127.0.0.1:$port
  spawn "$BIN/cleanup-watchdog" >"$PASTE_CLEANUP_RUN/watchdog.log" 2>&1
  PIDS[watchdog]=$!
  eventually 15 "the watchdog to answer" healthy
}
healthy() { python3 -c "import urllib.request; urllib.request.urlopen('http://$CLEANUP_WATCHDOG_LISTEN/healthz', timeout=2)" 2>/dev/null; }

eventually() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < deadline)) || fail "Timed out waiting for $what.$(logs)"
    sleep 0.2
  done
}
logs() { tail -n 15 "$PASTE_CLEANUP_RUN"/{worker-*,watchdog}.log 2>/dev/null | sed 's/^/  /; 1s/^/\n/'; }

# Starts a worker and kills it after it has decremented the references of a batch,
# but before it has deleted the rows: the point where a crash could do the most
# harm.
kill_a_worker() {
  local try name pid
  for try in 1 2 3 4 5; do
    name=worker-$try
    start_worker "$name"
    pid=${PIDS[$name]}
    log "$name starts"
    VICTIM=$(wait_for_batch) || fail "$name did not decrement a batch in time.$(logs)"
    PASTE=$(sql "SELECT short_code FROM pastes JOIN deletion_claims c ON c.id = claim_id WHERE c.worker = '$VICTIM' LIMIT 1")
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
    unset "PIDS[$name]"
    eventually 10 "its connections to end" disconnected
    if (($(open_claims) > 0)) && [[ -n $PASTE ]]; then
      log "${RED}kill -9 $pid$PLAIN: $name dies in the middle of its batch (open claims: $(open_claims))"
      return
    fi
    log "$name had just finished its batch when it was killed; trying again"
  done
  fail "Five workers were killed, none of them in the middle of a batch."
}
disconnected() { (($(sql "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%$VICTIM%'") == 0)); }

# Prints the UUID of a worker with a decremented batch. One statement on the
# server, so that no time is lost between the query and the kill.
wait_for_batch() {
  sql "CREATE TEMP TABLE found (worker uuid);
       DO \$\$ BEGIN
         FOR i IN 1..3000 LOOP
           INSERT INTO found SELECT worker FROM deletion_claims
             WHERE decremented_at IS NOT NULL AND finished_at IS NULL AND reset_at IS NULL LIMIT 1;
           EXIT WHEN FOUND;
           PERFORM pg_sleep(0.005);
         END LOOP;
       END \$\$;
       SELECT worker FROM found" | grep .
}

was_reset() { (($(open_claims) == 0)); }
ended() { local name; for name in "$@"; do if kill -0 "${PIDS[$name]}" 2>/dev/null; then return 1; fi; done; }
