#!/bin/bash
# ptm launch tpu-vm configs/megatron_lm.py --workdir /store/8b --data /store/lm --topology v5p:8x8x8 --mesh data=64,model=8 --rules megatron --setup 'source /store/env/bin/activate' --mount 10.0.0.2:/share=/store --project PROJECT --zone us-east5-a
#
#   bash megatron-lm.tpu_vm.sh     asks for the slice, starts the run, and stays to look after it
#
# Stop it with Ctrl-C: the run saves, its logs are fetched and the slice is given back. If this script is lost, the run goes
# on; call the script again to look after it. A slice that is preempted is asked for again, and the run goes on from its
# last checkpoint.
set -uo pipefail

name=megatron-lm
hosts=128
retries=3
grace=300
poll=${PTM_POLL:-60}
logs=$name-logs
where=(--project=PROJECT --zone=us-east5-a --quiet)
slice=(--type v5p --topology 8x8x8 --runtime-version v2-alpha-tpuv5)
nodes=("$name")
files=$(mktemp -d)
copied=("$files/ptm-config.py")
trap 'rm -rf "$files"' EXIT

# What every worker runs.
cat > "$files/ptm-run.sh" <<'PTM_END'
cd || exit 1
echo $$ > ptm.pid
finish() { echo "$1" > ptm.status.new && mv ptm.status.new ptm.status; exit "$1"; }
mountpoint -q /store || { sudo mkdir -p /store && sudo mount -t nfs 10.0.0.2:/share /store; } || finish 1
export PTM_HOSTS=auto
export LIBTPU_INIT_ARGS='--xla_enable_async_all_gather=true --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true'
source /store/env/bin/activate
set -- ptm train ptm-config.py --workdir /store/8b --data /store/lm --mesh data=64,model=8 --rules megatron
worker=$(curl -sf -H 'Metadata-Flavor: Google' \
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number) || worker=$(hostname)
log=/store/8b/launch/host-$worker.log
# Run the command given as arguments, hand SIGTERM on to it and wait until it has saved; its output also goes to $log.
# A subshell waits for it and reports its process and status: `wait` loses the status of a command that ends at the same
# moment as the waiting shell gets SIGTERM, and Slurm sends it to both.
child='' asked='' status=''
trap 'asked=1; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null' TERM
mkdir -p "${log%/*}"
exec 5>&1 3< <(
  trap : TERM
  exec 4>&1
  # shellcheck disable=SC2016 # the inner shell is to expand it
  bash -c 'echo "process $$" >&4; exec "$@" 4>&- 5>&-' host "$@" > >(trap '' TERM; exec tee -a "$log" >&5 4>&-) 2>&1
  echo "status $?" >&4
)
while read -r fact number; do
  case $fact in
    status) status=$number ;;
    process)
      child=$number
      [ -z "$asked" ] || kill -TERM "$child" 2> /dev/null
      ;;
  esac
done <&3
[ -n "$status" ] || status=${asked:+143}
status=${status:-137} # the subshell was killed
finish "$status"
PTM_END
cat > "$files/ptm-config.py" <<'PTM_END'
"""Megatron-LM's GPT-2 of 8.3 billion parameters: each product over the devices of one host. Row 60.

    ptm train configs/megatron_lm.py --data 'data/*.txt.zst' --workdir runs/megatron \
        --mesh data=64,model=8 --rules megatron
    ptm train megatron_gpt2_mini --data TEXT --workdir runs/megatron_gpt2_mini
    ptm train megatron_bert_mini --data TEXT --workdir runs/megatron_bert_mini

Paper: Shoeybi et al. 2019, arXiv 1909.08053.
Data: Wikipedia, CC-Stories, RealNews and OpenWebText, 174 GB. The pattern in `data` is an example:
`--data` names your files.
Expected: WikiText-103 perplexity 10.81, LAMBADA 66.51 (2.5 billion: 12.76, 61.73; Table 3). BERT of
3.9 billion: MNLI dev 91.4, SQuAD 2.0 dev 91.2 F1, 88.5 EM, RACE test 89.5; of 336 million: 89.7,
88.1, 84.8, 83.0 (Table 5).
Measured: megatron_gpt2_mini on WikiText-2's validation text, 2% of it held out: nll 5.662; unigram
baseline 6.520 (nats per token); 22 CPU-seconds on 2 cores.
Sizes: `ptm train megatron_gpt2_1200m` and on; `megatron_bert_336m`, `megatron_bert_1300m`,
`megatron_bert_3900m`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("megatron_gpt2_8300m"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
PTM_END

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
        "$logs/attempt-$attempt-host-$worker.log" "${where[@]}" --worker="$worker" 2> /dev/null
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
      queued create --node-id="$name" "${slice[@]}" || exit 1
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
