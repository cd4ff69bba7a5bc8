"""What is solved: the shapes of data, and the objectives that more than one program minimises."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dtopk.losses import Loss, make_loss
from dtopk.testing import draw_pieces
from dtopk_storage import StoreWriter, create_store, open_store

Features = NDArray[np.float32]
Codes = NDArray[np.int32]

_LETTER = Path(__file__).parents[2] / "jobs" / "data" / "letter.npz"
_LETTER_CHECKSUM = "e6e597b6"
"""Of the Letter data, whose order is a published split: the first 16,000 rows are trained on."""
_PATTERN = re.compile(r"(\d+)x(\d+)x(\d+)(?:@(\w+))?")
_BATCH_ROWS = 4096
_HELD_OUT = 5
"""One row is held out for so many: of made rows beside those trained on, of a file's among them."""
_STORE_ITEM_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss that is trained, as users know it."""

    title: str
    """What the problem is called elsewhere."""
    loss: str
    """Name of our loss."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Of our loss."""

    def make_loss(self) -> Loss:
        """Make the loss."""
        return make_loss(self.loss, **self.parameters)


OBJECTIVES = {
    "softmax": Objective(title="multinomial logistic regression", loss="softmax"),
    "hinge": Objective(
        title="multiclass SVM of Crammer and Singer", loss="topk_hinge_alpha", parameters={"k": 1}
    ),
    "logistic_ova": Objective(
        title="logistic regression, one class against the rest", loss="logistic_ova"
    ),
    "hinge_ova": Objective(title="linear SVM, one class against the rest", loss="hinge_ova"),
    "top5_hinge": Objective(
        title="smooth top-5 hinge", loss="topk_hinge_alpha", parameters={"k": 5, "gamma": 1.0}
    ),
    "top5_entropy": Objective(
        title="top-5 entropy", loss="topk_entropy_alpha", parameters={"k": 5}
    ),
}
"""The problems by name. The last two are solved by no other program that we know of."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a data set, and where its rows come from."""

    name: str
    """What tells shapes apart in results and names of files; of a .npz file with a checksum of its
    arrays, as another file may have its name, or other rows later."""
    n_samples: int
    """Rows to train on."""
    n_features: int
    n_classes: int
    source: str = ""
    """Path of a .npz file with `X` and `y`; empty: rows are drawn."""
    checksum: str = ""
    """Of the arrays of that file."""
    memory_limit: int = 0
    """Bytes that training may take; the rows then lie in a store on disk. 0: no limit, and the
    rows are an array in memory."""

    @property
    def title(self) -> str:
        """The shape in words."""
        size = f"{self.n_samples:,} rows, {self.n_features:,} features, {self.n_classes:,} classes"
        if self.source:
            return f"{Path(self.source).stem}: {size}"
        if self.memory_limit:
            return f"{size}, a store of {self.store_bytes:,} bytes in {self.memory_limit:,} bytes"
        return size

    @property
    def store_bytes(self) -> int:
        """What the features take in a store, as float16."""
        return self.n_samples * self.n_features * _STORE_ITEM_BYTES


def default_shapes() -> tuple[str, ...]:
    """Return the texts of the shapes that are taken where none is named, from small to large.

    The Letter data are among them where dtopk runs from its source tree.
    """
    letter = (str(_LETTER),) if _LETTER.exists() else ()
    return (
        "20000x512x100",
        *letter,
        "20000x2048x397",
        "100000x1024x200",
        "400000x1024x200@400MB",
    )


