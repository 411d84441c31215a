#!/usr/bin/env bash
# A language from its text to scores, in about half an hour on two cores. From 150,000 Korean film reviews (NSMC):
# a vocabulary, a corpus, and a small BERT pretrained on two ranks. It then learns to tell praise from blame (NSMC) and
# to find names (KLUE-NER), and transformers loads both. docs/languages.md explains the steps and gives the scores.
#
#   examples/korean.sh NSMC_FOLDER KLUE_FOLDER [OUTPUT_FOLDER]
#
# NSMC_FOLDER has ratings_train.txt and ratings_test.txt; KLUE_FOLDER has train.tsv and dev.tsv, a character and its tag
# in each line. The same call again goes on where the last one stopped. PRETRAINING_STEPS and TRANSFORMERS_PYTHON (a
# Python with transformers and PyTorch) may be set.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
nsmc=$(realpath "$1") klue=$(realpath "$2") out=${3:-korean}
steps=${PRETRAINING_STEPS:-8000}
transformers_python=${TRANSFORMERS_PYTHON:-python}
# The last step needs it, half an hour from now.
"$transformers_python" -c 'import torch, transformers' 2> /dev/null || {
  echo "korean.sh: $transformers_python has no PyTorch or no transformers, which the last step needs: set" \
    "TRANSFORMERS_PYTHON to a Python that has both (python -m venv torch; torch/bin/pip install torch transformers)" >&2
  exit 1
}
mkdir -p "$out" && cd "$out"

step() { echo; echo "== $1 (after $((SECONDS / 60)) min $((SECONDS % 60)) s)"; }

step "text: a review per line; every 50th is held out"
tail -n +2 "$nsmc/ratings_train.txt" | cut -f2 > reviews.txt
awk 'NR % 50 != 0' reviews.txt > train.txt
awk 'NR % 50 == 0' reviews.txt > held_out.txt

step "vocabulary"
[[ -e vocab/vocab.txt ]] ||
  bert-corpus vocab --input_file train.txt --document_separator line --vocab_size 8000 --nodo_lower_case --output_dir vocab

step "corpus: rows of 64 tokens, filled with reviews that have nothing to do with each other"
corpus=(bert-corpus build --document_separator line --vocab_file vocab/vocab.txt --nodo_lower_case --nonext_sentence
  --max_seq_length 64)
"${corpus[@]}" --input_file train.txt --masked_lm_prob 0.4 --max_predictions_per_seq 26 --output_dir shards
"${corpus[@]}" --input_file held_out.txt --max_predictions_per_seq 10 --output_dir held_out

step "pretraining"
bert-launch -np 2 -- bert-pretraining --bert_config_file "$here/korean.json" --input_file 'shards/*.arrow' \
  --eval_input_file 'held_out/*.arrow' --do_train --do_eval --max_seq_length 64 --global_batch_size 32 \
  --num_train_steps "$steps" --num_warmup_steps $((steps / 8)) --learning_rate 6e-4 --precision bf16 \
  --eval_steps $((steps / 4)) --output_dir pretrained

step "reviews: praise or blame"
bert-launch -np 2 -- bert-classifier --task_name nsmc --data_dir "$nsmc" --model pretrained/model --do_train --do_eval \
  --max_train_examples 50000 --max_seq_length 64 --global_batch_size 64 --learning_rate 2e-4 --num_train_epochs 2 \
  --precision bf16 --output_dir reviews

step "names"
bert-launch -np 2 -- bert-tagger --characters --train_file "$klue/train.tsv" --dev_file "$klue/dev.tsv" \
  --model pretrained/model --do_train --do_eval --global_batch_size 32 --learning_rate 4e-4 --num_train_epochs 8 \
  --precision bf16 --output_dir names

step "transformers"
"$transformers_python" - <<'PYTHON'
from transformers import pipeline

classify = pipeline("text-classification", model="reviews/model")
for text in ["배우들 연기가 정말 좋았고 다시 보고 싶다", "시간이 아깝다 지루하고 재미없다"]:
    print(text, classify(text))
tag = pipeline("token-classification", model="names/model", aggregation_strategy="first")
text = "경찰은 서울에서 박 씨 등 3명을 입건했다."
print(text, [(text[entity["start"] : entity["end"]], entity["entity_group"]) for entity in tag(text)])
PYTHON
step "done: $out/reviews/report.html and $out/names/report.html"
