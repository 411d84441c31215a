"""What optimized HLO says about kernels, as text; needs nothing but Python."""

import re
from collections import Counter

FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "while", "conditional", "call",
    "copy-done", "all-reduce-done", "async-done", "opt-barrier",
}  # fmt: skip


def kernels(text: str) -> dict[str, int]:
    """The operations of optimized HLO that start kernels, by kind: fusions by the way they are compiled, calls of
    libraries by name, and others. Bodies of loops and branches count once."""
    called = set(re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", text))
    counts: Counter[str] = Counter()
    for header, body in re.findall(r"^((?:ENTRY )?%?[\w.\-]+) [^\n]*\{\n(.*?)^\}", text, re.S | re.M):
        if header.removeprefix("ENTRY ").removeprefix("%") in called:
            continue
        for line in body.splitlines():
            if kind := kind_of(line):
                counts[kind] += 1
    return dict(counts.most_common())


def kind_of(line: str) -> str | None:
    """The kind of an HLO instruction; None if it starts no kernel."""
    found = re.search(r" = .*? ([a-z][a-z0-9\-]*)\(", line)
    if not found or found[1] in FREE:
        return None
    if found[1] == "fusion":
        kind = re.search(r"kind=k(\w+)", line)
        triton = re.search(r'"kind":"(__triton[\w$]*)"', line)
        return f"fusion {triton[1] if triton else kind[1].lower() if kind else ''}"
    if found[1] == "custom-call":
        target = re.search(r'custom_call_target="([^"]+)"', line)
        return f"call {target[1] if target else ''}"
    return found[1]
