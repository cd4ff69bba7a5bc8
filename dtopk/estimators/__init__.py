"""Estimators with scikit-learn's conventions, over the same engine as training jobs."""

from dtopk.estimators.classifier import TopKClassifier
from dtopk.estimators.cross_validation import TopKClassifierCV
from dtopk.estimators.kernel import KernelTopKClassifier
from dtopk.estimators.multilabel import MultilabelClassifier

__all__ = ["KernelTopKClassifier", "MultilabelClassifier", "TopKClassifier", "TopKClassifierCV"]
