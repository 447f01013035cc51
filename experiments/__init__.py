"""Tables and figures of four papers, run again: ``python -m experiments``. In the repository, not in the wheel.

- papers: ``sa_dpsgd`` (with ``sa_dpsgd_runs``, ``sa_dpsgd_acceptance``), ``tempered_sigmoids`` (``_runs``), ``adadp``
  (``_runs``, ``adadp_accuracy``), ``tan`` (``tan_runs``, ``tan_figures``); ``side_by_side`` compares the methods of all
- measurements: ``toy_problems``, ``gradient_norms``; ``networks`` has the papers' own networks
- machinery: ``experiment`` (jobs, tables), ``settings`` (presets and their ε), ``training``, ``running``, ``store``,
  ``page``
- ``presets``: the papers' settings; ``results``: kept outcomes

An experiment is a function that draws a report from outcomes. The outcomes that it looks up are its jobs:

    Experiment → jobs → running → store (one JSON file per job) → outcomes → tables and charts
"""
