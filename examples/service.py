"""A service around a model that bert-classifier has trained, with FastAPI.

    pip install fastapi uvicorn
    MODEL=reviews uvicorn --app-dir examples service:app
    curl -d '{"texts": ["a fine film", "two dull hours"]}' -H 'Content-Type: application/json' \
        localhost:8000/classify

The model is loaded once, before the first request is taken. FastAPI calls `classify` in a thread
for each request; the calls of one predictor are computed one after the other, so send many texts at
once instead of many requests.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ringbert

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

MOST_TEXTS = 1000  # of a request


class Request(BaseModel):
    texts: list[str] = Field(max_length=MOST_TEXTS)


@asynccontextmanager
async def loaded(app: FastAPI) -> AsyncIterator[None]:
    app.state.classifier = ringbert.Classifier(os.environ["MODEL"])
    app.state.classifier("a first text")  # builds the graph, which all later ones share
    yield


app = FastAPI(lifespan=loaded)


@app.post("/classify")
def classify(request: Request) -> list[dict[str, Any]]:
    try:
        found = app.state.classifier(request.texts)
    except ringbert.InputError as error:
        raise HTTPException(422, str(error)) from None
    return [each.to_dict() for each in found]
