"""bert-bench corpus: building and reading of pretraining corpora, beside Google's `create_pretraining_data.py`.

Text is first written as sentences, one per line, with a blank line between documents, so that both programs read
the same file. Every build runs in a process of its own; MB are 10^6 bytes of that text.
"""

import os
import shutil
import statistics
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringbert.errors import InputError
from ringbert.settings import setting
from tasks import corpus
from tasks.bench import reading as bench_reading
from tasks.bench.process import ProgramError, Timing, run_timed

if TYPE_CHECKING:
    from bert.text.tokenizer import Tokenizer

LENGTH, PREDICTIONS, PROBABILITY, SHORT, SEED = 128, 20, 0.15, 0.1, 12345  # Google's defaults
GOOGLE = "google-research/bert"
GOOGLE_FILES = ("create_pretraining_data.py", "tokenization.py")
LARGER = 10
MB = 1e6


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(corpus.InputFlags):
    """bert-bench corpus: text/s of bert-corpus build beside Google's script, its memory, and reading."""

    vocab_file: str = setting(help="WordPiece vocabulary", group="vocabulary")
    do_lower_case: bool | None = setting(None, "as in bert-corpus build", "vocabulary")
    google_dir: str | None = setting(
        None, "checkout of google-research/bert: its script is measured too, unmodified", "load"
    )
    rival_megabytes: float = setting(10.0, "text of the comparison with Google's script", "load")
    scaling_megabytes: float = setting(300.0, "text of the comparison of one core with all", "load")
    megabytes: float = setting(30.0, "text whose peak memory is compared with that of 10 times as much", "load")
    repeat: int = setting(3, "pairs of each comparison; medians are printed", "load")
    model_size: Literal["tiny", "minilm", "base", "large"] = setting(
        "tiny", "model that is trained from the shards; the smaller, the sooner it waits for them", "reading"
    )
    batch_size: int = setting(32, "rows per training step", "reading")
    num_steps: int = setting(30, "training steps measured", "reading")
    precision: Literal["fp32", "bf16"] = setting("fp32", "as in training", "reading")
    device: Literal["auto", "gpu", "cpu"] = setting("auto", "where to compute", "reading")
    output_file: str | None = setting(None, "write the figures as JSON too", "machine")

    def __post_init__(self):
        corpus.source(self)  # raises where the input is not named, or named twice
        for name in ("rival_megabytes", "scaling_megabytes", "megabytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--{name} is {getattr(self, name)}, needed is more than 0")
        for name in ("repeat", "batch_size", "num_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, needed is at least 1")


@dataclass(frozen=True)
class Bench:
    """What the measurements share: a temporary folder, the flags of both programs."""

    config: CorpusConfig
    folder: Path
    tokenizer: "Tokenizer"
    say: Callable[[str], None]

    def build(self, text: Path, output: str, one_core: bool, *more: str) -> Timing:
        """`bert-corpus build` of `text` into the folder `output`, anew."""
        shutil.rmtree(self.folder / output, ignore_errors=True)
        settings = [
            "build", f"--input_file={text}", f"--output_dir={self.folder / output}",
            f"--vocab_file={self._vocab_file}", f"--do_lower_case={self.tokenizer.lower_case}",
            *(["--num_workers=1"] if one_core else []), *_google_settings(), *more,
        ]  # fmt: skip
        try:
            return run_timed("corpus", settings, one_core)
        except ProgramError as error:
            raise InputError(f"bert-corpus build failed: {error}") from error

    def google(self, text: Path, output: str) -> Timing:
        """Google's script on one core: static masks, one duplicate, one TFRecord file."""
        settings = [
            str(Path(self.config.google_dir or "").expanduser().resolve()), f"--input_file={text}",
            f"--output_file={self.folder / output}", f"--vocab_file={self._vocab_file}",
            f"--do_lower_case={self.tokenizer.lower_case}", "--dupe_factor=1", *_google_settings(),
        ]  # fmt: skip
        try:
            timing = run_timed("google", settings, one_core=True)
        except ProgramError as error:
            raise InputError(f"--google_dir {self.config.google_dir}: its script failed: {error}") from error
        if not (self.folder / output).is_file():
            raise InputError(f"--google_dir {self.config.google_dir}: its script wrote no --output_file")
        return timing

    @property
    def _vocab_file(self) -> Path:
        return Path(self.config.vocab_file).expanduser().resolve()


def _google_settings() -> list[str]:
    return [
        f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}", f"--short_seq_prob={SHORT}",
        f"--masked_lm_prob={PROBABILITY}", f"--random_seed={SEED}",
    ]  # fmt: skip


