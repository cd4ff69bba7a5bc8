"""The scripts of `dtopk submit`: what they ask for, and what they do with a run that ends."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtopk.launch import ClusterError
from dtopk.launch.submit import BACK_ENDS, Submission, SubmissionFolder, SubmitOptions
from dtopk.launch.submit import make_back_end as make
from dtopk.launch.submit.worker_jobs import (
    describe_worker_jobs,
    make_worker_script,
    read_worker_options,
    write_worker_options,
)

needs_jobqueue = pytest.mark.skipif(
    importlib.util.find_spec("dask_jobqueue") is None, reason="dask-jobqueue is not installed"
)
"""Without loading it, which takes over Ctrl-C of the process."""
FAR = {"run_dir": "s3://bucket/runs/a run"}
"""What is said of a submission whose run folder is in an object store."""
ODD = 'it\'s a $HOME & "my" run'
"""A name that a shell reads in ways of its own."""


def options(**changes):
    return SubmitOptions(
        **{
            "nodes": 3, "cores": 8, "processes": 2, "memory_bytes": 12 * 2**30,
            "driver_memory_bytes": 2 * 2**30, "interface": "ib0", "walltime": "04:00:00",
        }
        | changes
    )  # fmt: skip


def submission(
    run="/runs/first", *, log_dir=None, tls=(), python="/opt/py/bin/python", command="train",
    run_dir="", **changes,
):  # fmt: skip
    folder = SubmissionFolder(run=Path(run))
    return Submission(
        folder=folder,
        options=options(**changes),
        log_dir=Path(log_dir or folder.path),
        name="dtopk-first",
        command=command,
        run_dir=run_dir,
        commits="" if run_dir else f"{run}/{'settings' if command == 'sweep' else 'state'}",
        tls=tls,
        python=python,
    )


def directives(script, prefix):
    return [line.removeprefix(prefix + " ") for line in script.splitlines() if
            line.startswith(prefix)]  # fmt: skip


def commands(script):
    """Return the script's commands, continued lines joined."""
    return [line.strip() for line in script.replace("\\\n", " ").splitlines()]


def words_of(script, word):
    """Return the words of the command that has a word in it."""
    [command] = [line for line in commands(script) if word in line]
    return shlex.split(command)


def value_after(words, name):
    return words[words.index(name) + 1]


def test_slurm_job_of_nodes_asks_for_what_the_job_says():
    script = make("slurm").make_script(submission(queue="gpu", account="lab"))
    assert script.startswith("#!/usr/bin/env bash\n#SBATCH ")
    assert directives(script, "#SBATCH") == [
        "--job-name=dtopk-first",
        "--nodes=3",
        "--ntasks-per-node=2",
        "--cpus-per-task=4",
        "--mem=12288M",
        "--time=04:00:00",
        "--partition=gpu",
        "--account=lab",
        "--output=/runs/first/submission/job-%j.log",
        "--open-mode=append",
        "--export=ALL",
        "--requeue",
        "--signal=B:USR1@120",
    ]


def test_slurm_workers_are_steps_that_are_kept():
    words = words_of(make("slurm").make_script(submission()), "srun ")
    assert {"--kill-on-bad-exit=0", "--no-kill", "--overlap", "--mem=0"} <= set(words)
    assert value_after(words, "--nthreads") == "4"
    # (12 GiB - 2 GiB of the driver) / 2 processes
    assert value_after(words, "--memory-limit") == str(5 * 2**30)
    assert value_after(words, "--interface") == "ib0"
    assert value_after(words, "--scheduler-file") == "$scheduler_file"


def test_slurm_run_trains_on_the_scheduler_of_its_job():
    script = make("slurm").make_script(submission())
    words = words_of(script, "dtopk.cli train")
    assert words[:6] == ["$python", "-m", "dtopk.cli", "train", "$place/job.toml", "--run-dir"]
    assert "cluster.scheduler=$scheduler_file" in words
    assert "scheduler_file=$place/scheduler-$SLURM_JOB_ID.json" in commands(script)


