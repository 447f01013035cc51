"""Examples, each to be run as it stands. A package, so that one may use what another has."""
