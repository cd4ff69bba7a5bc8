"""Hold a DaskJob to the operator's definition, before it is sent.

The definition comes with the package dask-kubernetes, of the extra 'kubernetes', of which no code
is loaded.
"""

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from dtopk.launch.errors import ClusterError

_PLACE = "operator/deployment/helm/dask-kubernetes-operator/crds/daskjob.yaml"
"""In the folder of the package."""
_KEPT = frozenset({"apiVersion", "kind", "metadata"})
"""What every object has, and the definition does not describe."""


def check_dask_job(manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that is not as the operator's definition says.

    A server that prunes unknown keys would take one with a key that is misspelt, and lose it.

    Parameters
    ----------
    manifest : mapping

    Raises
    ------
    ValueError
        With the place of the first value that is wrong.
    ClusterError
        If the extra 'kubernetes' is not installed.
    """
    validator = _load_validator()
    body = {key: value for key, value in manifest.items() if key not in _KEPT}
    errors = sorted(validator.iter_errors(body), key=lambda error: [str(at) for at in error.path])
    if errors:
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}"
                     for part in errors[0].absolute_path)  # fmt: skip
        more = f" There are {len(errors) - 1} more." if len(errors) > 1 else ""
        raise ValueError(
            f"the DaskJob must be as the Dask operator defines it, but at '{at.lstrip('.')}' is "
            f"not: {errors[0].message}. Look at submit.pod_extra, and at --dry-run.{more}"
        )


@functools.cache
def _load_validator() -> Any:
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError as error:
        raise _not_installed("jsonschema") from error
    found = importlib.util.find_spec("dask_kubernetes")
    if found is None or found.origin is None:
        raise _not_installed("dask-kubernetes")
    path = Path(found.origin).parent / _PLACE
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        definition = yaml.load(path.read_bytes(), Loader=loader)
    except FileNotFoundError as error:
        raise ClusterError(
            f"the package dask-kubernetes must have the file {str(path)!r}, but it has not. "
            "Install another version of it."
        ) from error
    (version,) = definition["spec"]["versions"]
    schema = close_schema(version["schema"]["openAPIV3Schema"])
    return jsonschema.Draft202012Validator(schema)


def _not_installed(package: str) -> ClusterError:
    return ClusterError(
        f"the package {package} must be installed to submit to 'kubernetes', but it is not. "
        "`pip install 'dtopk[kubernetes]'` does it."
    )


def close_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a schema of OpenAPI 3.0 into one of JSON Schema that takes no unknown keys.

    Parameters
    ----------
    schema : mapping

    Returns
    -------
    dict
    """
    closed: dict[str, Any] = {
        key: value
        for key, value in schema.items()
        if key not in ("nullable", "format", "default") and not key.startswith("x-kubernetes-")
    }
    if "properties" in closed:
        closed["properties"] = {
            name: close_schema(value) for name, value in closed["properties"].items()
        }
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    if isinstance(closed.get("additionalProperties"), Mapping):
        closed["additionalProperties"] = close_schema(closed["additionalProperties"])
    if "items" in closed:
        closed["items"] = close_schema(closed["items"])
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in closed:
        types = closed["type"]
        closed["type"] = [*(types if isinstance(types, list) else [types]), "null"]
    return closed