@pytest.mark.parametrize("back_end", [name for name in BACK_ENDS if name != "kubernetes"])
def test_sweep_is_what_the_script_of_one_runs(back_end):
    form = "nodes" if back_end in ("slurm", "local") else "workers"
    script = make(back_end).make_script(submission(command="sweep", form=form))
    words = words_of(script, "dtopk.cli sweep")
    assert words[:6] == ["$python", "-m", "dtopk.cli", "sweep", "$place/job.toml", "--run-dir"]
    assert ("cluster.scheduler=$scheduler_file" in words) == (back_end != "local")
    assert "dtopk.cli train" not in script


@pytest.mark.parametrize("back_end", [name for name in BACK_ENDS if name != "kubernetes"])
def test_run_in_an_object_store_has_its_files_where_the_script_is(back_end, tmp_path):
    form = "nodes" if back_end in ("slurm", "local") else "workers"
    script = make(back_end).make_script(submission(tmp_path / "a run", form=form, **FAR))
    for name, value in (("run", FAR["run_dir"]), ("place", f"{tmp_path}/a run/submission")):
        assert f"{name}={shlex.quote(value)}" in commands(script)
    assert ("sleep 75" in script) == (back_end != "local")
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert checked.stderr == ""


def test_processes_listen_to_their_own_machine_where_no_interface_is_named():
    script = make("slurm").make_script(submission(nodes=1, interface=""))
    for role in ("rank scheduler", "rank worker"):
        words = words_of(script, role)
        assert value_after(words, "--host") == "127.0.0.1"
        assert "--interface" not in words


def test_tls_files_of_the_job_are_given_to_all_processes():
    files = ("/tls/my ca.pem", "/tls/cert.pem", "/tls/key.pem")
    script = make("slurm").make_script(submission(tls=files))
    for role in ("rank scheduler", "rank worker"):
        words = words_of(script, role)
        names = ("--tls-ca-file", "--tls-cert", "--tls-key")
        assert tuple(value_after(words, name) for name in names) == files


@needs_jobqueue
def test_tls_files_are_given_to_jobs_of_workers(certificates):
    files = (certificates.ca, certificates.cert, certificates.key)
    jobs = describe_worker_jobs("slurm", submission(tls=files, form="workers"))
    words = words_of(make_worker_script(jobs), "rank worker")
    names = ("--tls-ca-file", "--tls-cert", "--tls-key")
    assert tuple(value_after(words, name) for name in names) == files
    with pytest.raises(ValueError, match=r"^tls_ca, tls_cert and tls_key of \[cluster\] must be"):
        describe_worker_jobs("slurm", submission(tls=("/a b", "/c", "/d"), form="workers"))


def test_directives_are_left_out_and_added_as_the_job_says():
    script = make("slurm").make_script(
        submission(
            job_directives_skip=("--mem", "--open-mode"),
            job_extra_directives=("--constraint=avx512", "--mem-per-cpu=2G"),
        )
    )
    found = directives(script, "#SBATCH")
    assert found[-2:] == ["--constraint=avx512", "--mem-per-cpu=2G"]
    assert [line for line in found if line.startswith(("--mem=", "--open-mode"))] == []


def test_prologue_comes_before_everything_that_is_started():
    lines = ("module load python", "export FOO='a b'")
    script = make("slurm").make_script(submission(job_script_prologue=lines))
    assert "\n".join(lines) in script
    assert script.index(lines[1]) < script.index('"$python" -m')


@pytest.mark.parametrize("back_end", [name for name in BACK_ENDS if name != "kubernetes"])
def test_paths_with_spaces_are_quoted_for_directives_and_shell(back_end, tmp_path):
    run = tmp_path / "my run"
    form = "nodes" if back_end in ("slurm", "local") else "workers"
    script = make(back_end).make_script(submission(run, form=form))
    assert f"run='{run}'\n" in script
    for line in script.splitlines():
        if line.startswith(("#SBATCH", "#PBS", "#BSUB", "#$")) and "my run" in line:
            assert re.search(rf'"{run}/submission/job[^"]*"$', line)
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert checked.stderr == ""


def test_paths_that_directives_cannot_hold_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^the folder of the logs must have no quotes, backsl"):
        make("slurm").make_script(submission(tmp_path / ODD))


def test_local_script_takes_any_path(tmp_path):
    run = tmp_path / ODD
    script = make("local").make_script(submission(run))
    shown = subprocess.run(
        ["bash", "-c", script.partition("# What happens")[0] + 'printf %s "$place"'],
        capture_output=True, text=True,
    )  # fmt: skip
    assert shown.stdout == str(run / "submission")


