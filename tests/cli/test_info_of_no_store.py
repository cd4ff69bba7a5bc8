"""`dtopk info` of what is neither a store, nor a run, nor a model."""

import numpy as np


def test_info_of_a_file_of_features_says_how_to_make_a_store(call, tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones((4, 2)), y=[0, 1, 0, 1])
    result = call("info", tmp_path / "a.npz")
    assert result.status == 2
    assert result.err.endswith("make a store of it with `dtopk ingest`.\n")
    assert result.err.count("\n") == 1
