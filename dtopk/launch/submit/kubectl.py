"""Calls of kubectl, and what its errors mean."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.back_end import ProgramError, run_program

_REQUEST_S = 20
"""Seconds in which the server must answer a request."""
_NAME_TAKEN = (
    "the name of the run's DaskJob must be free, but there is one of this name already. Look "
    "whether it still runs, and delete it with kubectl if it does not."
)
_EXPLANATIONS = (
    (
        r"exceeded quota|failed quota",
        "the quota of the namespace must have room for what dtopk asks for, but it has not. End "
        "what is not needed any more, or have the quota raised.",
    ),
    (
        r"\bUser \"[^\"]*\" cannot ",
        "your account of the Kubernetes cluster must be allowed what dtopk asks for, but it is "
        "not. deploy/README.md lists the rights that are needed.",
    ),
    (
        r"\(Forbidden\)|denied the request|failed calling webhook",
        "the rules of the Kubernetes cluster must admit what dtopk asks for, but they do not. Look "
        "at --dry-run; submit.pod_extra adds what the pods lack.",
    ),
    (
        r"connection refused|unable to connect to the server|no such host|i/o timeout|"
        r"no configuration has been provided|deadline exceeded|client\.timeout|"
        r"connection to the server .* was refused|network is unreachable",
        "a Kubernetes cluster must be reached by kubectl, but none is. Look at `kubectl "
        "cluster-info`, KUBECONFIG and submit.context.",
    ),
    (
        r"context .* does not exist|no context exists|context was not found",
        "submit.context must be one of the kubeconfig, but it is not. `kubectl config "
        "get-contexts` lists them.",
    ),
    (
        r"\(Unauthorized\)|must be logged in|provide credentials|certificate signed by unknown",
        "the Kubernetes cluster must know you, but it does not. Log in to it, and try `kubectl "
        "auth whoami`.",
    ),
    (
        r"doesn't have a resource type|no matches for kind|could not find the requested resource",
        "the Dask operator must be installed in the Kubernetes cluster, but it is not, or not in "
        "version 1 of its DaskJob. deploy/README.md says how.",
    ),
    (
        r"namespaces \"[^\"]*\" not found",
        "submit.namespace must be a namespace of the cluster, but it is not.",
    ),
    (r"\(AlreadyExists\)|already exists", _NAME_TAKEN),
    (
        r"\(Invalid\)| is invalid|error validating|ValidationError|strict decoding",
        "the DaskJob must be one that the cluster takes, but it is not. Look at --dry-run.",
    ),
)
"""What an error says, and what is to be said of it; the first that fits.

Those that hand on the words of a policy come first: these may be any.
"""
_NOT_FOUND = re.compile(r"\(NotFound\)")


class NotThereError(ClusterError):
    """An object is not in the cluster."""


class NameTakenError(ClusterError):
    """An object of this name is in the cluster already."""


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """kubectl, for one namespace of one cluster."""

    context: str = ""
    """Context of the kubeconfig; empty: the current one."""
    namespace: str = ""
    """Empty: that of the context."""

    @property
    def words(self) -> tuple[str, ...]:
        """What its command line begins with."""
        context = (f"--context={self.context}",) if self.context else ()
        namespace = (f"--namespace={self.namespace}",) if self.namespace else ()
        return ("kubectl", *context, *namespace)

    def call(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 0.0, lasts: bool = False
    ) -> str:
        """Run it, and return what it says.

        Parameters
        ----------
        *arguments : str
        stdin : str, optional
            What it reads.
        timeout_s : float
            Seconds in which it must end; 0: those of a program that only asks.
        lasts : bool
            Whether the answer comes for as long as something lasts.

        Raises
        ------
        NotThereError
            If an object is not there.
        NameTakenError
            If one that is to be made is there.
        ClusterError
            If it fails otherwise.
        """
        limit = () if lasts else (f"--request-timeout={_REQUEST_S}s",)
        words = [*self.words, *limit, *arguments]
        try:
            return run_program(words, stdin=stdin, timeout_s=timeout_s)
        except ProgramError as error:
            raise explain(error) from error

    def get(self, *arguments: str) -> Any:
        """Ask for an object, or a list of them."""
        return json.loads(self.call("get", *arguments, "--output=json"))


def explain(error: ProgramError) -> ClusterError:
    """Say in one sentence what an error of kubectl means, with its own words behind.

    Parameters
    ----------
    error : ProgramError
    """
    for pattern, sentence in _EXPLANATIONS:
        if re.search(pattern, error.said, re.IGNORECASE | re.DOTALL):
            kind = NameTakenError if sentence is _NAME_TAKEN else ClusterError
            return kind(f"{sentence} It says: {_last_words(error.said)}.")
    if _NOT_FOUND.search(error.said):
        return NotThereError(str(error))
    return ClusterError(str(error))


def _last_words(said: str, longest: int = 2000) -> str:
    """Keep of an error the lines that are not the client's log."""
    lines: Sequence[str] = [
        line for line in said.splitlines() if line.strip() and not re.match(r"[EIW]\d{4} ", line)
    ]
    words = " ".join(" ".join(lines or said.splitlines()).split()).rstrip(".")
    return words if len(words) <= longest else f"{words[:longest]}..."
