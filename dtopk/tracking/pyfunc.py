"""A model as MLflow keeps, loads and serves it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtopk.model import Model, load_model
from dtopk.tracking.client import (
    ColSpec,
    MlflowException,
    MlflowModel,
    ModelSignature,
    ParamSchema,
    ParamSpec,
    Schema,
    TensorSpec,
    mlflow,
)

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from numpy.typing import NDArray


def save_pyfunc(path: Path, target: Path, *, mlflow_model: MlflowModel | None = None) -> None:
    """Write a model file as an MLflow model folder; `dtopk.tracking._load_pyfunc` loads it.

    Loading it takes dtopk, which is not among the requirements that the folder lists: it is on no
    package index, where its name may be another's.

    Parameters
    ----------
    path : path of the model file
    target : path of the new folder
    mlflow_model : mlflow.models.Model, optional
        Carries the ids of the run and model.
    """
    model = load_model(path)
    mlflow.pyfunc.save_model(
        str(target),
        loader_module="dtopk.tracking",
        data_path=str(path),
        signature=_make_signature(model),
        input_example=(np.zeros((1, model.n_features), dtype=model.W.dtype), {"k": 1}),
        pip_requirements=[f"numpy=={np.__version__}"],
        mlflow_model=mlflow_model,
    )


class PyfuncTopK:
    """What `mlflow.pyfunc.load_model` wraps: a data frame of the k best classes of every row."""

    def __init__(self, model: Model):
        self._model = model

    def predict(
        self, model_input: "NDArray[Any] | pd.DataFrame", params: Mapping[str, Any] | None = None
    ) -> "pd.DataFrame":
        """Name the best classes.

        Parameters
        ----------
        model_input : array or data frame of shape (n_samples, n_features)
        params : mapping, optional
            'k': number of classes to name, 1 by default.

        Returns
        -------
        pandas.DataFrame
            Columns label_1, score_1, label_2, ..., best first.

        Raises
        ------
        mlflow.exceptions.MlflowException
            If k is not between 1 and n_classes. A server answers a ValueError with its traceback.
        """
        import pandas as pd

        k = int((params or {}).get("k", 1))
        n_classes = len(self._model.classes)
        if not 1 <= k <= n_classes:
            raise MlflowException.invalid_parameter_value(
                f"k must be between 1 and n_classes = {n_classes}, got {k}."
            )
        labels, scores = self._model.predict_topk(np.asarray(model_input), k)
        columns = {}
        for place in range(k):
            columns[f"label_{place + 1}"] = labels[:, place]
            columns[f"score_{place + 1}"] = scores[:, place]
        return pd.DataFrame(columns)


def _load_pyfunc(data_path: str) -> PyfuncTopK:
    """Load what `save_pyfunc` wrote; MLflow calls it by this name."""
    return PyfuncTopK(load_model(data_path))


def _make_signature(model: Model) -> ModelSignature:
    label_type = "long" if model.classes.dtype.kind in "iu" else "string"
    score_type = "double" if model.W.dtype == np.float64 else "float"
    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(model.W.dtype), (-1, model.n_features))]),
        outputs=Schema([ColSpec(label_type, "label_1"), ColSpec(score_type, "score_1")]),
        params=ParamSchema([ParamSpec("k", "long", 1)]),
    )
