#!/usr/bin/env bash
# Sets everything up in .venv, fine-tunes a small BERT on 2 ranks of this machine in a few minutes, and shows what it
# learned. Training needs no network. A second call skips what is done. Arguments are passed to bert-squad
# (--seed 2). QUICKSTART_DIR sets the folder for data and run (default: quickstart, with the arguments appended).
# A wheel has this script in share/ringbert/scripts; it then takes the active environment, and the current folder.
set -euo pipefail
share=$(cd "$(dirname "$0")/.." && pwd)
if [[ -f $share/pyproject.toml ]]; then
  cd "$share"
  source scripts/environment.sh
  make_environment cpu,mpi
fi
suffix=$(printf '%s' "$*" | tr -cs 'A-Za-z0-9' '-')
out=${QUICKSTART_DIR:-quickstart$suffix}

run() { echo "+ $*"; "$@"; }
run python "$share/scripts/make_docs_squad.py" "$out/data"
squad=(bert-squad --config "$share/configs/quickstart.toml" --device cpu
  --bert_config_file "$out/data/bert_config.json" --vocab_file "$out/data/vocab.txt"
  --train_file "$out/data/train.json" --predict_file "$out/data/dev.json" "$@")

# The untrained model: one step at rate 0.
run "${squad[@]}" --output_dir "$out/untrained" --learning_rate 0 --num_train_epochs 1 --max_train_examples 32
run bert-launch -np 2 -- "${squad[@]}" --output_dir "$out/trained"
run python "$share/scripts/quickstart_summary.py" "$out"
