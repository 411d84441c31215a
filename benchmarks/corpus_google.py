"""Compares `bert-corpus build` with Google's `create_pretraining_data.py`, which runs unmodified.

    python -m benchmarks.corpus_google --google_dir bert --input_file text.txt --vocab_file vocab.txt

Both programs read the same file (one sentence per line, a blank line after each document) and run on one core.
`bert-bench corpus` makes the other measurements. One MB is 10^6 bytes of the text.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.timed_process import ProgramError, Timing, run_timed
from tasks.bench.timing import in_turn, ratio

FOLDER = Path(__file__).resolve().parent
GOOGLE = "google-research/bert"
SETTINGS = {
    "max_seq_length": 128, "max_predictions_per_seq": 20, "short_seq_prob": 0.1, "masked_lm_prob": 0.15,
    "random_seed": 12345,
}  # fmt: skip
MB = 1e6
FORMATS = {  # name -> label, flags of bert-corpus build
    "tfrecord": ("bert-corpus build, static masks once, TFRecord", ("--format=tfrecord", "--dupe_factor=1")),
    "static": ("bert-corpus build, static masks once, Arrow", ("--masking=static", "--dupe_factor=1")),
    "arrow": ("bert-corpus build, defaults (dynamic masks, Arrow)", ()),
}
RATIOS = {  # of Google's time to ours
    "": lambda timing: timing.seconds,
    "_of_cpu": lambda timing: timing.cpu_s,
    "_with_startup": lambda timing: timing.seconds + timing.startup_s,
}


def build(folder: Path, flags: list[str], name: str) -> Timing:
    """Runs `bert-corpus build` in one of FORMATS, into the folder of this name."""
    shutil.rmtree(folder / name, ignore_errors=True)
    arguments = ["build", f"--output_dir={folder / name}", "--num_workers=1", *flags, *FORMATS[name][1]]
    return run_timed(FOLDER / "build_process.py", arguments)


def run_google(google_dir: Path, output: Path, flags: list[str]) -> Timing:
    """Runs Google's script: static masks, a `dupe_factor` of 1, one TFRecord file."""
    output.unlink(missing_ok=True)
    arguments = [str(google_dir), f"--output_file={output}", "--dupe_factor=1", *flags]
    return run_timed(FOLDER / "google_process.py", arguments)


def num_records(path: Path) -> int:
    """The number of records in a TFRecord file. A record is: length, checksum, data, checksum."""
    number, size = 0, path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            (length,) = struct.unpack("<Q4x", file.read(12))
            file.seek(length + 4, os.SEEK_CUR)
            number += 1
    return number


def measured(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Prints and returns the speed, start-up time and peak memory of each contender, and the ratios."""
    text, google = Path(options.input_file).resolve(), Path(options.google_dir).resolve()
    values = {"input_file": text, "vocab_file": Path(options.vocab_file).resolve(), **SETTINGS}
    flags = [f"--{name}={value}" for name, value in values.items()] + [f"--do_lower_case={options.do_lower_case}"]
    builds = {name: partial(build, folder, flags, name) for name in FORMATS}
    turns = in_turn({**builds, "google": partial(run_google, google, folder / "google", flags)}, options.repeat)
    megabytes = text.stat().st_size / MB
    figures: dict[str, object] = {"mb": megabytes, "google_examples": num_records(folder / "google")}
    labels = {name: label for name, (label, _) in FORMATS.items()} | {
        "google": f"{GOOGLE}, static masks, TFRecord"
    }
    print(f"one core, {megabytes:.3g} MB, medians of {options.repeat} turns:")
    for name, timings in turns.items():
        seconds, startup_s = (
            statistics.median(getattr(t, of) for t in timings) for of in ("seconds", "startup_s")
        )
        peak_mb = max(timing.peak_bytes for timing in timings) / MB
        figures[name] = {"mb_per_s": megabytes / seconds, "startup_s": startup_s, "peak_mb": peak_mb}
        print(
            f"  {labels[name]}: {megabytes / seconds:.2f} MB/s, plus {startup_s:.1f} s start-up, "
            f"peak memory {peak_mb:.0f} MB"
        )
    for name in FORMATS:
        ratios = {s: ratio(map(time, turns["google"]), map(time, turns[name])) for s, time in RATIOS.items()}
        figures |= {f"ratio_{name}{suffix}": value.median for suffix, value in ratios.items()}
        print(
            f"  times Google's, {labels[name].removeprefix('bert-corpus build, ')}: {ratios[''].median:.1f} "
            f"({ratios[''].lowest:.1f} to {ratios[''].highest:.1f}), of processor time "
            f"{ratios['_of_cpu'].median:.1f}, start-up included {ratios['_with_startup'].median:.1f}"
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--google_dir", required=True, help=f"checkout of {GOOGLE}")
    parser.add_argument("--input_file", required=True, help="text, one sentence per line")
    parser.add_argument("--vocab_file", required=True, help="WordPiece vocabulary")
    parser.add_argument("--do_lower_case", default="true", choices=("true", "false"))
    parser.add_argument("--repeat", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--output_file", help="JSON file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        try:
            figures = measured(options, Path(folder))
        except (ProgramError, OSError) as error:
            raise SystemExit(f"benchmarks.corpus_google: error: {error}") from error
    if options.output_file:
        Path(options.output_file).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
