"""Say by the exit status whether a submitted run has committed since it was started last.

The script of a batch job asks, where commits are no files that it could look at:

    python -m dtopk.cli.committed SUBMISSION_FOLDER
"""

import sys
from pathlib import Path

from dtopk.cli.output import report_error
from dtopk.cli.submitted_progress import read_progress
from dtopk.launch.submit import SubmissionFolder


def has_committed(folder: SubmissionFolder) -> bool:
    """Tell whether there was a commit since the last start; one that cannot be seen does not count.

    Parameters
    ----------
    folder : SubmissionFolder

    Raises
    ------
    ValueError
        If a file of the submission or the run is not as it was written.
    """
    attempts = folder.read_attempts()
    committed = read_progress(folder).committed
    return bool(attempts) and committed is not None and committed >= attempts[-1].began


def main(path: str) -> int:
    """Run as a program of the script; 0: there was a commit."""
    try:
        return 0 if has_committed(SubmissionFolder(run=Path(path).parent)) else 1
    except (OSError, ValueError) as error:
        report_error(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
