"""A search for good settings, by Optuna: free on public records, and paid for on private ones.

- ``space``: what is varied, and how chosen settings are put into a configuration
- ``request``: a file that asks for a search, and what is checked before the first trial
- ``study``: the trials in a database; one process works on each, a crash loses none; the winner as a configuration
- ``paid``: searches on private records: repeated selection and composition
- ``scaling``: simulations by smaller batches, from which a larger run is predicted
"""
