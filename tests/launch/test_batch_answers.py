"""What the programs of batch systems say, and what `dtopk status` makes of it."""

import json
import os
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.launch import ClusterError
from dtopk.launch.submit import (
    Submission,
    SubmissionFolder,
    SubmissionRecord,
    SubmitOptions,
    make_back_end,
)
from dtopk.launch.submit.slurm import parse_scontrol

SHOWN = (
    "JobId=42 JobName=dtopk-first UserId=me(1000) GroupId=me(1000) MCS_label=N/A "
    "Nice=0 Account=(null) QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=1 "
    "Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:08 TimeLimit=00:05:00 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost={host} NumNodes=2 NumCPUs=2 "
    "Command=/runs/my run/submission/script.sh WorkDir=/runs StdErr=/runs/x.log"
)


def shown(state, reason="None", *, restarts=0, nodes="n[1-2]", host="n1"):
    return SHOWN.format(state=state, reason=reason, restarts=restarts, nodes=nodes, host=host)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs on the PATH that say what they are told, and note what they are called for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def say(name, text="", *, status=0, to="out"):
        (folder / f"{name}.txt").write_text(text)
        stream = "" if to == "out" else " >&2"
        (folder / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >> {calls}\ncat {folder}/{name}.txt{stream}\n'
            f"exit {status}\n"
        )
        (folder / name).chmod(0o755)

    return SimpleNamespace(
        say=say, calls=lambda: calls.read_text().splitlines() if calls.exists() else []
    )


@pytest.fixture
def submitted(tmp_path):
    """Give a folder of a run that was submitted, with what it has left as it is told."""

    def submitted(back_end="slurm", job_id="42", *, attempts="", log="", job_log=""):
        folder = SubmissionFolder(run=tmp_path / "run")
        folder.create()
        folder.write_record(
            SubmissionRecord(
                back_end=back_end, job_id=job_id, host=socket.gethostname(), form="nodes",
                run_dir=str(folder.run), log_dir=str(folder.path), dashboard_port=8787,
                submitted=0.0,
            )
        )  # fmt: skip
        folder.attempts.write_text(attempts)
        (folder.path / "run.log").write_text(log)
        (folder.path / f"job-{job_id}.log").write_text(job_log)
        return folder

    return submitted


@pytest.fixture
def status(capsys):
    def status(folder):
        assert run_and_report(dtopk, ["status", str(folder.run), "--json"]) == 0
        fields = json.loads(capsys.readouterr().out)
        assert run_and_report(dtopk, ["status", str(folder.run)]) == 0
        return SimpleNamespace(**fields, text=capsys.readouterr().out)

    return status


@pytest.mark.parametrize(
    ("state", "phase", "failure"),
    [
        ("PENDING", "waiting", ""),
        ("CONFIGURING", "waiting", ""),
        ("RUNNING", "running", ""),
        ("COMPLETING", "running", ""),
        ("COMPLETED", "ended", ""),
        ("FAILED", "ended", ""),
        ("TIMEOUT", "ended", "walltime"),
        ("OUT_OF_MEMORY", "ended", "out_of_memory"),
        ("NODE_FAIL", "ended", "node"),
        ("CANCELLED", "ended", "cancelled"),
    ],
)
def test_states_of_slurm_are_told_apart(state, phase, failure):
    found = parse_scontrol(shown(state, restarts=3))
    assert (found.phase, found.failure, found.restarts) == (phase, failure, 3)
    assert (found.nodes, found.driver_node, found.reason) == ("n[1-2]", "n1", "")


def test_job_that_waits_says_what_for(programs, submitted, status):
    programs.say("scontrol", shown("PENDING", "Resources", nodes="(null)", host="(null)"))
    found = status(submitted())
    assert (found.phase, found.reason, found.epochs, found.failure) == ("waiting", "Resources", 0,
                                                                        None)  # fmt: skip
    assert "42 (slurm), waits in the queue (PENDING: Resources)" in found.text
    assert "no epoch yet" in found.text


def test_job_that_runs_says_where_its_pages_are(programs, submitted, status):
    programs.say("scontrol", shown("RUNNING", restarts=2))
    folder = submitted(attempts="begin 1 n1\nend 2 130 asked\nbegin 3 n1\n")
    (folder.path / "scheduler-42.json").write_text('{"services": {"dashboard": 9999}}')
    found = status(folder)
    assert (found.restarts, found.nodes) == (2, "n[1-2]")
    assert "ssh -N -L 9999:127.0.0.1:9999 -J" in found.text
    assert found.text.split("-J ")[1].splitlines()[0].endswith(" n1")


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, '{"services": 3}', '{"services": {}}'])
def test_job_whose_scheduler_file_is_damaged_has_its_pages_where_asked_for(
    programs, submitted, status, text
):
    programs.say("scontrol", shown("RUNNING"))
    folder = submitted(attempts="begin 1 n1\n")
    (folder.path / "scheduler-42.json").write_text(text)
    assert "ssh -N -L 8787:127.0.0.1:8787 -J" in status(folder).text


