"""Makes tests/goldens: small random models of BERT's family with PyTorch's outputs, and runs of
this version.

    PYTHONPATH=.:tests python scripts/make_goldens.py --only runs
    PYTHONPATH=.:tests:TORCH python scripts/make_goldens.py [--only NAME] [--model DIR]

TORCH is a folder with PyTorch, which `runs` do not need. NAME is a part of a folder's name. DIR is
the published all-MiniLM-L6-v2, whose hidden states go into minilm.json. The models are the same in
every run on one machine; other CPUs and versions change them a little, so make only what is new.
The runs are made anew when a format changes on purpose: tests/files/test_goldens.py.
"""

import argparse
from pathlib import Path

from harness import golden_runs


def main() -> None:
    """Writes the golden files that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument(
        "--only", default="", metavar="NAME", help="make only the folders with NAME in their names"
    )
    options = parser.parse_args()
    if options.only in golden_runs.FOLDER.name:
        golden_runs.write()
    if options.only != golden_runs.FOLDER.name:
        from torch_goldens import make_models

        make_models(options.only, options.model)


if __name__ == "__main__":
    main()
