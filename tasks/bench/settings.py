"""Flags that several benchmarks share."""

from dataclasses import dataclass
from typing import Literal

from distributed.collectives import BackendSettings
from ringbase.settings import Settings, check_at_least, check_at_most, setting

MOST_MEGABYTES = 100_000
ModelSize = Literal["tiny", "minilm", "base", "large"]


@dataclass(frozen=True, kw_only=True)
class FiguresSettings(Settings):
    """Where the figures of a benchmark are written."""

    output_file: str | None = setting(None, "JSON file to write the figures to", "machine")


@dataclass(frozen=True, kw_only=True)
class TurnSettings(FiguresSettings):
    """How often a benchmark measures."""

    repeat: int = setting(3, "number of turns; medians over them are printed", "load")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "repeat")
        check_at_most(self, 10_000, "repeat")


@dataclass(frozen=True, kw_only=True)
class BufferSettings(Settings):
    """Which buffers are summed over the ranks."""

    megabytes: str = setting(
        "1,16,88,440", "sizes of the summed float32 buffers in units of 10^6 bytes, separated by commas", "load"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        buffer_sizes(self)


def buffer_sizes(settings: BufferSettings) -> tuple[float, ...]:
    """The sizes in units of 10^6 bytes. Raises ValueError: they are not positive numbers."""
    try:
        sizes = tuple(float(size) for size in settings.megabytes.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(0 < size <= MOST_MEGABYTES for size in sizes):
        raise ValueError(
            f"--megabytes must be positive numbers, at most {MOST_MEGABYTES:,}, separated by commas, got "
            f"{settings.megabytes!r}"
        )
    return sizes


def refuse_local(settings: BackendSettings) -> None:
    """Raises ValueError for the backend that cannot sum over several ranks."""
    if settings.backend == "local":
        raise ValueError("--backend local cannot sum over several ranks: use auto, mpi, nccl or ring")