@pytest.mark.parametrize(
    ("back_end", "prefix", "expected"),
    [
        ("pbs", "#PBS", [
            "-N dtopk-first", "-S /bin/bash", "-q long", "-A lab", "-l select=1:ncpus=1:mem=2048MB",
            "-l walltime=04:00:00", "-j oe", "-o /runs/first/submission/job.log", "-V", "-r y",
        ]),
        ("lsf", "#BSUB", [
            "-J dtopk-first", "-q long", "-P lab", "-n 1", "-M 2148MB", "-W 04:00:00",
            "-o /runs/first/submission/job.log", "-r",
        ]),
        ("sge", "#$", [
            "-N dtopk-first", "-S /bin/bash", "-q long", "-P lab", "-l h_vmem=2048M",
            "-l h_rt=04:00:00", "-j y", "-o /runs/first/submission/job.log", "-V", "-r y",
        ]),
        ("slurm", "#SBATCH", [
            "--job-name=dtopk-first", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1",
            "--mem=2048M", "--time=04:00:00", "--partition=long", "--account=lab",
            "--output=/runs/first/submission/job-%j.log", "--open-mode=append", "--export=ALL",
            "--requeue", "--signal=B:USR1@120",
        ]),
    ],
)  # fmt: skip
def test_job_of_the_driver_asks_for_what_the_driver_takes(back_end, prefix, expected):
    script = make(back_end).make_script(submission(form="workers", queue="long", account="lab"))
    assert directives(script, prefix) == expected
    assert '-m dtopk.launch.submit.worker_jobs "$place/workers.json"' in script


WORKER = (
    "exec /opt/py/bin/python -m dtopk.launch.rank worker SCHEDULER --name NAME --nthreads 4 "
    "--memory-limit 6.00GiB --death-timeout 60 --nworkers 2 --memory-limit 6442450944 "
    "--interface ib0"
)


@needs_jobqueue
@pytest.mark.parametrize(
    ("back_end", "prefix", "expected"),
    [
        ("slurm", "#SBATCH", [
            "-J dtopk-first", "-p long", "-A lab", "-n 1", "--cpus-per-task=8", "--mem=12G",
            "-t 04:00:00", "--output=/runs/first/submission/worker-job-%j.log",
            "--open-mode=append", "--export=ALL", "--no-requeue", "--more",
        ]),
        ("pbs", "#PBS", [
            "-N dtopk-first", "-q long", "-A lab", "-l select=1:ncpus=8:mem=12GB",
            "-l walltime=04:00:00", "-o /runs/first/submission/", "-j oe", "-V", "-r n", "--more",
        ]),
        ("lsf", "#BSUB", [
            "-J dtopk-first", "-q long", '-P "lab"', "-n 8", '-R "span[hosts=1]"',
            "-M 12884902", "-W 04:00:00", "-o /runs/first/submission/worker-job-%J.log", "--more",
        ]),
        ("sge", "#$", [
            "-N dtopk-first", "-q long", "-P lab", "-l h_rt=04:00:00", "-cwd", "-j y",
            "-o /runs/first/submission/", "-j y", "-V", "-r n", "--more",
        ]),
    ],
)  # fmt: skip
def test_jobs_of_workers_ask_for_what_the_job_says(back_end, prefix, expected):
    jobs = describe_worker_jobs(
        back_end,
        submission(form="workers", queue="long", account="lab", job_extra_directives=("--more",)),
    )
    script = make_worker_script(jobs)
    assert directives(script, prefix) == expected
    assert commands(script)[-1] == WORKER
    assert "umask o-w" in commands(script)


def test_worker_options_come_back_from_their_file(tmp_path):
    made = submission(tmp_path, form="workers", job_script_prologue=("module load x",))
    made.folder.create()
    write_worker_options("slurm", made)
    assert read_worker_options(made.folder.workers) == describe_worker_jobs("slurm", made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"back_end": "grid"}, r"'back_end' must be one of .*, got 'grid'"),
        ({"tls": ["a"]}, r"'tls' must be three paths or none, got 1"),
        ({"options": 3}, r"'options' must be an object, got 3"),
        ({"options": {"nodes": "x"}}, r"'nodes' must be a whole number, got \"x\""),
        ({"options": {"nodes": 0}}, r"nodes must be at least 1, got 0"),
        ({"options": {"node": 1}}, r"key 'node' is unknown"),
    ],
)
def test_worker_options_that_are_damaged_name_their_file(tmp_path, changes, message):
    made = submission(tmp_path, form="workers")
    made.folder.create()
    write_worker_options("slurm", made)
    path = made.folder.workers
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    message = rf"workers\.json' must be as dtopk wrote it, but it is not: {message}"
    with pytest.raises(ClusterError, match=message):
        read_worker_options(path)


