"""examples/service.py answers as the classifier in it does."""

import json
import sys

import pytest
from harness.jobs import install, shell
from harness.models import save_model
from harness.mpi import ROOT

import ringbert

CALLS = """
import json
from fastapi.testclient import TestClient
from service import app

with TestClient(app) as client:
    bodies = {"texts": ["the red fox", "two dull axe"]}, {"texts": []}, {"texts": [1]}, {"text": ""}
    for body in bodies:
        answer = client.post("/classify", json=body)
        print(json.dumps([answer.status_code, answer.json()]))
"""


@pytest.mark.timeout(1200)
def test_the_service_answers_as_its_classifier(tmp_path):
    install("fastapi", "httpx", into=tmp_path / "site")
    model = save_model(tmp_path, "classifier", labels=("a", "b"))
    paths = f"{ROOT}:{ROOT}/examples:{tmp_path}/site"
    done = shell(sys.executable, "-c", CALLS, PYTHONPATH=paths, MODEL=str(model))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    found = ringbert.Classifier(model)(["the red fox", "two dull axe"])
    assert answers[:2] == [[200, [each.to_dict() for each in found]], [200, []]]
    assert [status for status, _ in answers[2:]] == [422, 422]
