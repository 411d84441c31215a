#!/usr/bin/env bash
# What a release must pass beside .ci/run: long tests by part, a line for each result, non-zero if one failed.
#
#   scripts/soak.sh deaths    every kind of death, stall and restart; after a change to collectives, world, elastic, launch
#   scripts/soak.sh hosts     three hosts, cut links, deaths across hosts (root and iproute2)
#   scripts/soak.sh simulation   a thousand seeds of faults on simulated ranks, a thousand ranks, times by ranks
#   scripts/soak.sh fuzz      10,000 damaged files of every kind
#   scripts/soak.sh install   wheel, sdist, a release on each Python, the site, notebooks, the doctor, S3, browsers, the audit
#   scripts/soak.sh gpu       the GPU wheel's kernels, JAX and XLA for GPUs; no GPU is needed
#   scripts/soak.sh rivals    PyTorch and Google's code beside ours
#   scripts/soak.sh data      memory growth with a corpus, long comparisons on real data
#   scripts/soak.sh faults    faults put into the code, each of which a test of .ci/run must see
#   scripts/soak.sh horovod   each call on two and four ranks; Horovod's own tests, where ../shared/horovod is
#   scripts/soak.sh all
set -uo pipefail
cd "$(dirname "$0")/.."
parts=(deaths hosts simulation fuzz install gpu rivals data horovod faults)
part=${1:-}
if [[ $part == all ]]; then
  status=0
  for each in "${parts[@]}"; do
    "$0" "$each" || status=1
  done
  exit $status
fi
if [[ ! " ${parts[*]} " == *" $part "* ]]; then
  echo "usage: scripts/soak.sh $(IFS='|'; echo "${parts[*]}")|all" >&2
  exit 2
fi
source scripts/environment.sh
make_environment cpu,mpi,dev || exit 1
started=$SECONDS status=0
if [[ $part == faults ]]; then
  python scripts/faults.py "${@:2}" || status=1
else
  python -m pytest "tests/soak/$part" -v -m "" -o timeout=3600 "${@:2}" || status=1
fi
if [[ $part == install ]]; then
  python scripts/audit.py || status=1
fi
echo "soak $part: $( ((status)) && echo failed || echo passed), $((SECONDS - started)) s"
exit $status
