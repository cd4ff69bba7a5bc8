"""A process that compiles the kernels computes the same bits as one that loads them."""

import os
import subprocess
import sys

import pytest

UPDATE = """
import hashlib, sys
import numpy as np
from dtopk.losses import make_loss

rng = np.random.default_rng(0)
n, m = 24, 37
loss = make_loss(sys.argv[1])
X = rng.normal(size=(n, 9)).astype(np.float32)
scores, gram = rng.normal(size=(n, m)).astype(np.float32), X @ X.T
dual, delta = np.zeros((2, n, m), np.float32)
labels, costs = rng.integers(0, m, n).astype(np.int32), np.full(n, 3, np.float32)
for _ in range(4):
    loss.update_rows(scores, gram, dual, delta, labels, costs, 0, n)
print(hashlib.sha256(scores.tobytes() + dual.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["softmax", "topk_hinge_beta"])
def test_compiled_and_loaded_kernels_give_the_same_bits(loss, tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", UPDATE, loss]
    compiled, loaded = (
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    )
    assert any(tmp_path.rglob("*.nbc"))
    assert compiled == loaded


@pytest.mark.slow
def test_kernels_that_were_compiled_of_other_sources_are_not_loaded(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", UPDATE, "sparsemax"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbi")}
    (stamp,) = tmp_path.rglob("dtopk-kernels.sha256")
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbi")}
    stamp.write_text("of other sources")
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbi")}
    assert after.keys() == before.keys()
    assert all(after[path] > before[path] for path in before)
