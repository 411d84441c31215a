"""Compares `bert-corpus build` with Google's `create_pretraining_data.py`, which runs unmodified.

    python -m benchmarks.corpus_google --google_dir bert --input_file text.txt --vocab_file vocab.txt

Both programs read the same file (one sentence per line, a blank line after each document) and run on one core. One
MB is 10^6 bytes of the text.
"""

import argparse
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
from typing import NamedTuple

from tasks.bench.timing import in_turn, last_error, ratio

PROGRAM = Path(__file__).with_name("timed_process.py")
SETTINGS = {
    "max_seq_length": 128, "max_predictions_per_seq": 20, "short_seq_prob": 0.1, "masked_lm_prob": 0.15,
    "random_seed": 12345,
}  # fmt: skip
MB = 1e6
FORMATS = {  # name -> label, flags of bert-corpus build
    "tfrecord": ("bert-corpus build, static masks once, TFRecord", ["--format=tfrecord", "--dupe_factor=1"]),
    "static": ("bert-corpus build, static masks once, Arrow", ["--masking=static", "--dupe_factor=1"]),
    "arrow": ("bert-corpus build, defaults (dynamic masks, Arrow)", []),
}
LABELS = {name: label for name, (label, _) in FORMATS.items()}
LABELS |= {"google": "google-research/bert, static masks once, TFRecord"}


class Timing(NamedTuple):
    """One run: the time of the work (flags, vocabulary, text, files, worker processes), the whole time with
    interpreter, imports and exit, and the largest resident memory of a process."""

    seconds: float
    whole_s: float
    peak_bytes: int


def run(folder: Path, google_dir: Path, flags: list[str], name: str) -> Timing:
    """One turn of a contender, into an empty folder."""
    output, report = folder / name, folder / "report.json"
    shutil.rmtree(output, ignore_errors=True)
    report.unlink(missing_ok=True)
    if name == "google":
        output.mkdir()
        words = ["google", str(google_dir), f"--output_file={output}/records", "--dupe_factor=1", *flags]
    else:
        words = ["bert-corpus", "build", f"--output_dir={output}", "--num_workers=1", *flags, *FORMATS[name][1]]
    command = [sys.executable, "-P", str(PROGRAM), str(report), *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start_s = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    whole_s = time.perf_counter() - start_s
    if done.returncode or not report.is_file():
        raise SystemExit(f"benchmarks.corpus_google: error: {name}: {last_error(done)}")
    seconds, peak_bytes = json.loads(report.read_text())
    return Timing(seconds, whole_s, peak_bytes)


def measured(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Prints and returns the speed, start-up time and peak memory of each contender, and the ratios."""
    text, google = Path(options.input_file).resolve(), Path(options.google_dir).resolve()
    values = {"input_file": text, "vocab_file": Path(options.vocab_file).resolve(), **SETTINGS}
    flags = [f"--{name}={value}" for name, value in values.items()] + [f"--do_lower_case={options.do_lower_case}"]
    turns = in_turn({name: partial(run, folder, google, flags, name) for name in LABELS}, options.repeat)
    megabytes = text.stat().st_size / MB
    figures: dict[str, object] = {"mb": megabytes}
    print(f"one core, {megabytes:.3g} MB, medians of {options.repeat} turns:")
    for name, timings in turns.items():
        work, whole = (
            ratio((getattr(turn, of) for turn in turns["google"]), (getattr(turn, of) for turn in timings))
            for of in ("seconds", "whole_s")
        )
        speed = megabytes / statistics.median(timing.seconds for timing in timings)
        startup_s = statistics.median(timing.whole_s - timing.seconds for timing in timings)
        peak_mb = max(timing.peak_bytes for timing in timings) / MB
        figures[name] = {
            "mb_per_s": speed,
            "startup_s": startup_s,
            "peak_mb": peak_mb,
            "ratio": work,
            "whole": whole,
        }
        print(
            f"  {LABELS[name]}: {speed:.2f} MB/s, {work.median:.1f} times Google's ({work.lowest:.1f} to "
            f"{work.highest:.1f}); {startup_s:.1f} s start-up, {whole.median:.1f} times with it; {peak_mb:.0f} MB"
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--google_dir", required=True, help="checkout of google-research/bert")
    parser.add_argument("--input_file", required=True, help="text, one sentence per line")
    parser.add_argument("--vocab_file", required=True, help="WordPiece vocabulary")
    parser.add_argument("--do_lower_case", default="true", choices=("true", "false"))
    parser.add_argument("--repeat", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--output_file", help="JSON file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        figures = measured(options, Path(folder))
    if options.output_file:
        Path(options.output_file).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
