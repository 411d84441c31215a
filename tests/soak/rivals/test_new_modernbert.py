"""A ModernBERT that our programs make from a text: transformers with PyTorch loads it without a
warning, and scores masked words as we do."""

import json
import sys

import numpy as np
from harness.batches import Computer, Row
from harness.jobs import run
from harness.mpi import ENVIRONMENT
from harness.program_runs import bert
from harness.real_tokenizers import nsmc

from bert import configuration, weights
from bert.heads import MASKED_WORDS
from bert.model import Bert
from bert.text import tokenizer
from tasks.corpus.__main__ import main as bert_corpus

TEXTS = ["이 영화 [MASK] 좋다", "a [MASK] film", "[MASK] ☃ 日本 [MASK]."]
# Prints inputs, and the scores of all entries at each [MASK].
SCRIPT = """
import json, sys
import torch, transformers

folder, texts = sys.argv[1], json.loads(sys.argv[2])
words = transformers.AutoTokenizer.from_pretrained(folder)
of_model = transformers.AutoModelForMaskedLM
model, report = of_model.from_pretrained(folder, output_loading_info=True)
assert not any(report.values()), report
found = []
for text in texts:
    inputs = words(text, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(**inputs).logits[0]
    is_mask = inputs["input_ids"][0] == words.mask_token_id
    found.append([inputs["input_ids"][0].tolist(), logits[is_mask].tolist()])
print(json.dumps(found))
"""


def test_a_new_modernbert_is_the_same_in_pytorch(torch, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(nsmc()))
    text = f"--input_file={tmp_path}/text.txt", "--document_separator=line"
    kind = "--kind=byte_bpe", "--vocab_size=1000"
    bert_corpus(["vocab", *text, *kind, f"--output_dir={tmp_path}/vocab"])
    sizes = "--max_seq_length=64", "--nonext_sentence"
    words = f"--vocab_file={tmp_path}/vocab/tokenizer.json"
    bert_corpus(["build", *text, words, *sizes, f"--output_dir={tmp_path}/shards"])
    shards = f"--input_file={tmp_path}/shards", "--max_seq_length=64", "--global_batch_size=16"
    steps = "--num_train_steps=20", "--learning_rate=1e-3", "--do_train"
    bert("pretraining", tmp_path / "run", "--model_size=ettin-17m", *shards, *steps)
    folder = tmp_path / "run/model"
    command = sys.executable, "-W", "error", "-c", SCRIPT, folder, json.dumps(TEXTS)
    there = run(command, PYTHONPATH=f"{torch}:{ENVIRONMENT['PYTHONPATH']}")
    assert "[transformers]" not in there.stderr  # where its warnings go
    ours = tokenizer.load(folder=folder)
    model = Bert(configuration.read_config(folder), MASKED_WORDS)
    weights.load(model, folder)
    for input_ids, scores in there.json():
        places = [place for place, id_ in enumerate(input_ids) if id_ == ours.mask_id]
        row = Row(input_ids, len(input_ids), masked=dict.fromkeys(places, 0))
        (found,) = Computer(model)([row]).scores
        right = np.ravel(scores)
        np.testing.assert_allclose(found, right, atol=2e-5)  # float32 sums
        assert np.ptp(right) > 0.1
