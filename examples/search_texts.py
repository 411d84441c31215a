"""A search in texts by their meaning, with a run of bert-embedder that has trained a model and
computed the vectors of the texts (docs/semantic_search.md):

    bert-embedder --train_file pairs.jsonl --do_train --predict_file documents.jsonl --do_predict \\
        --prompt_name document --model google-bert/bert-base-uncased --output_dir search
    python examples/search_texts.py search "who wrote it?"

Without a question on the command line it reads one from each line of standard input. With
--reranker, a run of bert-classifier with --ranking, the best texts are sorted anew by a model that
reads question and text together.
"""

import argparse
import sys
from pathlib import Path

import ringbert

import numpy as np
import pyarrow.parquet as pq

CANDIDATES = 50  # of each question, for the reranker


class Search:
    """The texts and vectors in the folder of a run, and what reads questions."""

    def __init__(self, run: str, model: str, reranker: str | None):
        self.texts = pq.read_table(Path(run) / "vectors.parquet", columns=["text"])["text"]
        self.vectors = np.load(Path(run) / "vectors.npy", mmap_mode="r")
        self.embedder = ringbert.Embedder(model)
        self.reranker = ringbert.Classifier(reranker) if reranker else None

    def nearest(self, question: str, top_k: int) -> list[tuple[float, str]]:
        """The best texts with their scores, the best first."""
        scores = self.vectors @ self.embedder(question, prompt_name="query")
        wanted = CANDIDATES if self.reranker else top_k
        best = np.argsort(-scores, kind="stable")[:wanted]
        texts = [self.texts[int(place)].as_py() for place in best]
        scores = scores[best]
        if self.reranker:
            scores = np.array(
                [each.value for each in self.reranker([(question, t) for t in texts])]
            )
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [(float(scores[place]), texts[place]) for place in order]


def main() -> None:
    parser = argparse.ArgumentParser(description="Search texts by their meaning.")
    parser.add_argument("run", help="the --output_dir of bert-embedder, with the texts' vectors")
    parser.add_argument("questions", nargs="*", help="by default the lines of standard input")
    parser.add_argument("--model", help="the run that has trained the model, by default the same")
    parser.add_argument("--top_k", type=int, default=3)
    parser.add_argument("--reranker", help="the --output_dir of bert-classifier --ranking")
    arguments = parser.parse_args()
    search = Search(arguments.run, arguments.model or arguments.run, arguments.reranker)
    for question in arguments.questions or map(str.strip, sys.stdin):
        print(question)
        for score, text in search.nearest(question, arguments.top_k):
            print(f"  {score:.3f}  {text}")


if __name__ == "__main__":
    main()
