#!/bin/bash
# ptm launch local configs/bert.py --workdir runs/bert --data prepared --hosts 2
# `--run` does the same, marks each host's output, hands signals on and ends all when one fails.
set -u
export JAX_PLATFORMS=cpu
export JAX_NUM_CPU_DEVICES=1
export JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo
export JAX_COORDINATOR_ADDRESS=127.0.0.1:29400
export JAX_NUM_PROCESSES=2
train=(ptm train configs/bert.py --workdir runs/bert --data prepared)
for ((host = 0; host < 2; host++)); do
  JAX_PROCESS_ID=$host "${train[@]}" &
done
wait
