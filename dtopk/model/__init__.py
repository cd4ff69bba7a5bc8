"""A trained linear model: what it predicts, and the one file it lies in.

Reading it takes numpy and the standard library, so that a model can be used where the rest of dtopk
is not wanted.
"""

from dtopk.model.file import MODEL_VERSION
from dtopk.model.linear import Model
from dtopk.model.loading import find_model_file, load_model
from dtopk.model.top_k import select_topk

__all__ = ["MODEL_VERSION", "Model", "find_model_file", "load_model", "select_topk"]
