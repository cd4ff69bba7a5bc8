"""Estimators with scikit-learn's conventions, over the same engine as training jobs."""

from dtopk.estimators.classifier import TopKClassifier

__all__ = ["TopKClassifier"]
