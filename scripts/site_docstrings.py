"""An extension of griffe, which reads the docstrings for the site: examples of sessions (`>>>`)
become blocks of code."""

import re
from typing import Any

import griffe

SESSION = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


def with_fences(text: str) -> str:
    return SESSION.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


class Sessions(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
