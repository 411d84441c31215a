"""bert-bench corpus: how fast pretraining corpora are built and read, and how much memory that takes.

The text is first written as sentences, one per line, with a blank line between documents. Every build runs in a
separate process. One MB is 10^6 bytes of that text.
"""

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.corpus.settings import TextSettings
from ringbase.errors import InputError
from ringbase.settings import check_at_most, setting
from tasks.bench.process import ROOT, ProgramError, Timing, run_timed
from tasks.bench.reading import ReadingSettings, bench_reading
from tasks.bench.settings import MOST_MEGABYTES, TurnSettings
from tasks.bench.timing import in_turn, ratio

if TYPE_CHECKING:
    from bert.text.tokenizer import Tokenizer
    from distributed.world import World

GOOGLES_DEFAULTS = {
    "max_seq_length": 128,
    "max_predictions_per_seq": 20,
    "short_seq_prob": 0.1,
    "masked_lm_prob": 0.15,
    "random_seed": 12345,
}
LARGER = 10
MB = 1e6
FORMATS = {  # flags of bert-corpus build
    "tfrecord": ("--format=tfrecord", "--dupe_factor=1"),
    "static": ("--masking=static", "--dupe_factor=1"),
    "arrow": (),
}
LABELS = {
    "tfrecord": "bert-corpus build, static masks once, TFRecord",
    "static": "bert-corpus build, static masks once, Arrow",
    "arrow": "bert-corpus build, defaults (dynamic masks, Arrow)",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredTextSettings(TextSettings, TurnSettings):
    """The text of the measured builds, and the vocabulary."""

    vocab_file: str = setting(help="WordPiece vocabulary", group="vocabulary")
    do_lower_case: bool | None = setting(
        None, "lower-case and strip accents", "vocabulary", shown_default="as bert-corpus build does"
    )
    one_core_megabytes: float = setting(
        10.0, "amount of text built on one core, in units of 10^6 bytes", "load", aliases=("rival_megabytes",)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "one_core_megabytes")


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(MeasuredTextSettings, ReadingSettings):
    """Speed and memory of bert-corpus build, and of reading its shards."""

    scaling_megabytes: float = setting(
        300.0, "amount of text built on one core and on all, in units of 10^6 bytes", "load"
    )
    megabytes: float = setting(
        30.0,
        "amount of text for the peak memory, in units of 10^6 bytes; measured for 10 times as much too",
        "load",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "scaling_megabytes", "megabytes")


def _check_positive(settings: object, *names: str) -> None:
    check_at_most(settings, MOST_MEGABYTES, *names)
    for name in names:
        if getattr(settings, name) <= 0:
            raise ValueError(f"--{name} must be more than 0, got {getattr(settings, name)}")


@dataclass(frozen=True)
class Workshop:
    """A temporary folder, and what all builds in it share."""

    folder: Path
    vocab_file: Path
    tokenizer: "Tokenizer"

    @property
    def shared_flags(self) -> list[str]:
        """Flags of `bert-corpus build` and of Google's script."""
        values = {"vocab_file": self.vocab_file, "do_lower_case": self.tokenizer.lower_case, **GOOGLES_DEFAULTS}
        return [f"--{name}={value}" for name, value in values.items()]

    def build(self, text: Path, output: str, one_core: bool, *flags: str) -> Timing:
        """Runs `bert-corpus build` on `text`, into an empty folder `output`. Raises InputError: it failed."""
        shutil.rmtree(self.folder / output, ignore_errors=True)
        arguments = ["build", f"--input_file={text}", f"--output_dir={self.folder / output}", *self.shared_flags]
        arguments += ["--num_workers=1"] if one_core else []
        program = Path(__file__).with_name("build_process.py")
        try:
            return run_timed(program, [*arguments, *flags], one_core, {"PYTHONPATH": str(ROOT)})
        except ProgramError as error:
            raise InputError(f"bert-corpus build failed: {error}") from error

    def num_examples(self, output: str) -> int:
        """How many examples a build made."""
        from bert.corpus.manifest import read_manifest

        return read_manifest(self.folder / output)["counts"]["examples"]

    def builds_on_one_core(self, text: Path) -> dict[str, partial[Timing]]:
        """A function for each measured format that builds it, in a folder named after the format."""
        return {name: partial(self.build, text, name, True, *flags) for name, flags in FORMATS.items()}


def bench_corpus(config: CorpusConfig, world: "World") -> dict[str, Any]:
    """Makes all measurements and returns the figures. Raises InputError: no text, or an unusable vocabulary."""
    largest = max(config.one_core_megabytes, config.scaling_megabytes, LARGER * config.megabytes)
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        shop, text, text_mb = prepare_text(config, Path(folder), largest, world)
        return {
            "text_mb": text_mb,
            "rates": bench_one_core(config, shop, text, world),
            "scaling": bench_all_cores(config, shop, text, world),
            "memory": bench_memory(config, shop, text, world),
            "reading": bench_reading(config, shop.folder / "arrow", shop.tokenizer, world.say),
        }


def prepare_text(
    config: MeasuredTextSettings, folder: Path, megabytes: float, world: "World"
) -> tuple[Workshop, Path, float]:
    """Writes the first `megabytes` of the input's sentences into the folder. Returns the file and its size in
    MB."""
    from bert.text import tokenizer

    words = tokenizer.load(config.vocab_file, None, config.do_lower_case)
    shop, text = Workshop(folder, Path(config.vocab_file).expanduser().resolve(), words), folder / "all.txt"
    text_mb = write_lines(text, sentence_lines(config), megabytes)
    world.say(
        f"{config.input_file or config.dataset_name}: {text_mb:.3g} MB of sentences; "
        f"{GOOGLES_DEFAULTS['max_seq_length']} tokens, {GOOGLES_DEFAULTS['max_predictions_per_seq']} predictions, "
        f"next sentences, {words.vocab_size:,} entries, lower case {words.lower_case}; "
        f"medians of {config.repeat} turns; start-up not counted unless stated"
    )
    return shop, text, text_mb


# -- text ---------------------------------------------------------------------------------------------------------


def sentence_lines(text: TextSettings) -> Iterator[str]:
    """The sentences of the input, and an empty line after each document."""
    from bert.corpus.read import documents
    from bert.corpus.units import find_units

    units, _ = find_units(text)
    for unit in units:
        for document in documents(unit, text):
            yield from document
            yield ""


def lines_of(text: Path, repeated: bool = False) -> Iterator[str]:
    """The lines of a file; without end if `repeated`."""
    while True:
        with text.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line[:-1]
        if not repeated:
            return


def write_lines(path: Path, lines: Iterator[str], megabytes: float) -> float:
    """Writes lines until the file has `megabytes`. Returns the MB written. Raises InputError: there are no
    lines."""
    size = 0
    with path.open("wb") as file:
        for line in lines:
            size += file.write(f"{line}\n".encode())
            if size >= megabytes * MB:
                break
    if not size:
        raise InputError("--input_file contains no text")
    return size / MB


# -- measurements -------------------------------------------------------------------------------------------------


def bench_one_core(config: MeasuredTextSettings, shop: Workshop, text: Path, world: "World") -> dict[str, Any]:
    """MB/s on one core in several formats, one after the other."""
    sample = shop.folder / "sample.txt"
    megabytes = write_lines(sample, lines_of(text), config.one_core_megabytes)
    world.say(f"one core, {megabytes:.3g} MB:")
    turns = in_turn(shop.builds_on_one_core(sample), config.repeat)
    figures = rates_of(turns, megabytes, {name: shop.num_examples(name) for name in turns}, LABELS, world)
    return {"mb": megabytes, **figures}


def rates_of(
    turns: Mapping[str, Sequence[Timing]],
    megabytes: float,
    num_examples: Mapping[str, int],
    labels: Mapping[str, str],
    world: "World",
) -> dict[str, Any]:
    """Prints and returns the speed, start-up time and peak memory of each contender."""
    figures: dict[str, Any] = {}
    for name, timings in turns.items():
        seconds, cpu_s, startup_s = (statistics.median(values) for values in list(zip(*timings, strict=True))[:3])
        peak_mb = max(timing.peak_bytes for timing in timings) / MB
        figures[name] = {
            "mb_per_s": megabytes / seconds, "mb_per_cpu_s": megabytes / cpu_s, "startup_s": startup_s,
            "peak_mb": peak_mb, "examples": num_examples[name],
        }  # fmt: skip
        world.say(
            f"  {labels[name]}: {megabytes / seconds:.2f} MB/s ({megabytes / cpu_s:.2f} per second of processor "
            f"time), plus {startup_s:.1f} s start-up, {num_examples[name]:,} examples, "
            f"peak memory {peak_mb:.0f} MB"
        )
    return figures


def bench_all_cores(config: CorpusConfig, shop: Workshop, text: Path, world: "World") -> dict[str, Any] | None:
    """MB/s of a longer text (the input repeated) on one core and on all; None on a machine with one core."""
    num_cores = len(os.sched_getaffinity(0))
    if num_cores == 1:
        world.say("one core against all cores: skipped, this machine has only one")
        return None
    longer = shop.folder / "longer.txt"
    megabytes = write_lines(longer, lines_of(text, repeated=True), config.scaling_megabytes)
    contenders = {name: partial(shop.build, longer, "longer", name == "one") for name in ("one", "all")}
    seconds = {name: [t.seconds for t in turns] for name, turns in in_turn(contenders, config.repeat).items()}
    one_core, all_cores = (megabytes / statistics.median(seconds[name]) for name in ("one", "all"))
    speedup = ratio(seconds["one"], seconds["all"]).median
    world.say(
        f"defaults, {megabytes:.3g} MB (the input repeated): one core {one_core:.2f} MB/s, "
        f"{num_cores} cores {all_cores:.2f} MB/s, ratio {speedup:.2f}"
    )
    return {
        "mb": megabytes, "cores": num_cores, "one_core_mb_per_s": one_core, "all_mb_per_s": all_cores,
        "ratio": speedup,
    }  # fmt: skip


def bench_memory(config: CorpusConfig, shop: Workshop, text: Path, world: "World") -> dict[str, float]:
    """Peak memory of a build on all cores, for a text and for one ten times as long (the input repeated)."""
    figures: dict[str, float] = {}
    for name, megabytes in (("small", config.megabytes), ("large", LARGER * config.megabytes)):
        repeated = shop.folder / f"{name}.txt"
        figures[f"{name}_mb"] = write_lines(repeated, lines_of(text, repeated=True), megabytes)
        timing = shop.build(repeated, "repeated", False)
        repeated.unlink()
        figures[f"{name}_peak_mb"] = timing.peak_bytes / MB
        figures[f"{name}_peak_anonymous_mb"] = timing.peak_anonymous_bytes / MB
        figures[f"{name}_mb_per_s"] = figures[f"{name}_mb"] / timing.seconds
    figures["ratio"] = figures["large_peak_mb"] / figures["small_peak_mb"]
    world.say(
        f"peak memory of all processes, defaults, {len(os.sched_getaffinity(0))} cores: "
        f"{figures['small_peak_mb']:.0f} MB for {figures['small_mb']:.3g} MB of text, "
        f"{figures['large_peak_mb']:.0f} MB for {figures['large_mb']:.3g} MB (the input repeated), "
        f"ratio {figures['ratio']:.2f}; without mapped files {figures['small_peak_anonymous_mb']:.0f} MB, "
        f"{figures['large_peak_anonymous_mb']:.0f} MB"
    )
    return figures
