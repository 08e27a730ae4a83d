#!/bin/bash
# ptm launch local configs/megatron_lm.py --workdir runs/8b --data prepared --hosts 2 --devices 4 --mesh data=2,model=4 --rules megatron
# `--run` does the same, marks each host's output, hands signals on and ends all when one fails.
set -u
export JAX_PLATFORMS=cpu
export JAX_NUM_CPU_DEVICES=4
export JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo
export JAX_COORDINATOR_ADDRESS=127.0.0.1:29400
export JAX_NUM_PROCESSES=2
train=(ptm train configs/megatron_lm.py --workdir runs/8b --data prepared --mesh data=2,model=4 --rules megatron)
for ((host = 0; host < 2; host++)); do
  JAX_PROCESS_ID=$host "${train[@]}" &
done
wait