@pytest.mark.parametrize("back_end", ["slurm", "pbs", "lsf", "sge"])
def test_driver_on_this_machine_has_a_script_without_directives(back_end):
    script = make(back_end).make_script(submission(form="workers", driver="here"))
    assert not re.search(r"^#(SBATCH|PBS|BSUB|\$) ", script, re.MULTILINE)
    assert 'scheduler_file="$place"/scheduler-$$.json' in commands(script)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"form": "grid"}, "form must be one of 'nodes', 'workers', got 'grid'"),
        ({"nodes": 0}, "nodes must be at least 1, got 0"),
        ({"processes": 9}, "processes must be at most cores = 8, got 9"),
        ({"driver": "here"}, "driver must be 'job' with form 'nodes', got 'here'"),
        ({"queue": "a b"}, "queue must be one word, got 'a b'"),
        ({"job_extra_directives": ("a\nb",)}, "job_extra_directives must be lines of text"),
        ({"job_script_prologue": ("export AWS_SECRET_ACCESS_KEY=x",)}, "must hold no secrets"),
        ({"job_script_prologue": ("MLFLOW_TRACKING_PASSWORD=x y",)}, "must hold no secrets"),
        ({"job_extra_directives": ("--export=GITHUB_TOKEN=x",)}, "must hold no secrets"),
        ({"dashboard_port": 70000}, "dashboard_port must be below 65536, got 70000"),
    ],
)
def test_options_out_of_rule_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        options(**changes)


def test_memory_that_the_driver_takes_whole_is_refused():
    with pytest.raises(ValueError, match=r"^driver_memory must leave some of memory = 12,884,901,"):
        make("slurm").check(options(driver_memory_bytes=12 * 2**30))


@pytest.fixture
def run_script(tmp_path):
    """Run a script of SLURM with programs that only tell what they were called for."""
    programs = tmp_path / "bin"
    programs.mkdir()
    calls, slept = tmp_path / "calls", tmp_path / "slept"
    fakes = {
        "scontrol": f'echo "$@" >> {calls}; [ "$1" != show ] || echo n1',
        "squeue": 'echo "${FAKE_STATE:-RUNNING}"',
        "srun": "/bin/sleep 0.2",
        "sleep": f'echo "$@" >> {slept}',
        # The run, the question for commits, and the scheduler, which ends by SIGHUP.
        "python": 'case "$*" in *train*|*sweep*) '
        '[ -z "${FAKE_COMMIT:-}" ] || touch "$FAKE_COMMIT"; '
        f'exec {shlex.quote(sys.executable)} -c "$FAKE_RUN";; '
        '*committed*) exit "${FAKE_ANSWER:-1}";; *) exec /bin/sleep 60;; esac',
    }
    for name, body in fakes.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)

    def run_script(program, *, before="", submitted=(), **variables):
        run = tmp_path / "a run"
        made = submission(
            run, python=str(programs / "python"), nodes=1, interface="", retries=2,
            **dict(submitted),
        )  # fmt: skip
        made.folder.create()
        made.folder.script.write_text(make("slurm").make_script(made))
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "42",
                       "SLURM_JOB_NODELIST": "n1", "FAKE_RUN": program}  # fmt: skip
        done = subprocess.run(
            ["bash", "-c", f"{before}\nexec bash {shlex.quote(str(made.folder.script))}"],
            env=os.environ | environment | variables,
            timeout=60,
        )
        requeued = "requeue 42\n" in (calls.read_text() if calls.exists() else "")
        calls.unlink(missing_ok=True)
        return done.returncode, requeued, made.folder.read_attempts()[-1]

    return run_script


WARNED = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
    "os.kill(int(os.environ['SCRIPT']), signal.SIGUSR1)\n"
    "time.sleep(30)\n"
)
"""A run that has its script warned, as SLURM does."""


