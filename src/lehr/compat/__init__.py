"""Doors for training code that is there already: an import that changes, a callback, an estimator.

``classifier`` is an estimator in the manner of scikit-learn, ``lightning`` a callback, ``hugging_face`` a trainer. What
they share is ``hooked_steps``: the private half of a loop that somebody else has written.
"""
