"""The example deployment: what it refuses, one run with real processes, and one in Flower's simulation."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from campaigns.chaos_flower import APP, script

pytest.importorskip("flwr", reason="flwr is not installed")

pytestmark = pytest.mark.flower

TOOLS = all(shutil.which(t) for t in ("openssl", "ssh-keygen"))


def federation(home: Path, *words: str, python: tuple[str, ...] = (), seconds: float = 280.0) -> Any:
    environment = os.environ | {"PROXSKIP_FEDERATION": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    if python:
        environment.pop("PYTHONPATH", None)
    call = [sys.executable, *python, str(APP / "federation"), *words]
    return subprocess.run(call, env=environment, capture_output=True, text=True, timeout=seconds)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "192.0.2.7", "example.org", "::", "127.0.0.1", "127.8.8.8", "::1", "localhost"]
)
def test_off_loopback_it_needs_tls_and_keys_or_to_be_told(host: str) -> None:
    module, is_local = script(), host.startswith("127.") or host in ("::1", "localhost")
    with nullcontext() if is_local else pytest.raises(module.Refused, match="say --insecure if you mean it"):
        module.check_security(host, plain=True, insecure=False)
    module.check_security(host, plain=True, insecure=True)
    module.check_security(host, plain=False, insecure=False)


@pytest.mark.parametrize(
    ("words", "python", "said"),
    [
        (("up", "--host", "0.0.0.0", "--plain"), (), "anybody could read"),
        (("run",), (), "nothing is up"),
        (("up",), ("-S",), "federation: numpy is not installed for"),  # -S leaves out every package
    ],
)
def test_the_command_refuses_in_one_sentence_and_makes_nothing(
    words: tuple[str, ...], python: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = federation(tmp_path / "fed", *words, python=python)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [("method=fedlin", 'method="fedlin"'), ("tol=1e-3", "tol=1e-3"), ("x=true", "x=true"), ('m="a b"', 'm="a b"')],
)
def test_settings_become_toml(word: str, said: str) -> None:
    assert script().setting(word) == said


def test_a_server_of_ones_own_may_write_another_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, result = script(), tmp_path / "result.json"
    (tmp_path / "about.json").write_text('{"nodes": 2}')
    monkeypatch.setattr(module, "HOME", tmp_path)
    monkeypatch.setattr(module, "processes", lambda: {"node-0": {"pid": os.getpid()}})
    monkeypatch.setattr(module, "alive", lambda pid: True)
    monkeypatch.setattr(module.subprocess, "run", lambda *words, **options: result.write_text('{"auc": 0.9}'))
    assert module.run([]) == 0
    assert str(result) in capsys.readouterr().out


@pytest.mark.timeout(900)
@pytest.mark.skipif(not TOOLS, reason="openssl or ssh-keygen is missing")
@pytest.mark.slow
@pytest.mark.release
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
        assert (result["summary"]["rounds"], result["summary"]["counts"]["lost"]) == (3, 0)
        problem = ps.split(ps.Logistic(*ps.datasets.load("digits"), l2=0.1), clients=2, by="label", weights="equal")
        judge = ps.run(ps.Scaffnew.theory(problem), problem, rounds=3, seed=4, cohort=[[0, 1]])
        assert np.array_equal(result["x"], judge.x)
        assert list(home.glob("node-0/memory/*/client-0"))
    finally:
        stopped = federation(home, "down")
    assert "stopped 3 processes" in stopped.stdout
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            assert f"PROXSKIP_FEDERATION_PART={home}".encode() not in environment.read_bytes()


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
@pytest.mark.slow
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
