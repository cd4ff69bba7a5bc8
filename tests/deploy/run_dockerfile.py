"""Carry out the steps of deploy/Dockerfile without Docker: python tests/deploy/run_dockerfile.py

What RUN and COPY do is done in the same order in a new folder that stands in for the root of the
image's file system, with this machine's Python for that of the base image; only the making of the
user, which takes root, is left out. COPY sees what .dockerignore leaves. Then the commands of the
services of deploy/compose.yaml are asked for their help, from the environment that was made. It
takes minutes, and fetches some 300 MB from the package index.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml  # type: ignore[import-untyped]

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
COMPOSE = REPOSITORY / "deploy" / "compose.yaml"
_NEEDS_ROOT = "groupadd "


def read_steps(text):
    """Read a Dockerfile.

    Returns
    -------
    list of (str, str)
        Instruction and what follows it, lines that go on joined.
    """
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def read_ignored(text):
    """Return the patterns that .dockerignore lets through, and those it then leaves out again."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    patterns = [line for line in lines if not line.startswith("#")]
    assert patterns[0] == "*"
    let_through = [line[1:] for line in patterns[1:] if line.startswith("!")]
    left_out = [line for line in patterns[1:] if not line.startswith("!")]
    return let_through, left_out


def send_context(target):
    """Copy what a build would see of the repository."""
    let_through, left_out = read_ignored((REPOSITORY / ".dockerignore").read_text())
    ignore = shutil.ignore_patterns(*(pattern.removeprefix("**/") for pattern in left_out))
    for name in let_through:
        source, copy = REPOSITORY / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=ignore)
        else:
            shutil.copy(source, copy)


def put_root(command, root):
    """Have the absolute paths of the image below another folder."""
    return re.sub(r"(?<![\w./])/(?=(opt|src|etc|data|mlflow)\b)", f"{root}/", command)


def copy(arguments, context, root, folder):
    """Do what COPY does."""
    *sources, target = shlex.split(arguments)
    if sources[0].startswith("--from="):
        # The stages share the root, where everything is in its place already.
        assert sources[1:] == [target], arguments
        return
    place = (root / target.lstrip("/")) if target.startswith("/") else folder / target
    for source in sources:
        found = context / source
        if found.is_dir():
            shutil.copytree(found, place, dirs_exist_ok=True)
        elif target.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, place)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, place)


def build(root, context):
    """Carry out all steps."""
    folder = root
    environment = {"PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin", "HOME": str(root)}
    for instruction, rest in read_steps(DOCKERFILE.read_text()):
        print(f"== {instruction} {rest[:100]}", flush=True)
        if instruction == "WORKDIR":
            folder = root / rest.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            copy(rest, context, root, folder)
        elif instruction == "RUN" and rest.startswith(_NEEDS_ROOT):
            print("   left out: it takes root")
        elif instruction == "RUN":
            subprocess.run(
                ["bash", "-c", put_root(rest, root)], check=True, cwd=folder, env=environment
            )
        else:
            assert instruction in ("FROM", "ENV", "USER", "CMD"), instruction


def check(root):
    """Ask the commands of the services, which must be in the environment."""
    bin_folder = root / "opt" / "dtopk" / "bin"
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(root)}
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, service in services.items():
        words = [word for word in service["command"] if not word.startswith(("-", "tcp:"))][:2]
        subprocess.run(
            [bin_folder / words[0], *words[1:], "--help"], check=True, cwd=root, env=environment,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        print(f"== {name}: {' '.join(words)} is there")
    code = "import dtopk_storage, dtopk.cli, dtopk.tracking, s3fs, boto3; print(dtopk.cli.__file__)"
    subprocess.run([bin_folder / "python", "-c", code], check=True, cwd=root, env=environment)
    subprocess.run(["du", "-sh", root / "opt"], check=True)


def main():
    """Build in a temporary folder, or in one that is kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, help="a new folder, which is kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        context = Path(temporary) / "context"
        send_context(context)
        root = arguments.root or Path(temporary) / "root"
        root.mkdir(parents=True)
        build(root.resolve(), context)
        check(root.resolve())


if __name__ == "__main__":
    main()
