"""Compares `bert-corpus build` with Google's `create_pretraining_data.py`, which runs unmodified.

    python -m benchmarks.corpus_google --google_dir bert --input_file text.txt --vocab_file
      vocab.txt

Both programs read the same file (one sentence per line, a blank line after each document) and run
on one core. The start-up is what a command takes for a few lines. One MB is 10^6 bytes of the text.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.timing import in_turn, last_error, ratios
from tasks import SITE

SETTINGS = {
    "max_seq_length": 128,
    "max_predictions_per_seq": 20,
    "short_seq_prob": 0.1,
    "masked_lm_prob": 0.15,
    "random_seed": 12345,
}
# Google's script in today's TensorFlow. Its package says `from bert import tokenization`, its
# repository `import tokenization`.
GOOGLE = """
import runpy, sys, types
import tensorflow.compat.v1

folder = sys.argv.pop(1)
sys.modules.update({"tensorflow": tensorflow.compat.v1, "bert": types.ModuleType("bert")})
sys.modules["bert"].__path__ = [folder]
sys.path.insert(0, folder)
runpy.run_path(f"{folder}/create_pretraining_data.py", run_name="__main__")
"""
OURS = [sys.executable, "-m", "tasks.corpus", "build", "--num_workers=1"]
GOOGLES = "google-research/bert, static masks once, TFRecord"
FEW_LINES = 200  # of the text, which take no time: what they take is start-up
CONTENDERS = {  # label -> flags of bert-corpus build
    GOOGLES: None,
    "bert-corpus build, static masks once, Arrow": ["--masking=static", "--dupe_factor=1"],
    "bert-corpus build, defaults (dynamic masks, Arrow)": [],
}


def run(folder: Path, google_dir: str, flags: list[str], text: Path, label: str) -> float:
    """The seconds of a contender's whole command, which writes an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    own = CONTENDERS[label]
    if own is None:
        command = [
            sys.executable,
            "-c",
            GOOGLE,
            google_dir,
            f"--output_file={folder}/records",
            "--dupe_factor=1",
        ]
    else:
        command = [*OURS, f"--output_dir={folder}/shards", *own]
    command += [f"--input_file={text}", *flags]
    environment, core = os.environ | {"PYTHONPATH": str(SITE)}, min(os.sched_getaffinity(0))
    on_one_core = partial(os.sched_setaffinity, 0, [core])
    start_s = time.perf_counter()
    done = subprocess.run(
        command, env=environment, preexec_fn=on_one_core, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"benchmarks.corpus_google: error: {label}: {last_error(done)}")
    return time.perf_counter() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--google_dir", required=True, help="checkout of google-research/bert")
    parser.add_argument("--input_file", required=True, help="text, one sentence per line")
    parser.add_argument("--vocab_file", required=True, help="WordPiece vocabulary")
    parser.add_argument("--do_lower_case", default="true", choices=("true", "false"))
    parser.add_argument("--repeat", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--output_file", help="JSON file for the figures")
    options = parser.parse_args()
    text, google = Path(options.input_file).resolve(), str(Path(options.google_dir).resolve())
    if text.stat().st_size < 1e6:
        parser.error(
            "--input_file must have at least 1 MB: its time is compared with that of a few lines"
        )
    values = {
        "vocab_file": Path(options.vocab_file).resolve(),
        "do_lower_case": options.do_lower_case,
        **SETTINGS,
    }
    flags = [f"--{name}={value}" for name, value in values.items()]
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder, text.open() as lines:
        small = Path(folder, "small.txt")
        small.write_text("".join(itertools.islice(lines, FEW_LINES)))
        each = partial(run, Path(folder, "out"), google, flags)
        turns = in_turn({label: partial(each, text, label) for label in CONTENDERS}, options.repeat)
        startup_s = {
            label: min(each(small, label) for _ in range(options.repeat)) for label in CONTENDERS
        }
    megabytes, figures = text.stat().st_size / 1e6, {}
    work = {label: [whole - startup_s[label] for whole in turns[label]] for label in CONTENDERS}
    print(f"one core, {megabytes:.3g} MB, medians of {options.repeat} turns:")
    for label in CONTENDERS:
        speed = megabytes / statistics.median(work[label])
        times, whole = (ratios(seconds[GOOGLES], seconds[label]) for seconds in (work, turns))
        middle, with_startup = statistics.median(times), statistics.median(whole)
        figures[label] = {
            "mb_per_s": speed,
            "ratio": middle,
            "startup_s": startup_s[label],
            "whole": with_startup,
        }
        print(
            f"  {label}: {speed:.2f} MB/s, {middle:.1f} times Google's ({times[0]:.1f} to"
            f" {times[-1]:.1f}); {startup_s[label]:.1f} s start-up, {with_startup:.1f} times"
            " with it"
        )
    if options.output_file:
        Path(options.output_file).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
