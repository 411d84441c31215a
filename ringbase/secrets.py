"""Secrets that stand in command lines: they are not written down, and not printed."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
PASSWORD = re.compile(r"(\b[A-Za-z][\w+.-]*://[^\s/:@'\"]*):[^\s/@'\"]+@")
# of a URL: it may be signed
QUERY = re.compile(r"(\b[A-Za-z][\w+.-]*://[^\s?'\"]*)\?[^\s'\"]+")
# the variables that mpirun passes on, and those with such names wherever they stand
PASSED_ON = re.compile(r"(-x(?: |=|', ')+['\"]?\w+)=[^\s'\"]+")
NAMED = re.compile(r"(\b\w*(?:TOKEN|SECRET|PASSWORD|API_KEY)\w*)=[^\s'\",]+")


def masked(value: Any) -> Any:
    """A text, or the texts in lists and mappings, without passwords and queries of URLs, and
    without the values of variables that a launcher passes on (`-x NAME=VALUE`).

    >>> masked("sftp://ada:lovelace@host/a.csv https://store/b.csv?sig=1 -x HF_TOKEN=hf_1")
    'sftp://ada:***@host/a.csv https://store/b.csv?*** -x HF_TOKEN=***'
    """
    if isinstance(value, str):
        value = PASSWORD.sub(rf"\1:{HIDDEN}@", value)
        value = QUERY.sub(rf"\1?{HIDDEN}", value)
        for pattern in (PASSED_ON, NAMED):
            value = pattern.sub(rf"\1={HIDDEN}", value)
        return value
    if isinstance(value, Mapping):
        return {name: masked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    return value
