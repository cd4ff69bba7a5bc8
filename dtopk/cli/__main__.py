"""Make `python -m dtopk.cli` the command line, for scripts that name their interpreter."""

from dtopk.cli import main

if __name__ == "__main__":
    main()
