#!/usr/bin/env bash
# Sets everything up in .venv, fine-tunes a small BERT on 2 ranks of this machine, offline, in a few minutes, and
# shows what it learnt. Can be run again: what is done is not done again. Arguments go to bert-squad (--seed 2).
# QUICKSTART_DIR is where the data and the run are put (default: quickstart, with the arguments behind it).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
make_environment cpu,mpi,report
suffix=$(printf '%s' "$*" | tr -cs 'A-Za-z0-9' '-')
out=${QUICKSTART_DIR:-quickstart$suffix}

run() { echo "+ $*"; "$@"; }
run python scripts/make_docs_squad.py "$out/data"
squad=(bert-squad --config configs/quickstart.toml --device cpu
  --bert_config_file "$out/data/bert_config.json" --vocab_file "$out/data/vocab.txt"
  --train_file "$out/data/train.json" --predict_file "$out/data/dev.json" "$@")

# The untrained model: one step at rate 0.
run "${squad[@]}" --output_dir "$out/untrained" --learning_rate 0 --num_train_epochs 1 --max_train_examples 32
run bert-launch -np 2 -- "${squad[@]}" --output_dir "$out/trained"
run bert-report "$out/trained"
run python scripts/quickstart_summary.py "$out"
