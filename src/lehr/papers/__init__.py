"""The tables and figures of four papers, run again: ``lehr reproduce``.

One file for each paper (``sa_dpsgd``, ``tempered_sigmoids``, ``adadp``, ``tan``), and in it one function for each table
and figure, which gives an ``Experiment``: the jobs to run, and what is made of their outcomes.

    Experiment ─► jobs ─► running ─► store (one small JSON file a job) ─► outcomes ─► table or figure
"""
