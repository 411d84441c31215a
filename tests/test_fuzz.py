"""Damaged and hostile files for every reader (tests/fuzz): each is accepted and right, or refused in one line."""

import os
from pathlib import Path

import pytest
from fuzz.run import run
from fuzz.worker import NO_WEIGHTS

SEED = int(os.environ.get("RINGBERT_FUZZ_SEED", "0"))


def check(folder: Path, cases: int, reader: str = "") -> None:
    outcomes = run(folder, cases, SEED, reader=reader)
    print(outcomes.table())
    done = sum(counts.total() for counts in outcomes.counts.values())
    assert not outcomes.faults, f"seed {SEED}, files in {folder}/faults:\n" + "\n".join(outcomes.faults[:20])
    assert done == cases
    results = {result for counts in outcomes.counts.values() for result in counts}
    assert results == {"accepted", "refused"}, "the cases must reach both"


def test_a_few_damaged_files(tmp_path: Path) -> None:
    check(tmp_path, 300, NO_WEIGHTS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_damaged_files(tmp_path: Path) -> None:
    check(tmp_path, 10_000)


def test_a_fault_is_noticed_and_its_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that raises, one that computes for ever, and one that fills the memory."""
    from fuzz import worker
    from fuzz.reader import Reader

    def called(how: str):
        def read(folder: Path, name: str) -> None:
            match how:
                case "raises":
                    {}["key"]
                case "loops":
                    while True:
                        pass
                case "fills":
                    bytearray(400 << 20)

        return Reader(how, {"a.txt": (b"a", "text")}, read)

    monkeypatch.setattr(worker, "MOST_CPU_S", 0.3)
    worker.signal.signal(worker.signal.SIGPROF, worker.stop)
    for how, reason in (
        ("raises", "KeyError: 'key'"),
        ("loops", "takes more than 0.3 s"),
        ("fills", "MiB more mem"),
    ):
        result, message = worker.outcome(called(how), tmp_path, "a.txt")
        assert result == "fault"
        assert reason in message
    reader = called("accepts")
    assert worker.outcome(reader, tmp_path, "a.txt") == ("accepted", "")
    assert (
        worker.fault_of("something is wrong", tmp_path, "a.txt", reader) == "a message that does not name the file"
    )


def test_a_worker_that_dies_is_a_fault_and_the_others_go_on(tmp_path: Path) -> None:
    killer = tmp_path / "sitecustomize.py"  # ends the worker when it writes its third case
    killer.write_text(
        "import os\n"
        "write = os.pwrite\n"
        "def pwrite(file, data, at):\n"
        "    write(file, data, at)\n"
        "    if data.strip() == b'3':\n"
        "        os.abort()\n"
        "os.pwrite = pwrite\n"
    )
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        outcomes = run(tmp_path / "out", 5, reader="state.json")
    finally:
        os.environ["PYTHONPATH"] = before
    assert len(outcomes.faults) == 1
    assert outcomes.faults[0].startswith("case 3: the process ended with status -6")
    assert outcomes.counts["state.json"].total() == 4
