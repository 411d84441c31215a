#!/usr/bin/env bash
# From questions and paragraphs to a search by meaning, on two ranks: pairs, a first model, the paragraphs that it takes
# for answers though they are none, a model that has learned from these, and the paragraphs' vectors.
# docs/semantic_search.md explains the steps.
#
#   examples/semantic_search.sh SQUAD_FOLDER MODEL [OUTPUT_FOLDER]
#
# SQUAD_FOLDER has train-v1.1.json and dev-v1.1.json; MODEL is a folder or a name of the hub. The same call again goes on
# where the last one stopped. TRAIN_FLAGS may set other flags of the trainings.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
squad=$(realpath "$1") model=$2 out=${3:-search}
[[ ! -d $model ]] || model=$(realpath "$model")
mkdir -p "$out" && cd "$out"
read -ra more <<< "${TRAIN_FLAGS:---num_train_epochs 1}"
train=(bert-launch -np 2 -- bert-embedder --model "$model" --do_train --global_batch_size 64 --max_seq_length 256
  --max_query_length 64 "${more[@]}")

echo "== pairs, and documents to search"
python "$here/squad_pairs.py" "$squad/train-v1.1.json" > train.jsonl
python "$here/squad_pairs.py" "$squad/dev-v1.1.json" > dev.jsonl
python "$here/squad_pairs.py" "$squad/dev-v1.1.json" --documents > documents.jsonl

echo "== a first model, and hard negatives"
"${train[@]}" --train_file train.jsonl --predict_file train.jsonl --do_predict --num_negatives 2 --relative_margin 0.05 \
  --output_dir first

echo "== the model, its scores, and the vectors of the documents"
"${train[@]}" --train_file first/mined.jsonl --dev_file dev.jsonl --do_eval --predict_file documents.jsonl --do_predict \
  --prompt_name document --output_dir model

echo "== questions"
python "$here/search_texts.py" model < "${QUESTIONS:-/dev/stdin}"
