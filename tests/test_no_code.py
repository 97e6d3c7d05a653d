"""Nothing received or read can run code: what could do that is not used in the package or its scripts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import source

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [path for folder in ("scripts", "examples") for path in (ROOT / folder).rglob("*.py")]
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
LOADERS = {"load", "jit", "hub", "package"}
"""Of torch and NumPy: where they are called, their arguments are looked at, so they are not imported by themselves."""
CALLS = {"eval", "exec", "compile", "__import__", "torch.jit.load", "torch.hub.load", "pandas.read_pickle"}
YAML = {"load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all"}
YAML |= {"Loader", "FullLoader", "UnsafeLoader", "CLoader", "CFullLoader", "CUnsafeLoader"}


def faults(module: ast.Module) -> Iterator[str]:
    """Places where a module uses a forbidden function."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in MODULES:
                    yield f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in MODULES:
                yield f"line {node.lineno}: from {node.module}"
            if node.module in ("torch", "numpy") and LOADERS & {alias.name for alias in node.names}:
                yield f"line {node.lineno}: from {node.module}"
            if node.module == "yaml" and YAML & {alias.name for alias in node.names}:
                yield f"line {node.lineno}: from yaml"
        elif isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                if base.startswith("yaml.") and base.removeprefix("yaml.") in YAML:
                    yield f"line {node.lineno}: class of {base}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            words = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if name in CALLS:
                yield f"line {node.lineno}: {name}"
            elif name in ("torch.load", "th.load") and words.get("weights_only") != "True":
                yield f"line {node.lineno}: torch.load without weights_only=True"
            elif name in ("np.load", "numpy.load") and words.get("allow_pickle", "False") != "False":
                yield f"line {node.lineno}: numpy.load with allow_pickle"
            elif name.startswith("yaml.") and name.removeprefix("yaml.") in YAML:
                yield f"line {node.lineno}: {name}"


def test_no_function_that_can_run_received_code_is_used() -> None:
    files = [*source.FILES, *SCRIPTS]
    assert len(files) > 400
    assert [f"{file}: {fault}" for file in files for fault in faults(source.tree(file))] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import pickle as p, os",
        "from marshal import loads",
        "def f():\n    from cloudpickle import loads",
        "eval('1')",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=False)",
        "np.load('x', allow_pickle=True)",
        "yaml.load('x', Loader=L)",
        "from yaml import full_load",
        "class L(yaml.UnsafeLoader): pass",
        "from torch import load",
        "from numpy import load, zeros",
        "torch.jit.load('x')",
        "__import__('os')",
    ],
)
def test_each_forbidden_call_is_noticed(text: str) -> None:
    assert len(list(faults(ast.parse(text)))) == 1


def test_safe_code_is_accepted() -> None:
    text = "class L(yaml.SafeLoader): pass\nyaml.safe_load('x')\n"
    text += "torch.load('x', weights_only=True)\nmodel.eval()\nre.compile('x')\nnp.load('x')"
    assert list(faults(ast.parse(text))) == []
