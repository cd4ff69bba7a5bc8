"""dtopk beside what a user would take instead: the same problems, and the time to solve them.

A problem is a :class:`~dtopk.benchmarks.problems.Shape` of data and an
:class:`~dtopk.benchmarks.problems.Objective`. Every solver of the objective has an adapter in
:mod:`dtopk.benchmarks.peers`, is run by :mod:`dtopk.benchmarks.measure` in a process of its own,
and judged by the objective at the weights that it returns. :mod:`dtopk.benchmarks.suite` goes
through all of them, and :mod:`dtopk.benchmarks.report` shows what came of it.
"""
