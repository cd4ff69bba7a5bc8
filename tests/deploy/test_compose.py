"""deploy/compose.yaml against what Compose takes, the Dockerfile and the job it is shown with."""

import re
import shlex
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from dtopk.job import load_job
from tests.deploy.run_dockerfile import COMPOSE, DOCKERFILE, REPOSITORY, read_ignored, read_steps

_TOP = {"name", "services", "volumes", "networks", "x-dtopk"}
_SERVICE = {
    "image": str, "build": dict, "command": list, "init": bool, "restart": str, "cap_drop": list,
    "security_opt": list, "networks": list, "ports": list, "volumes": list, "environment": dict,
    "depends_on": dict, "healthcheck": dict, "deploy": dict, "profiles": list, "cpus": int,
    "mem_limit": str,
}  # fmt: skip
"""Every key that a service uses, as the Compose specification has it, with its type here."""
_HEALTHCHECK = {"test", "interval", "timeout", "retries", "start_period"}
_CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
_DURATION = re.compile(r"\d+(ms|s|m|h)")


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(COMPOSE.read_text())


@pytest.fixture(scope="module")
def services(compose):
    return compose["services"]


def test_every_key_is_one_of_compose(compose, services):
    assert set(compose) == _TOP
    for service in services.values():
        for key, value in service.items():
            assert isinstance(value, _SERVICE[key]), key


def test_every_volume_and_network_is_declared(compose, services):
    for service in services.values():
        assert set(service["networks"]) <= set(compose["networks"])
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            assert source in compose["volumes"] or (COMPOSE.parent / source).is_dir()
            assert target.startswith("/")
            assert mode in ([], ["ro"])


def test_services_wait_for_services_that_say_how_they_are(services):
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] in _CONDITIONS
            assert how["condition"] != "service_healthy" or "healthcheck" in services[name]
        check = service.get("healthcheck")
        if check:
            assert set(check) == _HEALTHCHECK
            assert check["test"][:3] == ["CMD", "python", "-c"]
            compile(check["test"][3], "healthcheck", "exec")
            for key in ("interval", "timeout", "start_period"):
                assert _DURATION.fullmatch(check[key])


def test_commands_are_lists_of_strings(services):
    for service in services.values():
        assert all(isinstance(word, str) and word for word in service["command"])


def test_only_the_pages_of_mlflow_are_seen_and_from_this_machine_alone(compose, services):
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports == {"mlflow": ["127.0.0.1:5000:5000"]}
    assert compose["networks"]["inside"] == {"internal": True}
    assert [name for name, each in services.items() if "outside" in each["networks"]] == ["mlflow"]


def test_there_are_two_workers_beside_a_scheduler_and_mlflow(services):
    assert set(services) == {"mlflow", "scheduler", "worker", "train"}
    worker = services["worker"]
    assert worker["deploy"]["replicas"] == 2
    assert f"--resources=threads={worker['cpus']}" in worker["command"]
    address = f"tcp://scheduler:{_option(services['scheduler'], '--port')}"
    assert address in worker["command"]
    assert address in COMPOSE.read_text().partition("name: dtopk")[0]


def test_mlflow_answers_to_the_names_it_is_called_by(services):
    allowed = _option(services["mlflow"], "--allowed-hosts").split(",")
    uri = services["train"]["environment"]["MLFLOW_TRACKING_URI"]
    assert uri.removeprefix("http://") in allowed
    assert {"127.0.0.1:5000", "localhost:5000"} <= set(allowed)


def test_what_services_keep_lies_in_folders_of_their_user(services):
    """A volume takes over the owner of the folder of the image that it is put on."""
    (made,) = [rest for step, rest in read_steps(DOCKERFILE.read_text()) if "useradd" in rest]
    folders = set(shlex.split(made)) & {"/data", "/mlflow"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            assert mode == ["ro"] or target in folders, source


def test_commands_of_the_comment_are_those_of_this_repository(tmp_path):
    comment = COMPOSE.read_text().partition("\nname:")[0]
    text = re.sub(r"\s*\\?\n#\s*", " ", comment)
    train = re.search(r"dtopk train (/jobs/\S+)(.*?)(?: MLflow's|$)", text, re.DOTALL)
    job = REPOSITORY / train[1].lstrip("/")
    overrides = re.findall(r"--set (\S+)", train[2])
    loaded = load_job(job, overrides, run_dir=str(tmp_path / "run"))
    assert loaded.cluster.scheduler == "tcp://scheduler:8786"
    ingest = re.search(r"dtopk ingest (/jobs/\S+)", text)
    assert (REPOSITORY / ingest[1].lstrip("/")).is_file()


def _option(service, name):
    (value,) = [
        word.partition("=")[2] for word in service["command"] if word.startswith(f"{name}=")
    ]
    return value


def test_dockerfile_copies_only_what_the_build_sees():
    let_through, left_out = read_ignored((REPOSITORY / ".dockerignore").read_text())
    assert all((REPOSITORY / name).exists() for name in let_through)
    assert "**/__pycache__" in left_out
    for step, rest in read_steps(DOCKERFILE.read_text()):
        if step == "COPY" and not rest.startswith("--from="):
            for source in shlex.split(rest)[:-1]:
                assert any(Path(name).is_relative_to(source) for name in let_through), source


def test_image_is_slim_pinned_and_not_run_by_root():
    steps = read_steps(DOCKERFILE.read_text())
    bases = [rest.partition(" AS ")[0] for step, rest in steps if step == "FROM"]
    assert len(bases) == 2
    assert set(bases) == {"python:3.11-slim-bookworm"}
    installs = [rest for step, rest in steps if step == "RUN" and "pip install" in rest]
    assert all("-c constraints.txt" in each or "--no-deps" in each for each in installs)
    last = [step for step, _ in steps]
    assert dict(steps)["USER"] == "1000:1000"
    assert last.index("USER") > max(i for i, step in enumerate(last) if step in ("RUN", "COPY"))