def measure(
    config: CorpusConfig, model_shape: tuple[int, int, int, int], say: Callable[[str], None]
) -> dict[str, Any]:
    """All measurements; the figures. Raises InputError: input, vocabulary or `--google_dir` do not do.

    `model_shape`: hidden size, layers, heads and intermediate size of the model that is trained from the shards.
    """
    from bert.text import tokenizer

    _check_google(config.google_dir)
    words = tokenizer.load(config.vocab_file, None, config.do_lower_case)
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        bench = Bench(config, Path(folder), words, say)
        text = bench.folder / "all.txt"
        largest = max(config.rival_megabytes, config.scaling_megabytes, LARGER * config.megabytes)
        size = _write(text, _sentences(corpus.source(config)), largest)
        say(
            f"{config.input_file or config.dataset_name}: {size / MB:.3g} MB of sentences; {LENGTH} tokens, "
            f"{PREDICTIONS} predictions, next sentences, {words.vocab_size:,} entries, "
            f"lower case {words.lower_case}; medians of {config.repeat} turns; without start-up unless said"
        )
        return {
            "text_mb": size / MB,
            "rates": compare(bench, text),
            "scaling": scaling(bench, text),
            "memory": memory(bench, text),
            "reading": bench_reading.measure(
                bench.folder / "arrow-0",
                words,
                bench_reading.Load(
                    model_shape, config.batch_size, config.num_steps, config.precision, config.device
                ),
                say,
            ),
        }


def _check_google(google_dir: str | None) -> None:
    for name in GOOGLE_FILES if google_dir else ():
        if not Path(str(google_dir)).expanduser().joinpath(name).is_file():
            raise InputError(f"--google_dir {google_dir}: {name} is not there; needed is a checkout of {GOOGLE}")


# -- text ---------------------------------------------------------------------------------------------------------


def _sentences(source: Any) -> Iterator[str]:
    """Lines: the sentences, and an empty one after each document."""
    from bert.corpus.documents import documents, find_units

    units, _ = find_units(source)
    for unit in units:
        for document in documents(unit, source):
            yield from document
            yield ""


def _write(path: Path, lines: Iterator[str], megabytes: float) -> int:
    """Writes lines until they are so many megabytes; the size in bytes. Raises InputError: there is no text."""
    size = 0
    with path.open("wb") as file:
        for line in lines:
            size += file.write(f"{line}\n".encode())
            if size >= megabytes * MB:
                break
    if not size:
        raise InputError("--input_file: there is no text in it")
    return size


def _repeated(text: Path) -> Iterator[str]:
    """The lines of a file, over and over."""
    while True:
        with text.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line[:-1]


# -- measurements -------------------------------------------------------------------------------------------------


def compare(bench: Bench, text: Path) -> dict[str, Any]:
    """MB/s on one core of Google's script and of ours with the same settings and format, and with our defaults."""
    config, sample = bench.config, bench.folder / "sample.txt"
    with text.open(encoding="utf-8", newline="\n") as file:
        megabytes = _write(sample, (line[:-1] for line in file), config.rival_megabytes) / MB
    runs: dict[str, Callable[[str], Timing]] = {
        "tfrecord": lambda to: bench.build(sample, to, True, "--format=tfrecord", "--dupe_factor=1"),
        "static": lambda to: bench.build(sample, to, True, "--masking=static", "--dupe_factor=1"),
        "arrow": lambda to: bench.build(sample, to, True),
    }
    labels = {
        "tfrecord": "bert-corpus build, static masks once, TFRecord",
        "static": "bert-corpus build, static masks once, Arrow",
        "arrow": "bert-corpus build, defaults (dynamic masks, Arrow)",
        "google": f"{GOOGLE}, static masks once, TFRecord",
    }
    if config.google_dir:
        runs["google"] = lambda to: bench.google(sample, to)
    times: dict[str, list[Timing]] = {name: [] for name in runs}
    for turn in range(config.repeat):
        for name, run in runs.items():
            times[name].append(run(f"{name}-{turn}"))
    figures: dict[str, Any] = {"mb": megabytes, "google": None}
    bench.say(f"one core, {megabytes:.3g} MB:")
    for name, found in times.items():
        figures[name] = _rates(found, megabytes) | {"examples": _num_examples(bench.folder / f"{name}-0")}
        bench.say(f"  {labels[name]}: {_told(figures[name])}")
    if not config.google_dir:
        bench.say(f"  {GOOGLE}: not given (--google_dir)")
        return figures
    for name in ("tfrecord", "static", "arrow"):
        pairs = list(zip(times["google"], times[name], strict=True))
        ratios = [google.seconds / ours.seconds for google, ours in pairs]
        by_cpu = statistics.median(google.cpu_s / ours.cpu_s for google, ours in pairs)
        whole = statistics.median(
            (google.seconds + google.startup_s) / (ours.seconds + ours.startup_s) for google, ours in pairs
        )
        figures[f"ratio_{name}"] = statistics.median(ratios)
        figures |= {f"ratio_{name}_of_cpu": by_cpu, f"ratio_{name}_with_startup": whole}
        bench.say(
            f"  ratio {labels[name].removeprefix('bert-corpus build, ')}: {statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f}), of processor time {by_cpu:.1f}, "
            f"start-up included {whole:.1f}"
        )
    return figures


