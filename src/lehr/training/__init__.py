"""The door to training: ``fit``.

- ``fit``: from a model, records and an ε to a run
- ``given_records``: whatever was handed over as data, as records that were looked at
- ``scored``: which records are scored on, what that costs, and which ones acceptance looks at
- ``public_plan``: sane numbers where none are given
- ``how``: settings that are neither the plan's nor the method's
- ``looks``: what the network sees of a record
- ``engines``: the gradient engine, its physical batch, and what to do where nothing can be compiled
- ``probing``: whether the program is still the one that began the run, bit for bit
- ``projecting``: a private PCA in front of a network, found once and charged
- ``trying``: what can be found out before anything is spent
- ``planned``: a run that is decided, begun or resumed, and trained
- ``ranked``: by which process it is trained: this one alone, the first of several, or one that follows
- ``sharding``: what can be trained where each process holds a share of the weights, and how the others take part
- ``earlier_fits``: fits of this process on the same records, after which settings are no longer fixed
- ``paying``: the budget of a data set as a run uses it
- ``describing``: config.json
- ``ending``: weights, certificate and report of a run that is over
"""