def test_script_ends_with_a_run_that_is_done(run_script):
    status, requeued, attempt = run_script("")
    assert (status, requeued) == (0, False)
    assert (attempt.status, attempt.why) == (0, "")
    assert attempt.ended >= attempt.began


def test_script_does_not_start_again_what_was_refused(run_script):
    assert run_script("raise SystemExit(2)")[:2] == (2, False)


def test_script_starts_a_failed_run_again_so_many_times(run_script):
    results = [run_script("raise SystemExit(1)")[:2] for _ in range(3)]
    assert results == [(1, True), (1, True), (1, False)]


def test_commits_between_failures_count_the_failures_anew(run_script, tmp_path):
    state = tmp_path / "a run" / "state" / "state.json"
    state.parent.mkdir(parents=True)
    results = [run_script("raise SystemExit(1)", FAKE_COMMIT=str(state))[1] for _ in range(4)]
    assert results == [True] * 4


def test_models_of_a_sweep_count_as_commits(run_script, tmp_path):
    result = tmp_path / "a run" / "settings" / "softmax-C1" / "result.json"
    result.parent.mkdir(parents=True)
    run = ("raise SystemExit(1)",)
    sweep = {"command": "sweep"}
    results = [run_script(*run, submitted=sweep, FAKE_COMMIT=str(result))[1] for _ in range(4)]
    assert results == [True] * 4
    assert [run_script(*run, submitted=sweep)[1] for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("answer", "expected"), [("0", [True] * 4), ("1", [True, True, False])])
def test_run_that_commits_to_an_object_store_is_asked_for_commits(run_script, answer, expected):
    results = [
        run_script("raise SystemExit(1)", submitted=FAR, FAKE_ANSWER=answer)[1] for _ in expected
    ]
    assert results == expected


@pytest.mark.parametrize(
    ("program", "waits"),
    [
        ("import os; os.kill(os.getpid(), 9)", True),
        ("import os; os.kill(os.getpid(), 15)", True),
        ("raise SystemExit(130)", False),
        ("raise SystemExit(1)", False),
    ],
)
def test_lock_that_a_killed_run_has_left_in_an_object_store_goes_out_before_the_next(
    run_script, tmp_path, program, waits
):
    """One that has ended by itself has deleted its lock."""
    slept = tmp_path / "slept"
    run_script(program, submitted=FAR)
    assert "75" not in slept.read_text().split()
    run_script("", submitted=FAR)
    assert ("75" in slept.read_text().split()) == waits
    # So it is where the script was killed too, and noted no end.
    place = tmp_path / "a run" / "submission"
    slept.write_text("")
    with (place / "attempts.log").open("a") as file:
        file.write("begin 1700000000 n1\n")
    run_script("", submitted=FAR)
    assert "75" in slept.read_text().split()
    slept.write_text("")
    run_script("", submitted=FAR)
    assert "75" not in slept.read_text().split()


def test_job_that_slurm_has_cancelled_or_put_back_is_left_alone(run_script):
    assert run_script("raise SystemExit(130)", FAKE_STATE="COMPLETING")[:2] == (130, False)


def test_cancelled_run_is_not_started_again(run_script, tmp_path):
    mark = tmp_path / "a run" / "submission" / "cancelled"
    status, requeued, attempt = run_script(
        "raise SystemExit(130)", before=f"touch {shlex.quote(str(mark))}"
    )
    assert (status, requeued, attempt.why) == (130, False, "cancelled")


def test_warned_run_is_asked_to_stop_and_goes_on_later(run_script, tmp_path):
    state = tmp_path / "a run" / "state" / "state.json"
    state.parent.mkdir(parents=True)
    status, requeued, attempt = run_script(
        WARNED, before="export SCRIPT=$$", FAKE_COMMIT=str(state)
    )
    assert (status, requeued) == (130, True)
    assert (attempt.status, attempt.why) == (130, "asked")


@needs_jobqueue
def test_interrupts_stay_the_programs_own():
    """The module dask_jobqueue takes them over when it is loaded."""
    program = (
        "import signal\n"
        "from dtopk.launch.submit.worker_jobs import _find_cluster_class\n"
        "_find_cluster_class('slurm')\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, preexec_fn=_take_interrupts)


def _take_interrupts():
    # A shell that runs the tests in the background has them ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
