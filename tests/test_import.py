"""Importing the package is cheap: no heavy package, no compilation, and a part of it without the others."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import proxskip

HEAVY = [
    "numba",
    "llvmlite",
    "scipy.sparse",
    "scipy.special",
    "scipy.linalg",
    "scipy.optimize",
    "matplotlib",
    "ray",
    "flwr",
    "cupy",
    "torch",
    "sklearn",
    "networkx",
    "rich",
    "jax",
    "pandas",
    "pyarrow",
    "tensorboard",
    "mlflow",
    "wandb",
    "IPython",
    "concurrent.futures.process",
]
ALL_NAMES = "import proxskip; [getattr(proxskip, name) for name in proxskip.__all__]"
CLOCK = "import time; t = time.process_time(); {}; print(time.process_time() - t)"
ON_DEMAND = ("proxskip", "proxskip.flower", "proxskip.methods", "proxskip.protocol", "proxskip.prox")


def python(code: str, **env: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept | env
    ).stdout


@pytest.mark.long
def test_no_heavy_package_comes_along() -> None:
    loaded = python(f"import sys; {ALL_NAMES}; print(*sys.modules)").split()
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.long
def test_a_part_comes_without_the_others() -> None:
    loaded = python("import sys, proxskip.protocol.client; print(*sys.modules)").split()
    others = [f"proxskip.{part}" for part in ("running", "sweeping", "minimizing", "protocol.server", "report")]
    assert [name for name in (*HEAVY, *others) if name in loaded] == []


@pytest.mark.ray
@pytest.mark.long
def test_an_actor_of_ray_loads_little() -> None:
    """Of many actors on a machine each has its own copy of what it loads."""
    pytest.importorskip("ray")
    before = "import sys, ray, numpy, numpy.typing\nbefore = set(sys.modules)\n"
    loaded = python(f"{before}import proxskip.engines.ray.worker\nprint(*set(sys.modules) - before)").split()
    assert "proxskip.engines.cpu.engine" in loaded
    unused = ("numpy.random", "difflib", "proxskip.data", "proxskip.problems.sharded", "proxskip.running")
    assert [name for name in (*HEAVY, *unused) if name in loaded] == []


@pytest.mark.flower
@pytest.mark.long
def test_a_client_of_a_federation_loads_no_server() -> None:
    pytest.importorskip("flwr")
    loaded = python("import sys\nfrom proxskip.flower import client_app, from_arrays\nprint(*sys.modules)").split()
    others = ("numba", "scipy.sparse", "proxskip.flower.strategy", "proxskip.protocol.server", "proxskip.running")
    assert [name for name in others if name in loaded] == []


@pytest.mark.parametrize("package", ON_DEMAND)
def test_names_on_demand_are_those_that_type_checkers_see(package: str) -> None:
    if package == "proxskip.flower":
        pytest.importorskip("flwr")
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    blocks = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {}
    for line in (line for block in blocks for line in block.body):
        if isinstance(line, ast.ImportFrom):
            for a in line.names:
                star = a.name == "*"
                names = importlib.import_module(str(line.module)).__all__ if star else [a.asname or a.name]
                seen |= {name: (line.module, name if star else a.name) for name in names}
    if importlib.util.find_spec("torch") is None:
        seen.pop("torch", None)
    for name, (where, original) in seen.items():
        found = importlib.import_module(str(where))
        expected = getattr(found, original, None) or importlib.import_module(f"{where}.{original}")
        assert getattr(module, name) is expected, name
    assert {*seen, *module.__all__} <= set(dir(module))


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("proxskip.seam", "proxskip.interfaces", "Engine"),
        ("proxskip.engines.near", "proxskip.engines.in_process", "NearEngine"),
    ],
)
def test_modules_that_have_another_name_are_there_until_the_next_release(old: str, new: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        value = getattr(importlib.import_module(old), name)
    assert value is getattr(importlib.import_module(new), name)
    with pytest.raises(AttributeError):
        importlib.import_module(old).nothing  # noqa: B018


def test_every_name_that_dir_shows_is_there() -> None:
    for name in dir(proxskip):
        getattr(proxskip, name)


@pytest.mark.parametrize("package", ON_DEMAND)
def test_no_module_takes_the_place_of_a_name(package: str) -> None:
    """Whoever imports a submodule makes it an attribute of the package, so the two must not share a name."""
    if package == "proxskip.flower":
        pytest.importorskip("flwr")
    module = importlib.import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert [name for name in modules & set(module.__all__) if not isinstance(getattr(module, name), ModuleType)] == []
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018


@pytest.mark.long
def test_nothing_is_compiled_at_import() -> None:
    code = (
        "import sys\nfrom proxskip.engines.cpu import kernels, lazy_kernels, minibatches\nprint('numba' in sys.modules)"
    )
    assert python(code).strip() == "False"


@pytest.mark.slow
def test_all_names_take_less_than_numba_and_scipy(tmp_path: Path) -> None:
    seconds = {"import numpy, scipy.sparse, numba": [], ALL_NAMES: []}
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path)}  # as where Python keeps what it compiled
    python("import proxskip", **compiled)
    for _ in range(4):
        for what, times in seconds.items():
            times.append(float(python(CLOCK.format(what), **compiled)))
    parts, ours = (min(times) for times in seconds.values())
    assert ours <= 1.2 * parts, f"{ours:.2f} s against {parts:.2f} s"
    assert ours <= 0.6 or parts > 0.5, f"{ours:.2f} s"  # on a slower machine the ratio says the same


def test_few_calls_ask_an_object_what_it_is() -> None:
    """Optional abilities are Protocols; only users' own oracles, operators and graphs are probed, by adapters."""
    files = Path(proxskip.__file__).parent.rglob("*.py")
    calls = [n for f in files for n in ast.walk(ast.parse(f.read_text())) if isinstance(n, ast.Call)]
    asks = [ast.unparse(n) for n in calls if isinstance(n.func, ast.Name) and n.func.id in ("hasattr", "getattr")]
    assert sum(not ask.startswith("hasattr(os,") for ask in asks) <= 63  # systems differ


