#!/bin/sh
# Submit train.py to a cluster whose head runs at $RAY_API_SERVER_ADDRESS (http://127.0.0.1:8265, where
# `ray dashboard cluster.yaml` forwards it to), and try again while it fails: it goes on from its last checkpoint.
#     ./submit.sh RUN_FOLDER 'SHARDS' [OPTIONS OF train.py]
# Needs ray[default], the version of the cluster, and its token in ~/.ray/auth_token.
set -eu
usage="usage: submit.sh RUN_FOLDER 'SHARDS' [OPTIONS OF train.py]"
out=${1:?$usage}
shards=${2:?$usage}
shift 2
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"
export RAY_API_SERVER_ADDRESS="${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}"
here=$(dirname "$0")
threads='{"env_vars": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}}'
for attempt in 1 2 3 4 5; do
  if ray job submit --working-dir "$here" --runtime-env-json "$threads" -- python train.py "'$shards'" --out "$out" "$@"; then
    exit 0
  fi
  echo "attempt $attempt failed; once more" >&2
  sleep 10
done
exit 1
