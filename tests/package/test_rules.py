"""Tests use what other packages may use: no private name of ours, except the referees; and none patches ours."""

import ast
from pathlib import Path

from harness.parsing import PACKAGES

TESTS = Path(__file__).resolve().parents[1]
PATCHING = (".setattr", ".delattr", ".patch", ".object")


def test_tests_import_nothing_private_and_patch_nothing_of_ours():
    faults = []
    for path in TESTS.glob("*/**/*.py"):
        nodes, ours = list(ast.walk(ast.parse(path.read_text()))), set(PACKAGES)
        for node in (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)):
            names = [f"{getattr(node, 'module', None) or alias.name}.{alias.name}" for alias in node.names]
            if names[0].split(".")[0] in PACKAGES:
                ours |= {alias.asname or alias.name for alias in node.names}
                private = [name for name in names if "._" in name.replace("__", "")]
                faults += [(path, name) for name in private if TESTS / "referee" not in path.parents]
        calls = [node for node in nodes if isinstance(node, ast.Call) and node.args]
        patched = [ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith(PATCHING)]
        patched = [name.strip("'") for name in patched if not name.strip("'").split(".")[-1].isupper()]  # a size
        faults += [(path, f"patches {name}") for name in patched if name.split(".")[0] in ours]
    assert not faults, "\n".join(f"{path.relative_to(TESTS)}: {name}" for path, name in faults)
