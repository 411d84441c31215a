"""Every public name of `ringbert`, and the model, have an example in their docstring that runs."""

import doctest
import importlib
import sys

import pytest
from harness.models import save_model
from harness.mpi import ROOT
from harness.program_runs import weights_in

import ringbert
from bert.model import Bert

EXAMPLES = [getattr(ringbert, name) for name in ringbert.__all__ if name != "__version__"]
EXAMPLES.append(Bert)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    models = {
        "minilm": ("features", {}),
        "squad_output": ("span", {}),
        "reviews": ("classifier", {"labels": ("good", "bad")}),
        "vectors": ("features", {}),
        "names": ("tagger", {"labels": ("O", "B-PER", "I-PER")}),
        "stars": ("classifier", {"labels": ("stars",)}),
    }
    for name, (head, changes) in models.items():
        made = save_model(folder / "made" / name, head, **changes)
        made.rename(folder / name)
        assert weights_in(folder / name)
    (folder / "own_task.py").symlink_to(ROOT / "examples/own_task.py")
    return folder


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: value.__name__)
def test_the_example_of_a_public_name_runs(value, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    # outputs may be longer than a line
    text = str(value.__doc__).replace("\\\n", "")
    names = vars(importlib.import_module(value.__module__))
    name = value.__name__
    test = doctest.DocTestParser().get_doctest(text, dict(names), name, None, 0)
    assert test.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=sys.stderr.write)
    assert runner.failures == 0
