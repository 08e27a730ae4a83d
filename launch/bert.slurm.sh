#!/bin/bash
# ptm launch slurm configs/bert.py --workdir runs/bert --data prepared --topology h100x16 --hours 12 --partition gpu
#
#   sbatch bert.slurm.sh            submit; run it from the folder that relative paths start at
#   scancel --signal=TERM JOB         save and go back to the queue
#   tail -f runs/bert/launch/host-*.log
#
# One process on each node, which it has to itself. SIGTERM, which comes 300 seconds before the time limit and with a
# preemption, makes `ptm train` save and exit with 143: the job is queued again and goes on where it was.
#SBATCH --job-name=bert
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --time=0-12:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=bert-%j.log
set -uo pipefail

export PTM_LOGS=runs/bert/launch
train=(ptm train configs/bert.py --workdir runs/bert --data prepared)

mkdir -p "$PTM_LOGS/status"
rm -f "$PTM_LOGS"/status/*
JAX_COORDINATOR_ADDRESS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 20000))
export JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES=2

# The script of every node. It writes the exit status to a file: after a failure Slurm ends the other nodes, whose status
# then has no meaning.
IFS= read -r -d '' host <<'PTM_END'
export JAX_PROCESS_ID=$SLURM_PROCID
log=$PTM_LOGS/host-$SLURM_PROCID.log
# Run the command given as arguments, hand SIGTERM on to it and wait until it has saved; its output also goes to $log.
child='' asked=''
trap 'asked=1; [ -z "$child" ] || kill -TERM "$child"' TERM
mkdir -p "${log%/*}"
"$@" > >(trap '' TERM; exec tee -a "$log") 2>&1 &
child=$!
[ -z "$asked" ] || kill -TERM "$child"
while :; do
  asked=''
  wait "$child"
  status=$?
  [ -n "$asked" ] || break # else it was the signal that ended the waiting
done
echo "$status" > "$PTM_LOGS/status/$SLURM_PROCID"
[ "$status" -eq 0 ] || [ "$status" -eq 143 ] || exit "$status"
PTM_END

step=''
trap '[ -z "$step" ] || kill -TERM "$step"' TERM
srun --kill-on-bad-exit=1 bash -c "$host" host "${train[@]}" > /dev/null &
step=$!
while kill -0 "$step" 2> /dev/null; do wait "$step"; done

found=$(cat "$PTM_LOGS"/status/* 2> /dev/null)
if [ "$(wc -w <<< "$found")" -eq 2 ] && ! grep -qvxE '0|143' <<< "$found"; then
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
if [ "$(wc -l < "$PTM_LOGS/failures")" -le 3 ]; then
  echo "$(date '+%F %T') failed; queued again"
  exec scontrol requeue "$SLURM_JOB_ID"
fi
echo "$(date '+%F %T') failed more than 3 times"
exit 1