def test_only_public_parts_of_pytorch_are_used() -> None:
    """Private ones change between its releases without notice."""
    private = []
    for file in sorted(Path(proxskip.__file__).parent.rglob("*.py")):
        names = []
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute):
                names.append(ast.unparse(node))
        private += [f"{file.name}: {name}" for name in names if re.match(r"torch\b.*\._[a-z]", name, re.IGNORECASE)]
    assert not private


def test_no_private_attribute_of_an_object_of_pytorch_is_used() -> None:
    """Neither read, nor asked for by a string, nor set on a class of its own."""
    package = Path(proxskip.__file__).parent
    rooms = [*(package / "torch").glob("*.py"), *(package / "engines/torch").glob("*.py")]
    private = []
    for file in [*rooms, package / "problems/torch_model.py"]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                names = [node.attr]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = node.value.split(".")
            elif isinstance(node, ast.ClassDef):
                names = [
                    a.id for n in node.body if isinstance(n, ast.Assign) for a in n.targets if isinstance(a, ast.Name)
                ]
            private += [f"{file.name}: {name}" for name in names if re.fullmatch(r"_(?!replace$)[a-z]\w*", name)]
    assert not private


def test_private_parts_of_ray_and_flower_are_in_one_module() -> None:
    private = re.compile(r"\b(ray|flwr)\._|internal_kv|ray\.autoscaler|TaskIdentity\._|_spill_on_|_node_ip_address")
    folder = Path(proxskip.__file__).parent
    using = {f.relative_to(folder).as_posix() for f in folder.rglob("*.py") if private.search(f.read_text())}
    assert using == {"engines/ray/private.py"}
