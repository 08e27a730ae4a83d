#!/bin/bash
# ptm launch slurm configs/megatron_lm.py --workdir runs/8b --data prepared --topology h200x512 --mesh data=64,model=8 --rules megatron --partition gpu --account ACCOUNT
#
#   sbatch megatron-lm.slurm.sh            submit; run it from the folder that relative paths start at
#   scancel --signal=TERM JOB         save and go back to the queue
#   scancel JOB                       save and end
#   tail -f runs/8b/launch/host-*.log
#
# One process on each node, which it has to itself. SIGTERM, which comes 300 seconds before the time limit and with a
# preemption, makes `ptm train` save and exit with 143: the job is queued again and goes on where it was. After a preemption,
# `scontrol requeue` or `scancel`, Slurm waits GraceTime or KillWait seconds (`scontrol show config`) for the save.
#SBATCH --job-name=megatron-lm
#SBATCH --nodes=64
#SBATCH --ntasks=64
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --account=ACCOUNT
#SBATCH --time=1-00:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=megatron-lm-%j.log
set -uo pipefail

export PTM_LOGS=runs/8b/launch
train=(ptm train configs/megatron_lm.py --workdir runs/8b --data prepared --mesh data=64,model=8 --rules megatron)

mkdir -p "$PTM_LOGS/status"
rm -f "$PTM_LOGS"/status/*
# The number of a study's last task is also the number of the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
JAX_COORDINATOR_ADDRESS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 20000))
export JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES=64

# The script of every node. It writes the exit status to a file: after a failure Slurm ends the other nodes, whose status
# then has no meaning.
IFS= read -r -d '' host <<'PTM_END'
export JAX_PROCESS_ID=$SLURM_PROCID
log=$PTM_LOGS/host-$SLURM_PROCID.log
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
echo "$status" > "$PTM_LOGS/status/$SLURM_PROCID"
[ "$status" -eq 0 ] || [ "$status" -eq 143 ] || exit "$status"
PTM_END

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
if [ "$(wc -w <<< "$statuses")" -eq 64 ] && ! grep -qvxE '0|143' <<< "$statuses"; then
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
  if [ "$(wc -l < "$PTM_LOGS/failures")" -gt 3 ]; then
    echo "$(date '+%F %T') failed more than 3 times"
    exit 1
  fi
fi
echo "$(date '+%F %T') $outcome; queued again"
exec scontrol requeue "$job"
