"""What is compiled before training begins: all that training calls."""

import subprocess
import sys

import pytest

# In a process of its own: kernels that other tests have called would be there already.
SCRIPT = """
import sys

import numba
import numpy as np

from dtopk.engine import FitOptions, benchmark, fit
from dtopk.engine.member import Member
from dtopk.engine.rows import ArrayRows
from dtopk.estimators import kernel_run
from dtopk.estimators.gram import Gram
from dtopk.losses import make_loss

N, M = 300, 5
rng = np.random.default_rng(0)
X = rng.standard_normal((N, 4)).astype(np.float32)
y = np.argmax(X @ rng.standard_normal((4, M)), axis=1).astype(np.int32)
loss = make_loss("topk_hinge_alpha", k=2)


def list_kernels():
    return {
        (name, member.__name__, signature)
        for name, module in list(sys.modules.items())
        if name.startswith("dtopk.")
        for member in vars(module).values()
        if isinstance(member, numba.core.dispatcher.Dispatcher)
        for signature in member.signatures
    }


def watch(owner, name):
    compile = getattr(owner, name)

    def watched(*arguments):
        compile(*arguments)
        known.update(list_kernels())

    setattr(owner, name, watched)


known = set()
# Blocks of more than one group of rows, and a last one that is shorter.
options = dict(max_epochs=8, block_size=200)
run = sys.argv[1]
if run == "fit":
    watch(Member, "compile")
    fit(ArrayRows(X, y, M), loss, FitOptions(**options))
elif run == "kernel":
    watch(kernel_run, "_compile")
    rows = kernel_run.KernelRows(
        gram=Gram("rbf", X, 0.1), labels=y, costs=np.ones(N), n_classes=M
    )
    kernel_run.fit_kernel(rows, loss, FitOptions(**options))
else:
    watch(benchmark, "_warm_up")
    benchmark.measure_pass(loss, X, y, M, block_size=200, passes=3)
assert known
print(sorted(map(str, list_kernels() - known)))
"""


@pytest.mark.parametrize("run", ["fit", "kernel", "benchmark"])
def test_training_calls_no_kernel_that_was_not_compiled_before(run):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, run], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
