"""What bert-launch makes of mpirun's standard error: banners become facts, records are taken out, the rest passes.

The banners are those of real jobs: of Open MPI 5.0.11, MPICH 5.0.2 and Intel MPI 2021 here, of Open MPI 4 and of
MPICH on two hosts in reports of their users.
"""

import json

import pytest

from distributed.launcher.banners import Death, cause
from distributed.launcher.output import MOST_LINES, Output

RULE = "-" * 74 + "\n"
BAR = "=" * 83 + "\n"

OPEN_MPI_5_SIGNAL = f"""\
{RULE}prterun noticed that process rank 1 with PID 13567 on node vm exited on
signal 7 (Bus error).
{RULE}"""
OPEN_MPI_5_STATUS = f"""\
{RULE}prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-13736@1,1]
   Exit code:    5
{RULE}"""
OPEN_MPI_5_ABORT = f"""\
{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[561,1],1]
  Errorcode: 3

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{RULE}{RULE}prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{RULE}\0"""
OPEN_MPI_5_LEFT = f"""\
{RULE}prterun has exited due to process rank 1 with PID 13823 on node vm exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the
job did. This can cause a job to hang indefinitely while it waits for
all processes to call "init". By rule, if one process calls "init",
then ALL processes must call "init" prior to termination.

You can avoid this message by specifying -quiet on the prterun command
line.
{RULE}"""
OPEN_MPI_4_SIGNAL = f"""\
{RULE}Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULE}{RULE}mpirun noticed that process rank 7 with PID 0 on node DESKTOP-G7NUGFV exited on signal 9 (Killed).
{RULE}"""
OPEN_MPI_4_STATUS = f"""\
{RULE}mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[64112,1],3]
  Exit code:    7
{RULE}"""
OPEN_MPI_4_ABORT = f"""\
{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 3.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{RULE}[node1:10319] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[node1:10319] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
"""
OPEN_MPI_4_LOST = f"""\
{RULE}ORTE has lost communication with a remote daemon.

  HNP daemon   : [[64112,0],0] on node wmaster-desktop
  Remote daemon: [[64112,0],1] on node 10.126.10.10

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
{RULE}"""
MPICH_SIGNAL = f"""\

{BAR}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 9665 RUNNING AT NeuroRTX6000
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{BAR}YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
MPICH_TWO_HOSTS = f"""\
{BAR}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4774 RUNNING AT IIPLab-WS1
=   EXIT CODE: 139
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{BAR}[proxy:0:1@IIPLab-WS2] HYD_pmcd_pmip_control_cmd_cb (pm/pmiserv/pmip_cb.c:878): assert (!closed) failed
[proxy:0:1@IIPLab-WS2] main (pm/pmiserv/pmip.c:200): demux engine error waiting for event
[mpiexec@IIPLab-WS2] main (ui/mpich/mpiexec.c:336): process manager error waiting for completion
"""
MPICH_ABORT = (
    "Abort(3) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1\n"
)
INTEL_SIGNALS = "".join(
    f"\n{BAR}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    f"=   RANK {rank} PID {5490 + rank} RUNNING AT gn59\n=   KILLED BY SIGNAL: {signal}\n{BAR}"
    for rank, signal in enumerate(("9 (Killed)", "11 (Segmentation fault)", "9 (Killed)"))
)

INTEL_EXIT = "".join(  # of rank 1, which Intel MPI does not show
    f"\n{BAR}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    f"=   RANK {rank} PID {18062 + rank} RUNNING AT vm\n=   KILLED BY SIGNAL: 9 (Killed)\n{BAR}"
    for rank in (0, 2)
)

BANNERS = {
    "Open MPI 5, signal": (OPEN_MPI_5_SIGNAL, "rank 1 on host vm was killed (SIGBUS: is /dev/shm full?)"),
    "Open MPI 5, status": (OPEN_MPI_5_STATUS, "rank 1 exited with status 5"),
    "Open MPI 5, abort": (OPEN_MPI_5_ABORT, "rank 1 called MPI_Abort with status 3"),
    "Open MPI 5, exit": (OPEN_MPI_5_LEFT, "rank 1 on host vm ended before the others"),
    "Open MPI 4, signal": (
        OPEN_MPI_4_SIGNAL,
        "rank 7 on host DESKTOP-G7NUGFV was killed (SIGKILL: out of memory?)",
    ),
    "Open MPI 4, status": (OPEN_MPI_4_STATUS, "rank 3 exited with status 7"),
    "Open MPI 4, abort": (OPEN_MPI_4_ABORT, "rank 1 called MPI_Abort with status 3"),
    "Open MPI 4, host": (OPEN_MPI_4_LOST, "the connection to host 10.126.10.10 was lost"),
    "MPICH, signal": (MPICH_SIGNAL, "a rank on host NeuroRTX6000 was killed (SIGKILL: out of memory?)"),
    "MPICH, two hosts": (
        MPICH_TWO_HOSTS,
        "a rank on host IIPLab-WS1 was killed (SIGSEGV: a crash in compiled code)",
    ),
    "MPICH, abort": (MPICH_ABORT, "rank 1 called MPI_Abort with status 3"),
    "Intel MPI, exit": (INTEL_EXIT, "rank 1 ended before the others"),
    "Intel MPI, signal": (INTEL_SIGNALS, "rank 1 on host gn59 was killed (SIGSEGV: a crash in compiled code)"),
}


class Terminal:
    """Collects what passes, the records and the deaths."""

    def __init__(self):
        self.shown, self.records, self.deaths = b"", [], []
        self.output = Output(self._write, self.records.append, self.deaths.append)

    def _write(self, data: bytes) -> None:
        self.shown += data

    def feed(self, text: str, size: int = 1 << 20) -> "Terminal":
        data = text.encode()
        for start in range(0, len(data), size):
            self.output.feed(data[start : start + size])
        return self

    def text(self) -> str:
        return self.shown.decode()


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize(("banner", "line"), BANNERS.values(), ids=BANNERS)
def test_banners_become_one_line(banner, line, size):
    terminal = Terminal().feed(f"before\n{banner}after\n", size)
    assert terminal.text().split() == ["before", "after"]
    assert str(cause(terminal.deaths, num_ranks=3)) == line


def test_the_process_id_of_mpich_is_kept():
    death = cause(Terminal().feed(MPICH_SIGNAL).deaths, num_ranks=2)
    assert death == Death(host="NeuroRTX6000", process=9665, signal=9, status=9)


UNKNOWN = {
    "another message of mpirun's": f"{RULE}There are not enough slots available in the system\n{RULE}",
    "a table": f"{RULE}name  loss\n{RULE}a  1.0\nb  2.0\n{RULE}",
    "an open block": f"{RULE}one line\n" + "another line\n" * (MOST_LINES + 1),
    "a traceback": "Traceback (most recent call last):\n  File …\nValueError: [x:1] 3 processes\n",
    "dashes in a line": "a --- b ---\n",
}


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN)
def test_everything_else_passes_untouched(text, size):
    terminal = Terminal().feed(text, size)
    terminal.output.flush()
    assert terminal.text() == text
    assert terminal.deaths == []


def test_a_banner_after_a_table_is_still_found():
    terminal = Terminal().feed(f"{RULE}name\n{RULE}a\n{RULE}" + OPEN_MPI_4_STATUS)
    assert terminal.text() == f"{RULE}name\n{RULE}a\n{RULE}"
    assert len(terminal.deaths) == 1


def test_a_banner_after_a_progress_bar():
    terminal = Terminal().feed("\rtraining: 5%|█   |" + OPEN_MPI_4_STATUS)
    assert terminal.text() == "\rtraining: 5%|█   |"
    terminal.output.say("the last line")
    assert terminal.text() == "\rtraining: 5%|█   |\nbert-launch: the last line\n"


def test_incomplete_lines_pass_at_once():
    terminal = Terminal()
    for part in ("\rtraining: 5%", "\rtraining: 6%", "|#", "#-"):
        before = terminal.text()
        terminal.feed(part)
        assert terminal.text() == before + part.rstrip("-")
    terminal.output.flush()
    assert terminal.text() == "\rtraining: 5%\rtraining: 6%|##-"


RECORD = "\x1e" + json.dumps({"kind": "saved", "position": 3}) + "\n"


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_records_are_taken_out(size):
    text = f"one\n{RECORD}\rbar 1{RECORD}\rbar 2\n{RULE}a block {RECORD}with a record\n{RULE}"
    text += f"[1,0]<stderr>: {RECORD}two\n"
    terminal = Terminal().feed(text, size)
    terminal.output.flush()
    assert terminal.records == [{"kind": "saved", "position": 3}] * 4
    shown = terminal.text().replace("[1,0]<stderr>: ", "")  # a tag that came alone has passed
    assert shown == f"one\n\rbar 1\rbar 2\n{RULE}a block with a record\n{RULE}two\n"


@pytest.mark.parametrize("text", ['{"kind": "sav', "[]", '"text"', '{"position": 3}'])
def test_a_torn_record_passes(text):
    terminal = Terminal().feed(f"\x1e{text}\n")
    assert (terminal.text(), terminal.records) == (f"{text}\n", [])
