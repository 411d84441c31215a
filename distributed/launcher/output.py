"""Reads mpirun's standard error and passes it on at once, without the ranks' records and mpirun's banners."""

import json
import os
import re
import select
from collections.abc import Callable

from distributed.launcher import banners
from distributed.launcher.banners import Death
from distributed.records import MARK

MARK_BYTES = MARK.encode()
RULE = re.compile(rb"(?:-{70,}|={79,})\r?\n\Z")
PART_OF_RULE = re.compile(rb"[-=]+\Z")
PART_OF_LINE = re.compile(rb"[\[APTYa][^\r\x1e]{0,300}\Z")  # as the lines in `banners` begin; no progress bar
TAG = re.compile(rb"\[[^\]\n]*\](?:<std\w+>)?:? ?")  # before each line by mpirun --tag-output, or Hydra's -l
MOST_LINES = 40  # of a block


class Output:
    """Passes bytes to `write`; calls `on_record` with each record and `on_death` with each fact of a banner.

    Incomplete lines pass too, so that progress bars move. What may become a record or a banner is held back until
    it is complete, or until `flush`.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        on_record: Callable[[dict], None],
        on_death: Callable[[Death], None],
    ):
        self._write, self._on_record, self._on_death = write, on_record, on_death
        self._partial = b""  # the end of the input, if it is no whole line
        self._block: list[bytes] = []  # the lines from a rule on
        self._is_midline = False

    @property
    def holds_back(self) -> bool:
        return bool(self._partial or self._block)

    def feed(self, data: bytes) -> None:
        self._partial += data.replace(b"\0", b"")  # with which PRRTE ends some of its messages
        while (end := self._partial.find(b"\n") + 1) > 0:
            line, self._partial = self._partial[:end], self._partial[end:]
            self._line(line)
        if not self._block:
            start = self._held_from(self._partial)
            self._pass(self._partial[:start])
            self._partial = self._partial[start:]

    def _held_from(self, partial: bytes) -> int:
        """Where in an incomplete line something may begin that is to be held back."""
        if not self._is_midline and PART_OF_LINE.match(partial):
            return 0
        start = partial.find(MARK_BYTES)
        if start < 0 and (rule := PART_OF_RULE.search(partial)):
            return rule.start()
        return start if start >= 0 else len(partial)

    def flush(self) -> None:
        """Passes what is held back: nothing came for a while, so it is not the beginning of a banner."""
        held, self._block = [*self._block, self._partial], []
        self._partial = b""
        for line in held:
            self._pass(line)

    def say(self, text: str) -> None:
        """Prints a line of bert-launch's own, after all that came before it."""
        self.flush()
        self._pass(b"\n" * self._is_midline + f"bert-launch: {text}\n".encode())

    def _pass(self, data: bytes) -> None:
        if data:
            self._is_midline = not data.endswith(b"\n")
            self._write(data)

    def _line(self, line: bytes) -> None:
        before, mark, record = line.partition(MARK_BYTES)
        if mark:
            self._record(before, record)
        elif rule := RULE.search(line):
            self._pass(line[: rule.start()])  # such as a progress bar, which ends no line
            self._rule(line[rule.start() :])
        elif self._block:
            self._block.append(line)
            if len(self._block) > MOST_LINES:
                self._pass_block()
        elif (deaths := banners.of_line(line.decode(errors="replace"))) is None:
            self._pass(line)
        else:
            self._tell(deaths)

    def _record(self, before: bytes, text: bytes) -> None:
        if before and self._block:
            self._block.append(before)
        elif not TAG.fullmatch(before):
            self._pass(before)
        try:
            record = json.loads(text)
            record["kind"]
        except (ValueError, TypeError, KeyError):  # torn by another rank's output
            self._pass(text)
        else:
            self._on_record(record)

    def _rule(self, rule: bytes) -> None:
        if not self._block:
            self._block = [rule]
            return
        deaths = banners.of_block(b"".join(self._block[1:]).decode(errors="replace"))
        if deaths is None:  # a block of somebody else's; its last rule may be the first of the next block
            self._pass_block()
            self._block = [rule]
        else:
            self._block = []
            self._tell(deaths)

    def _pass_block(self) -> None:
        lines, self._block = self._block, []
        for line in lines:
            self._pass(line)

    def _tell(self, deaths: list[Death]) -> None:
        for death in deaths:
            self._on_death(death)


def write_to(descriptor: int) -> Callable[[bytes], None]:
    """A function that writes bytes there; nothing if nobody reads them any more, as the job goes on without."""

    def write(data: bytes) -> None:
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [], 1.0)
            except OSError:
                return

    return write