@pytest.mark.parametrize(
    ("state", "left", "cause", "words"),
    [
        ("OUT_OF_MEMORY", {"attempts": "begin 1 n1\n"}, "out_of_memory", "submit.memory"),
        ("FAILED", {"attempts": "begin 1 n1\n", "job_log": "slurmstepd: error: Step 42.0 exceeded "
         "memory limit (5 > 4), being killed"}, "out_of_memory", "more memory than it had"),
        ("TIMEOUT", {"attempts": "begin 1 n1\n"}, "walltime", "submit.walltime"),
        ("NODE_FAIL", {"attempts": "begin 1 n1\n"}, "node", "Submit it again"),
        ("CANCELLED", {"attempts": "begin 1 n1\nend 2 130 asked\n"}, "cancelled", "was cancelled"),
        ("FAILED", {"attempts": "begin 1 n1\nend 2 1\n",
         "log": "error: The connection to the scheduler of the workers was lost.\n"},
         "scheduler_lost", "--of scheduler"),
        ("FAILED", {"attempts": "begin 1 n1\nend 2 1\n",
         "log": "error: min_workers = 4 workers must be there within 300 s, got none.\n"},
         "workers_missing", "--of workers"),
        ("FAILED", {"attempts": "begin 1 n1\nend 2 2\n", "log": "error: model.k must be 1.\n"},
         "refused", "The run was refused: model.k must be 1."),
        ("FAILED", {"attempts": "begin 1 n1\nend 2 1\n",
         "log": "warning: so\nerror: The disk is full: cannot write: 'x'.\n"},
         "failed", "The run failed: The disk is full: cannot write: 'x'."),
        ("FAILED", {"attempts": "begin 1 n1\nend 2 137\n"}, "killed", "were killed"),
        ("FAILED", {}, "failed", "The run did not begin."),
    ],
)  # fmt: skip
def test_job_that_failed_says_why_and_what_to_do(
    programs, submitted, status, state, left, cause, words
):
    programs.say("scontrol", shown(state))
    found = status(submitted(**left))
    assert (found.phase, found.failure["cause"]) == ("ended", cause)
    assert words in found.text
    assert "what to do" in found.text


def test_job_that_slurm_has_forgotten_is_looked_for_in_its_accounts(programs, submitted, status):
    programs.say("scontrol", "slurm_load_jobs error: Invalid job id specified\n", status=1,
                 to="err")  # fmt: skip
    programs.say("sacct", "CANCELLED by 1000|None|n1|2\n")
    found = status(submitted(attempts="begin 1 n1\n"))
    assert (found.phase, found.restarts, found.failure["cause"]) == ("ended", 2, "cancelled")
    programs.say("sacct", "Slurm accounting storage is disabled\n", status=1, to="err")
    found = status(submitted(attempts="begin 1 n1\nend 2 1\n"))
    assert (found.phase, found.failure["cause"]) == ("unknown", "failed")
    assert "keeps no accounts of it" in found.text


def test_slurm_that_does_not_answer_is_no_end_of_the_job(programs, submitted, status):
    programs.say("scontrol", "Unable to contact slurm controller\n", status=1, to="err")
    found = status(submitted())
    assert found.phase == "unknown"
    assert "Unable to contact slurm controller" in found.reason


def test_slurm_job_is_sent_and_its_id_read(programs, submitted):
    programs.say("sbatch", "42;cluster\n")
    folder = submitted()
    slurm = make_back_end("slurm")
    made = Submission(folder=folder, log_dir=folder.path, name="a", options=SubmitOptions())
    sent = slurm.send(made)
    assert (sent.job_id, sent.run_dir, sent.command) == ("42", str(folder.run), "train")
    far = slurm.send(replace(made, command="sweep", run_dir="s3://bucket/a"))
    assert (far.run_dir, far.work, far.is_far) == ("s3://bucket/a", "sweep", True)
    assert programs.calls() == [f"sbatch --parsable {folder.script}"] * 2
    programs.say("sbatch", "sbatch: error: invalid partition specified: gpu\n", status=1, to="err")
    with pytest.raises(ClusterError, match=r"failed with status 1: sbatch: error: invalid part"):
        slurm.send(made)


