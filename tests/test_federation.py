"""The example deployment: what it refuses, one run with real processes, and one in Flower's simulation."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps

pytest.importorskip("flwr", reason="flwr is not installed")

pytestmark = pytest.mark.flower

APP = Path(__file__).resolve().parents[1] / "examples" / "flower"
TOOLS = all(shutil.which(t) for t in ("openssl", "ssh-keygen"))


def script() -> Any:
    loader = importlib.machinery.SourceFileLoader("federation", str(APP / "federation"))
    spec = importlib.util.spec_from_loader("federation", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def federation(home: Path, *words: str, seconds: float = 280.0) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PROXSKIP_FEDERATION": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(APP / "federation"), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def expected(nodes: int, rounds: int, l2: float = 0.1, seed: int = 4) -> np.ndarray:
    """The same run in one process: label-sorted digits, Scaffnew with everybody in the form for cohorts."""
    A, b = ps.datasets.load("digits")
    problem = ps.split(ps.Logistic(A, b, l2=l2), clients=nodes, by="label", weights="equal")
    return ps.run(ps.Scaffnew.theory(problem), problem, rounds=rounds, seed=seed, cohort=[list(range(nodes))]).x


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "192.0.2.7", "example.org", "::", "127.0.0.1", "127.8.8.8", "::1", "localhost"]
)
def test_off_loopback_it_needs_tls_and_keys_or_to_be_told(host: str) -> None:
    module, is_local = script(), host.startswith("127.") or host in ("::1", "localhost")
    with nullcontext() if is_local else pytest.raises(module.Refused, match="say --insecure if you mean it"):
        module.check_security(host, plain=True, insecure=False)
    module.check_security(host, plain=True, insecure=True)
    module.check_security(host, plain=False, insecure=False)


def test_the_loopback_may_be_that_of_ipv6() -> None:
    module = script()
    assert module.address("::1", 80) == "[::1]:80"
    assert module.address("127.0.0.1", 80) == "127.0.0.1:80"
    try:
        port = module.free_port("::1")
    except module.Refused:
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        module.wait_for("::1", port, 10.0)


def test_an_address_that_cannot_be_listened_at_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script()

    def none(*_: Any) -> Any:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(module.socket, "socket", none)
    with pytest.raises(module.Refused, match=r"^this machine cannot listen at ::1 \(Address family not supported"):
        module.free_port("::1")


def test_the_command_says_so_too(tmp_path: Path) -> None:
    done = federation(tmp_path / "fed", "up", "--host", "0.0.0.0", "--plain")
    assert done.returncode == 2
    assert "anybody could read" in done.stderr
    assert not (tmp_path / "fed").exists()
    assert "nothing is up" in federation(tmp_path / "fed", "run").stderr


def test_a_python_without_the_library_gets_one_sentence_and_nothing_is_made(tmp_path: Path) -> None:
    environment = os.environ | {"PROXSKIP_FEDERATION": str(tmp_path / "fed")}
    environment.pop("PYTHONPATH", None)
    # -S leaves out site-packages, and with them every package
    call = [sys.executable, "-S", str(APP / "federation"), "up"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("federation: numpy is not installed for")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "fed").exists()


def test_settings_become_toml() -> None:
    module = script()
    for word, said in (
        ("method=fedlin", 'method="fedlin"'), ("method=true-ish", 'method="true-ish"'), ("tol=1e-3", "tol=1e-3"),
        ("rounds=30", "rounds=30"), ("deadline=60.0", "deadline=60.0"), ("x=true", "x=true"), ('m="a b"', 'm="a b"'),
    ):  # fmt: skip
        assert module.setting(word) == said
    for word in ("rounds", "rounds=", "=3"):
        with pytest.raises(module.Refused, match="no setting"):
            module.setting(word)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not TOOLS, reason="openssl or ssh-keygen is missing")
@pytest.mark.slow
def test_a_deployment_with_tls_and_keys_on_loopback(tmp_path: Path) -> None:
    """Real processes: two nodes, three rounds, the cpu engine's answer; a node that is not registered stays outside."""
    home = tmp_path / "fed"
    try:
        started = federation(home, "up", "--nodes", "2")
        assert started.returncode == 0, started.stderr
        assert "TLS, node keys" in started.stdout
        ran = federation(home, "run", "rounds=3", "measure=0", "deadline=120.0", "wait=240.0", seconds=600.0)
        assert "scaffnew" in ran.stdout, ran.stdout[-3000:] + ran.stderr[-3000:]
        result = json.loads((home / "result.json").read_text())
        assert result["summary"]["rounds"] == 3
        assert result["summary"]["counts"]["lost"] == 0
        assert np.array_equal(result["x"], expected(2, 3))
        assert list(home.glob("node-0/memory/*/client-0"))
    finally:
        stopped = federation(home, "down")
    assert "stopped 3 processes" in stopped.stdout
    marked = f"PROXSKIP_FEDERATION_PART={home}".encode()
    left = [p for p in Path("/proc").glob("[0-9]*/environ") if marked in _bytes(p)]
    assert left == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


SIMULATION = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from flwr.simulation import run_simulation
from flwr.serverapp import ServerApp
import numpy as np
import proxskip as ps
from proxskip.flower import Federated, client_app

problem = ps.Problem(ps.random_quadratics(n=3, d=4, L=1.0, mu=0.1, seed=2))
client = client_app(lambda context: problem.clients[int(context.node_config["partition-id"])])
server = ServerApp()

@server.main()
def main(grid, context):
    out = Federated(ps.Scaffnew(0.5, 0.4), clients=3, wait=120.0, seed=5).start(grid=grid, num_rounds=6)
    Path(sys.argv[2]).write_text(json.dumps({"x": out.x.tolist(), "counts": out.summary["counts"]}))

if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=3, backend_config={"client_resources": {"num_cpus": 1}})
"""


@pytest.mark.timeout(600)
def test_a_simulation_is_the_cpu_engine_bit_for_bit(tmp_path: Path) -> None:
    """Ray workers, state in the Context and on disk, messages through Flower's simulation engine."""
    pytest.importorskip("ray", reason="ray is not installed; the simulation needs it")
    (tmp_path / "job.py").write_text(SIMULATION)
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAY_ADDRESS": "local",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path), str(tmp_path / "out.json")], env=environment,
        capture_output=True, text=True, timeout=500, cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "out.json").exists(), done.stdout[-2000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "out.json").read_text())
    problem = ps.Problem(ps.random_quadratics(n=3, d=4, L=1.0, mu=0.1, seed=2))
    judge = ps.run(ps.Scaffnew(0.5, 0.4), problem, rounds=6, seed=5, cohort=[[0, 1, 2]])
    assert result["x"] == judge.x.tolist()
    assert result["counts"]["void"] == 0
