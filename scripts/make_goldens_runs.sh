#!/usr/bin/env bash
# Made the runs in tests/goldens/0.1, by which a test sees that what version 0.1 wrote can still be read. They were
# written by version 0.1 and are never written again; this script is kept to show how they were made.
#
# data/ and the TOML files of flags are written by hand. All paths are relative to the folder, so that copies of it
# work. squad/by-steps is written by the last commit that named checkpoints by their step; it needs jsonargparse.
set -euo pipefail
cd "$(dirname "$0")/../tests/goldens/0.1"
export PATH=../../../.venv/bin:$PATH CUDA_VISIBLE_DEVICES=-1 # run.json stores how a program was called
RINGBERT_CACHE=$(mktemp -d)
export RINGBERT_CACHE
trap 'rm -rf "$RINGBERT_CACHE"' EXIT
[[ ! -e squad ]] || { echo "error: the runs exist; they are never written again" >&2; exit 1; }

# Runs a command and sends it a signal as soon as a file exists; it must then end with this status.
interrupted() { # SIGNAL STATUS FILE COMMAND ...
  local signal=$1 expected=$2 file=$3 status=0
  shift 3
  "$@" &
  until [[ -e $file ]]; do sleep 0.001; done
  kill -"$signal" $!
  wait $! || status=$?
  ((status == expected)) || { echo "error: status $status instead of $expected" >&2; exit 1; }
}

bert-corpus vocab --input_file data/text.txt --output_dir vocab --vocab_size 80
bert-corpus build --input_file data/text.txt --output_dir corpus --vocab_file vocab/vocab.txt \
  --max_seq_length 40 --dupe_factor 3 --num_shards 2 --num_workers 1

old=$RINGBERT_CACHE/old
mkdir "$old"
git -C ../../.. archive eefe2ea | tar -x -C "$old"
python -m pip install --quiet --no-deps --target "$old" jsonargparse pyyaml

squad=(--config squad.toml --output_dir) old_squad=(env PYTHONPATH="$old" python -m tasks.squad.program)
bert-squad "${squad[@]}" squad/finished
interrupted USR1 75 squad/interrupted/checkpoints/rows-000000000200 bert-squad "${squad[@]}" squad/interrupted
"${old_squad[@]}" "${squad[@]}" squad/by-steps-finished
interrupted USR1 75 squad/by-steps/checkpoints/step-00000050 "${old_squad[@]}" "${squad[@]}" squad/by-steps

bert-classifier --config classifier.toml --output_dir classifier/finished
interrupted KILL 137 classifier/killed/checkpoints/rows-000000000080 \
  bert-classifier --config classifier.toml --output_dir classifier/killed
bert-classifier --config seeds.toml --output_dir seeds/finished
interrupted USR1 75 seeds/interrupted/seed-2/checkpoints/rows-000000000040 \
  bert-classifier --config seeds.toml --output_dir seeds/interrupted
bert-pretraining --config pretraining.toml --output_dir pretraining/finished
interrupted USR1 75 pretraining/interrupted/checkpoints/rows-000000000080 \
  bert-pretraining --config pretraining.toml --output_dir pretraining/interrupted

bert-export classifier/finished exported/saved_model
bert-export classifier/finished exported/tf1 --format tf1

# What no resumed run and no reader needs: event files, locks, and of some finished runs all but the last weights.
find . -name tensorboard -prune -exec rm -r {} +
find . -name .lock -delete
rm -r classifier/finished/checkpoints
find {seeds,pretraining}/finished squad/by-steps-finished -type f ! -path '*/model/model.safetensors' -delete
find . -type d -empty -delete
