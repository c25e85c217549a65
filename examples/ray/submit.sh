#!/bin/sh
# Submit train.py to a cluster whose head runs at $RAY_API_SERVER_ADDRESS (such as http://127.0.0.1:8265 through
# `ray dashboard cluster.yaml`), and try again while it fails: it goes on from its last checkpoint.
set -eu
out=${1:?usage: submit.sh RUN_FOLDER 'SHARDS'}
shards=${2:?usage: submit.sh RUN_FOLDER 'SHARDS'}
here=$(dirname "$0")
for attempt in 1 2 3 4 5; do
  if ray job submit --working-dir "$here" -- python train.py "$shards" --out "$out"; then
    exit 0
  fi
  echo "attempt $attempt failed; once more" >&2
  sleep 10
done
exit 1
