#!/bin/bash
@@header
#
#   sbatch @@name.slurm.sh            submit; run it from the folder that relative paths start at
#   scancel --signal=TERM JOB         save and go back to the queue
#   scancel JOB                       save and end
#   tail -f @@shown/host-*.log
#
# One process on each node, which it has to itself. SIGTERM, which comes @@grace seconds before the time limit and with a
# preemption, makes `ptm train` save and exit with 143: the job is queued again and goes on where it was. After a preemption,
# `scontrol requeue` or `scancel`, Slurm waits GraceTime or KillWait seconds (`scontrol show config`) for the save.
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
# The number of a study's last task is also the number of the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
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

# Whether Slurm itself ends the job: after `scancel`, `scontrol requeue` or a preemption.
ending() {
  case $(scontrol show job "$job" 2> /dev/null) in
    '' | *JobState=RUNNING* | *Reason=TimeLimit*) return 1 ;;
  esac
}

# A SIGTERM to this shell alone goes to the tasks through Slurm, because `srun` would kill them.
trap 'ending || scancel --signal=TERM "$job" 2> /dev/null &' TERM
srun --kill-on-bad-exit=1 bash -c "$host" host "${train[@]}" > /dev/null &
step=$!
while kill -0 "$step" 2> /dev/null; do wait "$step"; done

outcome=failed statuses=$(cat "$PTM_LOGS"/status/* 2> /dev/null)
if [ "$(wc -w <<< "$statuses")" -eq @@hosts ] && ! grep -qvxE '0|143' <<< "$statuses"; then
  outcome=saved
  rm -f "$PTM_LOGS/failures"
  if ! grep -qx 143 <<< "$statuses"; then
    echo "$(date '+%F %T') done"
    exit 0
  fi
fi
if ending; then
  echo "$(date '+%F %T') $outcome; Slurm ended the job, and queues it again unless it was cancelled"
  exit 143
fi
if [ "$outcome" = failed ]; then
  echo "$(date '+%F %T') job $job" >> "$PTM_LOGS/failures"
  tail -n 5 "$PTM_LOGS"/host-*.log
  if [ "$(wc -l < "$PTM_LOGS/failures")" -gt @@retries ]; then
    echo "$(date '+%F %T') failed more than @@retries times"
    exit 1
  fi
fi
echo "$(date '+%F %T') $outcome; queued again"
exec scontrol requeue "$job"
