"""Maps that lift features, so that a linear classifier of them is one with an RBF kernel.

``exp(-gamma |x - z|^2)`` is the product of what a map makes of x and z, nearly: random Fourier
features in expectation, Nystroem's on the span of the rows that they are made of. Both are
scikit-learn's; here they get an open file format, and are applied to a store block by block.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem, RBFSampler

from dtopk.archive import DAMAGE, read_array, read_header
from dtopk.atomic import FilePath, replace_when_complete
from dtopk_storage import FeatureStore
from dtopk_storage.paths import PathLike, as_path

Array = NDArray[Any]
Kind = Literal["fourier", "nystroem"]

KINDS: tuple[Kind, ...] = ("fourier", "nystroem")
_ARRAYS: dict[str, tuple[str, ...]] = {
    "fourier": ("random_weights_", "random_offset_"),
    "nystroem": ("components_", "normalization_"),
}
_SETTINGS = ("kind", "gamma", "n_components", "seed")


class FeatureMap:
    """A map that has been drawn or fitted, from features to more of them.

    Parameters
    ----------
    kind : {'fourier', 'nystroem'}
    gamma : float, > 0
        Of the kernel.
    n_components : int
        Features that it makes.
    seed : int
        That it was drawn with.
    arrays : mapping of str to ndarray
        What scikit-learn's estimator learnt, by the names of its attributes.
    """

    def __init__(
        self, *, kind: Kind, gamma: float, n_components: int, seed: int, arrays: dict[str, Array]
    ) -> None:
        self.kind = kind
        self.gamma = gamma
        self.n_components = n_components
        self.seed = seed
        self.arrays = {name: arrays[name] for name in _ARRAYS[kind]}
        self._estimator = _make_estimator(kind, gamma, n_components, seed)
        for name, values in self.arrays.items():
            setattr(self._estimator, name, values)
        self._estimator.n_features_in_ = self.n_features_in

    @property
    def n_features_in(self) -> int:
        """Features that it takes."""
        first = self.arrays[_ARRAYS[self.kind][0]]
        return int(first.shape[0] if self.kind == "fourier" else first.shape[1])

    @property
    def n_features_out(self) -> int:
        """Features that it makes."""
        return self.n_components

    @property
    def key(self) -> str:
        """Kind, gamma, size and a checksum of its numbers."""
        digest = hashlib.sha256()
        for values in self.arrays.values():
            digest.update(np.ascontiguousarray(values).tobytes())
        return (
            f"{self.kind} features of the RBF kernel, gamma {self.gamma!r}, "
            f"{self.n_components} components, seed {self.seed}, sha256 {digest.hexdigest()}"
        )

    def apply(self, X: Array) -> Array:
        """Lift rows.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features_in), any real dtype

        Returns
        -------
        ndarray of shape (n_rows, n_features_out), float32
        """
        wide = X.astype(np.float64)
        lifted: Array = self._estimator.transform(wide).astype(np.float32)
        return lifted

    def save(self, path: FilePath) -> None:
        """Write it to a .npz file with `map.json` in it, whole or not at all; nothing is pickled.

        Parameters
        ----------
        path : path of the file
        """
        header = {"format": "dtopk-map", "version": 1}
        header |= {name: getattr(self, name) for name in _SETTINGS}
        with replace_when_complete(path) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr("map.json", json.dumps(header))
            for name, values in self.arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)


def load_map(path: PathLike) -> FeatureMap:
    """Read a map.

    Parameters
    ----------
    path : path of a file that :meth:`FeatureMap.save` wrote

    Returns
    -------
    FeatureMap

    Raises
    ------
    ValueError
        If there is none, or the file is damaged, none of these or of a newer version.
    """
    path = as_path(path, name="map")
    if not path.is_file():
        raise ValueError(f"map {str(path)!r} does not exist.")
    try:
        file = path if isinstance(path, Path) else io.BytesIO(path.read_bytes())
        with zipfile.ZipFile(file) as archive:
            header = read_header(archive, "map.json")
            if header["format"] != "dtopk-map" or header["version"] != 1:
                raise ValueError(f"its map.json says {header['format']!r} {header['version']!r}")
            arrays = {}
            for name in _ARRAYS[header["kind"]]:
                arrays[name] = read_array(archive, f"{name}.npy")
            return FeatureMap(**{name: header[name] for name in _SETTINGS}, arrays=arrays)
    except DAMAGE as error:
        raise ValueError(
            f"{str(path)!r} must be a map of features, but is damaged or another kind of file: "
            f"{error}."
        ) from error


def scale_gamma(store: FeatureStore) -> float:
    """Return 1 / (n_features * variance of all features), scikit-learn's gamma='scale'.

    Parameters
    ----------
    store : FeatureStore
        Its statistics are those of the training rows.
    """
    variance = float(np.mean(store.std**2) + np.var(store.mean))
    return 1.0 / (store.n_features * variance) if variance > 0 else 1.0


def draw_map(
    store: FeatureStore, kind: Kind, *, n_components: int, gamma: float, seed: int
) -> FeatureMap:
    """Draw a map for the features of a store; Nystroem's is made of training rows.

    Parameters
    ----------
    store : FeatureStore
    kind : {'fourier', 'nystroem'}
    n_components : int, at least 1
        For 'nystroem' at most the number of training rows.
    gamma : float, > 0
    seed : int

    Returns
    -------
    FeatureMap

    Raises
    ------
    ValueError
        If there are fewer training rows than components.
    """
    sample = np.zeros((1, store.n_features))
    if kind == "nystroem":
        n_rows = store.split_size("train")
        if n_components > n_rows:
            raise ValueError(
                f"components must be at most the {n_rows} training rows of {store.path!r}, got "
                f"{n_components}."
            )
        sample = _draw_rows(store, n_components, seed)
    estimator = _make_estimator(kind, gamma, n_components, seed).fit(sample)
    arrays = {name: getattr(estimator, name) for name in _ARRAYS[kind]}
    return FeatureMap(kind=kind, gamma=gamma, n_components=n_components, seed=seed, arrays=arrays)


def _make_estimator(kind: Kind, gamma: float, n_components: int, seed: int) -> Any:
    if kind == "fourier":
        return RBFSampler(gamma=gamma, n_components=n_components, random_state=seed)
    return Nystroem(kernel="rbf", gamma=gamma, n_components=n_components, random_state=seed)


def _draw_rows(store: FeatureStore, n_rows: int, seed: int) -> Array:
    """Read some training rows, drawn without repeats, in their order."""
    ranges = store.split_ranges("train")
    rows = np.concatenate([np.arange(start, stop) for start, stop in ranges])
    chosen = np.sort(np.random.default_rng(seed).choice(rows, n_rows, replace=False))
    picked = []
    for start in np.unique(chosen // store.chunk_rows) * store.chunk_rows:
        stop = min(start + store.chunk_rows, store.n_samples)
        here = chosen[(chosen >= start) & (chosen < stop)]
        picked.append(store.read_features(int(start), int(stop))[here - start])
    return np.concatenate(picked).astype(np.float64)
