"""Tests use what other packages may use: no private name of ours, except the referees; and none
patches ours. Installed code imports what pyproject.toml declares."""

import ast
import importlib.metadata
import inspect
import sys
import tomllib
from pathlib import Path

from harness.parsing import PACKAGES, PROJECT, ROOT, TABLE
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ringbert
from tasks.programs import COMMANDS

sys.path.insert(0, str(ROOT / "scripts"))
import faults as soak
import make_stubs

TESTS = Path(__file__).resolve().parents[1]
OPTIONAL = {"mlflow", "pandas", "wandb"}  # asked for by name where they are missing
PATCHING = (".setattr", ".delattr", ".patch", ".object")


def test_tests_import_nothing_private_and_patch_nothing_of_ours():
    faults = []
    for path in TESTS.glob("*/**/*.py"):
        nodes, ours = list(ast.walk(ast.parse(path.read_text()))), set(PACKAGES)
        for node in (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)):
            names = [
                f"{getattr(node, 'module', None) or alias.name}.{alias.name}"
                for alias in node.names
            ]
            if names[0].split(".")[0] in PACKAGES:
                ours |= {alias.asname or alias.name for alias in node.names}
                private = [name for name in names if "._" in name.replace("__", "")]
                faults += [
                    (path, name) for name in private if TESTS / "referee" not in path.parents
                ]
        calls = [node for node in nodes if isinstance(node, ast.Call) and node.args]
        patched = [
            ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith(PATCHING)
        ]
        # a size
        patched = [
            name.strip("'") for name in patched if not name.strip("'").split(".")[-1].isupper()
        ]
        faults += [(path, f"patches {name}") for name in patched if name.split(".")[0] in ours]
    assert not faults, "\n".join(f"{path.relative_to(TESTS)}: {name}" for path, name in faults)


def test_tests_take_our_classes_by_what_is_public():
    """They override nothing private of ours, and give no object of ours a private value."""
    faults = []
    for path in TESTS.glob("*/**/*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        ours = set(PACKAGES)
        for node in (node for node in nodes if isinstance(node, ast.ImportFrom)):
            if (node.module or "").split(".")[0] in (*PACKAGES, "harness"):
                ours |= {alias.asname or alias.name for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).split(".")[0] for base in node.bases}
                members = (
                    [getattr(member, "name", "") for member in node.body] if bases & ours else []
                )
                faults += [f"{path}: {node.name}.{name}" for name in members if is_private(name)]
            for target in targets_of(node):
                is_own = ast.unparse(target.value) in ("self", "cls")
                if is_private(target.attr) and not is_own:
                    faults.append(f"{path}: {ast.unparse(target)} = …")
    assert not faults, "\n".join(faults)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def targets_of(node):
    """The attributes that a statement assigns to."""
    targets = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    return [target for target in targets if isinstance(target, ast.Attribute)]


def imports_of(path):
    """The modules that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_what_installed_code_imports_is_declared_and_private_parts_have_an_upper_bound():
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *extras["cpu"], *extras["search"]]
    declared = {canonicalize_name(each.name): each.specifier for each in map(Requirement, texts)}
    distributions, faults = importlib.metadata.packages_distributions(), []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for name in imports_of(path):
            top = name.split(".")[0]
            if top in {*PACKAGES, *OPTIONAL} or top in sys.stdlib_module_names:
                continue
            providers = {canonicalize_name(each) for each in distributions[top]} & declared.keys()
            bounds = [spec.operator for provider in providers for spec in declared[provider]]
            is_bounded = ".src" not in name or {"<", "==", "~="} & set(bounds)
            if not providers or not is_bounded:
                faults.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not faults, "\n".join(faults)


def test_only_the_distributed_layer_asks_for_a_rank():
    """Others call `World.on_first`, or write through a `Run`."""
    files = [*(ROOT / "tasks").rglob("*.py"), *(ROOT / "bert").rglob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            is_rank = isinstance(node, ast.Attribute) and node.attr in ("rank", "local_rank")
            assert not is_rank or ast.unparse(node).endswith(".shape.rank"), (path, node.lineno)


def test_each_fault_of_the_soak_has_its_place_in_the_code():
    """scripts/faults.py puts them in at releases."""
    for fault in tomllib.loads((TESTS / "soak/faults.toml").read_text())["fault"]:
        path, source = soak.source_of(fault["place"], ROOT)
        assert source in path.read_text()


def test_the_import_rules_name_every_program():
    rules = {rule["name"]: rule for rule in TABLE["tool"]["importlinter"]["contracts"]}
    programs = {command.package for command in COMMANDS}
    assert set(rules["The tasks know nothing of each other"]["modules"]) == programs
    folders = {f"tasks.{path.parent.name}" for path in (ROOT / "tasks").glob("*/__init__.py")}
    of_runs = rules["What a run of any task is knows no task"]["forbidden_modules"]
    assert set(of_runs) == folders - {"tasks.runs"}
    assert programs < folders


def test_editors_know_the_arguments_of_jobs():
    """scripts/make_stubs.py has written the stub from today's flags."""
    assert make_stubs.STUB.read_text() == make_stubs.stub(), "run scripts/make_stubs.py"
    classes = {
        node.name: node for node in ast.parse(make_stubs.stub()).body if hasattr(node, "name")
    }
    for name, node in classes.items():
        (function,) = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        arguments = {argument.arg for argument in function.args.kwonlyargs}
        assert arguments == inspect.signature(getattr(ringbert, name)).parameters.keys()
    assert "Squad" in classes
