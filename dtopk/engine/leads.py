"""What leads a run of each solver, and what does its work in each process."""

from dtopk.engine.descent_run import DescentRun
from dtopk.engine.frank_wolfe_run import FrankWolfeRun
from dtopk.engine.masked_member import MaskedMember
from dtopk.engine.masked_run import MaskedRun
from dtopk.engine.member import Member
from dtopk.engine.pass_member import PassMember
from dtopk.engine.run import Run
from dtopk.engine.sdca_run import SdcaRun
from dtopk.losses import Loss

_RUNS: dict[str, type[Run]] = {
    "sdca": SdcaRun,
    "block_frank_wolfe": SdcaRun,
    "frank_wolfe": FrankWolfeRun,
    "frank_wolfe_fixed": FrankWolfeRun,
    "pegasos": FrankWolfeRun,
    "lbfgs": DescentRun,
    "gradient_descent": DescentRun,
}


def run_class(solver: str, loss: Loss) -> type[Run]:
    """Return what leads a run of a solver.

    Parameters
    ----------
    solver : str
    loss : Loss
    """
    found = _RUNS[solver]
    return MaskedRun if found is SdcaRun and loss.n_masked else found


def member_class(solver: str, loss: Loss) -> type[Member]:
    """Return what does the work of a solver in each process.

    Parameters
    ----------
    solver : str
    loss : Loss
    """
    if _RUNS[solver] is not SdcaRun:
        return PassMember
    return MaskedMember if loss.n_masked else Member
