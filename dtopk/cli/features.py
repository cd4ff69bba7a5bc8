"""`dtopk features`: a store whose features are lifted, for a classifier with an RBF kernel."""

import click

from dtopk.cli.output import answer_json, json_option, tell, tell_written
from dtopk.cli.progress import RowProgress
from dtopk_storage import DatasetError, open_store
from dtopk_storage.ingest import IngestOptions, IngestProgress, ingest
from dtopk_storage.paths import as_path


@click.command()
@click.argument("store_path", metavar="STORE")
@click.argument("target_path", metavar="NEW_STORE")
@click.option(
    "--map", "kind", type=click.Choice(["fourier", "nystroem"]), default="fourier",
    show_default=True, help="Random Fourier features, or Nystroem's of training rows.",
)  # fmt: skip
@click.option(
    "--components", type=click.IntRange(min=1), default=2048, show_default=True,
    help="Features of the new store.",
)  # fmt: skip
@click.option(
    "--gamma", default="scale", show_default=True,
    help="Of the kernel exp(-gamma |x - z|^2); 'scale': 1 / (features * their variance).",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--like", metavar="MAP.npz", help="A map that was written before, instead of drawing one."
)
@click.option("--dtype", type=click.Choice(["float16", "float32", "float64"]), default="float32",
    show_default=True, help="Of the new features at rest.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace a store that is there.")
@json_option
def features(
    store_path: str,
    target_path: str,
    kind: str,
    components: int,
    gamma: str,
    seed: int,
    like: str | None,
    dtype: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make a store of lifted features, so that a linear model of them is one with an RBF kernel.

    Rows, labels, weights and splits are those of STORE. The map is written beside NEW_STORE, as
    NEW_STORE.map.npz: `--like` it lifts the rows of another store in the same way, which a model
    that was trained on NEW_STORE needs for those. Broken off, the same command goes on. All of them
    may be in an object store.
    """
    # Imported here: scikit-learn takes most of a second.
    from dtopk.lifting import draw_map, load_map, scale_gamma

    store = open_store(store_path)
    if like is None:
        width = scale_gamma(store) if gamma == "scale" else _read_gamma(gamma)
        mapping = draw_map(store, kind, n_components=components, gamma=width, seed=seed)  # type: ignore[arg-type]
    else:
        mapping = load_map(like)
    options = IngestOptions(transform=mapping, dtype=dtype, overwrite=overwrite)
    try:
        with RowProgress("lifting features") as rows:

            def show(progress: IngestProgress) -> None:
                if progress.stage == "features" and progress.n_samples is not None:
                    rows(progress.rows, progress.n_samples)

            made = ingest(store_path, target_path, options, show)
    except DatasetError as error:
        raise DatasetError(error.describe({"overwrite": "--overwrite"})) from error.__cause__
    map_path = as_path(f"{target_path.rstrip('/')}.map.npz", name="map")
    mapping.save(map_path)
    tell(f"{made.n_samples:,} rows of {made.n_features:,} features ({made.dtype})")
    tell_written(target_path)
    tell_written(map_path)
    if as_json:
        answer_json(
            {
                "store": target_path,
                "map": str(map_path),
                "kind": mapping.kind,
                "gamma": mapping.gamma,
                "n_samples": made.n_samples,
                "n_features": made.n_features,
            }
        )


def _read_gamma(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise click.UsageError(f"--gamma must be 'scale' or a number above 0, got {text!r}.")
    return value
