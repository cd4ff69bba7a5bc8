"""Solvers: mathematics on blocks of rows, which knows no file, no thread and no cluster."""