@pytest.mark.parametrize(
    ("state", "now", "call"),
    [
        ("RUNNING", False, "scancel --batch --signal=TERM 42"),
        ("RUNNING", True, "scancel 42"),
        ("PENDING", False, "scancel 42"),
    ],
)
def test_slurm_job_is_cancelled_with_a_commit_if_there_is_something_to_commit(
    programs, submitted, capsys, state, now, call
):
    programs.say("scontrol", shown(state))
    programs.say("scancel")
    folder = submitted()
    assert run_and_report(dtopk, ["cancel", str(folder.run), *(["--now"] if now else [])]) == 0
    assert programs.calls()[-1] == call
    assert folder.cancelled.exists()


PBS = """Job Id: 7.server
    Job_Name = dtopk-first
    job_state = {state}
    exec_host = node3/0*8+node4/0*8
    Exit_status = {status}
    comment = Job run at Mon on (node3:ncpus=8) and a comment that
\t goes on
    run_count = 2
"""


@pytest.mark.parametrize(
    ("state", "status", "phase", "failure"),
    [("Q", "", "waiting", ""), ("R", "", "running", ""), ("F", "0", "ended", ""),
     ("F", "-29", "ended", "walltime"), ("F", "-27", "ended", "out_of_memory")],
)  # fmt: skip
def test_states_of_pbs_are_told_apart(programs, submitted, state, status, phase, failure):
    programs.say("qstat", PBS.format(state=state, status=status))
    found = make_back_end("pbs").look(submitted("pbs", "7.server").read_record())
    assert (found.phase, found.failure, found.nodes) == (phase, failure, "node3")
    assert found.restarts == 1
    assert found.reason.endswith("and a comment that goes on")
    assert programs.calls() == ["qstat -x -f 7.server"]


@pytest.mark.parametrize(
    ("said", "phase", "failure"),
    [("PEND|-|-", "waiting", ""), ("RUN|8*host1:8*host2|-", "running", ""),
     ("EXIT|host1|TERM_RUNLIMIT: job killed after reaching LSF run time limit", "ended",
      "walltime"),
     ("EXIT|host1|TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", "ended",
      "out_of_memory"),
     ("DONE|host1|-", "ended", ""), ("", "unknown", "")],
)  # fmt: skip
def test_states_of_lsf_are_told_apart(programs, submitted, said, phase, failure):
    programs.say("bjobs", f"{said}\n")
    found = make_back_end("lsf").look(submitted("lsf", "7").read_record())
    assert (found.phase, found.failure) == (phase, failure)
    assert found.nodes == ("" if phase in ("waiting", "unknown") else "host1")


QSTAT = (
    "job-ID  prior   name       user  state submit/start at     queue          slots ja-task-ID\n"
    "-------------------------------------------------------------------------------------------\n"
    "      7 0.55500 dtopk-firs me    {state}     12/01/2026 01:00:00 {queue} 8\n"
)


@pytest.mark.parametrize(
    ("state", "queue", "phase", "node"),
    [("r", "all.q@node3", "running", "node3"), ("qw", "8 - -", "waiting", "")],
)
def test_states_of_sge_are_told_apart(programs, submitted, state, queue, phase, node):
    programs.say("qstat", QSTAT.format(state=state, queue=queue))
    found = make_back_end("sge").look(submitted("sge", "7").read_record())
    assert (found.phase, found.nodes) == (phase, node)


def test_job_that_sge_has_ended_is_in_its_accounts(programs, submitted):
    programs.say("qstat")
    programs.say("qacct", "hostname     node3\nfailed       37  : qmaster enforced h_rt\n")
    found = make_back_end("sge").look(submitted("sge", "7").read_record())
    assert (found.phase, found.failure, found.nodes) == ("ended", "walltime", "node3")


def test_record_that_was_changed_is_refused(submitted):
    folder = submitted()
    folder.record.write_text('{"job": 3}')
    with pytest.raises(ValueError, match=r"submission\.json' must be as dtopk wrote it, but"):
        folder.read_record()


def test_torn_lines_of_attempts_are_left_out(submitted):
    folder = submitted(attempts="end 1 0\nbegin 2 n1\nend 3 130 asked\nbegin 4\nbegin 5 n2\n")
    first, second = folder.read_attempts()
    assert (first.began, first.ended, first.status, first.why) == (2.0, 3.0, 130, "asked")
    assert (second.host, second.ended) == ("n2", None)


def test_record_of_no_command_is_refused(tmp_path):
    folder = SubmissionFolder(run=tmp_path)
    folder.create()
    folder.record.write_text(
        '{"back_end": "local", "job_id": "1", "host": "h", "run_dir": "r", "log_dir": "l", '
        '"command": "tune"}'
    )
    message = r"as dtopk wrote it, but it is not: 'command' must be one of .*, got 'tune'"
    with pytest.raises(ValueError, match=message):
        folder.read_record()
