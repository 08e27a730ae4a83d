#!/bin/bash
@@header
# `--run` does the same, marks each host's output, hands signals on and ends all when one fails.
set -u
@@exports
@@setup
train=(@@train)
for ((host = 0; host < @@hosts; host++)); do
  JAX_PROCESS_ID=$host "${train[@]}" &
done
wait
