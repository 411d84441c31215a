"""TensorFlow's notices are not seen in what programs and jobs print, but the rest is, and all of it
at the user's wish. The notices are what TensorFlow 2.21 prints."""

import os
import signal
import sys

import pytest
from harness.jobs import shell
from harness.mpi import ROOT

pytestmark = pytest.mark.slow
NOTICES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795975773.765669   16390 port.cc:153] oneDNN custom operations are on. You may see
I0000 00:00:1795975773.858013   16390 cpu_feature_guard.cc:227] This TensorFlow binary is optimized
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
I0000 00:00:1795975787.643177   16411 dump_mlir_util.cc:269] disabling MLIR crash reproducer, set
I0000 00:00:1795975787.917477   16411 device_compiler.h:208] Compiled cluster using XLA!  This line
"""
OTHERS = """\
W0000 00:00:1795975787.626434   16411 service.cc:153] what TensorFlow warns of
I have read 3 lines
"""
LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # which the tests set
# A script that compiles with XLA.
COMPILES = """
import ringbert.horovod as hvd
import tensorflow as tf
tf.function(lambda x: x + 1, jit_compile=True)(tf.ones(3))
"""


@pytest.mark.parametrize("package", ["ringbert", "tasks", "benchmarks"])
def test_an_import_of_ours_hides_the_notices_of_later_imports(package, tmp_path):
    """Here of a package that prints what TensorFlow prints, and loads in no time."""
    (tmp_path / "tensorflow.py").write_text(
        f"import os; os.write(2, {NOTICES + OTHERS!r}.encode())"
    )
    program = f"import {package}, tensorflow; print(tensorflow.__spec__.loader.path)"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    for level, printed in {"": OTHERS, "1": OTHERS, "0": NOTICES + OTHERS}.items():
        variables = ["-u", LEVEL, *([f"{LEVEL}={level}"] if level else [])]
        command = ("env", *variables, sys.executable, "-c", program)
        done = shell(*command, PYTHONPATH=path)
        assert (done.stdout, done.stderr) == (f"{tmp_path}/tensorflow.py\n", printed)


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_script_that_compiles_says_nothing_of_tensorflow_unless_it_is_asked_to(is_wanted):
    """The user's own level counts for the job, too."""
    level = [f"{LEVEL}=0"] if is_wanted else []
    job = ["-m", "distributed.launch", "-np=1", "--", sys.executable] if is_wanted else []
    command = ("env", "-u", LEVEL, *level, sys.executable, *job, "-c", COMPILES)
    errors = shell(*command, TF_ENABLE_ONEDNN_OPTS="1").stderr
    if is_wanted:
        assert "oneDNN custom operations are on" in errors
        assert "Compiled cluster using XLA!" in errors
    else:
        assert errors == ""


def test_why_a_process_aborts_is_seen_without_its_notices():
    program = (
        "import os, sys; from ringbase.notices import without_notices;"
        " w = without_notices(); w.__enter__();"
        " os.write(2, sys.argv[1].encode()); os.abort()"
    )
    command = (sys.executable, "-c", program, f"{NOTICES}{OTHERS}why\n")
    done = shell(*command, status=-signal.SIGABRT, PATH="/nonexistent")
    assert done.stderr == f"{OTHERS}why\n"


@pytest.mark.parametrize(
    ("tag", "num_bytes"), [("", 1), ("", 4096), ("[1,0]<stderr>: ", 4096), ("[1] ", 4096)]
)
def test_a_job_whose_script_imports_tensorflow_first_shows_none(tag, num_bytes):
    """The text comes in pieces that end anywhere; mpirun may put a tag before each line."""
    program = (
        "import os, sys, time; text, size = sys.argv[1].encode(), int(sys.argv[2])\n"
        "for start in range(0, len(text), size):\n"
        "    os.write(2, text[start : start + size]); time.sleep(0.0005)\n"
    )
    lines = f"{OTHERS}{NOTICES}50 %\b\b\b\b100 %\n{NOTICES}I000".splitlines(keepends=True)
    text = "".join(f"{tag}{line}" for line in lines)
    launcher = (sys.executable, "-m", "distributed.launch", "-np=1", "--")
    command = (*launcher, sys.executable, "-c", program, text, str(num_bytes))
    done = shell("env", "-u", LEVEL, *command)
    _, _, printed = done.stderr.partition(f" {num_bytes}\n")  # the command
    expected = f"{OTHERS}50 %\b\b\b\b100 %\nI000".splitlines(keepends=True)
    assert printed == "".join(f"{tag}{line}" for line in expected)
