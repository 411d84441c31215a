"""SQuAD's questions and their paragraphs as pairs for bert-embedder, JSON lines on standard output.

python examples/squad_pairs.py train-v1.1.json > train.jsonl
"""

import json
import sys
from pathlib import Path

for article in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["data"]:
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            pair = {"anchor": question["question"], "positive": paragraph["context"]}
            print(json.dumps(pair, ensure_ascii=False))
