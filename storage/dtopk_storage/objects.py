"""Objects of a store such as S3, through fsspec: seen whole or not at all, and asked for again.

A store answers some requests with "slow down" or an error of its own, and connections break: what
passes is tried again here, with longer and longer waits. What does not pass is an OSError that
names the object (:mod:`dtopk_storage.object_errors`). Credentials come from the environment, and
are in no address.
"""

import contextlib
import dataclasses
import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

import fsspec  # type: ignore[import-untyped]

from dtopk_storage.object_errors import explain, is_passing

T = TypeVar("T")

# Stores in which an object that is written is seen whole or not at all. Over sftp, hdfs or the
# like a reader, or a kill, can meet half a file.
OBJECT_STORES = frozenset({"abfs", "abfss", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a"})
_S3 = ("s3", "s3a")

_TRIES = 8
"""A request is given up after so many; the waits between them add up to some 20 s."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 10.0
_PARTS_AT_A_TIME = 4
"""Requests under way for one object of more than 100 MB that is written."""


@dataclasses.dataclass(frozen=True)
class ObjectPath:
    """An object in a store, or all that lies below it; made by `dtopk_storage.paths.as_path`.

    It is used as a :class:`pathlib.Path` is, by the same names, as far as a store has what they
    stand for. It holds nothing open and can be pickled.
    """

    url: str
    """Such as ``s3://bucket/runs/7``, without a slash at its end."""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(f"{self.url}/{name}")

    def joinpath(self, *names: str) -> "ObjectPath":
        """Put names behind it."""
        return ObjectPath("/".join([self.url, *names]))

    @property
    def name(self) -> str:
        """What stands behind the last slash."""
        return self.url.rsplit("/", 1)[1]

    @property
    def suffix(self) -> str:
        """The end of its name, from the last dot on."""
        return os.path.splitext(self.name)[1]

    @property
    def parent(self) -> "ObjectPath":
        """What stands before the last slash."""
        return ObjectPath(self.url.rsplit("/", 1)[0])

    @property
    def is_s3(self) -> bool:
        """Whether the store is S3, or speaks as it does."""
        return self.url.partition("://")[0] in _S3

    def with_name(self, name: str) -> "ObjectPath":
        """Put another name in the place of its own."""
        return self.parent / name

    def absolute(self) -> "ObjectPath":
        """Return it as it is: an address has no beginning that could be left out."""
        return self

    def exists(self) -> bool:
        """Tell whether there is an object, or something below it."""
        return self._kind() is not None

    def is_file(self) -> bool:
        """Tell whether there is an object."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Tell whether there is something below it, and no object of this name."""
        return self._kind() == "directory"

    def _kind(self) -> str | None:
        def look(fs: Any, path: str) -> str:
            fs.invalidate_cache()
            return str(fs.info(path)["type"])

        try:
            kind = self._request("looked for", look)
        except FileNotFoundError:
            return None
        return kind if kind == "file" or self._has_objects() else None

    def _has_objects(self) -> bool:
        """Tell whether there are objects below it: some stores show folders that are empty."""
        if not self.is_s3:
            return True

        def count(fs: Any, path: str) -> int:
            bucket, _, key = path.partition("/")
            found = fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{key}/", MaxKeys=1)
            return len(found.get("Contents", ()))

        return self._request("looked for", count) > 0

    def tag(self) -> str:
        """Return what tells this version of the object from others; empty: the store has no such.

        Raises
        ------
        FileNotFoundError
            It is not there.
        """
        return str(self._request("looked for", lambda fs, path: fs.info(path)).get("ETag", ""))

    def read_bytes(self) -> bytes:
        """Read the object.

        Raises
        ------
        FileNotFoundError
            It is not there.
        """
        body: bytes = self._request("read", lambda fs, path: fs.cat_file(path))
        return body

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Read the object as text, whose lines end as they do in it.

        Parameters
        ----------
        encoding, errors : str
            As :meth:`bytes.decode` takes them.
        """
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, body: bytes) -> None:
        """Write the object whole, or leave what was there."""
        more = {"max_concurrency": _PARTS_AT_A_TIME} if self.is_s3 else {}
        self._request("written", lambda fs, path: fs.pipe_file(path, body, **more))

    def upload(self, file: BinaryIO) -> None:
        """Write the object whole, from a file's place to its end."""
        self.write_bytes(file.read())

    def create(self, body: bytes) -> None:
        """Write the object if there is none yet, where the store can tell.

        Parameters
        ----------
        body : bytes
            No one else writes the same ones.

        Raises
        ------
        FileExistsError
            There is one. A store that cannot tell overwrites it.
        """

        def create(fs: Any, path: str) -> None:
            try:
                fs.pipe_file(path, body, mode="create")
            except (NotImplementedError, TypeError):
                # How fsspec's file systems say that they have no exclusive creation.
                fs.pipe_file(path, body)

        self._write_on_condition(create, body)

    def replace_bytes(self, body: bytes, tag: str) -> None:
        """Write the object if it is the version that a tag tells, where the store can tell.

        Parameters
        ----------
        body : bytes
            No one else writes the same ones.
        tag : str
            As `tag` gave it; empty: whatever is there.

        Raises
        ------
        FileExistsError
            Another version is there. A store that cannot tell overwrites it.
        """
        condition = {"IfMatch": tag} if self.is_s3 and tag else {}
        self._write_on_condition(lambda fs, path: fs.pipe_file(path, body, **condition), body)

    def _write_on_condition(self, write: Callable[[Any, str], object], body: bytes) -> None:
        try:
            self._request("written", write)
        except (FileExistsError, FileNotFoundError) as error:
            # The answer to a request that was carried out may have been lost on its way.
            with contextlib.suppress(FileNotFoundError):
                if self.read_bytes() == body:
                    return
            raise FileExistsError(errno.EEXIST, str(error.strerror), self.url) from error

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object.

        Parameters
        ----------
        missing_ok : bool
            Whether it need not be there; S3 never says that it was not.
        """
        try:
            self._request("deleted", lambda fs, path: fs.rm_file(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def iterdir(self) -> Iterator["ObjectPath"]:
        """List what is directly below it, by name: nothing if there is nothing."""

        def list_names(fs: Any, path: str) -> dict[str, bool]:
            # Other processes write here: a listing kept from before is not what is there.
            fs.invalidate_cache()
            return {
                info["name"].rstrip("/").rsplit("/", 1)[1]: info["type"] == "directory"
                for info in fs.ls(path, detail=True)
                if info["name"].strip("/") != path.strip("/")
            }

        try:
            found = self._request("listed", list_names)
        except FileNotFoundError:
            return
        for name in sorted(found):
            if not found[name] or (self / name)._has_objects():
                yield self / name

    def find(self) -> dict[str, dict[str, Any]]:
        """List all objects below it.

        Returns
        -------
        dict
            What the store says of each, its ``size`` in bytes among it, by name relative to this
            one, in the order of the names.
        """

        def find(fs: Any, path: str) -> dict[str, dict[str, Any]]:
            fs.invalidate_cache()
            root = f"{path.strip('/')}/"
            return {
                name.lstrip("/").removeprefix(root): info
                for name, info in sorted(fs.find(path, detail=True).items())
                if name.lstrip("/").startswith(root)
            }

        return self._request("listed", find)

    def delete_tree(self) -> None:
        """Delete all below it."""
        with contextlib.suppress(FileNotFoundError):
            self._request("deleted", _delete_below)

    def copy_tree(self, target: "ObjectPath", last: str) -> None:
        """Copy all below it in the store, over what is at the target.

        Parameters
        ----------
        target : ObjectPath
            In the same store.
        last : str
            Name of the object that is copied when all others are.
        """
        names = sorted(self.find(), key=lambda name: name == last)
        for name in names:
            (self / name)._request("copied", _copy_to((target / name)._path))

    @property
    def _path(self) -> str:
        return str(_open_store(self.url)[1]).rstrip("/")

    def _request(self, done: str, call: Callable[[Any, str], T]) -> T:
        """Call for something that a store does, again while it fails with what passes."""
        wait_s = _FIRST_WAIT_S
        for left in reversed(range(_TRIES)):
            fs, path = _open_store(self.url)
            try:
                return call(fs, path.rstrip("/"))
            except ValueError:
                raise
            except Exception as error:
                if not left or not is_passing(error):
                    raise explain(error, done, self.url) from error
            # Not all at the same time: others have been told to slow down as well.
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise AssertionError("the last try returns or raises")


def _copy_to(target: str) -> Callable[[Any, str], None]:
    def copy(fs: Any, path: str) -> None:
        fs.cp_file(path, target)

    return copy


def _delete_below(fs: Any, path: str) -> None:
    fs.invalidate_cache()
    fs.rm(path, recursive=True)
    # S3 deletes many at a time, and fsspec keeps to itself which it did not.
    fs.invalidate_cache()
    left = [name for name in fs.find(path) if name.strip("/") != path.strip("/")]
    if left:
        raise OSError(errno.EBUSY, f"{len(left)} objects are left")


def _open_store(url: str) -> tuple[Any, str]:
    options = _choose_s3_options() if url.partition("://")[0] in _S3 else {}
    fs, path = fsspec.core.url_to_fs(url, **options)
    return fs, path


def _choose_s3_options() -> dict[str, Any]:
    """Return what s3fs is to do otherwise than by itself; what fsspec is configured for stays."""
    configured = fsspec.config.conf.get("s3", {})
    config = {
        # Tried again here. s3fs does so too, and each would multiply the others' waits.
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "connect_timeout": 10,
        "read_timeout": 60,
        "max_pool_connections": 64,
        **configured.get("config_kwargs", {}),
    }
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    own = {}
    if endpoint and not {"endpoint_url", "client_kwargs"} & configured.keys():
        # Few stores but Amazon's have a host name for every bucket.
        config.setdefault("s3", {"addressing_style": "path"})
        own["endpoint_url"] = endpoint
    return {
        **own,
        "config_kwargs": config,
        # A read would ask for the size first, to read large objects in parts.
        "max_concurrency": 1,
        "use_listings_cache": False,
    }
