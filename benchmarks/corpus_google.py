"""Compares `bert-corpus build` with Google's `create_pretraining_data.py`, which runs unmodified.

    python -m benchmarks.corpus_google --google_dir bert --input_file 'text/*.txt' --vocab_file vocab.txt

Both programs read the same file and run on one core. `bert-bench corpus` makes the other measurements.
"""

import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringbase.errors import InputError
from ringbase.settings import setting
from tasks import flags
from tasks.bench.corpus import FORMATS, LABELS, MeasuredTextSettings, Workshop, prepare_text, rates_of
from tasks.bench.process import ProgramError, Timing, run_timed
from tasks.bench.program import measure_alone
from tasks.bench.timing import in_turn, ratio

if TYPE_CHECKING:
    from distributed.world import World

GOOGLE = "google-research/bert"
GOOGLES_FILES = ("create_pretraining_data.py", "tokenization.py")


@dataclass(frozen=True, kw_only=True)
class GoogleConfig(MeasuredTextSettings):
    """bert-corpus build compared with Google's script: speed, start-up and memory on one core."""

    google_dir: str = setting(help=f"checkout of {GOOGLE}, whose script is measured", group="load")


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.corpus_google"
    measure_alone(prog, flags.parse(GoogleConfig, argv, prog=prog, description=str(__doc__)), bench_google)


def bench_google(config: GoogleConfig, world: "World") -> dict[str, Any]:
    """MB/s of Google's script and of ours on one core, in both formats, and the ratios.

    Raises InputError: no text, an unusable vocabulary, or no usable checkout.
    """
    folder = Path(config.google_dir).expanduser().resolve()
    for name in GOOGLES_FILES:
        if not (folder / name).is_file():
            raise InputError(f"--google_dir {config.google_dir}: no {name} there; give a checkout of {GOOGLE}")
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as temporary:
        shop, text, megabytes = prepare_text(config, Path(temporary), config.one_core_megabytes, world)
        builds = {**shop.builds_on_one_core(text), "google": partial(run_google, folder, shop, text)}
        turns = in_turn(builds, config.repeat)
        num_examples = {name: shop.num_examples(name) for name in FORMATS}
        num_examples["google"] = num_records(shop.folder / "google")
    labels = LABELS | {"google": f"{GOOGLE}, static masks once, TFRecord"}
    world.say(f"one core, {megabytes:.3g} MB:")
    figures = {"mb": megabytes, **rates_of(turns, megabytes, num_examples, labels, world)}
    for name in FORMATS:
        ratios = ratios_to_google(turns["google"], turns[name])
        figures |= {f"ratio_{name}{suffix}": value.median for suffix, value in ratios.items()}
        world.say(
            f"  ratio {labels[name].removeprefix('bert-corpus build, ')}: {ratios[''].median:.1f} "
            f"({ratios[''].lowest:.1f} to {ratios[''].highest:.1f}), of processor time "
            f"{ratios['_of_cpu'].median:.1f}, start-up included {ratios['_with_startup'].median:.1f}"
        )
    return figures


def ratios_to_google(google: Sequence[Timing], ours: Sequence[Timing]):
    """Google's time divided by ours: without start-up, of processor time, and with start-up."""
    times = {
        "": lambda timing: timing.seconds,
        "_of_cpu": lambda timing: timing.cpu_s,
        "_with_startup": lambda timing: timing.seconds + timing.startup_s,
    }
    return {suffix: ratio(map(time, google), map(time, ours)) for suffix, time in times.items()}


def run_google(google_dir: Path, shop: Workshop, text: Path) -> Timing:
    """Runs Google's script on one core: static masks, a `dupe_factor` of 1, one TFRecord file.

    Raises InputError: it failed.
    """
    output = shop.folder / "google"
    output.unlink(missing_ok=True)
    arguments = [f"--input_file={text}", f"--output_file={output}", "--dupe_factor=1", *shop.shared_flags]
    try:
        timing = run_timed(Path(__file__).with_name("google_process.py"), [str(google_dir), *arguments], True)
    except ProgramError as error:
        raise InputError(f"--google_dir {google_dir}: its script failed: {error}") from error
    if not output.is_file():
        raise InputError(f"--google_dir {google_dir}: its script wrote no --output_file")
    return timing


def num_records(path: Path) -> int:
    """The number of records in a TFRecord file. A record is: length, checksum, data, checksum."""
    number, size = 0, path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            (length,) = struct.unpack("<Q4x", file.read(12))
            file.seek(length + 4, os.SEEK_CUR)
            number += 1
    return number


if __name__ == "__main__":
    main()
