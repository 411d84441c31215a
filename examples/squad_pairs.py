"""SQuAD's questions and their paragraphs as pairs for bert-embedder, JSON lines on standard output;
with --documents the paragraphs alone, each once.

python examples/squad_pairs.py train-v1.1.json > train.jsonl
python examples/squad_pairs.py dev-v1.1.json --documents > documents.jsonl
"""

import json
import sys
from pathlib import Path

wants_documents = "--documents" in sys.argv[2:]
for article in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["data"]:
    for paragraph in article["paragraphs"]:
        if wants_documents:
            print(json.dumps({"text": paragraph["context"]}, ensure_ascii=False))
            continue
        for question in paragraph["qas"]:
            pair = {"anchor": question["question"], "positive": paragraph["context"]}
            print(json.dumps(pair, ensure_ascii=False))