def parse_shape(text: str) -> Shape:
    """Read a shape.

    Parameters
    ----------
    text : str
        '20000x512x100' for rows, features and classes; '400000x1024x200@400MB' for a store on disk
        and a limit of memory; or the path of a .npz file with `X` (n_samples, n_features) and class
        codes `y` (n_samples,), or 'letter' for the Letter data. Of a file the features are divided
        by the largest of their absolute values, the rows are shuffled with a fixed seed, and the
        last fifth of them is held out. The Letter data keep their order, a published split: the
        last 4,000 rows are held out.

    Returns
    -------
    Shape

    Raises
    ------
    ValueError
        If it is none of these.
    FileNotFoundError
        If there is no such file.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        return _shape_of_file(_LETTER if text == "letter" else Path(text))
    n, d, m = (int(match[place]) for place in (1, 2, 3))
    if n < m or d < 1 or m < 3:
        raise ValueError(
            f"shape must have 3 classes or more, a feature, and no fewer rows than classes, got "
            f"{text!r}."
        )
    limit = 0
    if match[4]:
        # Imported here: jobs load much that the process of a solver does without.
        from dtopk.job.checks import parse_bytes

        limit = parse_bytes("memory of shape", match[4])
    return Shape(name=text, n_samples=n, n_features=d, n_classes=m, memory_limit=limit)


def _shape_of_file(path: Path) -> Shape:
    if path.suffix != ".npz":
        raise ValueError(
            "shape must be such as '20000x512x100', '400000x1024x200@400MB' or the path of a .npz "
            f"file, got {str(path)!r}."
        )
    with np.load(path) as arrays:
        X, y = arrays["X"], arrays["y"]
    n, d = X.shape
    checksum = _checksum(X, y)
    return Shape(
        name=f"{path.stem}-{checksum}",
        n_samples=n - n // _HELD_OUT,
        n_features=d,
        n_classes=int(y.max()) + 1,
        source=str(path),
        checksum=checksum,
    )


def _checksum(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:8]


class ProblemData:
    """The rows of a shape in a folder: those to train on, and those held out.

    Parameters
    ----------
    folder : Path
        Where :meth:`write` has put them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def write(cls, shape: Shape, folder: Path) -> "ProblemData":
        """Put the rows of a shape into a folder that is there, a piece of them at a time.

        Parameters
        ----------
        shape : Shape
        folder : Path

        Returns
        -------
        ProblemData

        Raises
        ------
        ValueError
            If a class has no row to train on.
        """
        if shape.source:
            _check_classes(shape, _write_file(shape, folder))
            return cls(folder)
        trained: set[int] = set()
        n_test = max(shape.n_samples // _HELD_OUT, 1)
        with contextlib.ExitStack() as stack:
            train: StoreWriter | _ArrayFiles
            if shape.memory_limit:
                train = create_store(
                    folder / "train.zarr",
                    n_features=shape.n_features,
                    class_names=range(shape.n_classes),
                    dtype="float16",
                )
            else:
                train = _ArrayFiles(folder, "train", shape.n_samples, shape.n_features)
            stack.enter_context(train)
            test = stack.enter_context(_ArrayFiles(folder, "test", n_test, shape.n_features))
            start = 0
            for X, y in draw_pieces(
                shape.n_samples + n_test, shape.n_features, shape.n_classes, seed=0
            ):
                cut = min(max(shape.n_samples - start, 0), len(y))
                if cut > 0:
                    train.append(X[:cut], y[:cut])
                    trained.update(y[:cut].tolist())
                if cut < len(y):
                    test.append(X[cut:], y[cut:])
                start += len(y)
        _check_classes(shape, trained)
        return cls(folder)

    @property
    def store_path(self) -> Path:
        """Where the store of the training rows is, of a shape with a limit of memory."""
        return self._folder / "train.zarr"

    @property
    def is_store(self) -> bool:
        """Whether the training rows are a store on disk."""
        return self.store_path.exists()

    def load_training(self) -> tuple[Features, Codes]:
        """Read the training rows into memory.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features), float32
        y : ndarray of shape (n_samples,), int32
        """
        return np.load(self._folder / "train_X.npy"), np.load(self._folder / "train_y.npy")

    def training_batches(self) -> Iterator[tuple[NDArray[Any], Codes]]:
        """Read the training rows batch by batch."""
        if self.is_store:
            store = open_store(self.store_path)
            for start in range(0, store.n_samples, _BATCH_ROWS):
                stop = min(start + _BATCH_ROWS, store.n_samples)
                yield store.read_features(start, stop), store.read_labels(start, stop)
        else:
            yield from self._array_batches("train")

    def held_out_batches(self) -> Iterator[tuple[NDArray[Any], Codes]]:
        """Read the rows held out batch by batch."""
        return self._array_batches("test")

    def _array_batches(self, name: str) -> Iterator[tuple[Features, Codes]]:
        X = np.load(self._folder / f"{name}_X.npy", mmap_mode="r")
        y = np.load(self._folder / f"{name}_y.npy")
        for start in range(0, len(y), _BATCH_ROWS):
            yield np.array(X[start : start + _BATCH_ROWS]), y[start : start + _BATCH_ROWS]


def evaluate_primal(
    loss: Loss, batches: Iterator[tuple[NDArray[Any], Codes]], C: float, W: NDArray[np.float64]
) -> float:
    """Compute P(W) = C * sum_i L(y_i, W'x_i) + 1/2 |W|^2 in float64.

    Parameters
    ----------
    loss : Loss
    batches : iterator of (X, y)
        X of shape (n_rows, n_features), y of shape (n_rows,), int32.
    C : float
    W : ndarray of shape (n_features, n_classes), float64

    Returns
    -------
    float
    """
    total = sum(float(loss.values(X.astype(np.float64) @ W, y).sum()) for X, y in batches)
    return C * total + 0.5 * float(np.vdot(W, W))


def _write_file(shape: Shape, folder: Path) -> set[int]:
    """Put the rows of a .npz file into a folder, and return the classes that are trained."""
    with np.load(shape.source) as arrays:
        X, y = arrays["X"], arrays["y"].astype(np.int32)
    X = (X / np.abs(X).max()).astype(np.float32)
    order = np.arange(len(y))
    if shape.checksum != _LETTER_CHECKSUM:
        # A file is often sorted by class: its last fifth would hold whole classes out.
        order = np.random.default_rng(0).permutation(len(y))
    for name, rows in (("train", order[: shape.n_samples]), ("test", order[shape.n_samples :])):
        np.save(folder / f"{name}_X.npy", X[rows])
        np.save(folder / f"{name}_y.npy", y[rows])
    return set(y[order[: shape.n_samples]].tolist())


def _check_classes(shape: Shape, trained: set[int]) -> None:
    missing = [code for code in range(shape.n_classes) if code not in trained]
    if missing:
        raise ValueError(
            f"every class must have a row to train on, but {len(missing):,} of "
            f"{shape.n_classes:,} have none in shape {shape.name!r}, the first of them class "
            f"{missing[0]}. Take more rows, or fewer classes."
        )


class _ArrayFiles:
    """Features and codes that become two .npy files, a piece of them at a time."""

    def __init__(self, folder: Path, name: str, n: int, d: int) -> None:
        self._codes_path = folder / f"{name}_y.npy"
        self._codes: list[Codes] = []
        self._X = np.lib.format.open_memmap(
            folder / f"{name}_X.npy", mode="w+", dtype=np.float32, shape=(n, d)
        )
        self._n_rows = 0

    def append(self, X: Features, y: Codes) -> None:
        self._X[self._n_rows : self._n_rows + len(y)] = X
        self._codes.append(y)
        self._n_rows += len(y)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._X.flush()
        np.save(self._codes_path, np.concatenate(self._codes))
