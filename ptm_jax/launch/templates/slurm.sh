#!/bin/bash
@@header
#
#   sbatch @@name.slurm.sh            submit; run it from the folder that relative paths start at
#   scancel --signal=TERM JOB         save and go back to the queue
#   tail -f @@shown/host-*.log
#
# One process on each node, which it has to itself. SIGTERM, which comes @@grace seconds before the time limit and with a
# preemption, makes `ptm train` save and exit with 143: the job is queued again and goes on where it was.
#SBATCH --job-name=@@name
#SBATCH --nodes=@@hosts
#SBATCH --ntasks=@@hosts
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
@@options
#SBATCH --time=@@time
#SBATCH --signal=@@signal
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=@@name-%j.log
set -uo pipefail

export PTM_LOGS=@@logs
train=(@@train)
@@study
@@exports
@@setup

mkdir -p "$PTM_LOGS/status"
rm -f "$PTM_LOGS"/status/*
JAX_COORDINATOR_ADDRESS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 20000))
export JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES=@@hosts

# The script of every node. It writes the exit status to a file: after a failure Slurm ends the other nodes, whose status
# then has no meaning.
IFS= read -r -d '' host <<'@@end'
export JAX_PROCESS_ID=$SLURM_PROCID
log=$PTM_LOGS/host-$SLURM_PROCID.log
@@host
echo "$status" > "$PTM_LOGS/status/$SLURM_PROCID"
[ "$status" -eq 0 ] || [ "$status" -eq 143 ] || exit "$status"
@@end

step=''
trap '[ -z "$step" ] || kill -TERM "$step"' TERM
srun --kill-on-bad-exit=1 bash -c "$host" host "${train[@]}" > /dev/null &
step=$!
while kill -0 "$step" 2> /dev/null; do wait "$step"; done

found=$(cat "$PTM_LOGS"/status/* 2> /dev/null)
if [ "$(wc -w <<< "$found")" -eq @@hosts ] && ! grep -qvxE '0|143' <<< "$found"; then
  rm -f "$PTM_LOGS/failures"
  if grep -qx 143 <<< "$found"; then
    echo "$(date '+%F %T') saved; queued again"
    exec scontrol requeue "$SLURM_JOB_ID"
  fi
  echo "$(date '+%F %T') done"
  exit 0
fi
echo "$(date '+%F %T') job $SLURM_JOB_ID" >> "$PTM_LOGS/failures"
tail -n 5 "$PTM_LOGS"/host-*.log
if [ "$(wc -l < "$PTM_LOGS/failures")" -le @@retries ]; then
  echo "$(date '+%F %T') failed; queued again"
  exec scontrol requeue "$SLURM_JOB_ID"
fi
echo "$(date '+%F %T') failed more than @@retries times"
exit 1