def _rates(times: Sequence[Timing], megabytes: float) -> dict[str, float]:
    seconds, cpu_s, startup_s = (statistics.median(values) for values in list(zip(*times, strict=True))[:3])
    return {
        "mb_per_s": megabytes / seconds,
        "mb_per_cpu_s": megabytes / cpu_s,
        "startup_s": startup_s,
        "peak_mb": max(timing.peak_bytes for timing in times) / MB,
    }


def _num_examples(output: Path) -> int:
    """By the manifest of our folder, or in Google's one TFRecord file."""
    from bert.corpus.build import read_manifest

    if output.is_dir():
        return read_manifest(output)["counts"]["examples"]
    number, size = 0, output.stat().st_size
    with output.open("rb") as file:
        while file.tell() < size:
            (length,) = struct.unpack("<Q4x", file.read(12))  # its length and a checksum, then data and a checksum
            file.seek(length + 4, os.SEEK_CUR)
            number += 1
    return number


def _told(rates: dict[str, float]) -> str:
    return (
        f"{rates['mb_per_s']:.2f} MB/s ({rates['mb_per_cpu_s']:.2f} per second of processor time), "
        f"start-up {rates['startup_s']:.1f} s apart, {rates['examples']:,} examples, "
        f"peak memory {rates['peak_mb']:.0f} MB"
    )


def scaling(bench: Bench, text: Path) -> dict[str, Any] | None:
    """MB/s of a longer text, the input repeated, on one core and on all."""
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        bench.say("one core against all: this machine has one")
        return None
    longer = bench.folder / "longer.txt"
    megabytes = _write(longer, _repeated(text), bench.config.scaling_megabytes) / MB
    pairs = [
        (bench.build(longer, "longer", True), bench.build(longer, "longer", False))
        for _ in range(bench.config.repeat)
    ]
    ratio = statistics.median(one.seconds / every.seconds for one, every in pairs)
    one, every = (megabytes / statistics.median(t.seconds for t in side) for side in zip(*pairs, strict=True))
    bench.say(
        f"defaults, {megabytes:.3g} MB (the input repeated): one core {one:.2f} MB/s, "
        f"{cores} cores {every:.2f} MB/s, ratio {ratio:.2f}"
    )
    return {"mb": megabytes, "cores": cores, "one_core_mb_per_s": one, "all_mb_per_s": every, "ratio": ratio}


def memory(bench: Bench, text: Path) -> dict[str, float]:
    """Peak memory of a build on all cores, of a text and of one ten times as long, both the input repeated."""
    peaks: list[Timing] = []
    sizes: list[float] = []
    for number, megabytes in enumerate((bench.config.megabytes, LARGER * bench.config.megabytes)):
        repeated = bench.folder / f"repeated-{number}.txt"
        sizes.append(_write(repeated, _repeated(text), megabytes) / MB)
        peaks.append(bench.build(repeated, "repeated", False))
        repeated.unlink()
    small, large = (timing.peak_bytes / MB for timing in peaks)
    bench.say(
        f"peak memory of all processes, defaults, {len(os.sched_getaffinity(0))} cores: {small:.0f} MB for "
        f"{sizes[0]:.3g} MB of text, {large:.0f} MB for {sizes[1]:.3g} MB (the input repeated), "
        f"ratio {large / small:.2f}; without mapped files "
        + ", ".join(f"{timing.peak_anonymous_bytes / MB:.0f} MB" for timing in peaks)
    )
    return {
        "small_mb": sizes[0], "large_mb": sizes[1], "small_peak_mb": small, "large_peak_mb": large,
        "ratio": large / small, "large_mb_per_s": sizes[1] / peaks[1].seconds,
        "small_peak_anonymous_mb": peaks[0].peak_anonymous_bytes / MB,
        "large_peak_anonymous_mb": peaks[1].peak_anonymous_bytes / MB,
    }  # fmt: skip
