#!/bin/bash
@@header
#
#   bash @@name.tpu_vm.sh     asks for the slice, starts the run, and stays to look after it
#
# Stop it with Ctrl-C: the run saves, its logs are fetched and the slice is given back. If this script is lost, the run goes
# on; call the script again to look after it. A slice that is preempted is asked for again, and the run goes on from its
# last checkpoint.
set -uo pipefail

name=@@name
hosts=@@hosts
retries=@@retries
grace=@@grace
poll=${PTM_POLL:-60}
logs=$name-logs
where=(--project=@@project --zone=@@zone --quiet)
slice=(@@slice)
nodes=(@@nodes)
files=$(mktemp -d)
copied=(@@copied)
trap 'rm -rf "$files"' EXIT

# What every worker runs.
cat > "$files/ptm-run.sh" <<'@@end'
cd || exit 1
echo $$ > ptm.pid
finish() { echo "$1" > ptm.status.new && mv ptm.status.new ptm.status; exit "$1"; }
@@mounted
@@exports
@@setup
set -- @@train
worker=$(curl -sf -H 'Metadata-Flavor: Google' \
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number) || worker=$(hostname)
log=@@logs/@@{remote}host-$worker.log
@@host
finish "$status"
@@end
@@config

say() { printf '%s %s\n' "$(date '+%F %T')" "$*"; }
pause() { sleep "$1" & wait $!; }
queued() { gcloud compute tpus queued-resources "$1" "$name" "${where[@]}" "${@:2}"; }
state() { queued describe --format='value(state.state)' 2> /dev/null || echo NONE; }
everywhere() {
  local index failed=0
  for index in "${!nodes[@]}"; do
    gcloud compute tpus tpu-vm ssh "${nodes[index]}" "${where[@]}" --worker=all \
      --command="export PTM_SLICE=$index; $1" < /dev/null || failed=1
  done
  return "$failed"
}

# One word for each worker that answers: new, running, lost, or how its run ended.
statuses() {
  # shellcheck disable=SC2016 # the workers are to expand it
  everywhere 'if [ -f ptm.status ]; then echo "ptm-status=$(cat ptm.status)"
    elif ! [ -f ptm.pid ]; then echo ptm-status=new
    elif kill -0 "$(cat ptm.pid)" 2> /dev/null; then echo ptm-status=running
    else echo ptm-status=lost; fi' 2> /dev/null | grep -oE 'ptm-status=[a-z0-9]+' | cut -d= -f2
}

start() {
  local node
  for node in "${nodes[@]}"; do
    gcloud compute tpus tpu-vm scp "$files/ptm-run.sh" "${copied[@]}" "$node:" "${where[@]}" --worker=all || return 1
  done
  # The number is written here too: a host that starts slowly must not look new, and be started twice.
  # shellcheck disable=SC2016 # the workers are to expand it
  everywhere 'rm -f ptm.status; setsid nohup bash ptm-run.sh > ptm.out 2>&1 < /dev/null & echo $! > ptm.pid; sleep 1'
}

# SIGTERM to all nodes, time to save, and the end of what is left.
stop() {
  # shellcheck disable=SC2016 # the workers are to expand it
  everywhere 'kill -TERM $(cat ptm.pid) 2> /dev/null' > /dev/null 2>&1
  everywhere "for ((i = 0; i < $grace; i++)); do kill -0 \$(cat ptm.pid) 2> /dev/null || exit 0; sleep 1; done
    kill -KILL -- -\$(cat ptm.pid)" > /dev/null 2>&1
}

collect() {
  mkdir -p "$logs"
  for index in "${!nodes[@]}"; do
    for ((worker = 0; worker < hosts / ${#nodes[@]}; worker++)); do
      gcloud compute tpus tpu-vm scp "${nodes[index]}:ptm.out" \
        "$logs/attempt-$attempt-@@{label}host-$worker.log" "${where[@]}" --worker="$worker" 2> /dev/null
    done
  done
  say "logs of attempt $attempt lie in $logs"
}

release() { say "giving the slice back"; queued delete --force; }

failed() {
  failures=$((failures + 1))
  if [ "$failures" -gt "$retries" ]; then
    say "failed more than $retries times"
    release
    exit 1
  fi
}

interrupted() {
  trap '' INT TERM
  say "stopping: the run saves"
  stop
  collect
  release
  exit 143
}

attempt=0 failures=0
trap interrupted INT TERM
while :; do
  now=$(state)
  case $now in
    ACTIVE) ;;
    NONE)
      say "asking for the slice"
      queued create @@node "${slice[@]}" || exit 1
      pause "$poll"
      continue
      ;;
    FAILED)
      say "the request failed"
      failed
      release
      continue
      ;;
    SUSPENDED)
      say "preempted"
      release
      continue
      ;;
    *)
      say "the slice is $now"
      pause "$poll"
      continue
      ;;
  esac
  found=$(statuses)
  if [ "$(wc -w <<< "$found")" -ne "$hosts" ]; then
    say "not all workers answer"
  elif ! grep -qvx new <<< "$found"; then
    attempt=$((attempt + 1))
    say "attempt $attempt"
    start || failed
  elif ! grep -qvx 0 <<< "$found"; then
    say "done"
    collect
    release
    exit 0
  elif grep -qx lost <<< "$found" || ! grep -qvxE '0|143' <<< "$found"; then
    say "stopped; going on from the last checkpoint"
    stop
    collect
    everywhere 'rm -f ptm.status ptm.pid'
    continue
  elif grep -qvxE '0|143|running' <<< "$found"; then
    say "a worker failed"
    stop
    collect
    failed
    everywhere 'rm -f ptm.status ptm.pid'
    continue
  fi
  pause "$poll"
done
